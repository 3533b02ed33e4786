"""How an HTTP tool is declared: its request with placeholders, its look-up, and the private hosts that it may reach.

Holds references to secrets, never the secrets. Whoever may write a declaration decides where a call goes; the model
decides only what the placeholders stand for, and they stand in path, query and body alone, each quoted for its place.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from runs.boundary.contracts import NotSent
from runs.boundary.lookups import Found, LookUp
from runs.boundary.mcp_config import FromEnv, FromFile, Value, ValueMissing, resolve
from runs.boundary.placeholders import PLACEHOLDER, Values, as_text, filled, names_in, substituted

RESPONSE_BYTES_MAX = 1024 * 1024  # where the declaration names no limit
RESPONSE_BYTES_LIMIT = 16 * 1024 * 1024  # what a declaration may ask for
REDIRECTS_LIMIT = 5
URL_CHARACTERS_MAX = 8_000  # of a filled address; many servers end there
KEY_HEADER = "Idempotency-Key"

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+")
_URL = re.compile(r"[\x21-\x7e]+")
_SECRET = re.compile(
    r"auth|cookie|token|secret|password|passwd|credential|signature|api[-_]?key|access[-_]?key", re.IGNORECASE
)
OURS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "accept-encoding", "expect", "te", "trailer",
     "upgrade", "keep-alive", "proxy-connection"}
)  # fmt: skip
DOTS = frozenset({".", ".."})  # a piece of a path that leads elsewhere; some servers decode %2F before they look

Status = Annotated[int, Field(ge=400, le=599)]


class _Declared(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @staticmethod
    def _refuse_unless(holds: bool, sentence: str) -> None:
        if not holds:
            raise ValueError(sentence)

    def _check_url(self, url: str) -> None:
        self._refuse_unless(bool(_URL.fullmatch(url)), "`url` must be printable ASCII without spaces")
        host = url.partition("://")[2].partition("/")[0].partition("?")[0]
        self._refuse_unless("{" not in host, "placeholders may stand in path and query only, not in the host")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname or "", parts.port
        except ValueError as error:
            raise ValueError(f"`url` is not a URL: {error}") from error
        self._refuse_unless(parts.scheme in ("http", "https"), "`url` must begin with http:// or https://")
        self._refuse_unless("@" not in parts.netloc, "`url` must hold no user or password; use `headers`")
        self._refuse_unless(bool(_HOST.fullmatch(host)), "`url` must name a host, in ASCII")
        self._refuse_unless(not parts.fragment, "`url` must have no fragment")

    def _check_query(self, query: dict[str, Any]) -> None:
        for name, value in query.items():
            self._refuse_unless(not _SECRET.search(name), f"{name!r} looks like a secret: send it as a header")
            self._refuse_unless(not isinstance(value, dict | list), f"the query parameter {name!r} must be one value")

    def _check_headers(self, headers: dict[str, Value]) -> None:
        for name, value in headers.items():
            self._refuse_unless(bool(_TOKEN.fullmatch(name)), f"{name!r} is no name of an HTTP header")
            self._refuse_unless(name.lower() not in OURS, f"the header {name!r} is written by the kernel itself")
            if isinstance(value, FromEnv | FromFile):
                continue
            self._refuse_unless(
                not _SECRET.search(name),
                f"the header {name!r} looks like a secret: keep it in the environment and write {{from_env: NAME}}",
            )
            self._refuse_unless(bool(_HEADER_VALUE.fullmatch(value)), f"the header {name!r} must be printable ASCII")


class HttpRequest(_Declared):
    """The request that one call becomes. See docs/http.md."""

    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    url: Annotated[str, Field(min_length=1, max_length=2_000)]
    query: dict[str, Any] = {}
    headers: dict[str, Value] = {}
    body: Any = None
    body_type: Literal["json", "form", "text"] = "json"
    key_header: str = KEY_HEADER
    private_hosts: tuple[str, ...] = ()
    redirects_max: Annotated[int, Field(ge=0, le=REDIRECTS_LIMIT)] = 0
    refused_statuses: tuple[Status, ...] = ()
    response_bytes_max: Annotated[int, Field(ge=1, le=RESPONSE_BYTES_LIMIT)] = RESPONSE_BYTES_MAX
    tls_ca_file: str = ""

    @model_validator(mode="after")
    def _can_be_sent(self) -> Self:
        self._check_url(self.url)
        self._check_query(self.query)
        self._check_headers(self.headers)
        self._refuse_unless(
            not self.key_header or bool(_TOKEN.fullmatch(self.key_header)), "`key_header` is no name of an HTTP header"
        )
        self._refuse_unless(
            self.key_header.lower() not in OURS, "`key_header` is a header that the kernel writes itself"
        )
        given = {name.lower() for name in self.headers}
        self._refuse_unless(self.key_header.lower() not in given, "`key_header` is filled in by the kernel")
        self._check_body()
        for host in self.private_hosts:
            self._refuse_unless(bool(host) and host == host.strip() and "*" not in host, f"{host!r} is no host's name")
        results = [name for name in names_in([self.url, self.query, self.body]) if name.startswith("{result:")]
        self._refuse_unless(not results, "{result:…} may stand in a compensation only")
        return self

    def _check_body(self) -> None:
        if self.body is None:
            return
        self._refuse_unless(self.method not in ("GET", "HEAD"), f"{self.method} takes no body")
        if self.body_type == "text":
            self._refuse_unless(isinstance(self.body, str), "a body of the type text must be a text")
        if self.body_type == "form":
            flat = isinstance(self.body, dict) and not any(isinstance(v, dict | list) for v in self.body.values())
            self._refuse_unless(flat, "a body of the type form must be fields with one value each")


class HttpProbe(_Declared):
    """A look-up by GET, with the headers of the request itself unless it names its own."""

    url: Annotated[str, Field(min_length=1, max_length=2_000)]
    query: dict[str, Any] = {}
    headers: dict[str, Value] | None = None
    found_when: Found | None = None  # without it, any 2xx answer is the effect
    many_when_count_over: Annotated[int, Field(ge=1)] = 1
    covers: Any = None
    absent_statuses: tuple[Status, ...] = ()

    @model_validator(mode="after")
    def _can_be_sent(self) -> Self:
        self._check_url(self.url)
        self._check_query(self.query)
        self._check_headers(self.headers or {})
        self.look_up()
        self._refuse_unless(
            self.found_when is not None or bool(self.absent_statuses),
            "say `found_when`, or which `absent_statuses` mean that the effect is not there",
        )
        return self

    def look_up(self) -> LookUp | None:
        """How the effect is counted in the answer's text."""
        if self.found_when is None:
            return None
        return LookUp.model_validate(
            {"found_when": self.found_when, "many_when_count_over": self.many_when_count_over, "covers": self.covers}
        )


