"""Ports of the loopback: which are free, and who sits on one that is not. Never opens one to the network."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
from pathlib import Path

from kernel_project.devstack.errors import PortInUse
from kernel_project.devstack.layout import PORT_NAMES, Layout

LOOPBACK = "127.0.0.1"
FREE_PORTS = range(15_000, 32_000)  # below the range from which the system takes the ports of outgoing connections
TRIES_MAX = 200


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def answers(port: int) -> bool:
    """True when something accepts a connection on this port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((LOOPBACK, port)) == 0


def free_ports(count: int) -> list[int]:
    """Different ports that are free now. Another process can still take one before its server does."""
    found: set[int] = set()
    for _ in range(TRIES_MAX):
        if len(found) == count:
            return list(found)
        port = secrets.choice(FREE_PORTS)
        if is_free(port):
            found.add(port)
    raise PortInUse(f"found only {len(found)} free ports of {count} in {TRIES_MAX} tries")


def private_layout(var: Path) -> Layout:
    """A layout for one more stack beside all others: this folder, and ports that are free now."""
    names = [f"{name}_port" for name in PORT_NAMES]
    return Layout(var, **dict(zip(names, free_ports(len(names)), strict=True)))


def require_free(port: int, server: str, variable: str) -> None:
    """Raises PortInUse, naming the holder and `variable`, if the port is taken."""
    if not is_free(port):
        raise PortInUse(
            f"{server} needs port {port} of {LOOPBACK}, and {holder(port) or 'another process'} has it: "
            f"stop that, or set {variable} to a free port"
        )


def holder(port: int) -> str | None:
    """The listening process, as far as this user may look: `'name' (process 123)`."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for process in Path("/proc").glob("[0-9]*"):
        if sockets & _open_files(process):
            return f"'{(process / 'comm').read_text().strip()}' (process {process.name})"
    return None


def _open_files(process: Path) -> set[str]:
    """What the descriptors of a process point at; nothing for one that ended meanwhile or is another user's."""
    links = set()
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed since the folder was read
                links.add(str(descriptor.readlink()))
    return links


def _listening_inodes(port: int) -> list[str]:
    found = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found.append(fields[9])
    return found
