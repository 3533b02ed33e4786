"""`manage.py up`: everything comes up, mends itself, refuses a second start, and leaves no process, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_project.devstack.layout import PROJECT_ROOT, Layout
from kernel_project.devstack.ports import private_layout
from kernel_project.devstack.process import is_alive
from tests.processes import of_stack, wait_until_gone

READY_SECONDS_MAX = 110.0  # alone on two cores it takes some 12 s; the tests' neighbours take most of them
KILLS = 4
SERVICES = (
    "postgres", "postgres temporality", "broker", "temporal", "temporality", "artifact store", "worker",
    "celery worker", "beat", "web",
)  # fmt: skip
KILL_SEED = int(os.environ.get("TEST_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)


class Up:
    """One `manage.py up` and what it has said."""

    def __init__(self, layout: Layout, *options: str) -> None:
        self.layout = layout
        self.said: list[str] = []
        self._heard = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "up", *options], cwd=PROJECT_ROOT, text=True, stdin=subprocess.DEVNULL,
            env=own_environment(layout), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._heard:
                    self.said.append(line.rstrip("\n"))
                    self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def wait_for(self, pattern: str, seconds_max: float = READY_SECONDS_MAX) -> str:
        def found() -> str | None:
            return next((line for line in self.said if re.search(pattern, line)), None)

        with self._heard:
            self._heard.wait_for(lambda: found() or not self._listener.is_alive(), seconds_max)
            line = found()
        assert line is not None, f"{pattern!r} was not said:\n" + "\n".join(self.said[-40:])
        return line

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._listener.join(20)
        return code


def own_environment(layout: Layout) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.endswith(("_URL", "_ADDRESS"))}
    own = {name: value for name, value in layout.environment().items() if name.startswith("KERNEL_")}
    return inherited | own | {"DJANGO_SETTINGS_MODULE": "kernel_project.settings"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Layout]:
    layout = private_layout(tmp_path / "var")
    yield layout
    for line in of_stack(str(layout.var)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[0]), signal.SIGKILL)


def status(url: str) -> int:
    with urllib.request.urlopen(url, timeout=20) as answer:
        return int(answer.status)


def doctor(place: Layout) -> dict[str, bool]:
    """What `manage.py doctor` says about each service; the sandbox, which is the machine's, aside."""
    told = subprocess.run(
        [sys.executable, "manage.py", "doctor", "--json"], cwd=PROJECT_ROOT, env=own_environment(place),
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    findings = json.loads(told.stdout)
    assert told.returncode == (0 if findings["ok"] else 1)
    assert all(one["ok"] or one["advice"] for one in findings["checks"])
    return {one["name"]: one["ok"] for one in findings["checks"] if one["name"] != "sandbox"}


def test_doctor_says_of_each_service_that_it_is_missing(place: Layout) -> None:
    assert doctor(place) == {name: name == "artifact store" for name in SERVICES}


@pytest.mark.timeout(300)
def test_up_brings_everything_up_mends_it_and_ends_on_ctrl_c(place: Layout) -> None:
    up = Up(place)
    try:
        up.wait_for(r"^up +\| ready in [0-9.]+ s")
        for name in ("postgres", "valkey", "temporal", "temporality", "web", "worker", "celery", "publisher", "beat"):
            up.wait_for(rf"^up +\| {name} is ready")
        assert status(f"{place.web_url}/admin/login/") == 200
        assert status(f"{place.temporality_url}/healthz") == 200

        second = subprocess.run(
            [sys.executable, "manage.py", "up"], cwd=PROJECT_ROOT, env=own_environment(place), capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert f"already in use by process {up.process.pid}" in second.stderr
        assert "KERNEL_VAR" in second.stderr

        assert doctor(place) == dict.fromkeys(SERVICES, True)

        os.kill(pid_of(place, "uvicorn kernel_project.asgi:"), signal.SIGKILL)
        up.wait_for(r"^web +\| ended by signal 9 .* starting it again in 0.5 s", 20)
        up.wait_for(r"^web +\| is ready again", 60)
        assert status(f"{place.web_url}/admin/login/") == 200
    finally:
        code = up.end(signal.SIGINT)
    assert code == 0, "\n".join(up.said[-40:])
    wait_until_gone(str(place.var), seconds_max=0)


def pid_of(place: Layout, words: str) -> int:
    return next(int(line.split()[0]) for line in of_stack(str(place.var)) if words in line and "keeper.py" not in line)


@pytest.mark.timeout(300)
def test_no_process_is_left_when_up_is_killed_at_a_random_moment_of_its_start(place: Layout) -> None:
    moments = random.Random(KILL_SEED)
    sys.stdout.write(f"TEST_SEED={KILL_SEED}\n")
    for _ in range(KILLS):
        up = Up(place, "--quiet")
        with contextlib.suppress(subprocess.TimeoutExpired):
            up.process.wait(moments.uniform(0.2, 15.0))
        assert up.process.returncode is None, "\n".join(up.said)
        up.end(signal.SIGKILL)
        wait_until_gone(str(place.var))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_during_the_start_gives_up_at_once_and_leaves_nothing(place: Layout, number: int) -> None:
    up = Up(place, "--quiet")
    up.wait_for("postgres is ready")
    began = time.monotonic()
    assert up.end(number) == 0, "\n".join(up.said)
    assert time.monotonic() - began < 30
    wait_until_gone(str(place.var), seconds_max=0)
    assert not is_alive(up.process.pid)


@pytest.mark.timeout(120)
def test_a_busy_port_is_a_sentence_and_nothing_keeps_running(place: Layout) -> None:
    import socket

    with socket.create_server(("127.0.0.1", place.temporal_port)):
        up = Up(place, "--quiet", "--only", "postgres", "temporal")
        up.wait_for(f"CommandError: Temporal needs port {place.temporal_port}.*KERNEL_TEMPORAL_PORT")
        assert up.process.wait(30) == 1
    wait_until_gone(str(place.var), seconds_max=0)
