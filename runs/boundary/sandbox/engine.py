"""Calls of a container engine's command line: docker's, or podman's, which takes the same words. Decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from runs.boundary.sandbox.output import BoundedOutput

CALL_SECONDS_MAX = 30.0  # of one short call; an engine under load answers in one
KILL_SECONDS_MAX = 3.0  # to see the end of a command line that was killed
ANSWER_BYTES_MAX = 1024 * 1024  # of one answer; the description of a container has 10 KB
SAID_CHARS_MAX = 500
CHUNK_BYTES = 65_536  # what a pipe holds
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# How the command line finds its engine, and nothing else of ours: the rest holds passwords.
PASSED_VARIABLES: Final = (
    "PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY",
    "DOCKER_CERT_PATH", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "DBUS_SESSION_BUS_ADDRESS",
)  # fmt: skip
ASKED = '{"state": {{json .State}}, "labels": {{json .Config.Labels}}}'  # in words that both engines understand
NEVER = "0001-01-01"  # how an engine writes that something has not happened


class EngineSilent(Exception):
    """The engine, or its command line, did not answer."""


@dataclass(frozen=True)
class Answer:
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def said(self) -> str:
        return self.stderr.decode(errors="backslashreplace").strip()[:SAID_CHARS_MAX]


@dataclass(frozen=True)
class Container:
    """What the engine says of one container."""

    status: str
    running: bool
    exit_code: int
    out_of_memory: bool
    error: str
    started_at: datetime | None
    finished_at: datetime | None
    labels: Mapping[str, str]


class Pipe:
    """One output of a command line, read as it comes and bounded."""

    def __init__(self, bytes_max: int) -> None:
        self.output = BoundedOutput(bytes_max)
        self.ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._mine, self.child = os.pipe()
        os.set_blocking(self._mine, False)
        self._loop.add_reader(self._mine, self._read)

    def child_has_it(self) -> None:
        os.close(self.child)

    def _read(self) -> None:
        try:
            chunk = os.read(self._mine, CHUNK_BYTES)
        except BlockingIOError:
            return
        if chunk:
            self.output.add(chunk)
        else:
            self.close()

    def close(self) -> None:
        if not self.ended.is_set():
            self._loop.remove_reader(self._mine)
            os.close(self._mine)
            self.ended.set()


class CommandLine:
    """One process of the engine's command line. Ending it does not end the container that it shows."""

    def __init__(self, process: asyncio.subprocess.Process, stdout: Pipe, stderr: Pipe) -> None:
        self.process, self.stdout, self.stderr = process, stdout, stderr

    @classmethod
    async def start(
        cls,
        program: str,
        arguments: Sequence[str],
        bytes_max: int,
        *,
        stdin: int | None = None,
        fds: Sequence[int] = (),
    ) -> CommandLine:
        """Raises EngineSilent when there is no such program."""
        with contextlib.ExitStack() as opened:
            stdout, stderr = Pipe(bytes_max), Pipe(bytes_max)
            for pipe in (stdout, stderr):
                opened.callback(pipe.child_has_it)
            try:
                process = await asyncio.create_subprocess_exec(
                    program, *arguments, env=environment(), cwd="/", start_new_session=True, pass_fds=fds,
                    stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
                    stdout=stdout.child, stderr=stderr.child,
                )  # fmt: skip
            except BaseException as error:
                stdout.close()
                stderr.close()
                if isinstance(error, OSError):
                    raise EngineSilent(f"{program} cannot be started: {error.strerror}") from error
                raise
        return cls(process, stdout, stderr)

    async def ended(self) -> int:
        """Wait until it has ended and has said everything; its exit code."""
        code = await self.process.wait()
        await self.stdout.ended.wait()
        await self.stderr.ended.wait()
        return code

    async def close(self) -> None:
        """End it if it still runs."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), KILL_SECONDS_MAX)
        self.stdout.close()
        self.stderr.close()


def environment() -> dict[str, str]:
    return {"PATH": PATH} | {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}


async def call(
    program: str, *arguments: str, fds: Sequence[int] = (), bytes_max: int = ANSWER_BYTES_MAX,
    seconds: float = CALL_SECONDS_MAX,
) -> Answer:  # fmt: skip
    """One short call. Raises EngineSilent when nothing comes in time."""
    line = await CommandLine.start(program, arguments, bytes_max, fds=fds)
    try:
        code = await asyncio.wait_for(line.ended(), seconds)
    except TimeoutError:
        raise EngineSilent(f"`{program} {arguments[0]}` gave no answer within {seconds:g} s") from None
    finally:
        await line.close()
    return Answer(code, line.stdout.output.text(), line.stderr.output.text())


async def inspect(program: str, name: str) -> Container | None:
    """What the engine says of a container; None when it says that there is none."""
    answer = await call(program, "inspect", "--type", "container", "--format", ASKED, name)
    if answer.code != 0:
        if "no such" in answer.said.lower():
            return None
        raise EngineSilent(answer.said or f"`{program} inspect` failed")
    try:
        return _container(json.loads(answer.stdout))
    except (ValueError, KeyError, TypeError) as error:
        raise EngineSilent(f"`{program} inspect` answered something else: {type(error).__name__}") from None


def _container(facts: dict[str, Any]) -> Container:
    state = facts["state"]
    return Container(
        status=str(state["Status"]),
        running=bool(state["Running"]),
        exit_code=int(state["ExitCode"]),
        out_of_memory=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        started_at=_time(state["StartedAt"]),
        finished_at=_time(state["FinishedAt"]),
        labels={str(name): str(value) for name, value in (facts["labels"] or {}).items()},
    )


def _time(text: str) -> datetime | None:
    return None if text.startswith(NEVER) else datetime.fromisoformat(text).astimezone(UTC)


async def names(program: str, label: str) -> list[str]:
    """The names of all containers with a label, running or not."""
    answer = await call(program, "ps", "--all", "--filter", f"label={label}", "--format", "{{.Names}}")
    if answer.code != 0:
        raise EngineSilent(answer.said or f"`{program} ps` failed")
    return answer.stdout.decode().split()


def found(program: str) -> str:
    """The path of the engine's command line; empty if there is none."""
    return shutil.which(program, path=environment()["PATH"]) or ""
