"""Put all artifacts under the newest key, so that older ones can be taken away. Nothing is changed but the seal.

One that was cut off is gone on with where it stopped; what it had done is not done again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Q

from kernel_project.primitives import keyring
from kernel_project.primitives.errors import Invalid, NotFound
from kernel_project.primitives.sql import rows
from runs.boundary import artifacts, objects, secret_arguments
from runs.models import Operation

HERE = Path(__file__).parent.parent
BODIES_PER_BATCH = 500  # rows of one short transaction, of 8 KiB at most
OBJECTS_PER_STEP = 100  # between two looks at the clock
PROBLEMS_SHOWN_MAX = 20
CALLS_LOOKED_AT_MAX = 100_000  # about a millisecond each
STATE = Operation.State
FLAT = (artifacts.DOOMED, artifacts.OUTCOMES, objects.ALIKE)  # few objects


@dataclass
class Rotated:
    """What was put under the newest key, and what could not be."""

    key: str
    bodies: int = 0
    objects: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)
    complete: bool = False
    words: dict[str, int] = field(default_factory=dict)  # calls not over with a secret under it, by older key
    words_counted: bool = True  # False: there are more calls than are looked at


def rotate(seconds_max: float = float("inf"), progress: Callable[[Rotated], None] = lambda _: None) -> Rotated:
    """Go on with putting everything under the newest key, for at most so long. Raises Invalid without keys."""
    made = Rotated(objects.keys().newest)
    if not made.key:
        raise Invalid("set ARTIFACT_KEYS; manage.py rotate_artifact_keys --new-key makes a key")
    until = time.monotonic() + seconds_max
    for _ in _steps(made):
        progress(made)
        if time.monotonic() > until:
            return made
    made.words, made.words_counted = keys_of_words(made.key)
    made.complete = True
    return made


def keys_of_words(newest: str) -> tuple[dict[str, int], bool]:
    """Older keys of secret arguments of calls that may still need them, with how many; whether all were looked at.

    Words stand inside arguments, whose digest is bound to approvals, so they are not sealed anew: their keys have to
    stay until the calls have ended and cannot be undone any more.
    """
    is_open = Q(state__in=(STATE.PROPOSED, STATE.AWAITING_APPROVAL, STATE.DISPATCHED, STATE.UNCERTAIN))
    undoable = Q(effect="write", tool__compensation__isnull=False)
    wanted = Operation.objects.filter(is_open | undoable, tool__configuration__has_key="secret_arguments")
    found = list(wanted.order_by("-id").values_list("run_id", "arguments_digest")[: CALLS_LOOKED_AT_MAX + 1])
    counts: Counter[str] = Counter()
    for run_id, digest in found[:CALLS_LOOKED_AT_MAX]:
        counts.update(_keys_in(run_id, digest))
    counts.pop(newest, None)
    return dict(counts), len(found) <= CALLS_LOOKED_AT_MAX


def _keys_in(run_id: UUID, digest: str) -> set[str]:
    try:
        arguments = artifacts.read(run_id, digest).decode()
    except (NotFound, artifacts.Corrupt, keyring.KeyUnavailable):
        return set()
    return set(secret_arguments.KEY_OF_WORD.findall(arguments))


def _steps(made: Rotated) -> Iterator[None]:
    yield from _bodies(made)
    everything = datetime.now(UTC) + timedelta(days=1)
    place = f"rotate-objects-{made.key}"
    for page in objects.pages(artifacts.KEPT, everything, objects.position(place)):
        for begin in range(0, len(page), OBJECTS_PER_STEP):
            step = page[begin : begin + OBJECTS_PER_STEP]
            _reseal(made, step)
            objects.keep_position(place, step[-1])
            yield
    for prefix in FLAT:
        page = objects.old(prefix, everything, OBJECTS_PER_STEP)
        _reseal(made, page)
        while len(page) == OBJECTS_PER_STEP:
            yield
            page = objects.old(prefix, everything, OBJECTS_PER_STEP, page[-1])
            _reseal(made, page)
    objects.keep_position(place, "")


def _reseal(made: Rotated, paths: Iterable[str]) -> None:
    for path in paths:
        try:
            made.objects += objects.reseal(path)
        except (keyring.Damaged, keyring.KeyUnavailable) as error:
            _failed(made, error)


def _bodies(made: Rotated) -> Iterator[None]:
    place = f"rotate-bodies-{made.key}"
    after = int(objects.position(place) or 0)
    while last := _some_bodies(made, after):
        after = last
        objects.keep_position(place, str(after))
        yield
    objects.keep_position(place, "")


@transaction.atomic
def _some_bodies(made: Rotated, after: int) -> int:
    """Seal some bodies anew and return the id of the last one; 0 when there is none left."""
    keys = objects.keys()
    given = {"after": after, "header": keys.header(), "bodies": BODIES_PER_BATCH}
    found = rows(HERE, "stale_bodies", given)
    done = []
    for row_id, digest, body in found:
        try:
            done.append((keys.seal(keys.open(bytes(body), digest), digest), row_id))
        except (keyring.Damaged, keyring.KeyUnavailable) as error:
            _failed(made, error)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL kernel.reseal = 'on'")  # a hold keeps what a body says, not how it is sealed
        cursor.executemany("UPDATE runs_artifact SET body = %s WHERE id = %s", done)
    made.bodies += len(done)
    return int(found[-1][0]) if found else 0


def _failed(made: Rotated, error: Exception) -> None:
    made.failed += 1
    if len(made.problems) < PROBLEMS_SHOWN_MAX:
        made.problems.append(str(error))
