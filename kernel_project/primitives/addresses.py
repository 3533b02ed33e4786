"""Which addresses this process may be sent to by somebody's words: public ones, and those of hosts named as private.

The name is resolved once, every address is checked, and the connection is made to a checked address, so that a name
that means something else a moment later leads nowhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

RESOLVE_SECONDS = 5.0
ADDRESSES_MAX = 8  # of one name that are tried; the rest is only checked
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NEVER = [  # beside what the library calls not global, which differs between versions of Python
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "100.64.0.0/10", "2001::/23", "2002::/16", "fec0::/10", "::/8")
]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class NoAddress(Exception):
    """There is nothing to connect to: the name means nothing, or only what it may not mean."""


class AddressForbidden(NoAddress):
    """The address is one that nobody may be sent to unless its host is named."""


@dataclass(frozen=True)
class Target:
    """Where a connection goes: the name that is told to the other side, and checked addresses to connect to."""

    scheme: str
    host: str
    port: int
    addresses: tuple[str, ...]


async def checked_target(scheme: str, host: str, port: int, private_hosts: Sequence[str]) -> Target:
    """Resolve and check. Raises NoAddress for a name without one, AddressForbidden if one of them is not allowed."""
    found = await _resolved(host, port)
    if not is_named(host, port, private_hosts):
        for address in found:
            if why := forbidden(ipaddress.ip_address(address)):
                raise AddressForbidden(f"{host} is at {address}, {why}")
    return Target(scheme, host, port, tuple(found[:ADDRESSES_MAX]))


def is_named(host: str, port: int, private_hosts: Sequence[str]) -> bool:
    """Whether this host is named, with this port or for any port. The name itself counts, no alias."""
    plain = host.lower().rstrip(".")
    named = {entry.lower().rstrip(".") for entry in private_hosts}
    return bool({plain, f"{plain}:{port}", f"[{plain}]:{port}"} & named)


async def _resolved(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except TimeoutError:
        raise NoAddress(f"the name {host} was not resolved within {RESOLVE_SECONDS:g} s") from None
    except (OSError, UnicodeError) as error:
        raise NoAddress(f"the name {host} cannot be resolved: {error}") from None
    addresses = list(dict.fromkeys(str(place[0]).partition("%")[0] for *_, place in found))
    if not addresses:
        raise NoAddress(f"the name {host} has no address")
    return addresses


def forbidden(address: Address) -> str:
    """Why nobody may be connected to this address unasked; empty for a public one."""
    inner = _carried(address)
    if inner is not None:
        why = forbidden(inner)
        return f"which stands for {inner}, {why}" if why else ""
    if address.is_loopback:
        return "a loopback address"
    if address.is_link_local:
        return "a link-local address"
    if address.is_multicast:
        return "a multicast address"
    if address.is_unspecified:
        return "no address of a host"
    public = address.is_global and not address.is_reserved
    return "" if public and not any(address in network for network in _NEVER) else "not a public address"


def _carried(address: Address) -> Address | None:
    """The IPv4 address that a mapped or NAT64 address stands for: that is where the connection ends."""
    if not isinstance(address, ipaddress.IPv6Address):
        return None
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped
