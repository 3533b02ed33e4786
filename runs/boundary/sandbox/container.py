"""One command in one container, named by its operation: starts it, reads it, ends it, and knows how it ended.

The engine keeps the container when the worker dies, so that it can be asked later (`look`); the sweep removes it when
the operation has its outcome. The name is the fence: an engine never has two containers of one name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import engine, workspace
from runs.boundary.sandbox.contracts import Left, SandboxCommand, SandboxCrashed, SandboxLimits, SandboxResult
from runs.boundary.sandbox.engine import CommandLine, Container, EngineSilent
from runs.boundary.sandbox.process import DISK_POLL_SECONDS, END_SECONDS_MAX, ENVIRONMENT
from runs.boundary.sandbox.waiting import uninterrupted

NAME_PREFIX = "agent-kernel-"
OPERATION_LABEL, ATTEMPT_LABEL = "agent-kernel.operation", "agent-kernel.attempt"
SOURCE_LABEL, DEADLINE_LABEL = "agent-kernel.source", "agent-kernel.deadline"
START_SECONDS_MAX = 60.0  # of an engine under load; past this nobody waits for it any more
LATE_SECONDS = 60.0  # over the command's time limit, after which its worker has certainly not ended it
POLL_SECONDS = 0.05  # each look is a process of its own
PROCESSES_OF_USER_MAX = 16_384  # RLIMIT_NPROC counts per uid, not per container; unnamed, podman asks for too many
CPU_GRACE_SECONDS = 2  # between the signal that a program may catch (SIGXCPU) and the end
LOG_BYTES_MIN = 1024 * 1024  # that the engine keeps of what a command says; for those whose worker has died
KILL: Final[Sequence[str]] = ("kill", "--signal", "KILL")
REMOVE: Final[Sequence[str]] = ("rm",)
KILLED_EXIT_CODE = 137  # by SIGKILL: by us, by the engine, or for want of memory


class ContainerRun:
    """Used once. `run` does everything; the rest are its steps."""

    def __init__(
        self, program: str, image: str, command: SandboxCommand, place: workspace.Workspace, protected: Sequence[str]
    ) -> None:
        self.program, self.image = program, image
        self.command, self.limits = command, command.limits
        self.place, self.protected = place, protected
        self.name = name_of(command.operation_id)
        self.line: CommandLine | None = None
        self.timed_out = self.disk_low = False
        self.container: Container | None = None
        self.seconds = 0.0

    async def run(self, before_start: Callable[[], Awaitable[None]]) -> SandboxResult:
        if not self.place.owner_uid:
            raise NotSent(
                "sandbox unavailable: the workspace belongs to root, and in a container nothing runs as root; run the "
                "worker as an ordinary user, or give the workspace to one"
            )
        try:
            await self._create()
            await before_start()
            await self._follow()
        except EngineSilent as error:
            raise self._lost(error) from error
        finally:
            await uninterrupted(self._end())
        self._judge()
        return self.result()

    # --- start

    async def _create(self) -> None:
        """Make it. One that an earlier attempt left is removed before: whoever let us start has judged that attempt."""
        with contextlib.ExitStack() as held:
            arguments = self._arguments(held)
            for last in (False, True):
                answer = await engine.call(self.program, *arguments.argv, fds=arguments.fds, seconds=START_SECONDS_MAX)
                if answer.code == 0:
                    return
                if last or await engine.inspect(self.program, self.name) is None:
                    raise NotSent(f"sandbox unavailable: the container cannot be made: {answer.said}")
                await engine.call(self.program, "rm", "--force", self.name)

    def _arguments(self, held: contextlib.ExitStack) -> Arguments:
        limits, operation = self.limits, self.command.operation_id
        deadline = time.time() + limits.wall_seconds + LATE_SECONDS
        labels = {
            OPERATION_LABEL: operation,
            ATTEMPT_LABEL: str(self.command.attempt),
            SOURCE_LABEL: self.command.source,
            DEADLINE_LABEL: str(int(deadline)),
        }
        environment = memory_file(environment_lines(self.command).encode(), held)
        user = f"{self.place.owner_uid}:{self.place.owner_gid}"
        return Arguments(
            [
                *("create", "--pull", "never", "--name", self.name, "--hostname", "sandbox"),
                *_each("--label", [f"{name}={value}" for name, value in labels.items()]),
                *("--network", "none", "--ipc", "private", "--read-only", "--user", user),
                *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
                *limit_options(limits),
                *("--workdir", "/workspace", "--mount", mount(self.place.path, "/workspace")),
                *self._protected_mounts(),
                *("--env-file", f"/dev/fd/{environment}", "--entrypoint", ""),
                *(["--interactive"] if self.command.stdin else []),
                *(self.image, *self.command.argv),
            ],
            [environment],
        )

    def _protected_mounts(self) -> list[str]:
        pairs = [(f"{self.place.path}/{path}", f"/workspace/{path}") for path in self.protected]
        if moved := [source for source, _ in pairs if os.path.realpath(source) != source]:
            raise NotSent(f"{moved[0]!r} changed its place while the sandbox was made")
        return _each("--mount", [mount(source, target, read_only=True) for source, target in pairs])

    # --- while it runs

    async def _follow(self) -> None:
        with contextlib.ExitStack() as held:
            stdin = memory_file(self.command.stdin, held) if self.command.stdin else None
            arguments = ["start", "--attach", *(["--interactive"] if self.command.stdin else []), self.name]
            self.line = await CommandLine.start(self.program, arguments, self.limits.output_bytes_max, stdin=stdin)
        started = time.monotonic()
        over = asyncio.ensure_future(self.line.ended())
        try:
            await self._until(over, started)
        finally:
            self.seconds = time.monotonic() - started
            over.cancel()

    async def _until(self, over: asyncio.Future[int], started: float) -> None:
        ends = started + self.limits.wall_seconds
        while not over.done():
            left = ends - time.monotonic()
            if left <= 0:
                left = await self._seconds_left(started)
                ends = time.monotonic() + left
            self.timed_out = left <= 0 and not over.done()
            self.disk_low = workspace.free_bytes(self.place) < self.limits.disk_free_bytes_min
            if self.timed_out or self.disk_low:
                return
            await asyncio.wait({over}, timeout=min(left, DISK_POLL_SECONDS))

    async def _seconds_left(self, asked: float) -> float:
        """Of the command's time, which begins when it has begun and not when we asked for it."""
        container = await engine.inspect(self.program, self.name)
        if container is None or container.finished_at is not None:
            return DISK_POLL_SECONDS if time.monotonic() - asked < self.limits.wall_seconds + START_SECONDS_MAX else 0.0
        if container.started_at is None:
            return min(1.0, asked + START_SECONDS_MAX - time.monotonic())
        passed = (datetime.now(UTC) - container.started_at).total_seconds()
        return min(self.limits.wall_seconds, self.limits.wall_seconds - passed)

    # --- end

    async def _end(self) -> None:
        """End it if it runs, read what it still had to say, and remember how it ended."""
        try:
            if self.line is not None and self.line.process.returncode is None:
                await engine.call(self.program, *KILL, self.name)  # before any question: a cancellation is in a hurry
            self.container = await self._ended()
            if self.line is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.line.ended(), engine.KILL_SECONDS_MAX)
        except EngineSilent as error:
            if self.line is not None:  # otherwise nothing runs, and what stopped us says more
                raise self._lost(error) from error
        finally:
            if self.line is not None:
                await self.line.close()

    async def _ended(self) -> Container | None:
        """How it ended, and None when it is not there or is another attempt's. One in which nothing ran is removed."""
        deadline = time.monotonic() + END_SECONDS_MAX
        while True:
            container = await engine.inspect(self.program, self.name)
            if container is None or container.labels.get(ATTEMPT_LABEL) != str(self.command.attempt):
                return None
            if container.started_at is None:
                ending = REMOVE  # without force: it may be starting at this moment
            elif container.running:
                ending = KILL
            else:
                return container
            done = await engine.call(self.program, *ending, self.name)
            if ending == REMOVE and done.code == 0:
                return container
            if time.monotonic() > deadline:
                raise SandboxCrashed(f"the command cannot be ended within {END_SECONDS_MAX:g} s", self.result())
            await asyncio.sleep(POLL_SECONDS)

    # --- what came of it

    def _judge(self) -> None:
        """Was the command executed at all, and do we know how it ended?"""
        if self.timed_out or self.disk_low:
            return
        if self.container is None:
            raise SandboxCrashed("the container was removed, or another attempt took its place", self.result())
        if self.container.started_at is None:
            said = self.line.stderr.output.text().decode(errors="backslashreplace").strip() if self.line else ""
            raise NotSent(f"the command could not be started: {(self.container.error or said)[:500]}")
        if self.line is not None and self.line.process.returncode != self.container.exit_code:
            raise SandboxCrashed("the engine stopped showing the command while it ran", self.result())

    def _lost(self, error: EngineSilent) -> Exception:
        """Before the start nothing has run; after it nobody knows."""
        if self.line is None:
            return NotSent(f"sandbox unavailable: the container engine does not answer: {error}")
        return SandboxCrashed(f"the container engine does not answer: {error}", self.result())

    def result(self) -> SandboxResult:
        """What is known of the command now; complete when `run` has ended."""
        stdout, stderr = (self.line.stdout.output, self.line.stderr.output) if self.line else (None, None)
        ended = self.container is not None and self.container.started_at is not None
        return SandboxResult(
            exit_code=self.container.exit_code if self.container and ended and not self._stopped else None,
            stdout=stdout.text() if stdout else b"",
            stderr=stderr.text() if stderr else b"",
            stdout_bytes_total=stdout.total if stdout else 0,
            stderr_bytes_total=stderr.total if stderr else 0,
            truncated=bool(stdout and stderr and (stdout.truncated or stderr.truncated)),
            timed_out=self.timed_out,
            out_of_memory=bool(self.container and self.container.out_of_memory),
            disk_low=self.disk_low,
            seconds=self.seconds,
            peak_memory_bytes=None,
        )

    @property
    def _stopped(self) -> bool:
        return self.timed_out or self.disk_low


