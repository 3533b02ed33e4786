"""How another program of the same user stops, kills and starts parts of a stack that `manage.py up` runs: a unix socket
in the stack's folder. One controller at a time; when it goes, however it goes, all that it took away comes back.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.layout import Layout
from kernel_project.devstack.stack import SERVERS, Stack, run_manage
from kernel_project.devstack.supervisor import Minder

SOCKET_NAME = "control.sock"
LINE_BYTES_MAX = 256 * 1024  # an environment is the largest thing that is told
WORK_SECONDS_MAX = 150.0  # one start or restart of the slowest process, on a busy machine
ACCEPT_SECONDS = 0.5  # between two looks at whether the stack stops
MOVES = ("start", "stop", "kill", "restart")

Json = dict[str, Any]


class Control(threading.Thread):
    """Listens beside the minders of a running stack, and lets one controller at a time take parts of it away.

    Meanwhile the minders start nothing by themselves. Set `stopping`, then join, before the stack is stopped.
    """

    def __init__(self, stack: Stack, minders: Sequence[Minder], stopping: threading.Event) -> None:
        super().__init__(name="control", daemon=True)
        self.stack, self.minders, self.stopping = stack, {one.server.name: one for one in minders}, stopping
        self._touched: set[str] = set()  # while somebody controls
        self._listening = socket.socket(socket.AF_UNIX)
        with _short(stack.layout.var) as folder:
            Path(folder, SOCKET_NAME).unlink(missing_ok=True)  # of an owner that was killed: the folder is locked by us
            self._listening.bind(f"{folder}/{SOCKET_NAME}")
            Path(folder, SOCKET_NAME).chmod(0o600)
        self._listening.listen(1)
        self._listening.settimeout(ACCEPT_SECONDS)

    def run(self) -> None:
        with self._listening:
            while not self.stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    connection, _ = self._listening.accept()
                    with connection:
                        self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        if _peer_uid(connection) not in (0, os.getuid()):
            return
        given = dict(self.stack.extra_environment)
        self._touched.clear()
        connection.settimeout(ACCEPT_SECONDS)
        for minder in self.minders.values():
            minder.rest()
        try:
            for line in _lines(connection, self.stopping):
                connection.sendall(_as_line(self._answer(line)))
        except OSError:
            pass  # the controller is gone
        finally:
            self._give_back(given)

    def _answer(self, line: bytes) -> Json:
        try:
            asked = json.loads(line)
            match asked["do"]:
                case "describe":
                    return {"services": list(self.stack.services), "environment": self.stack.environment()}
                case "alive":
                    return {"alive": self.stack.alive(asked["name"])}
                case "set":
                    self.stack.set_variable(asked["name"], asked["value"])
                    return {"environment": self.stack.environment()}
                case move if move in MOVES:
                    self._touched.add(asked["name"])
                    getattr(self.stack, move)(asked["name"])
                    return {}
            return {"error": f"there is no {asked['do']!r} here"}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _give_back(self, given: Mapping[str, str]) -> None:
        """The environment as it was, and no process that knows another one; what is dead the minders start again."""
        self.stack.extra_environment = dict(given)
        for name, minder in self.minders.items():
            if name in self._touched and name not in SERVERS:
                self.stack.stop(name)
            minder.wake()


class ControlledStack:
    """A stack that another process runs, as its controller sees it; the same words as a stack of one's own."""

    def __init__(self, var: Path) -> None:
        """Raises DevstackError if no `manage.py up` runs in this folder, or another controller has it."""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(WORK_SECONDS_MAX)
        try:
            with _short(var) as folder:
                self._socket.connect(f"{folder}/{SOCKET_NAME}")
        except OSError:
            self._socket.close()
            raise DevstackError(
                f"no `manage.py up` runs in {var}: start it there, or set KERNEL_VAR to its folder"
            ) from None
        try:
            described = self._ask({"do": "describe"})
        except DevstackError:
            self._socket.close()
            raise
        self.services: list[str] = described["services"]
        self._environment: dict[str, str] = described["environment"]
        self.layout = Layout.from_environment(self._environment)

    def start(self, name: str) -> None:
        self._ask({"do": "start", "name": name})

    def stop(self, name: str) -> None:
        self._ask({"do": "stop", "name": name})

    def kill(self, name: str) -> None:
        self._ask({"do": "kill", "name": name})

    def restart(self, name: str) -> None:
        self._ask({"do": "restart", "name": name})

    def alive(self, name: str) -> bool:
        return bool(self._ask({"do": "alive", "name": name})["alive"])

    def set_variable(self, name: str, value: str | None) -> None:
        """For processes that start from now on; None: as if it had never been set here."""
        self._environment = self._ask({"do": "set", "name": name, "value": value})["environment"]

    def environment(self) -> dict[str, str]:
        return dict(self._environment)

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_manage(self._environment, *words)

    def close(self) -> None:
        """Give the stack back."""
        self._socket.close()

    def _ask(self, question: Json) -> Json:
        try:
            self._socket.sendall(_as_line(question))
            answer: Json = json.loads(next(_lines(self._socket)))
        except TimeoutError:
            raise DevstackError("the running stack did not answer in time; another program may control it") from None
        except (OSError, StopIteration, ValueError):
            raise DevstackError("the running stack was stopped") from None
        if "error" in answer:
            raise DevstackError(answer["error"])
        return answer


def _as_line(said: Json) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _lines(connection: socket.socket, stopping: threading.Event | None = None) -> Iterator[bytes]:
    """The other side's lines until it is gone, says more than a line may hold, or `stopping` is set.

    Without `stopping`, raises TimeoutError when nothing comes in the connection's time.
    """
    held = b""
    while len(held) <= LINE_BYTES_MAX and not (stopping and stopping.is_set()):
        try:
            more = connection.recv(64 * 1024)
        except TimeoutError:
            if stopping is None:
                raise
            continue
        if not more:
            return
        *lines, held = (held + more).split(b"\n")
        yield from lines


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A short name for a folder: the whole path of a unix socket may have 107 bytes only."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
