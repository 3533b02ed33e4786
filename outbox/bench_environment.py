"""An environment of its own for the peer that the outbox is measured beside. Without it the figure is absent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.db import connection

PEER = "django-outbox-pattern==3.2.1"
DRIVER = "psycopg[binary]>=3.2"
FIGURE = "django_outbox_pattern_per_s"
INSTALL_SECONDS_MAX = 300
RUN_SECONDS_MAX = 600
REASON_CHARS_MAX = 200
DATABASE = "bench_peer"
SCRIPT = Path(__file__).with_name("bench_peer.py")


def rate(job: str, *numbers: float) -> tuple[dict[str, float], str]:
    """What the peer does per second, by its figure's name; or nothing, and why not."""
    try:
        # -P: this folder's `selectors` must not stand for the standard library's
        command = [str(_python()), "-P", str(SCRIPT), job, *(f"{number:g}" for number in numbers)]
        done = _run(command, RUN_SECONDS_MAX, PEER_DATABASE=_database())
        return {FIGURE: float(json.loads(done)["per_s"])}, ""
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        return {}, _reason(error)


def _python() -> Path:
    """Its interpreter; the environment is made once and kept under var/tools."""
    home = Path(settings.BASE_DIR) / "var" / "tools" / PEER.replace("==", "-")
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        _run([sys.executable, "-m", "venv", "--clear", str(home)], INSTALL_SECONDS_MAX)
        _run([str(python), "-m", "pip", "install", "--quiet", PEER, DRIVER], INSTALL_SECONDS_MAX)
        (home / "complete").touch()
    return python


def _database() -> str:
    """A database of its own beside ours."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE])
        if cursor.fetchone() is None:
            cursor.execute(f"CREATE DATABASE {DATABASE}")
    known: dict[str, Any] = connection.settings_dict
    user, password = quote(known["USER"] or "", safe=""), quote(known["PASSWORD"] or "", safe="")
    return f"postgresql://{user}:{password}@/{DATABASE}?host={quote(known['HOST'] or '')}&port={known['PORT'] or ''}"


def _run(command: list[str], seconds_max: int, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")} | more
    done = subprocess.run(  # noqa: S603  the command is ours
        command, capture_output=True, text=True, timeout=seconds_max, check=True, env=environment, cwd=settings.BASE_DIR
    )
    return done.stdout


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        last = (error.stderr or "").strip().splitlines()[-1:] or ["no message"]
        return f"{Path(error.cmd[0]).name} {error.cmd[1].rpartition('/')[2]} failed: {last[0]}"[:REASON_CHARS_MAX]
    return f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
