"""A NUL in an event's words is written out: the database cannot hold it as jsonb, and no settlement is lost for it."""

from __future__ import annotations

import json

import pytest
from django.db import transaction

from outbox import services as outbox
from outbox.models import Event
from runs.loop.turns import run_event
from tests import console

pytestmark = pytest.mark.django_db


def test_an_event_with_a_nul_is_written_again_and_again_the_same():
    run = console.uncertain_run().run
    words = ["a\x00\x00b", "\\\x00", "\\u0000"]
    event = run_event(run, "run.failed", {"status": "failed", "code": "x", "words": words})
    for _ in range(2):
        with transaction.atomic():
            outbox.append([event])
    told = json.loads(Event.objects.get(run_id=run.id, type="run.failed").envelope)["data"]["words"]
    assert told == ["a\\u0000\\u0000b", "\\\\u0000", "\\u0000"]
