"""Whether this process lives, and whether what it needs answers. Tells names and a word each, no addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

import redis
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponseNotAllowed, JsonResponse
from django.http.response import HttpResponseBase

from outbox import jobs
from outbox import selectors as outbox
from runs.loop import temporal

REDIS_TIMEOUT_SECONDS = 2.0
NO_RUN = UUID(int=0)  # a run that never is: Temporal answers that it does not know it
READS = ("GET", "HEAD")


def healthz(request: HttpRequest) -> HttpResponseBase:
    """The process answers. Looks at nothing else, so that a database's failure restarts no web process."""
    if request.method not in READS:
        return HttpResponseNotAllowed(READS)
    return JsonResponse({"status": "ok"}, headers={"Cache-Control": "no-store"})


def readyz(request: HttpRequest) -> HttpResponseBase:
    """Each service by name; 503 if one of them does not answer."""
    if request.method not in READS:
        return HttpResponseNotAllowed(READS)
    found = {name: word(check) for name, check in CHECKS.items()}
    ready = all(word == "ok" for word in found.values())
    body = {"status": "ok" if ready else "not ready", "checks": found}
    return JsonResponse(body, status=200 if ready else 503, headers={"Cache-Control": "no-store"})


def word(check: Callable[[], str]) -> str:
    """What a check says; whatever it raises is said as well."""
    try:
        return check()
    except Exception as error:  # whatever a client library raises: it did not answer
        return f"does not answer ({type(error).__name__})"


def _database() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return "ok"


def _temporal() -> str:
    temporal.standing(NO_RUN)
    return "ok"


def _redis() -> str:
    with redis.Redis.from_url(
        settings.CELERY_BROKER_URL,
        socket_timeout=REDIS_TIMEOUT_SECONDS,
        socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
    ) as client:
        client.ping()
    return "ok"


def _publisher() -> str:
    lag = outbox.lag()
    if not lag.publisher_late:
        return "ok"
    age = lag.publisher_age_seconds
    return "has never run" if age is None else f"was last alive {age:.0f} seconds ago"


def _jobs() -> str:
    late = [f"{job.name} {job.age_seconds:.0f}" for job in jobs.all_jobs() if job.overdue]
    return f"overdue, with the seconds since they last succeeded: {', '.join(late)}" if late else "ok"


CHECKS: Mapping[str, Callable[[], str]] = {
    "database": _database,
    "temporal": _temporal,
    "redis": _redis,
    "publisher": _publisher,
    "jobs": _jobs,
}
