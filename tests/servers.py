"""A pytest plugin: real servers, private to this pytest process, in a folder of its own that goes when it ends.

It is loaded with `-p tests.servers`, before Django's settings are imported, because it points the environment at that
folder. Under xdist each worker has servers of its own, so that a test may stop one without its neighbours noticing.
Every server is started when the first test asks for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_project.devstack.keeper import PR_SET_PDEATHSIG, prctl
from kernel_project.devstack.layout import Layout
from kernel_project.devstack.ports import private_layout
from kernel_project.devstack.postgres import Postgres
from kernel_project.devstack.process import Server, is_alive
from kernel_project.devstack.temporal import Temporal, TimeSkippingTemporal
from kernel_project.devstack.valkey import Valkey
from kernel_project.environment import Environment

FOLDER_PREFIX = "agent-kernel-tests-"
FOLDER_MODE = 0o711  # PostgreSQL, which runs as another user when we are root, must pass
LEFT_BEHIND_MAX = 50  # folders of killed sessions that one start clears away


def remove_left_behind() -> None:
    """Remove the folders of pytest processes that were killed."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"))[:LEFT_BEHIND_MAX]:
        pid = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if pid.isdigit() and not is_alive(int(pid)) and folder.stat().st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)


def enter_private_layout() -> Layout:
    """Make the folder and point this process, and all that it starts, at it."""
    folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
    folder.chmod(FOLDER_MODE)
    layout = private_layout(folder)
    for name in Environment.model_fields:
        os.environ.pop(name.upper(), None)  # what the developer has set is not for tests
    os.environ.update(layout.environment())
    os.environ["KERNEL_SCRIPTS"] = str(layout.var / "scripts")
    (layout.var / "static").mkdir()  # in development files are served from the apps, but WhiteNoise asks for the folder
    return layout


def die_with_the_controller() -> None:
    """A worker of xdist would finish its test after a SIGKILL of the process that started it, and keep its servers."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


die_with_the_controller()
remove_left_behind()
LAYOUT = enter_private_layout()
STARTED: list[Server] = []


def started(server: Server) -> Iterator[Server]:
    with server:
        STARTED.append(server)
        yield server
        STARTED.remove(server)


@pytest.fixture(scope="session")
def layout() -> Layout:
    """The folder and ports of this pytest process."""
    return LAYOUT


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """PostgreSQL without fsync, with stop(), start(), restart(), kill(), stopped() and terminate_backends(database)."""
    yield from started(Postgres(LAYOUT, durable=False))


@pytest.fixture(scope="session")
def valkey() -> Iterator[Server]:
    """Valkey at settings.CELERY_BROKER_URL."""
    yield from started(Valkey(LAYOUT))


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[Server]:
    """The Temporal development server at settings.TEMPORAL_ADDRESS, with stop(), start(), kill() and stopped()."""
    yield from started(Temporal(LAYOUT))


@pytest.fixture(scope="session")
def time_skipping_server() -> Iterator[Server]:
    """Temporal's test server, which skips time, at its own `.address`."""
    yield from started(TimeSkippingTemporal(private_layout(LAYOUT.var / "time-skipping")))


@pytest.fixture(autouse=True)
def servers_run_again() -> Iterator[None]:
    """A test may leave a server stopped; the next one finds it running."""
    yield
    for server in STARTED:
        if not server.alive():
            server.start()


def pytest_unconfigure() -> None:
    shutil.rmtree(LAYOUT.var, ignore_errors=True)
