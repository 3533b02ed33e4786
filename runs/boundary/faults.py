"""Named places where a test or a drill may let the process die, fail or hang. Refuses to be armed in production."""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import get_args

import psycopg
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connection

from kernel_project.primitives.sql import load
from runs.boundary.fault_points import Action, Point

HERE = Path(__file__).parent.parent
HANG_SECONDS = 3_600.0


class Injected(Exception):
    """The failure that an armed `raise` point produces."""


def reach(point: Point, name: str) -> None:
    """Do what is armed for this point and this operation name, if anything is."""
    if settings.KERNEL_FAULTS:
        _act(_armed(settings.KERNEL_FAULTS).get((point, name)))


def _act(action: Action | None) -> None:
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise Injected("an armed fault point")
        case "hang":
            time.sleep(HANG_SECONDS)
        case "cut":
            _cut_the_database()


def _cut_the_database() -> None:
    """End all connections to this database from the server's side, as its restart would."""
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute(load(HERE, "cut_connections"))


@cache
def _armed(text: str) -> dict[tuple[str, str], Action]:
    """`point:operation name=action`, separated by semicolons."""
    if settings.PRODUCTION:
        raise ImproperlyConfigured("KERNEL_FAULTS must not be set in production")
    armed: dict[tuple[str, str], Action] = {}
    for entry in text.split(";"):
        place, _, action = entry.strip().partition("=")
        point, _, name = place.partition(":")
        if point not in get_args(Point) or action not in get_args(Action) or not name:
            raise ImproperlyConfigured(f"KERNEL_FAULTS: {entry!r} is not POINT:NAME=ACTION")
        armed[point, name] = action  # type: ignore[assignment]  # checked above
    return armed
