"""One HTTP exchange: connects to a checked address only, sends the request once, reads a bounded answer.

Follows redirects only where that cannot repeat or leak anything, and checks each hop. Keeps no connection, reads no
proxy or netrc settings, and never sends a request twice. Judges nothing: what a status means is the adapter's business.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import urljoin, urlsplit

import httpx2

from kernel_project.primitives.addresses import Target
from runs.boundary.contracts import NotSent, Refused
from runs.boundary.http_targets import checked_target

CONNECT_SECONDS = 10.0  # for one address
TLS_CONTEXTS_MAX = 16  # files of authorities whose contexts are kept
PORTS = {"http": 80, "https": 443}
MOVED = frozenset({301, 302, 303, 307, 308})
KEEPS_METHOD = frozenset({307, 308})
SENT_EVENT = "http11.send_request_headers.started"

BeforeSend = Callable[[], Awaitable[None]]

# The library's loggers quote headers and addresses; what an exchange came to is told by our own errors.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Unclear(Exception):
    """The request may have left, and nothing that came back tells whether it took effect."""


class ConnectionLost(Unclear):
    """The connection broke after the request may have left, before the answer's status came."""


class CallTimedOut(Unclear):
    """No answer within the call's time; whether the other side goes on is not known."""


class RedirectFailed(Unclear):
    """The other side sent a write elsewhere, where it could not or must not be sent."""


@dataclass(frozen=True)
class Request:
    """What is to be sent. `headers` are the declared ones, which only the declared host gets to see."""

    method: str
    url: str
    headers: dict[str, str]
    content: bytes = b""
    content_type: str = ""
    is_read: bool = False
    private_hosts: tuple[str, ...] = ()
    redirects_max: int = 0
    bytes_max: int = 1024 * 1024
    tls_ca_file: str = ""


@dataclass(frozen=True)
class Answered:
    """An answer's status and as much of its body as was read. `broken` says why reading it ended early."""

    status: int
    headers: httpx2.Headers
    body: bytes
    cut: bool = False
    broken: str = ""


@dataclass
class _Wire:
    """One try to send: notes when the first byte may leave, after `before_send` has let it."""

    before_send: BeforeSend | None
    sent: bool = False

    async def note(self, event: str, _: object) -> None:
        """The library calls this at each step of an exchange."""
        if event == SENT_EVENT:
            if self.before_send is not None:
                await self.before_send()
            self.sent = True


class _NoConnection(Exception):
    """Nothing left towards this address."""


