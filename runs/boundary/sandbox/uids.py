"""One unprivileged uid for each sandbox that runs, so that two of them share no process limits and no signals."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from runs.boundary.contracts import NotSent

# Between systemd's containers (…60577) and its dynamic users (61184…); no name in /etc/passwd has one. With mapped ids
# they never own a file on disk.
UID_FIRST, UID_LAST = 60_800, 61_055


@contextmanager
def leased_uid() -> Iterator[int]:
    """A free uid of the pool. The lease is a bound abstract socket: it ends with the process, however that dies."""
    for uid in range(UID_FIRST, UID_LAST + 1):
        lease = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            lease.bind(f"\0agent-kernel-sandbox-uid-{uid}")
        except OSError:
            lease.close()
            continue
        with lease:
            yield uid
        return
    raise NotSent(f"sandbox unavailable: all {UID_LAST - UID_FIRST + 1} uids are in use; run fewer commands at once")
