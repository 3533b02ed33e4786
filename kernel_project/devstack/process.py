"""One embedded process under a keeper: start, wait until ready, signal, stop. Never restarts one by itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar, Self

from kernel_project.devstack.errors import AlreadyRunning, DevstackError
from kernel_project.devstack.layout import PROJECT_ROOT, Layout

KEEPER = Path(__file__).with_name("keeper.py")
KEEPER_START_SECONDS_MAX = 20.0  # a Python start, on a machine that is very busy
STOP_SECONDS_MAX = 10.0  # from the stop signal to SIGKILL
SWEEP_SECONDS_MAX = 12.0  # the keeper's own limit, and a little
READY_POLL_SECONDS = 0.02
LOCK_WAIT_SECONDS_MAX = 15.0  # the keepers of a killed owner need this long at most to clear away
LOG_BYTES_MAX = 20 * 1024 * 1024  # one older log is kept beside it
LOG_TAIL_BYTES = 4096
REPORT_BYTES_MAX = 4096


class FolderLock:
    """An advisory lock on one folder's use, held by whoever has the file open: the owner and the keepers it started."""

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what = path, what
        self.file: IO[str] | None = None

    def acquire(self) -> None:
        """Raises AlreadyRunning with the owner's pid, unless that owner is dead and its keepers let go in time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a+")
        deadline = time.monotonic() + LOCK_WAIT_SECONDS_MAX
        while not _try_lock(file):
            owner = _read_pid(file)
            if is_alive(owner) or time.monotonic() > deadline:
                file.close()
                raise AlreadyRunning(
                    f"{self.what} is already in use by process {owner or 'unknown'}: "
                    "stop that process, or set KERNEL_VAR to another folder"
                )
            time.sleep(READY_POLL_SECONDS)
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        self.file = file

    def fileno(self) -> int:
        assert self.file is not None
        return self.file.fileno()

    def release(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_pid(file: IO[str]) -> int:
    file.seek(0)
    text = file.read(32).strip()
    return int(text) if text.isdigit() else 0


def is_alive(pid: int) -> bool:
    """True for a process that runs; a zombie, which only waits to be collected, does not."""
    if pid <= 0:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


class Server:
    """One process of the stack. A subclass says how it is started and when it is ready.

    `start()` returns when the process is ready and raises DevstackError otherwise; `stop()` and `kill()` return when
    the process and all its descendants are gone. After either, `start()` may be called again.
    """

    name: ClassVar[str] = ""
    ready_seconds_max: float = 30.0
    stop_signal: int = signal.SIGTERM
    death_signal: int = signal.SIGKILL  # what the process gets if even its keeper is killed
    grace_seconds: float = STOP_SECONDS_MAX

    def __init__(self, layout: Layout, *, on_line: Callable[[str, str], None] | None = None) -> None:
        self.layout = layout
        self.on_line = on_line
        self.abandoned = threading.Event()  # set by whoever does not want to wait for a start any longer
        self.held_lock: FolderLock | None = None  # a lock of the owner that lasts as long as our keeper
        self.pid: int | None = None
        self.return_code: int | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._report = -1
        self._pump: threading.Thread | None = None

    # What a subclass says

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def prepare(self) -> None:
        """Make what the process needs; refuse, with DevstackError, what stands in the way."""

    def is_ready(self) -> bool:
        raise NotImplementedError

    def user(self) -> str:
        """The account to run as; empty for the same as ours."""
        return ""

    def reach_everything(self) -> bool:
        return False

    # What everyone uses

    @property
    def log_path(self) -> Path:
        return self.layout.var / "log" / f"{self.name}.log"

    def start(self) -> Self:
        assert self._keeper is None, f"{self.name} is running"
        self.prepare()
        self.launch()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        self.return_code = None
        report_read, report_write = os.pipe()
        log = self._open_log()
        try:
            self._keeper = subprocess.Popen(  # noqa: S603 - the command comes from the classes here
                self._keeper_command(report_write),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE if self.on_line else log, stderr=subprocess.STDOUT,
                env=dict(self.environment()), cwd=PROJECT_ROOT, start_new_session=True,
                pass_fds=(report_write, *self.kept_descriptors()), bufsize=0,
            )  # fmt: skip
        finally:
            os.close(report_write)
            if not self.on_line:
                log.close()
        self._report = report_read
        if self.on_line:
            self._pump = threading.Thread(target=self._pump_lines, args=(self._keeper, log, self.on_line), daemon=True)
            self._pump.start()
        self._read_started()

    def kept_descriptors(self) -> tuple[int, ...]:
        """Descriptors that the keeper holds open as long as it lives."""
        return () if self.held_lock is None else (self.held_lock.fileno(),)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + self.ready_seconds_max
        while not self.is_ready():
            if not self.alive():
                raise DevstackError(f"{self.name} ended while it started (code {self.return_code}). {self.log_tail()}")
            if self.abandoned.is_set():
                raise DevstackError(f"the start of {self.name} was given up")
            if time.monotonic() > deadline:
                raise DevstackError(f"{self.name} was not ready in {self.ready_seconds_max:g} s. {self.log_tail()}")
            time.sleep(READY_POLL_SECONDS)

    def alive(self) -> bool:
        if self._keeper is None:
            return False
        if self._keeper.poll() is None:
            return True
        self._collect()
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the process itself; its keeper knows that the pid still is the process's."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.write(bytes([number]))

    def stop(self) -> None:
        self._end(self.stop_signal, self.grace_seconds)

    def kill(self) -> None:
        """SIGKILL, as the system would do it: the process has no chance to tidy up."""
        self._end(signal.SIGKILL, 0)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The time without this server; it runs again afterwards, whatever happened inside."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def log_tail(self) -> str:
        try:
            text = self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return f"Its log, {self.log_path}, ends with:\n{text}" if text else f"Its log, {self.log_path}, is empty."

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # How it is done

    def _keeper_command(self, report: int) -> list[str]:
        options = [
            f"--owner={os.getpid()}", f"--report={report}", f"--user={self.user()}",
            f"--stop-signal={int(self.stop_signal)}", f"--death-signal={int(self.death_signal)}",
            f"--grace-seconds={min(self.grace_seconds, STOP_SECONDS_MAX)}",
        ]  # fmt: skip
        if self.reach_everything():
            options.append("--reach-everything")
        return [sys.executable, "-I", "-S", str(KEEPER), *options, "--", *self.command()]

    def _open_log(self) -> IO[bytes]:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if self.log_path.stat().st_size > LOG_BYTES_MAX:
                self.log_path.replace(self.log_path.with_suffix(".log.1"))
        return self.log_path.open("ab")

    def _pump_lines(self, keeper: subprocess.Popen[bytes], log: IO[bytes], on_line: Callable[[str, str], None]) -> None:
        assert keeper.stdout is not None
        with keeper.stdout as lines:
            while line := lines.readline(64 * 1024):
                if log.tell() > LOG_BYTES_MAX:
                    log.close()
                    log = self._open_log()
                log.write(line)
                log.flush()
                on_line(self.name, line.decode(errors="replace").rstrip("\n"))
        log.close()

    def _read_report(self, seconds_max: float) -> str:
        """What the keeper has said since the last call; empty at the end of the time or of the keeper."""
        readable, _, _ = select.select([self._report], [], [], seconds_max)
        return os.read(self._report, REPORT_BYTES_MAX).decode() if readable else ""

    def _read_started(self) -> None:
        text = self._read_report(KEEPER_START_SECONDS_MAX)
        if not text.startswith("started "):
            self._end(signal.SIGKILL, 0)
            raise DevstackError(f"{self.name} cannot be started: its keeper said {text!r}. {self.log_tail()}")
        self.pid = int(text.split()[1])
        if "exited" in text:
            self.return_code = int(text.rpartition("exited ")[2])

    def _end(self, number: int, grace_seconds: float) -> None:
        keeper = self._keeper
        if keeper is None:
            return
        self.signal(number)
        try:
            keeper.wait(grace_seconds or SWEEP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                keeper.wait(SWEEP_SECONDS_MAX)
        self._collect()

    def _collect(self) -> None:
        """Close what belongs to an ended process and remember how it ended."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        if keeper.poll() is None:
            keeper.kill()  # the process then gets its death signal from the system
            keeper.wait()
        last = self._read_report(0)
        if "exited" in last:
            self.return_code = int(last.rpartition("exited ")[2])
        os.close(self._report)
        if keeper.stdin is not None:
            keeper.stdin.close()
        if self._pump is not None:
            self._pump.join(STOP_SECONDS_MAX)
        self.pid = None


def run_to_end(one: Server, seconds_max: float) -> None:
    """Run a command that ends by itself. Raises DevstackError unless it ends well and in time."""
    one.launch()
    deadline = time.monotonic() + seconds_max
    while one.alive():
        if one.abandoned.is_set() or time.monotonic() > deadline:
            one.kill()
            raise DevstackError(f"{one.name} was stopped before its end. {one.log_tail()}")
        time.sleep(READY_POLL_SECONDS)
    if one.return_code != 0:
        raise DevstackError(f"{one.name} failed with code {one.return_code}. {one.log_tail()}")
