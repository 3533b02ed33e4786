"""Which addresses an HTTP tool may be connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket

import pytest

from kernel_project.primitives.addresses import forbidden, is_named
from runs.boundary.contracts import NotSent
from runs.boundary.http_targets import TargetForbidden, checked_target

INSIDE = (
    "127.0.0.1 127.8.9.10 0.0.0.0 10.1.2.3 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 100.64.0.1 192.0.0.8 "
    "192.0.2.1 192.88.99.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.1.2.3 240.0.0.1 255.255.255.255 "
    "::1 :: fe80::1 fc00::1 fd12::1 fec0::1 ff02::1 100::1 2001:db8::1 2001::1 2002:808:808::1 64:ff9b:1::1 "
    "::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::127.0.0.1 64:ff9b::7f00:1 64:ff9b::10.0.0.1"
)
PUBLIC = "1.1.1.1 8.8.8.8 93.184.216.34 2606:4700::1111 2a00:1450:4001:81b::200e ::ffff:8.8.8.8 64:ff9b::8.8.8.8"


@pytest.mark.parametrize("address", INSIDE.split())
def test_an_address_that_is_not_public_is_forbidden(address):
    assert forbidden(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", PUBLIC.split())
def test_a_public_address_is_not(address):
    assert forbidden(ipaddress.ip_address(address)) == ""


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.1", "0x7f.1", "2130706433", "017700000001", "0", "::1", "::ffff:7f00:1"]
)
async def test_every_way_to_write_the_loopback_is_seen_through(host):
    with pytest.raises(TargetForbidden, match="private_hosts"):
        await checked_target("http", host, 80, ())


async def test_a_host_that_is_named_may_be_private():
    target = await checked_target("http", "localhost", 8080, ("LOCALHOST:8080",))
    assert set(target.addresses) <= {"127.0.0.1", "::1"}
    assert target.host == "localhost"


async def test_another_port_or_another_name_of_the_same_machine_is_not_named():
    for host, port in (("localhost", 8081), ("127.0.0.1", 8080)):
        with pytest.raises(TargetForbidden):
            await checked_target("http", host, port, ("localhost:8080",))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".example", "..", "xn--\x7f"])
async def test_a_name_without_an_address_was_not_sent(host):
    with pytest.raises(NotSent):
        await checked_target("http", host, 80, ())


async def test_one_private_address_among_public_ones_is_enough_to_refuse(monkeypatch):
    """What a name that is to be rebound answers: both, and hopes for the second."""

    async def both(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 80)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 80)),
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
    with pytest.raises(TargetForbidden, match=r"10\.0\.0\.7"):
        await checked_target("http", "rebinding.example", 80, ())


async def test_a_name_that_does_not_resolve_in_time_was_not_sent(monkeypatch):
    async def never(*_: object, **__: object) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr("kernel_project.primitives.addresses.RESOLVE_SECONDS", 0.05)
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    with pytest.raises(NotSent, match="was not resolved"):
        await checked_target("http", "slow.example", 80, ())


def test_names_are_compared_as_names():
    assert is_named("Ledger.Internal.", 80, ("ledger.internal",))
    assert is_named("::1", 80, ("[::1]:80",))
    assert not is_named("evil-ledger.internal", 80, ("ledger.internal",))
    assert not is_named("ledger.internal.evil.example", 80, ("ledger.internal",))
