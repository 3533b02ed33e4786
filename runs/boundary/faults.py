"""Named places where a test or a drill may let the process die, fail or hang. Refuses to be armed in production."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass
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
    if settings.KERNEL_FAULTS and (armed := _armed(settings.KERNEL_FAULTS).get((point, name))):
        _reached[point, name] += 1
        if armed.time in (0, _reached[point, name]):
            _act(armed.action)


@dataclass(frozen=True)
class _Armed:
    action: Action
    time: int  # only this time that the point is reached in this process; 0 is every time


_reached: Counter[tuple[str, str]] = Counter()


def _act(action: Action) -> None:
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
def _armed(text: str) -> dict[tuple[str, str], _Armed]:
    """`point:operation name=action`, separated by semicolons; `name#2` is the second time only."""
    if settings.PRODUCTION:
        raise ImproperlyConfigured("KERNEL_FAULTS must not be set in production")
    armed: dict[tuple[str, str], _Armed] = {}
    for entry in text.split(";"):
        place, _, action = entry.strip().partition("=")
        point, _, named = place.partition(":")
        name, _, time_text = named.partition("#")
        fits = point in get_args(Point) and action in get_args(Action) and name and (time_text or "1").isdigit()
        if not fits:
            raise ImproperlyConfigured(f"KERNEL_FAULTS: {entry!r} is not POINT:NAME=ACTION or POINT:NAME#TIME=ACTION")
        armed[point, name] = _Armed(action, int(time_text or 0))  # type: ignore[arg-type]  # checked above
    return armed
