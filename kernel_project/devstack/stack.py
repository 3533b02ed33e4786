"""The embedded stack as a whole: servers first, then migrations, then the kernel's own processes. Not for production.

`with running() as stack:` brings all of it up in a temporary folder; `stack.kill("worker")`, `stack.start("worker")`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.layout import PROJECT_ROOT, Layout
from kernel_project.devstack.ports import private_layout
from kernel_project.devstack.postgres import Postgres
from kernel_project.devstack.process import FolderLock, Server, run_to_end
from kernel_project.devstack.services import (
    MANAGE,
    PREPARE_SECONDS_MAX,
    PYTHON,
    Beat,
    Celery,
    OutboxPublisher,
    Prepare,
    Temporality,
    Web,
    Worker,
    base_environment,
)
from kernel_project.devstack.temporal import Temporal
from kernel_project.devstack.valkey import Valkey
from kernel_project.environment import Environment, development_secret

SERVERS = ("postgres", "valkey", "temporal")
PROCESSES = ("temporality", "web", "worker", "celery", "publisher", "beat")
ALL = SERVERS + PROCESSES
# What must be ready before a unit starts; each name stands below those it needs. Web and the Celery workers do nothing
# before somebody asks, so that they load while the databases are migrated: both cores have work.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "postgres": (),
    "valkey": (),
    "temporal": (),
    "prepare": (),  # loads, then waits for the database itself
    "web": (),
    "celery": ("valkey",),
    "publisher": ("valkey",),
    "temporality": ("prepare",),
    "worker": ("prepare", "temporal"),
    "beat": ("prepare", "celery", "publisher"),
}
MANAGE_SECONDS_MAX = 120.0
FOLDER_MODE = 0o711  # PostgreSQL, which runs as another user when we are root, must pass

OnLine = Callable[[str, str], None]


class Stack:
    """Named servers and processes over one layout. `external` holds the URLs of servers that are not ours to start."""

    def __init__(
        self,
        layout: Layout,
        services: Collection[str] = ALL,
        *,
        durable: bool = True,
        ui: bool = False,
        external: Mapping[str, str] | None = None,
        extra_environment: Mapping[str, str] | None = None,
        on_line: OnLine | None = None,
        on_ready: Callable[[Server], None] | None = None,
    ) -> None:
        if unknown := set(services) - set(ALL):
            raise DevstackError(f"unknown service {', '.join(sorted(unknown))}; known are {', '.join(ALL)}")
        self.layout = layout
        self.external = dict(external or {})
        self.extra_environment = dict(extra_environment or {})
        self.lock = FolderLock(layout.var / "locks" / "stack", f"The embedded stack in {layout.var}")
        self.abandoned = threading.Event()
        self._on_ready = on_ready or (lambda _server: None)
        self._prepare = Prepare(layout, self.environment, temporality=self._owns_temporality(services), on_line=on_line)
        every: dict[str, Server] = {
            "postgres": Postgres(layout, durable=durable, on_line=on_line),
            "valkey": Valkey(layout, on_line=on_line),
            "temporal": Temporal(layout, ui=ui, on_line=on_line),
            **{
                kind.name: kind(layout, self.environment, on_line=on_line)
                for kind in (Temporality, Web, Worker, Celery, OutboxPublisher, Beat)
            },
        }
        self.services = {name: every[name] for name in ALL if name in services and not self._is_external(name)}
        prepare = {"prepare": self._prepare} if "postgres" in self.services or "DATABASE_URL" in self.external else {}
        self._units = {**self.services, **prepare}
        for server in self._units.values():
            server.abandoned = self.abandoned
            server.held_lock = self.lock

    # Whole

    def start_all(self) -> None:
        """Start everything, in order, side by side where order allows. On an error nothing is left running."""
        self.lock.acquire()
        try:
            self._start_together()
        except BaseException:
            self.stop_all()
            raise

    def stop_all(self) -> None:
        """Stop the processes, then the servers that they use."""
        self.abandoned.set()
        for group in (("prepare", *PROCESSES), SERVERS):
            servers = [self._units[name] for name in group if name in self._units]
            with ThreadPoolExecutor(len(group)) as pool:
                list(pool.map(lambda server: server.stop(), servers))
        self.lock.release()
        self.abandoned.clear()

    # One by one

    def start(self, name: str) -> None:
        self[name].start()

    def stop(self, name: str) -> None:
        self[name].stop()

    def kill(self, name: str) -> None:
        """SIGKILL; it stays dead until start() or restart()."""
        self[name].kill()

    def restart(self, name: str) -> None:
        self[name].restart()

    def alive(self, name: str) -> bool:
        return self[name].alive()

    def set_variable(self, name: str, value: str | None) -> None:
        """For processes that start from now on; None: as if it had never been set here."""
        changed = {key: text for key, text in self.extra_environment.items() if key != name}
        self.extra_environment = changed if value is None else changed | {name: value}

    def __getitem__(self, name: str) -> Server:
        if name not in self.services:
            raise DevstackError(f"this stack has no {name}; it has {', '.join(self.services)}")
        return self.services[name]

    # For others

    def environment(self) -> dict[str, str]:
        """The whole environment of a process that belongs to this stack."""
        own = {name.upper() for name in Environment.model_fields} | set(self.layout.environment())
        chosen = self.layout.environment() | self.external
        if "TEMPORALITY_TOKEN" not in chosen:
            chosen["TEMPORALITY_TOKEN"] = development_secret(self.layout, "temporality_token")
        return base_environment(frozenset(own)) | chosen | self.extra_environment

    def manage(self, *words: str, seconds_max: float = MANAGE_SECONDS_MAX) -> subprocess.CompletedProcess[str]:
        """Run a management command in this stack's environment; the caller looks at the return code."""
        return run_manage(self.environment(), *words, seconds_max=seconds_max)

    # How it is done

    def _start_together(self) -> None:
        """Start each unit as soon as those that it needs are ready. Raises the first error, after all threads ended."""
        futures: dict[str, Future[None]] = {}
        pool = ThreadPoolExecutor(len(NEEDS))
        try:
            for name in [name for name in NEEDS if name in self._units]:
                needed = [futures[other] for other in NEEDS[name] if other in futures]
                futures[name] = pool.submit(self._start_one, self._units[name], needed)
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            self.abandoned.set()  # nobody waits for the others to become ready
            raise
        finally:
            pool.shutdown()

    def _start_one(self, server: Server, needed: Sequence[Future[None]]) -> None:
        for future in needed:
            future.result()
        if server is self._prepare:
            run_to_end(server, PREPARE_SECONDS_MAX)
        else:
            server.start()
        self._on_ready(server)

    def _is_external(self, name: str) -> bool:
        given = self.external.keys()
        if name == "postgres":
            return "DATABASE_URL" in given and bool(given & {"TEMPORALITY_URL", "TEMPORALITY_DATABASE_URL"})
        variable = {"valkey": "REDIS_URL", "temporal": "TEMPORAL_ADDRESS", "temporality": "TEMPORALITY_URL"}.get(name)
        return variable in given

    def _owns_temporality(self, services: Collection[str]) -> bool:
        return "temporality" in services and not self._is_external("temporality")


def run_manage(
    environment: Mapping[str, str], *words: str, seconds_max: float = MANAGE_SECONDS_MAX
) -> subprocess.CompletedProcess[str]:
    """Run a management command in a stack's environment; the caller looks at the return code."""
    return subprocess.run(  # noqa: S603 - our own program
        [PYTHON, MANAGE, *words], env=dict(environment), cwd=PROJECT_ROOT, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=seconds_max, check=False,
    )  # fmt: skip


@contextlib.contextmanager
def running(
    layout: Layout | None = None,
    services: Collection[str] = ALL,
    *,
    durable: bool = True,
    extra_environment: Mapping[str, str] | None = None,
    on_line: OnLine | None = None,
) -> Iterator[Stack]:
    """A stack for the length of the block; without a layout in a temporary folder with free ports."""
    with contextlib.ExitStack() as cleanup:
        if layout is None:
            folder = Path(tempfile.mkdtemp(prefix=f"agent-kernel-stack-{os.getpid()}-"))
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
            folder.chmod(FOLDER_MODE)
            layout = private_layout(folder)
        stack = Stack(layout, services, durable=durable, extra_environment=extra_environment, on_line=on_line)
        cleanup.callback(stack.stop_all)
        stack.start_all()
        yield stack