def address(url: str, query: dict[str, Any], values: Values) -> str:
    """The filled address: what placeholders stand for is quoted, and can name no other host, path or parameter.

    Raises NotSent for a value that is missing, would leave a path segment empty or make it a dot segment, or makes the
    address too long.
    """
    parts = urlsplit(url)
    path = "/".join(_segment(segment, values) for segment in parts.path.split("/"))
    given = {name: as_text(value) for name, value in filled(query, values).items() if value is not None}
    pieces = [substituted(parts.query, values, _quoted), urlencode(given, quote_via=quote, safe="")]
    whole = urlunsplit((parts.scheme, parts.netloc, path or "/", "&".join(piece for piece in pieces if piece), ""))
    if len(whole) > URL_CHARACTERS_MAX:
        raise NotSent(f"the address has {len(whole)} characters; at most {URL_CHARACTERS_MAX} are sent")
    return whole


def _segment(segment: str, values: Values) -> str:
    if not PLACEHOLDER.search(segment):
        return segment
    plain = substituted(segment, values)
    if not plain or DOTS.intersection(re.split(r"[/\\]", plain)):
        raise NotSent(f"{plain!r} cannot stand in the address in the place of {segment!r}")
    return substituted(segment, values, _quoted)


def _quoted(text: str) -> str:
    try:
        return quote(text, safe="")
    except UnicodeEncodeError:
        raise NotSent("an argument in the address is no valid Unicode text") from None


def header_values(headers: dict[str, Value]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The headers with their values, and those of the values that are secrets. Raises NotSent, naming the place."""
    found: dict[str, str] = {}
    secrets: list[str] = []
    for name, value in headers.items():
        try:
            found[name] = resolve(value)
        except ValueMissing as missing:
            raise NotSent(f"the header {name} has no value: {missing}") from None
        if not _HEADER_VALUE.fullmatch(found[name]):
            raise NotSent(f"the value of the header {name} holds letters that a header cannot")
        if not isinstance(value, str):
            secrets.append(found[name])
    return found, tuple(secrets)
