"""How soon the queue opens when ten thousand requests wait, as a part of `manage.py bench decision`."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import connection
from django.test import Client
from django.urls import reverse

from kernel_project.bench import Figure

WAITING = 10_000
OPENINGS = 40
WARM_UPS = 5  # openings that are not counted: the first ones compile the templates
PERSON = "bench-approver"
FILL = (Path(__file__).parent / "sql" / "bench_queue.sql").read_text()


def queue() -> list[Figure]:
    """The page of what waits, as an approver opens it: the whole answer of the web process, without network."""
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"project": "bench-queue", "count": WAITING})
        cursor.execute("ANALYZE approvals_approval")
    client = _approver()
    address = reverse("admin:approvals_approval_changelist")
    took: list[float] = []
    for _ in range(WARM_UPS + OPENINGS):
        began = time.perf_counter()
        answer = client.get(address)
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, f"the queue answered {answer.status_code}"
    counted = took[WARM_UPS:]
    p95 = statistics.quantiles(counted, n=20)[18]
    beside = {"p50_ms": statistics.median(counted), "max_ms": max(counted), "requests_waiting": float(WAITING)}
    return [Figure("queue_p95_ms", p95, "ms", at_most=300, beside=beside, about="the queue with 10,000 waiting opens")]


def _approver() -> Client:
    person, _ = get_user_model()._default_manager.get_or_create(username=PERSON, defaults={"is_staff": True})
    person.groups.add(*Group.objects.filter(name="approver"))
    client = Client(headers={"host": settings.ALLOWED_HOSTS[0].lstrip("*.") or "localhost"})
    client.force_login(person)
    return client
