"""The kernel's own processes as parts of the embedded stack: how each is started, and when it is ready."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from kernel_project.devstack import ports, temporal
from kernel_project.devstack.layout import PROJECT_ROOT, Layout
from kernel_project.devstack.process import Server

ANSWER_SECONDS_MAX = 5
LOG_SCAN_BYTES_MAX = 256 * 1024
CELERY_THREADS = 5
PUBLISHER_THREADS = 2  # one publishes for most of a minute; the ticks meanwhile find the place taken, and leave
PREPARE_SECONDS_MAX = 120.0

PYTHON = sys.executable
MANAGE = str(PROJECT_ROOT / "manage.py")


class Service(Server):
    """A process of the kernel with the stack's environment."""

    ready_seconds_max = 60.0

    def __init__(self, layout: Layout, environment: Callable[[], Mapping[str, str]], **options: Any) -> None:
        super().__init__(layout, **options)
        self._environment = environment
        self._launched_at = datetime.now(UTC)
        self._log_start = 0

    def environment(self) -> Mapping[str, str]:
        return self._environment()

    def launch(self) -> None:
        self._launched_at = datetime.now(UTC)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        super().launch()

    def log_says(self, words: bytes) -> bool:
        """True when the log has these words since the last launch."""
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            return words in log.read(LOG_SCAN_BYTES_MAX)


class HttpService(Service):
    """A uvicorn process; ready when it answers on /healthz."""

    application: ClassVar[str]
    variable: ClassVar[str]

    @property
    def port(self) -> int:
        raise NotImplementedError

    def prepare(self) -> None:
        ports.require_free(self.port, self.name, self.variable)

    def command(self) -> Sequence[str]:
        return [
            PYTHON, "-m", "uvicorn", self.application, "--host", ports.LOOPBACK, "--port", str(self.port),
            "--no-access-log", "--timeout-graceful-shutdown", "5",
        ]  # fmt: skip

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection(ports.LOOPBACK, self.port, timeout=ANSWER_SECONDS_MAX)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status < http.HTTPStatus.INTERNAL_SERVER_ERROR
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class Web(HttpService):
    name = "web"
    application = "kernel_project.asgi:application"
    variable = "KERNEL_WEB_PORT"

    @property
    def port(self) -> int:
        return self.layout.web_port


class Temporality(HttpService):
    name = "temporality"
    application = "kernel_project.asgi_temporality:application"
    variable = "KERNEL_TEMPORALITY_PORT"

    @property
    def port(self) -> int:
        return self.layout.temporality_port


class Worker(Service):
    """The Temporal worker; ready when the server has seen it poll for both kinds of task."""

    name = "worker"

    def command(self) -> Sequence[str]:
        return [PYTHON, MANAGE, "runs_worker"]

    def is_ready(self) -> bool:
        return self.log_says(b"worker ready") and all(self._polls(kind) for kind in ("workflow", "activity"))

    def _polls(self, kind: str) -> bool:
        environment = {"TEMPORAL_NAMESPACE": "default", "TEMPORAL_TASK_QUEUE": "agent-kernel", **self.environment()}
        question = [
            str(temporal.binary("temporal")), "task-queue", "describe", "--output", "json",
            "--address", environment["TEMPORAL_ADDRESS"], "--namespace", environment["TEMPORAL_NAMESPACE"],
            "--task-queue", environment["TEMPORAL_TASK_QUEUE"], "--task-queue-type", kind,
        ]  # fmt: skip
        try:
            answer = subprocess.run(question, capture_output=True, timeout=ANSWER_SECONDS_MAX, check=True)  # noqa: S603
            pollers = json.loads(answer.stdout).get("pollers") or []
        except (subprocess.SubprocessError, ValueError):
            return False
        return any(datetime.fromisoformat(poller["lastAccessTime"]) >= self._launched_at for poller in pollers)


class Celery(Service):
    """A Celery worker: of one queue, so that slow jobs of the other never keep its own waiting."""

    name = "celery"
    queue, threads = "kernel", CELERY_THREADS
    stop_signal = signal.SIGQUIT  # without waiting for the publisher's loop, which a lease makes safe to cut
    grace_seconds = 3.0

    def command(self) -> Sequence[str]:
        return [
            PYTHON, "-m", "celery", "-A", "kernel_project", "worker", "--pool", "threads",
            "--concurrency", str(self.threads), "-Q", self.queue, "--loglevel", "INFO",
            "--hostname", f"{self.queue}-{self.layout.web_port}@%h", "--without-gossip", "--without-mingle",
        ]  # fmt: skip

    def is_ready(self) -> bool:
        return self.log_says(b" ready.")


class OutboxPublisher(Celery):
    name = "publisher"
    queue, threads = "outbox", PUBLISHER_THREADS


class Beat(Service):
    name = "beat"

    def prepare(self) -> None:
        (self.layout.var / "celery").mkdir(parents=True, exist_ok=True)

    def command(self) -> Sequence[str]:
        schedule = str(self.layout.var / "celery" / "beat-schedule")
        return [
            PYTHON, "-m", "celery", "-A", "kernel_project", "beat", "--schedule", schedule, "--pidfile=",
            "--loglevel", "INFO",
        ]  # fmt: skip

    def is_ready(self) -> bool:
        return self.log_says(b"beat: Starting")


class Prepare(Service):
    """Runs to its end before the others start: migrations, the event store's token, the developer's account."""

    name = "prepare"

    def __init__(self, *args: Any, temporality: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.temporality = temporality

    def command(self) -> Sequence[str]:
        options = ["--temporality"] if self.temporality else []
        return [PYTHON, "-m", "kernel_project.devstack.prepare", *options]


def base_environment(own: frozenset[str]) -> dict[str, str]:
    """What a child inherits from us: everything but the variables that would lead it to another stack."""
    dropped = own | {"DJANGO_SETTINGS_MODULE", "PYTHONDONTWRITEBYTECODE"}  # compiled files make a start much faster
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return inherited | {"PYTHONUNBUFFERED": "1"}
