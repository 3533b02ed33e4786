"""Reading a script of model turns: YAML (or JSON) from an allowed folder. Errors name file and line, never content."""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from kernel_project.primitives.errors import Invalid, NotFound
from runs.boundary.models.contracts import TIMEOUT_SECONDS_MAX, ErrorCode, FinishReason, Usage

FOLDERS_VARIABLE = "KERNEL_SCRIPTS"  # folders, separated as in PATH, searched before the project itself
PROJECT = Path(__file__).resolve().parents[3]
CLOSED_FOLDERS = frozenset({"var"})  # inside the project: data and secrets; hidden folders are closed as well
SUFFIXES = frozenset({".yaml", ".yml", ".json"})
SCRIPT_BYTES_MAX = 256 * 1024  # a script is written by hand
REPEAT_MAX = 100_000  # turns that one entry may stand for
CACHED_SCRIPTS_MAX = 64


class Strict(BaseModel):
    """A part of a script: a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ScriptedCall(Strict):
    """One tool call; `arguments` is an object, or a string that is handed over exactly as it stands."""

    tool: str
    arguments: dict[str, JsonValue] | str = Field(default_factory=dict)
    id: str | None = None


class ScriptedError(Strict):
    """A failure of the model; with `attempts`, only the first so many tries of the turn fail."""

    code: ErrorCode
    message: str = "the script says so"
    retry_after: float | None = Field(default=None, ge=0)
    attempts: int | None = Field(default=None, ge=1)


class ScriptedTurn(Strict):
    """One answer. `when` picks between alternatives; `expect` must occur in the newest message, or the call fails."""

    when: str | None = None
    expect: str | None = None
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage = Usage()
    error: ScriptedError | None = None
    delay_seconds: float = Field(default=0, ge=0, le=TIMEOUT_SECONDS_MAX)


class Entry(Strict):
    """A turn, or alternatives of which the first that fits is taken, `repeat` times over."""

    any_of: tuple[ScriptedTurn, ...] = Field(min_length=1)
    repeat: int = Field(default=1, ge=1, le=REPEAT_MAX)

    @model_validator(mode="before")
    @classmethod
    def wrap_a_single_turn(cls, value: Any) -> Any:
        if isinstance(value, dict) and "any_of" not in value:
            return {"any_of": [{key: value[key] for key in value if key != "repeat"}], "repeat": value.get("repeat", 1)}
        return value


class Script(Strict):
    """All turns of a file, in order."""

    turns: tuple[Entry, ...] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def wrap_a_bare_list(cls, value: Any) -> Any:
        return {"turns": value} if isinstance(value, list) else value

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """For each entry, the number of the first turn that is no longer its own."""
        return tuple(accumulate(entry.repeat for entry in self.turns))


class _Version(NamedTuple):
    modified_ns: int
    size: int


_cache: OrderedDict[Path, tuple[_Version, Script]] = OrderedDict()


def cached(name: str) -> Script | None:
    """The script if it has been read and the file has not changed since; costs two look-ups on the disk."""
    path = find(name)
    version, script = _cache.get(path, (None, None))
    return script if version == _version(path) else None


def load(name: str) -> Script:
    """Read the script of this name, and keep it. Raises NotFound or Invalid."""
    path = find(name)
    version = _version(path)
    if version.size > SCRIPT_BYTES_MAX:
        raise Invalid(f"{name}: a script may have {SCRIPT_BYTES_MAX} bytes", code="bad_script")
    script = parse(path.read_bytes(), name)
    _cache[path] = (version, script)
    while len(_cache) > CACHED_SCRIPTS_MAX:
        _cache.popitem(last=False)
    return script


def find(name: str) -> Path:
    """The file, in a folder where scripts may be. Links are followed before it is judged. Raises NotFound.

    A file outside is not told apart from one that does not exist: an agent must not learn what is on the disk.
    """
    for folder, is_project in _folders():
        try:
            path = (folder / name).resolve()
            if _may_be_read(path, folder, is_project) and path.is_file():
                return path
        except (OSError, ValueError):  # a name that no file can have
            continue
    raise NotFound(
        f"there is no script {name[:100]!r} in the project or in a folder of {FOLDERS_VARIABLE}", code="no_script"
    )


def _may_be_read(path: Path, folder: Path, is_project: bool) -> bool:
    if path.suffix not in SUFFIXES or not path.is_relative_to(folder):
        return False
    inside = path.relative_to(folder).parts
    closed = inside[0] in CLOSED_FOLDERS or any(part.startswith(".") for part in inside)
    return not (is_project and closed)


def parse(data: bytes, name: str) -> Script:
    """Read a script. Raises Invalid with `file:line` and what is wrong there."""
    root = None
    try:
        loader = _Loader(data)
        root = loader.get_single_node()
        value = loader.construct_document(root) if root is not None else None
        return Script.model_validate(value)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise Invalid(f"{name}:{line}: {error.problem}", code="bad_script") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        line, where = _locate(root, first["loc"])
        raise Invalid(f"{name}:{line}: {where}: {first['msg']}", code="bad_script") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        raise Invalid(f"{name}:1: this is neither YAML nor JSON in UTF-8", code="bad_script") from None


class _Loader(yaml.SafeLoader):
    """Plain data only: no aliases, which can grow a small file without bound, and no key twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                raise yaml.MarkedYAMLError(problem="a key occurs twice or is no text", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def _folders() -> list[tuple[Path, bool]]:
    named = [Path(folder).resolve() for folder in os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep) if folder]
    return [*((folder, False) for folder in named), (PROJECT, True)]


# Only what JSON has: a date stays text, and sets, bytes and objects are refused.
_KINDS = {None, *(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map"))}
_Loader.yaml_constructors = {kind: make for kind, make in yaml.SafeLoader.yaml_constructors.items() if kind in _KINDS}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _version(path: Path) -> _Version:
    found = path.stat()
    return _Version(found.st_mtime_ns, found.st_size)


def _locate(node: yaml.Node | None, path: tuple[int | str, ...]) -> tuple[int, str]:
    """The line of the innermost part that stands in the file, and the way there as the author wrote it."""
    way: list[str] = []
    for number, part in enumerate(path):
        inner = _member(node, part)
        if inner is not None:
            node = inner
        if inner is not None or (number == len(path) - 1 and isinstance(part, str)):  # the last may be missing
            way.append(str(part))
    return node.start_mark.line + 1 if node is not None else 1, ".".join(way) or "script"


def _member(node: yaml.Node | None, part: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        found: yaml.Node = node.value[part]
        return found
    return None
