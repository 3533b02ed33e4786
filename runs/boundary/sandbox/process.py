"""One running sandbox: starts it, reads it, ends it, and knows when nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import json
import marshal
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import bubblewrap, cgroups, launcher, seccomp, workspace
from runs.boundary.sandbox.cgroups import Cgroup
from runs.boundary.sandbox.contracts import SandboxCommand, SandboxCrashed, SandboxLimits, SandboxResult
from runs.boundary.sandbox.output import BoundedOutput
from runs.boundary.sandbox.waiting import uninterrupted

START_SECONDS_MAX = 15.0  # a sandbox stands after 0.1 s; past this the machine is in no state to run a command
END_SECONDS_MAX = 10.0  # from the decision to end a command until nothing of it runs; measured: 20 ms. A process that
# hangs in the kernel (a slow disk) dies later; a report while it lives would be worse than a late one.
GUARD_SECONDS_MAX = 1.0  # that the guard gets for it, before we kill ourselves
POLL_SECONDS = 0.005
REMOVE_ROUNDS_MAX = 200  # a cgroup is busy for a moment after its last process; the sweep takes what stays
DISK_POLL_SECONDS = 0.25
CHUNK_BYTES = 65_536  # what a pipe holds
STATUS_BYTES_MAX = 65_536  # bwrap writes two short lines
CPU_GRACE_SECONDS = 2  # between the signal that a program may catch (SIGXCPU) and the end
ENVIRONMENT: Final = {"PATH": bubblewrap.PATH, "HOME": "/tmp", "LANG": "C.UTF-8"}  # noqa: S108  inside the sandbox
NAME = "agent-kernel-sandbox"  # argv[0], for the sweep and for a person reading `ps`
LAUNCHER: Final = str(Path(launcher.__file__).resolve())


class SandboxProcess:
    """Used once. `run` does everything; the rest are its steps."""

    def __init__(
        self, command: SandboxCommand, place: workspace.Workspace, protected: list[str], uid: int | None
    ) -> None:
        self.command = command
        self.limits = command.limits
        self.place = place
        self.protected = protected
        self.uid = uid
        self.loop = asyncio.get_running_loop()
        self.stdout = BoundedOutput(self.limits.output_bytes_max)
        self.stderr = BoundedOutput(self.limits.output_bytes_max)
        self.stands = asyncio.Event()  # the first process of the sandbox exists, and waits for `release`
        self.ended = asyncio.Event()  # the guard has ended, and before it bwrap
        self.timed_out = self.disk_low = False
        self.exit_code: int | None = None
        self.failure = ""
        self.seconds = 0.0
        self.group: Cgroup | None = None
        self.guard: subprocess.Popen[bytes] | None = None
        self.first_process: int | None = None  # a pidfd: readable when every process of the sandbox is gone
        self.oom_killed = False
        self.peak_memory_bytes: int | None = None
        self._status = b""
        self._stdin = memoryview(command.stdin)
        self._open: dict[int, Callable[[bytes], None]] = {}  # what we read from, and where it goes
        self._control = self._release = self._stdin_fd = -1

    async def run(self, before_start: Callable[[], Awaitable[None]]) -> SandboxResult:
        try:
            self._start()
            if await self._stands_now():
                await before_start()
                await self._until_it_ends()
        finally:
            await uninterrupted(self._end())
        self._judge()
        return self.result()

    # --- start

    def _start(self) -> None:
        place = cgroups.hierarchy()
        try:
            if place.mode != "none":
                self.group = Cgroup.create(place, self.command.operation_id, self.limits)
            with contextlib.ExitStack() as ours:
                self._spawn(ours)
        except OSError as error:
            raise NotSent(f"sandbox unavailable: {error}; run `manage.py doctor`") from error

    def _spawn(self, ours: contextlib.ExitStack) -> None:
        """`ours` closes the ends that only the child keeps."""
        stdin = self._stdin_for_child(ours)
        stdout, stderr = self._pipe_for(self.stdout.add, ours), self._pipe_for(self.stderr.add, ours)
        status = self._pipe_for(self._read_status, ours)
        control, self._control = os.pipe()
        block, self._release = os.pipe()
        # Opened for both directions: should everybody die, it never reads end of file, which would start the command.
        block_both = os.open(f"/proc/self/fd/{block}", os.O_RDWR | os.O_CLOEXEC)
        for descriptor in (control, block, block_both):
            ours.callback(os.close, descriptor)
        passed = [status, control, block_both]
        arguments = self._bwrap_arguments(status, block_both, passed, ours)
        orders = self._orders(arguments, control, passed)
        orders_fd = _memory_file(marshal.dumps(orders), ours)
        self.guard = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", LAUNCHER, str(orders_fd), str(status)],
            stdin=stdin, stdout=stdout, stderr=stderr, env={}, cwd="/",
            pass_fds=[*passed, orders_fd], start_new_session=True,
        )  # fmt: skip
        guard = os.pidfd_open(self.guard.pid)
        self.loop.add_reader(guard, self._guard_ended, guard)

    def _stdin_for_child(self, ours: contextlib.ExitStack) -> int:
        if not self._stdin:
            return subprocess.DEVNULL
        child, mine = os.pipe()
        ours.callback(os.close, child)
        os.set_blocking(mine, False)
        self._stdin_fd = mine
        self.loop.add_writer(mine, self._feed)
        return child

    def _feed(self) -> None:
        try:
            self._stdin = self._stdin[os.write(self._stdin_fd, self._stdin[:CHUNK_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:  # the command does not read it, which is its right
            self._stdin = memoryview(b"")
        if not self._stdin:
            self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin_fd >= 0:
            self.loop.remove_writer(self._stdin_fd)
            os.close(self._stdin_fd)
        self._stdin_fd = -1

    def _pipe_for(self, sink: Callable[[bytes], None], ours: contextlib.ExitStack) -> int:
        mine, child = os.pipe()
        ours.callback(os.close, child)
        os.set_blocking(mine, False)
        self._open[mine] = sink
        self.loop.add_reader(mine, self._read, mine)
        return child

    def _read(self, descriptor: int) -> bool:
        """One chunk to where it belongs; False when there is none now or any more."""
        try:
            chunk = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self.loop.remove_reader(descriptor)
            del self._open[descriptor]
            os.close(descriptor)
            return False
        self._open[descriptor](chunk)
        return True

    def _bwrap_arguments(self, status: int, block: int, passed: list[int], ours: contextlib.ExitStack) -> list[str]:
        """By descriptor, so that the environment stands in no process list."""
        texts = (bubblewrap.PASSWD, bubblewrap.GROUP, bubblewrap.HOSTS)
        passwd, group, hosts = (_memory_file(text.encode(), ours) for text in texts)
        filter_fd = _memory_file(seccomp.program(), ours)
        options = bubblewrap.options(
            workspace=self.place.path if self.uid is None else f"{launcher.STAGE}/workspace",
            protected=self.protected,
            environment={**ENVIRONMENT, **self.command.environment, "OPERATION_ID": self.command.operation_id},
            limits=self.limits,
            descriptors=bubblewrap.Descriptors(status, block, filter_fd, passwd, group, hosts),
        )
        options_fd = _memory_file("\0".join(options).encode(), ours)
        passed += [passwd, group, hosts, filter_fd, options_fd]
        return ["--args", str(options_fd), "--", *self.command.argv]

    def _orders(self, arguments: list[str], control: int, passed: list[int]) -> dict[str, Any]:
        program = bubblewrap.installed()
        if self.uid is not None:
            passed.append(self.place.descriptor)
        name = f"{NAME}:{self.command.operation_id}:{cgroups.worker_identity(os.getpid())}"
        return {
            "parent_pid": os.getpid(),
            "control_fd": control,
            "cgroup_files": self.group.process_files if self.group else [],
            "rlimits": dict(_rlimits(self.limits, self.uid, in_cgroup=self.group is not None)),
            "uid": self.uid,
            "owner_uid": self.place.owner_uid,
            "owner_gid": self.place.owner_gid,
            "workspace_fd": self.place.descriptor,
            "programs": dict(program.folders),
            "executable": program.path if self.uid is None else program.staged_path(),
            "argv": [name, *arguments],
        }

    # --- while it runs

    def _read_status(self, chunk: bytes) -> None:
        """JSON documents of bwrap, one a line, or the launcher's reason why there will be none."""
        self._status = (self._status + chunk)[-STATUS_BYTES_MAX:]
        *lines, self._status = self._status.split(b"\n")
        for line in lines:
            if line.startswith(launcher.FAILURE_PREFIX):
                self.failure = line.removeprefix(launcher.FAILURE_PREFIX).decode()
                continue
            document = json.loads(line)
            self.exit_code = document.get("exit-code", self.exit_code)
            if "child-pid" in document and self.first_process is None:
                # It waits for `release`, so it still is the process that bwrap speaks of.
                with contextlib.suppress(ProcessLookupError):
                    self.first_process = os.pidfd_open(document["child-pid"])
                self.stands.set()

    def _guard_ended(self, descriptor: int) -> None:
        self.loop.remove_reader(descriptor)
        os.close(descriptor)
        self.ended.set()
        self.stands.set()

    async def _stands_now(self) -> bool:
        """False when it ended on the way."""
        try:
            await asyncio.wait_for(self.stands.wait(), START_SECONDS_MAX)
        except TimeoutError:
            raise NotSent(f"sandbox unavailable: it did not start within {START_SECONDS_MAX:g} s") from None
        return not self.ended.is_set()

    async def _until_it_ends(self) -> None:
        started = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it ended just now
            os.write(self._release, b"1")
        try:
            while not self.ended.is_set():
                left = started + self.limits.wall_seconds - time.monotonic()
                self.timed_out = left <= 0
                self.disk_low = workspace.free_bytes(self.place) < self.limits.disk_free_bytes_min
                if self.timed_out or self.disk_low:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.ended.wait(), min(left, DISK_POLL_SECONDS))
        finally:
            self.seconds = time.monotonic() - started

    # --- end

    async def _end(self) -> None:
        """End the tree, wait until it is gone, read what it still had to say, give everything back."""
        try:
            await self._kill()
            for descriptor in list(self._open):
                while self._read(descriptor):
                    pass
        finally:
            self._close()
            await self._remove_group()

    async def _kill(self) -> None:
        """The guard does it when it is told. If it cannot, we do what is left to do."""
        if self.guard is None:
            return
        with contextlib.suppress(BrokenPipeError):  # the guard has ended already
            os.write(self._control, b"1")
        started = time.monotonic()
        while not self._gone():
            spent = time.monotonic() - started
            if spent > END_SECONDS_MAX:
                raise SandboxCrashed(f"the command cannot be ended within {END_SECONDS_MAX:g} s", self.result())
            if spent > GUARD_SECONDS_MAX:
                self._kill_directly(self.guard)
            await asyncio.sleep(POLL_SECONDS)

    def _gone(self) -> bool:
        if self.guard is not None and self.guard.poll() is None:
            return False
        if self.first_process is not None and not _has_ended(self.first_process):
            _kill(self.first_process)
            return False
        return self.group is None or self.group.kill()

    def _kill_directly(self, guard: subprocess.Popen[bytes]) -> None:
        if self.first_process is not None:
            _kill(self.first_process)
        if guard.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)

    def _close(self) -> None:
        self._close_stdin()
        for descriptor in list(self._open):
            self.loop.remove_reader(descriptor)
            os.close(descriptor)
        self._open.clear()
        for held in (self._control, self._release, self.first_process):
            if held is not None and held >= 0:
                os.close(held)
        self.first_process, self._control, self._release = None, -1, -1

    async def _remove_group(self) -> None:
        if self.group is None:
            return
        self.oom_killed = self.group.out_of_memory()
        self.peak_memory_bytes = self.group.peak_memory_bytes()
        for _ in range(REMOVE_ROUNDS_MAX):
            if self.group.remove():
                return
            await asyncio.sleep(POLL_SECONDS)

    # --- what came of it

    def _judge(self) -> None:
        """Was the command executed at all, and do we know how it ended?"""
        if self.exit_code is not None or self.timed_out or self.disk_low or self.oom_killed:
            return
        code = self.guard.returncode if self.guard else None
        if self.failure or code == 1:  # bwrap ends with 1, and without a report, when it could not execute the command
            said = self.failure or self.stderr.text().decode(errors="backslashreplace").strip()[:500]
            raise NotSent(f"the command could not be started: {said}")
        raise SandboxCrashed(f"the sandbox ended while the command ran (exit code {code})", self.result())

    def result(self) -> SandboxResult:
        """What is known of the command now; complete when `run` has ended."""
        return SandboxResult(
            exit_code=None if self.timed_out or self.disk_low else self.exit_code,
            stdout=self.stdout.text(),
            stderr=self.stderr.text(),
            stdout_bytes_total=self.stdout.total,
            stderr_bytes_total=self.stderr.total,
            truncated=self.stdout.truncated or self.stderr.truncated,
            timed_out=self.timed_out,
            out_of_memory=self.oom_killed,
            disk_low=self.disk_low,
            seconds=self.seconds,
            peak_memory_bytes=self.peak_memory_bytes,
        )


