"""`manage.py up`: the whole kernel with its embedded servers, in the foreground. For development only."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from kernel_project.devstack.control import Control
from kernel_project.devstack.errors import DevstackError
from kernel_project.devstack.layout import Layout
from kernel_project.devstack.prepare import ADMIN_NAME
from kernel_project.devstack.process import Server
from kernel_project.devstack.stack import ALL, Stack
from kernel_project.devstack.supervisor import mind
from kernel_project.environment import Environment

URL_VARIABLES = ("DATABASE_URL", "TEMPORALITY_DATABASE_URL", "REDIS_URL", "TEMPORAL_ADDRESS", "TEMPORALITY_URL")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
THREADS_JOIN_SECONDS_MAX = 60.0  # a minder may be inside a start, which gives up at once when told to
NAME_WIDTH = max(map(len, ALL))


class Output:
    """One line at a time, each with the name of its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def line(self, name: str, text: str) -> None:
        with self._lock:
            try:
                sys.stdout.write(f"{name:<{NAME_WIDTH}} | {text}\n")
                sys.stdout.flush()
            except (BrokenPipeError, ValueError):
                os.kill(os.getpid(), signal.SIGTERM)  # nobody reads any more: `up | head` ends like Ctrl-C


class Command(BaseCommand):
    help = "Start PostgreSQL, Valkey, Temporal, the event store, web, worker, Celery and beat, and keep them running."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--quiet", action="store_true", help="do not show the processes' own lines (see var/log)")
        parser.add_argument("--only", nargs="+", choices=ALL, default=ALL, metavar="SERVICE", help=", ".join(ALL))

    def handle(self, *_: Any, quiet: bool, only: list[str], **options: Any) -> None:
        if os.environ.get("KERNEL_MODE") == "production":
            raise CommandError("`up` runs the embedded servers for development: unset KERNEL_MODE=production")
        began = time.monotonic()
        output, stopping = Output(), threading.Event()
        layout = Layout.from_environment()
        given = {name: value for name in map(str.upper, Environment.model_fields) if (value := os.environ.get(name))}
        stack = Stack(
            layout, only, ui=True, extra_environment=given,
            external={name: given[name] for name in URL_VARIABLES if name in given},
            on_line=(lambda _name, _text: None) if quiet else output.line,
            on_ready=lambda server: output.line("up", f"{server.name} is ready{place(server, layout)}"),
        )  # fmt: skip
        stop_on_signals(stack, stopping)
        try:
            stack.start_all()
            for line in summary(stack, time.monotonic() - began):
                output.line("up", line)
            minders = mind(stack.services, stopping, output.line)
            control = Control(stack, minders, stopping)
            control.start()
            stopping.wait()
            for thread in (control, *minders):
                thread.join(THREADS_JOIN_SECONDS_MAX)
        except DevstackError as error:
            if not stopping.is_set():
                raise CommandError(str(error)) from None
        finally:
            stack.stop_all()
        output.line("up", "everything is stopped")


def stop_on_signals(stack: Stack, stopping: threading.Event) -> None:
    """Set both events on a signal, from a thread: a handler that did it could meet its own second call, and lock up."""
    arrived, arrives = os.pipe()
    os.set_blocking(arrives, False)
    signal.set_wakeup_fd(arrives, warn_on_full_buffer=False)
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)

    def hear() -> None:
        while os.read(arrived, 1)[0] not in STOP_SIGNALS:
            pass
        stopping.set()
        stack.abandoned.set()

    threading.Thread(target=hear, name="signals", daemon=True).start()


def place(server: Server, layout: Layout) -> str:
    places = {
        "postgres": layout.database_url("kernel"),
        "valkey": layout.redis_url,
        "temporal": f"{layout.temporal_address}, its web interface {layout.temporal_ui_url}",
        "temporality": layout.temporality_url,
        "web": layout.web_url,
    }
    return f": {where}" if (where := places.get(server.name)) else ""


def summary(stack: Stack, seconds: float) -> list[str]:
    layout = stack.layout
    lines = [f"ready in {seconds:.1f} s. Stop with Ctrl-C."]
    if "web" in stack.services:
        lines.append(f"admin      {layout.web_url}/admin/   name {ADMIN_NAME}, password {admin_password(layout)}")
        lines.append(f"API        {layout.web_url}/api/v1/docs")
    if "temporal" in stack.services:
        lines.append(f"Temporal   {layout.temporal_ui_url}")
    if "temporality" in stack.services:
        lines.append(f"events     {layout.temporality_url}")
    return [*lines, f"logs       {layout.var / 'log'}"]


def admin_password(layout: Layout) -> str:
    """The password itself for a person at a terminal; for a file or a pipe, which may be kept, where it is."""
    path = layout.var / "secrets" / "admin_password"
    return path.read_text() if sys.stdout.isatty() else f"in {path}"
