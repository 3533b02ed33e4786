"""Which processes belong to an embedded stack: those with its folder in their environment. For tests that end them."""

from __future__ import annotations

import os
import time
from pathlib import Path

GONE_SECONDS_MAX = 20.0  # the keepers' patience with a server that stops slowly, and a sweep


def of_stack(var: str) -> list[str]:
    """`pid command` of every living process of the stack in folder `var`, our own aside."""
    mark = f"KERNEL_VAR={var}\0".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        names_it = mark in environment + b"\0" or var in command
        if names_it and int(process.name) != os.getpid():
            found.append(f"{process.name} {command[:120]}")
    return found


def wait_until_gone(var: str, seconds_max: float = GONE_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds_max
    while left := of_stack(var):
        if time.monotonic() >= deadline:
            raise AssertionError("processes are left:\n" + "\n".join(left))
        time.sleep(0.05)