class Arguments:
    """What one call is given, and the descriptors that it reads from."""

    def __init__(self, argv: list[str], fds: list[int]) -> None:
        self.argv, self.fds = argv, fds


def name_of(operation_id: str) -> str:
    return NAME_PREFIX + operation_id


def environment_lines(command: SandboxCommand) -> str:
    """A file for the engine, so that no value stands in a list of processes. Raises NotSent for what it cannot hold."""
    variables = {**ENVIRONMENT, **command.environment, "OPERATION_ID": command.operation_id}
    if wrong := [name for name, value in variables.items() if "\n" in value or "\r" in value]:
        raise NotSent(f"the environment variable {wrong[0]} has more than one line, which a container cannot be given")
    return "".join(f"{name}={value}\n" for name, value in variables.items())


def limit_options(limits: SandboxLimits) -> list[str]:
    ulimits = {
        "core": (0, 0),
        "cpu": (limits.cpu_seconds, limits.cpu_seconds + CPU_GRACE_SECONDS),
        "fsize": (limits.file_bytes_max, limits.file_bytes_max),
        "nofile": (limits.open_files_max, limits.open_files_max),
        "nproc": (PROCESSES_OF_USER_MAX, PROCESSES_OF_USER_MAX),
    }
    log_bytes = max(2 * limits.output_bytes_max, LOG_BYTES_MIN)
    return [
        *("--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)),
        *("--pids-limit", str(limits.processes_max)),
        *("--cpus", f"{min(limits.cpu_cores, os.cpu_count() or 1):g}"),
        *_each("--ulimit", [f"{name}={soft}:{hard}" for name, (soft, hard) in ulimits.items()]),
        *("--tmpfs", f"/tmp:rw,nosuid,nodev,mode=1777,size={limits.temporary_bytes_max}"),  # noqa: S108  inside it
        *("--shm-size", str(limits.temporary_bytes_max)),
        *("--log-driver", "json-file", "--log-opt", f"max-size={log_bytes}"),
    ]


def mount(source: str, target: str, *, read_only: bool = False) -> str:
    """The words of --mount, which is a line of CSV."""
    parts = ["type=bind", f"source={source}", f"target={target}", *(["readonly"] if read_only else [])]
    return ",".join('"' + part.replace('"', '""') + '"' if set(part) & set(',"\n\r') else part for part in parts)


def memory_file(content: bytes, held: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create("agent-kernel")
    held.callback(os.close, descriptor)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _each(option: str, values: Sequence[str]) -> list[str]:
    return [part for value in values for part in (option, value)]


async def look(program: str, operation_id: str, bytes_max: int) -> Left:
    """What is left of an operation's container. Raises EngineSilent when the engine cannot be asked.

    One in which nothing ever ran is removed first, so that nothing will: only then it is evidence.
    """
    name = name_of(operation_id)
    container = await engine.inspect(program, name)
    if container is None:
        return Left("gone")
    if container.running:
        return Left("running")
    if container.started_at is None:
        removed = await engine.call(program, "rm", name)
        return Left("never_started" if removed.code == 0 else "running")
    if container.exit_code == KILLED_EXIT_CODE and not container.out_of_memory:
        return Left("killed", await kept(program, name, container, bytes_max))
    return Left("ended", await kept(program, name, container, bytes_max))


async def kept(program: str, name: str, container: Container, bytes_max: int) -> SandboxResult:
    """The end of a container from what the engine has kept of it."""
    answer = await engine.call(program, "logs", name, bytes_max=bytes_max)
    assert container.started_at is not None
    finished_at = container.finished_at or container.started_at
    cut = len(answer.stdout) > bytes_max or len(answer.stderr) > bytes_max
    return SandboxResult(
        exit_code=container.exit_code,
        stdout=answer.stdout,
        stderr=answer.stderr,
        stdout_bytes_total=len(answer.stdout),
        stderr_bytes_total=len(answer.stderr),
        truncated=cut,
        timed_out=False,
        out_of_memory=container.out_of_memory,
        disk_low=False,
        seconds=(finished_at - container.started_at).total_seconds(),
        peak_memory_bytes=None,
        notes=("read from the engine's log after the worker had died; of long output the log keeps the end",),
    )
