"""manage.py outbox_lag: numbers and alarms for a person and for a script."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db.models.functions import Now

from kernel_project.primitives.ids import new_id
from outbox.models import Destination, PublisherHeartbeat, Stream
from outbox.selectors import current_destination
from tests.outbox_scene import numbered, write

pytestmark = pytest.mark.django_db(transaction=True)


def test_one_json_object_tells_totals_streams_and_what_is_seen_over_there(capsys):
    run = new_id()
    write(run, *numbered(4))
    Stream.objects.update(published=3, seen=2, seen_at=Now())
    call_command("outbox_lag", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["lag"]["pending"], told["lag"]["unaccounted"], told["lag"]["parked"]) == (1, 0, 0)
    assert (told["latest_runs"]["acknowledged"], told["latest_runs"]["seen"]) == (3, 2)
    [stream] = told["worst"]
    assert (stream["run_id"], stream["published"], stream["seen"]) == (str(run), 3, 2)


def test_alarms_are_sentences_and_an_idle_outbox_has_none(capsys):
    PublisherHeartbeat.objects.create(publisher="p")
    call_command("outbox_lag", "--json")
    assert json.loads(capsys.readouterr().out)["alarms"] == []
    Destination.objects.create(name=current_destination(), failures=3, last_error="HTTP 503")
    PublisherHeartbeat.objects.update(beat_at=Now() - timedelta(minutes=1))
    call_command("outbox_lag")
    text = capsys.readouterr().out
    assert "ALARM nothing publishes: the last publisher was heard of 60 s ago" in text
    assert "ALARM the event store failed 3 times in a row: HTTP 503" in text


def test_watching_looks_again_until_it_is_stopped(capsys, monkeypatch):
    from outbox.management.commands import outbox_lag

    looks = []

    def stop_after_three(_seconds: float) -> None:
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(outbox_lag.time, "sleep", stop_after_three)
    call_command("outbox_lag", "--json", "--watch", "1")
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_what_a_hostile_event_store_said_moves_no_cursor(capsys):
    write(new_id(), "a")
    Stream.objects.update(last_error="\x1b[2Jall is well")
    call_command("outbox_lag")
    assert "\x1b[2J" not in capsys.readouterr().out
