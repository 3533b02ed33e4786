"""I5. The API tells what was written, what was acknowledged, and what the event store says it has, as three numbers."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now

from outbox.models import Stream
from tests.api_client import api_for
from tests.api_scene import make_scene

pytestmark = pytest.mark.django_db(transaction=True)


def test_acknowledged_and_seen_over_there_are_two_numbers_of_a_run():
    scene = make_scene()
    api = api_for(scene.project, "lag:read")
    path = f"/lag/runs/{scene.run.id}"
    before = api.get(path).data
    assert (before["head"], before["acknowledged"], before["seen"], before["pending"]) == (3, 0, None, 3)
    Stream.objects.filter(run_id=scene.run.id).update(published=3, ready_at=None, seen=2, seen_at=Now())
    after = api.get(path).data
    assert (after["acknowledged"], after["seen"], after["pending"]) == (3, 2, 0)
    total = api.get("/lag").data
    assert (total["runs_asked"], total["acknowledged"], total["seen"], total["runs_with_gap"]) == (1, 3, 2, 1)
    assert (total["pending"], total["unaccounted"]) == (0, 0)


def test_the_lag_of_anothers_run_is_not_found():
    mine, other = make_scene(), make_scene()
    answer = api_for(mine.project, "lag:read").get(f"/lag/runs/{other.run.id}")
    assert answer.status_code == 404