def _memory_file(content: bytes, ours: contextlib.ExitStack) -> int:
    descriptor = os.memfd_create(NAME)
    ours.callback(os.close, descriptor)
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _rlimits(limits: SandboxLimits, uid: int | None, *, in_cgroup: bool) -> Iterator[tuple[str, tuple[int, int]]]:
    yield "RLIMIT_CORE", (0, 0)
    yield "RLIMIT_CPU", (limits.cpu_seconds, limits.cpu_seconds + CPU_GRACE_SECONDS)
    yield "RLIMIT_FSIZE", (limits.file_bytes_max, limits.file_bytes_max)
    yield "RLIMIT_NOFILE", (limits.open_files_max, limits.open_files_max)
    if not in_cgroup:
        # Counted per uid: a pool uid runs nothing else, our own uid may run a desktop.
        processes = limits.processes_max + cgroups.SANDBOX_PROCESSES + (0 if uid is not None else _own_threads())
        yield "RLIMIT_NPROC", (processes, processes)
        yield "RLIMIT_AS", (limits.memory_bytes, limits.memory_bytes)


def _own_threads() -> int:
    """How many threads our uid has on this machine."""
    count = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and folder.stat().st_uid == os.geteuid():
                count += len(os.listdir(folder / "task"))  # noqa: PTH208
    return count


def _has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
