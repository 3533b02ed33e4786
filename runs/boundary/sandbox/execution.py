"""Runs one command in a sandbox and reports when nothing of it is left. Decides nothing about repeating it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import workspace
from runs.boundary.sandbox.capabilities import capabilities
from runs.boundary.sandbox.contracts import Capabilities, SandboxCommand, SandboxResult
from runs.boundary.sandbox.process import SandboxProcess
from runs.boundary.sandbox.uids import leased_uid
from runs.boundary.sandbox.waiting import in_thread

ARGUMENT_BYTES_MAX = 128 * 1024 - 1  # Linux: MAX_ARG_STRLEN
ARGUMENTS_BYTES_MAX = 1024 * 1024  # half of what Linux takes for arguments and environment with the usual stack limit
OPERATION_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


async def _nothing() -> None:
    return None


def _unheard(_: SandboxResult) -> None:
    return None


async def run(
    command: SandboxCommand,
    *,
    before_start: Callable[[], Awaitable[None]] = _nothing,
    on_cancelled: Callable[[SandboxResult], None] = _unheard,
) -> SandboxResult:
    """Run one command and answer when nothing of it runs any more, whatever it left behind.

    `before_start` is awaited when the sandbox stands and the command has not begun; what it raises ends the sandbox.
    Raises NotSent when the command was never executed, with what to do; SandboxCrashed when the sandbox itself died.
    On cancellation the whole tree is ended within END_SECONDS_MAX, `on_cancelled` is told what the command had said,
    then CancelledError goes on.
    """
    refuse_unmet(command, await in_thread(capabilities))
    if command.image:
        raise NotSent("sandbox unavailable: an image is demanded, which only the docker driver has (SANDBOX_DRIVER)")
    return await execute(command, before_start=before_start, on_cancelled=on_cancelled)


def refuse_unmet(command: SandboxCommand, found: Capabilities) -> None:
    """Fail closed: raise NotSent when the machine cannot do all that is demanded."""
    if found.unavailable:
        raise NotSent(f"sandbox unavailable: {found.unavailable}")
    if unmet := command.demands - found.met:
        raise NotSent(f"sandbox unavailable: {', '.join(sorted(unmet))} demanded. {' '.join(found.problems)}")


async def execute(
    command: SandboxCommand,
    *,
    before_start: Callable[[], Awaitable[None]] = _nothing,
    on_cancelled: Callable[[SandboxResult], None] = _unheard,
) -> SandboxResult:
    """`run` without asking what the machine can do: for the probe that finds it out."""

    async def in_namespaces(place: workspace.Workspace, protected: list[str]) -> SandboxResult:
        with leased_uid() if os.geteuid() == 0 else contextlib.nullcontext() as uid:
            process = SandboxProcess(command, place, protected, uid)
            try:
                return await process.run(before_start)
            except asyncio.CancelledError:
                on_cancelled(process.result())
                raise

    return await within_workspace(command, in_namespaces)


async def within_workspace(
    command: SandboxCommand, work: Callable[[workspace.Workspace, list[str]], Awaitable[SandboxResult]]
) -> SandboxResult:
    """Look the command and its workspace over, do the work with it, and look over what it left. For every driver."""
    _check(command)
    with workspace.opened(command.workspace, command.workspace_root) as place:
        if workspace.free_bytes(place) < command.limits.disk_free_bytes_min:
            raise NotSent(f"the disk of the workspace has less than {command.limits.disk_free_bytes_min} bytes free")
        survey = await in_thread(lambda: workspace.survey(place, command.protected_names))
        try:
            result = await work(place, survey.protected)
        finally:
            notes = await in_thread(lambda: workspace.set_aside(place, command.protected_names, survey))
    return replace(result, notes=(*result.notes, *notes))


def _check(command: SandboxCommand) -> None:
    if not command.argv or not command.argv[0]:
        raise NotSent("the command is empty")
    if not OPERATION_ID.fullmatch(command.operation_id):
        raise NotSent(f"operation id {command.operation_id[:80]!r} is not made of letters, digits and hyphens")
    if wrong := [name for name in command.environment if not VARIABLE_NAME.fullmatch(name)]:
        raise NotSent(f"environment variable name {wrong[0][:80]!r} is not allowed")
    sizes = [_size(text) for text in (*command.argv, *command.environment.values())]
    if max(sizes) > ARGUMENT_BYTES_MAX or sum(sizes) > ARGUMENTS_BYTES_MAX:
        raise NotSent(
            f"an argument has more than {ARGUMENT_BYTES_MAX} bytes, or all have more than {ARGUMENTS_BYTES_MAX}: "
            "give long text to the command through its stdin"
        )
    if len(command.stdin) > command.limits.stdin_bytes_max:
        raise NotSent(f"stdin has {len(command.stdin)} bytes, the limit is {command.limits.stdin_bytes_max}")


def _size(text: str) -> int:
    if "\0" in text:
        raise NotSent("an argument of the command contains a NUL character")
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise NotSent("an argument of the command is no valid Unicode text") from None