async def exchange(request: Request, *, before_send: BeforeSend | None, seconds: float) -> Answered:
    """Send the request and read the answer, all within `seconds`.

    `before_send` is awaited once, when the connection stands and before the first byte; what it raises goes on. Raises
    NotSent when nothing left, Refused for a read that was sent elsewhere in vain, and ConnectionLost, CallTimedOut or
    RedirectFailed when the request may have had its effect.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    answered = await _hop(request, before_send, deadline)
    for _ in range(request.redirects_max):
        following = _redirected(request, answered)
        if following is None:
            break
        request = following
        try:
            answered = await _hop(request, None, deadline)
        except NotSent as error:
            raise _lost(request, f"it was sent elsewhere, and there: {error}") from None
    return answered


async def _hop(request: Request, before_send: BeforeSend | None, deadline: float) -> Answered:
    """One request at one place: tried at each of its checked addresses until a connection stands."""
    parts = urlsplit(request.url)
    port = parts.port or PORTS[parts.scheme]
    target = await checked_target(parts.scheme, parts.hostname or "", port, request.private_hosts)
    errors: list[str] = []
    for address in target.addresses:
        try:
            return await _at(request, target, address, _Wire(before_send), deadline)
        except _NoConnection as error:
            errors.append(str(error))
    raise NotSent(f"no connection to {target.host}: {'; '.join(errors)}"[:500])


async def _at(request: Request, target: Target, address: str, wire: _Wire, deadline: float) -> Answered:
    limits = httpx2.Limits(max_connections=1, max_keepalive_connections=0)
    transport = httpx2.AsyncHTTPTransport(verify=_tls(request.tls_ca_file), retries=0, limits=limits, trust_env=False)
    try:
        async with asyncio.timeout_at(deadline):
            response = await transport.handle_async_request(_outgoing(request, target, address, wire))
        return await _read(response, deadline, request.bytes_max)
    except TimeoutError:
        if wire.sent:
            raise CallTimedOut(f"{target.host} did not answer in time") from None
        raise NotSent(f"no connection to {target.host} in time") from None
    except httpx2.TransportError as error:
        name = f"{type(error).__name__}: {error}".removesuffix(": ")
        if wire.sent:
            raise ConnectionLost(f"the connection to {target.host} broke before the answer: {name}") from None
        raise _NoConnection(f"{address}: {name}") from None
    finally:
        await transport.aclose()


def _outgoing(request: Request, target: Target, address: str, wire: _Wire) -> httpx2.Request:
    """The request to a checked address; the host's own name stands in Host, SNI and the certificate's check."""
    parts = urlsplit(request.url)
    place = f"{target.scheme}://{f'[{address}]' if ':' in address else address}:{target.port}{parts.path or '/'}"
    own = {"host": parts.netloc, "accept-encoding": "identity", "connection": "close"}
    if request.content_type:
        own["content-type"] = request.content_type
    return httpx2.Request(
        request.method,
        f"{place}?{parts.query}" if parts.query else place,
        headers={"accept": "*/*", **_lower(request.headers), **own},
        content=request.content if request.content or request.content_type else None,
        extensions={
            "sni_hostname": target.host,
            "timeout": {"connect": CONNECT_SECONDS, "pool": CONNECT_SECONDS, "read": None, "write": None},
            "trace": wire.note,
        },
    )


def _lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


async def _read(response: httpx2.Response, deadline: float, bytes_max: int) -> Answered:
    """The body, bounded. Never raises for what the other side does: its status has come, and stands."""
    body, cut, broken = bytearray(), False, ""
    try:
        async with asyncio.timeout_at(deadline):
            async for chunk in response.aiter_raw():
                cut = len(body) + len(chunk) > bytes_max
                body += chunk[: bytes_max - len(body)]
                if cut:
                    break
    except TimeoutError:
        broken = "the answer did not end in time"
    except httpx2.TransportError as error:
        broken = f"the answer broke off: {type(error).__name__}"
    finally:
        await response.aclose()
    return Answered(response.status_code, response.headers, bytes(body), cut, broken)


def _redirected(request: Request, answered: Answered) -> Request | None:
    """The next hop, or None for an answer that is to be judged as it is.

    A write is sent again only where the other side says that it has not taken it (307, 308), and within its own origin.
    A read follows further, without the declared headers once it leaves the origin. Raises for a hop that must not be.
    """
    place = answered.headers.get("location", "")
    if answered.status not in MOVED or not place:
        return None
    if not request.is_read and answered.status not in KEEPS_METHOD:
        return None
    url = _followed(request, place)
    if _origin(url) == _origin(request.url):
        following = replace(request, url=url)
    elif request.is_read and request.method in ("GET", "HEAD"):
        following = replace(request, url=url, headers={})
    else:
        raise _lost(request, "it was sent to another origin, which only reads by GET follow")
    if answered.status in KEEPS_METHOD or request.method in ("GET", "HEAD"):
        return following
    return replace(following, method="GET", content=b"", content_type="")


def _followed(request: Request, place: str) -> str:
    try:
        url, _, _ = urljoin(request.url, place).partition("#")
        parts = urlsplit(url)
        usable = bool(parts.hostname) and "@" not in parts.netloc and url.isascii() and url.isprintable()
        _ = parts.port
    except ValueError:
        raise _lost(request, "it was sent to what is no address") from None
    if parts.scheme not in PORTS or not usable or " " in url:
        raise _lost(request, "it was sent to what is no address of HTTP")
    if request.url.startswith("https:") and parts.scheme != "https":
        raise _lost(request, "it was sent from TLS to plain HTTP")
    return url


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or PORTS[parts.scheme]


def _lost(request: Request, why: str) -> Exception:
    return Refused(why) if request.is_read else RedirectFailed(why)


@lru_cache(maxsize=TLS_CONTEXTS_MAX)
def _tls(ca_file: str) -> ssl.SSLContext:
    """The well-known authorities, or those of the file alone."""
    if not ca_file:
        return httpx2.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise NotSent(f"the file of authorities {ca_file} cannot be read: {error}") from None
