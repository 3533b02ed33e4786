"""Which processes belong to an embedded stack: those with its folder in their environment. For tests that end them."""

from __future__ import annotations

import os
import time
from pathlib import Path

GONE_SECONDS_MAX = 20.0  # the keepers' patience with a server that stops slowly, and a sweep


def of_stack(var: str, variable: str = "KERNEL_VAR") -> list[str]:
    """`pid command` of every living process that has this value of the variable, our own aside.

    Servers that write their title over their environment are known by their command or by the folder they stand in.
    """
    mark = f"{variable}={var}\0".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            folder = str((process / "cwd").readlink()) if environment else ""
        except OSError:
            continue
        belongs = mark in environment + b"\0" or var in command or folder.startswith(f"{var}/")
        if belongs and int(process.name) != os.getpid():
            found.append(f"{process.name} {command}")
    return found


def wait_until_gone(var: str, variable: str = "KERNEL_VAR", *, seconds_max: float = GONE_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds_max
    while left := of_stack(var, variable):
        if time.monotonic() >= deadline:
            raise AssertionError("processes are left:\n" + "\n".join(line[:200] for line in left))
        time.sleep(0.05)
