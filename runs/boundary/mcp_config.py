"""How an MCP server is declared: its process or its address, its limits, and where its secrets are kept.

Holds references to secrets, never the secrets; they are read at use and live only in the request or process that needs
them. Whoever may write a declaration may start programs as the worker's user: it is an operator's right.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

WORKSPACE = "{workspace}"
SECRET_BYTES_MAX = 64 * 1024  # a key or a token; anything larger is the wrong file
START_SECONDS_MAX = 600
CALL_SECONDS_MAX = 24 * 3600
REDACTED_CHARACTERS_MIN = 6  # shorter values would be found by chance inside ordinary words

# What a server process gets of the worker's environment. Everything else, also what is invented later, stays outside.
INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
DEFAULTS = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent"}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")


class ValueMissing(Exception):
    """A declared value cannot be read: the variable is not set, the file is not there. Names it, never shows it."""


class FromEnv(BaseModel):
    """A value kept in the worker's environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    from_env: Annotated[str, Field(pattern="^" + _NAME.pattern.removesuffix(r"\Z") + "$")]


class FromFile(BaseModel):
    """A value kept in a file that the worker can read; a newline at its end does not count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    from_file: Annotated[str, Field(min_length=1)]


Value = str | FromEnv | FromFile
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class McpServerConfig(BaseModel):
    """One MCP server. `{workspace}` in `args`, `working_directory` and plain environment values is the run's folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200)]
    transport: Literal["stdio", "http"]
    command: str = ""
    args: tuple[str, ...] = ()
    environment: dict[str, Value] = {}
    url: str = ""
    headers: dict[str, Value] = {}
    start_timeout_seconds: Annotated[Seconds, Field(le=START_SECONDS_MAX)] = 30
    call_timeout_seconds: Annotated[Seconds, Field(le=CALL_SECONDS_MAX)] = 60
    working_directory: str = ""
    handshake: Literal["auto", "initialize"] = "auto"  # "initialize" for old servers that end when asked to discover

    @model_validator(mode="after")
    def _fits_its_transport(self) -> Self:
        if self.transport == "stdio":
            self._refuse_unless(bool(self.command), "a stdio server needs `command`")
            self._refuse_unless(not self.url and not self.headers, "`url` and `headers` belong to transport http")
        else:
            self._check_url()
            self._refuse_unless(not self.command and not self.args, "`command` and `args` belong to transport stdio")
        for name in self.environment:
            self._refuse_unless(bool(_NAME.match(name)), f"{name!r} is no name of an environment variable")
        for name in self.headers:
            self._refuse_unless(bool(_HEADER.match(name)), f"{name!r} is no name of an HTTP header")
        texts = (self.command, *self.args, self.working_directory)
        self._refuse_unless(not any("\0" in text for text in texts), "NUL bytes cannot be part of a command")
        return self

    def _check_url(self) -> None:
        try:
            parts = urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"`url` is not a URL: {error}") from error
        self._refuse_unless(parts.scheme in ("http", "https") and bool(host), "`url` must be an http(s) URL")
        self._refuse_unless(parts.username is None, "`url` must hold no user or password; use `headers`")

    @staticmethod
    def _refuse_unless(holds: bool, sentence: str) -> None:
        if not holds:
            raise ValueError(sentence)

    @property
    def uses_workspace(self) -> bool:
        plain = [value for value in self.environment.values() if isinstance(value, str)]
        return any(WORKSPACE in text for text in (*self.args, self.working_directory, *plain))


def stored_config(data: Mapping[str, Any]) -> McpServerConfig:
    """Read a declaration out of a row: a newer version may have written fields that this one does not know."""
    return McpServerConfig.model_validate(dict(data), extra="ignore")


def resolve(value: Value, workspace: str = "") -> str:
    """The value itself. Raises ValueMissing with a sentence that names the place and shows nothing of it."""
    match value:
        case FromEnv(from_env=name):
            if name not in os.environ:
                raise ValueMissing(f"the environment variable {name} is not set")
            found = os.environ[name]
        case FromFile(from_file=path):
            found = _read_secret(path)
        case _:
            found = value.replace(WORKSPACE, workspace)
    if "\0" in found or "\n" in found or "\r" in found:
        raise ValueMissing(f"the value of {_place(value)} holds a line break or a NUL byte")
    return found


def secrets_of(config: McpServerConfig) -> list[str]:
    """The values that must not appear in any text that is kept; those that cannot be read are left out."""
    found: list[str] = []
    for value in (*config.environment.values(), *config.headers.values()):
        if isinstance(value, str):
            continue
        try:
            found.append(resolve(value))
        except ValueMissing:
            continue
    whole = {part for text in found for part in (text, text.removeprefix("Bearer "))}
    return sorted((text for text in whole if len(text) >= REDACTED_CHARACTERS_MIN), key=len, reverse=True)


def process_environment(config: McpServerConfig, workspace: str) -> dict[str, str]:
    """All that a server process gets: a short allow-list, then what the declaration says."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**DEFAULTS, **inherited, **{name: resolve(value, workspace) for name, value in config.environment.items()}}


def _read_secret(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise ValueMissing(f"the file {path} cannot be read: {error.strerror}") from error
    if len(data) > SECRET_BYTES_MAX:
        raise ValueMissing(f"the file {path} has more than {SECRET_BYTES_MAX} bytes")
    try:
        return data.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueMissing(f"the file {path} is not UTF-8 text") from error


def _place(value: Value) -> str:
    match value:
        case FromEnv(from_env=name):
            return f"the environment variable {name}"
        case FromFile(from_file=path):
            return f"the file {path}"
    return "the declaration"
