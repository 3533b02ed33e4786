"""Retention: what its project lets go goes, in whole batches; what is needed, held or could be repeated stays known."""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.db.models import F

from approvals import services
from approvals.contracts import Decider
from approvals.models import Approval, Channel, Decision, Delivery
from kernel_project import verify
from kernel_project.primitives.canonical import sha256_hex
from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Invalid, NotFound
from kernel_project.primitives.ids import new_id
from outbox.contracts import Actor
from outbox.models import Event, ParkedEvent, Stream
from runs.boundary import artifacts, twins
from runs.keeping import holds, purge, retention
from runs.loop import starts
from runs.models import Artifact, IdempotencyKey, Operation, Project, Purge, RetentionRule, Run, Tombstone
from tests import console
from tests.boundary_scene import at_once, committed  # noqa: F401  a fixture
from tests.kernel import make_agent, make_project, says

pytestmark = pytest.mark.usefixtures("committed")
ANN = Actor(id="ann", type="human")
ALL = {
    "artifact.input": 20, "artifact.arguments": 10, "artifact.result": 10, "runs": 30, "events": 40, "approvals": 50,
    "idempotency_keys": 60,
}  # fmt: skip
TABLES = (Run, Operation, Artifact, Event, Stream, Approval, IdempotencyKey)


@pytest.fixture
def project() -> Project:
    made = make_project()
    retention.change(project=made.slug, days=ALL, by=ANN)
    return made


def told(run: Run) -> None:
    Stream.objects.filter(run_id=run.id).update(published=F("head"), ready_at=None)


def ended(project: Project, days_ago: int, *, delivered: bool = True) -> Run:
    """A run that ended so long ago: a model call, a call that somebody rejected, a key."""
    approval = console.waiting_run(project)
    services.decide(approval.id, project.slug, Decider(name="ann", groups=frozenset(), via="api"), "reject", "no")
    run = Run.objects.get(id=approval.run_id)
    console.end(run)
    IdempotencyKey.objects.create(
        project=project, owner="o", key_hash=sha256_hex(run.id.bytes), body_hash="b", run_id=run.id
    )
    age(run, days_ago)
    if delivered:
        told(run)
    return Run.objects.get(id=run.id)


def age(run: Run, days: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_run SET ended_at = now() - make_interval(days => %s) WHERE id = %s", [days, run.id])


def left(run: Run) -> dict[str, int]:
    return {
        model.__name__: model._default_manager.filter(**{"id" if model is Run else "run_id": run.id}).count()
        for model in TABLES
    }


def broken() -> list[str]:
    return [check.id for check in verify.run() if not check.ok]


def go(project: Project, **more: Any) -> purge.Receipt:
    return purge.purge(project.slug, by=ANN, **more)


def test_who_undid_something_is_known_as_long_as_there_is_something_to_undo(project):
    undone, undoing = ended(project, 15), ended(project, 35)
    effect = Operation.objects.filter(run=undone).earliest("position")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # the link is written once, at the start
        cursor.execute("UPDATE runs_run SET compensates_id = %s WHERE id = %s", [effect.id, undoing.id])
    go(project)
    assert left(undoing)["Run"] == 1, "a second compensation would not know of it"
    age(undone, 35)
    Run.objects.filter(id=undoing.id).update(state="running", ended_at=None)
    go(project)
    assert left(undone)["Run"] == 1, "it is being undone"


def test_each_class_goes_when_its_own_time_is_over(project):
    run = ended(project, 15)
    before = left(run)
    go(project)
    assert left(run) == before, "claims stay, with key and hash, when their bytes go"
    with pytest.raises(NotFound):
        artifacts.read(run.id, Operation.objects.filter(run=run).first().arguments_digest)
    assert artifacts.read(run.id, run.input_digest), "its own time is not over"
    assert broken() == []
    age(run, 35)
    go(project)
    assert {name: count > 0 for name, count in left(run).items()} == {
        "Run": False, "Operation": False, "Artifact": False,
        "Event": True, "Stream": True, "Approval": True, "IdempotencyKey": True,
    }  # fmt: skip
    assert broken() == []
    buried(run, 70)
    receipt = go(project)
    assert not any(left(run).values())
    assert not Decision.objects.filter(approval__run_id=run.id).exists()
    assert receipt.counts["events"] > 0
    assert broken() == []


def buried(run: Run, days: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE runs_tombstone SET ended_at = now() - make_interval(days => %(days)s),"
            " purged_at = now() - make_interval(days => %(days)s - 30) WHERE run_id = %(run)s",
            {"days": days, "run": run.id},
        )


def undelivered(run: Run) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE outbox_stream SET published = head - 1, ready_at = now() WHERE run_id = %s", [run.id])


def parked(run: Run) -> None:
    ParkedEvent.objects.create(event_id=uuid.uuid4(), run_id=run.id, sequence=1, reason="invalid", last_error="e")


def uncertain(run: Run) -> None:
    replaced(
        run,
        "UPDATE runs_operation SET state = 'uncertain', effect = 'write', error_class = 'e', settled_at = now(),"
        " attempt = 1, dispatched_at = now(), first_dispatched_at = now(), deadline_at = now()"
        " WHERE run_id = %s AND position = 1",
    )


def pending(run: Run) -> None:
    replaced(run, "UPDATE approvals_approval SET state = 'waiting', decided_at = NULL WHERE run_id = %s")


def running(run: Run) -> None:
    replaced(run, "UPDATE runs_run SET state = 'running', ended_at = NULL WHERE id = %s")


def held(run: Run) -> None:
    holds.place(project=run.project_id, scope="run", target=str(run.id), reason="a claim", by=ANN)


def held_project(run: Run) -> None:
    holds.place(project=run.project_id, scope="project", reason="a claim", by=ANN)


def replaced(run: Run, statement: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement, [run.id])


@pytest.mark.parametrize("needs", [undelivered, parked, uncertain, pending, running, held, held_project])
def test_what_is_needed_stays_whole_however_old(project, needs):
    kept = ended(project, 100)
    needs(kept)
    before = left(kept), Artifact.objects.filter(run_id=kept.id, purged_at__isnull=True).count()
    receipt = go(project)
    assert (left(kept), Artifact.objects.filter(run_id=kept.id, purged_at__isnull=True).count()) == before
    if needs in (held, held_project):
        assert [(one["scope"], one["ended_runs"]) for one in receipt.holds] == [(needs.__name__[5:] or "run", 1)]


def test_a_held_artifact_stays_with_its_run_and_the_rest_goes(project):
    kept = ended(project, 100)
    call = Operation.objects.filter(run=kept, position=1).get()
    holds.place(project=project.slug, scope="artifact", target=call.arguments_digest, reason="a claim", by=ANN)
    go(project)
    assert artifacts.read(kept.id, call.arguments_digest)
    assert Run.objects.filter(id=kept.id).exists()
    assert not Artifact.objects.filter(run_id=kept.id, kind="input", purged_at__isnull=True).exists()


def test_a_purge_that_is_killed_between_two_batches_is_gone_on_with(project, monkeypatch):
    runs = [ended(project, 100) for _ in range(5)]
    monkeypatch.setattr(purge, "RUNS_PER_BATCH", 2)
    batches = iter(range(7))  # it dies in the midst of the runs

    def dies() -> None:
        if next(batches, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(purge, "_pause", dies)
    with pytest.raises(KeyboardInterrupt):
        go(project)
    for run in runs:
        counts = left(run)
        assert (counts["Run"] > 0) == (counts["Operation"] > 0) == (counts["Artifact"] > 0)
        assert counts["Run"] or Tombstone.objects.filter(run_id=run.id).exists()
    killed = Purge.objects.get(project=project.slug)
    monkeypatch.setattr(purge, "_pause", lambda: None)
    with pytest.raises(purge.PurgeAtWork):
        go(project)
    Purge.objects.filter(id=killed.id).update(beat_at=killed.started_at.replace(year=2020))
    go(project)
    killed.refresh_from_db()
    assert (killed.outcome, bool(killed.counts)) == ("interrupted", True)
    assert not Run.objects.filter(project=project).exists()
    purges = Purge.objects.filter(project=project.slug).values("id")
    receipts = Event.objects.filter(type="retention.purged", run_id__in=purges).values_list("envelope", flat=True)
    assert sum(json.loads(text)["data"]["deleted"].get("runs", 0) for text in receipts) == 5


def test_t57_a_hold_that_is_placed_in_the_midst_of_a_purge_keeps_what_is_left(project, monkeypatch):
    runs = sorted((ended(project, 100) for _ in range(4)), key=lambda run: run.id)
    monkeypatch.setattr(purge, "RUNS_PER_BATCH", 1)
    last, first_batch, placed = runs[-1], threading.Event(), threading.Event()

    def pause() -> None:
        first_batch.set()
        placed.wait(20)

    def place() -> None:
        assert first_batch.wait(20)
        held(last)
        placed.set()

    monkeypatch.setattr(purge, "_pause", pause)
    results = at_once(lambda: go(project), place)
    assert not [one for one in results if isinstance(one, Exception)]
    assert left(last)["Run"] == 1
    assert not Run.objects.filter(id__in=[run.id for run in runs[:-1]]).exists()


def test_a_start_with_the_key_of_a_purged_run_is_known_and_not_started_again(project):
    run = ended(project, 35)
    version = make_agent(project, [says("x")])
    asked = starts.StartRequest(project=project.slug, agent=version.agent.name, input="go", owner="o", key="k")
    IdempotencyKey.objects.filter(run_id=run.id).update(key_hash=sha256_hex(b"k"), body_hash=asked.body_hash())
    go(project)
    with pytest.raises(starts.RunPurged):
        starts.start(asked)


def test_a_key_outlives_its_run_by_a_week_however_late_the_purge_came(project):
    run = ended(project, 400)
    go(project)
    go(project)
    assert not Run.objects.filter(id=run.id).exists()
    assert IdempotencyKey.objects.filter(run_id=run.id).exists(), "a repeated start would be new a moment after its run"


def test_a_purge_that_stood_still_and_was_taken_for_dead_deletes_nothing_more(project, monkeypatch):
    first, second = (ended(project, days) for days in (101, 100))
    monkeypatch.setattr(purge, "RUNS_PER_BATCH", 1)

    def taken_for_dead() -> None:
        Purge.objects.filter(project=project.slug).update(ended_at=now(), outcome="interrupted")

    monkeypatch.setattr(purge, "_pause", taken_for_dead)
    with pytest.raises(purge.Superseded):
        go(project)
    assert Artifact.objects.filter(run_id=first.id, kind="input", purged_at__isnull=False).exists()
    assert not Artifact.objects.filter(run_id=second.id, purged_at__isnull=False).exists()


def test_runs_are_looked_for_before_the_project_is_locked(project, monkeypatch):
    ended(project, 100)
    plain, locked = purge._candidates, []

    def look(*given):
        locked.append(connection.in_atomic_block)
        return plain(*given)

    monkeypatch.setattr(purge, "_candidates", look)
    go(project)
    assert set(locked) == {False}


def test_a_tick_goes_on_where_the_last_one_ended_and_looks_at_everything_once_a_day(project):
    placed = holds.place(project=project.slug, scope="project", reason="a claim", by=ANN)
    run = ended(project, 100)
    purge.purge_all(60)
    holds.release(placed.id, project=project.slug, reason="settled", by=ANN)
    purge.purge_all(60)
    assert Run.objects.filter(id=run.id).exists()
    RetentionRule.objects.filter(project=project.slug).update(looked_all_at=now() - timedelta(hours=25))
    purge.purge_all(60)
    assert not Run.objects.filter(id=run.id).exists()


def test_a_look_at_everything_that_takes_over_a_day_comes_to_its_end(project, monkeypatch):
    """Killed in the middle of each tick, too: the place is kept with each batch."""
    runs = [ended(project, 100 - number) for number in range(3)]
    seen: list[Any] = []

    def batch(_made, _step, _edge, run_ids, _total):
        seen.append(run_ids[0])
        if len(seen) % 3 == 0:
            raise KeyboardInterrupt
        return Counter()

    monkeypatch.setattr(purge, "RUNS_PER_BATCH", 1)
    monkeypatch.setattr(purge, "STALE_SECONDS", -10)
    monkeypatch.setattr(purge, "STEPS", [step for step in purge.STEPS if step.record_class == "runs"])
    monkeypatch.setattr(purge, "_batch", batch)
    for _ in range(2):
        RetentionRule.objects.filter(project=project.slug, looked_all_at__isnull=False).update(
            looked_all_at=now() - timedelta(hours=25)
        )
        with contextlib.suppress(KeyboardInterrupt):
            purge.purge_all(60)
    assert [run.id for run in runs] == sorted(set(seen), key=seen.index)
    assert seen.count(runs[0].id) == 1


def test_what_is_left_of_a_purged_run_can_be_held(project):
    run = ended(project, 35)
    go(project)
    placed = holds.place(project=project.slug, scope="run", target=str(run.id), reason="a claim", by=ANN)
    buried(run, 400)
    before = left(run)
    go(project)
    assert left(run) == before
    assert before["Event"] > 0
    holds.release(placed.id, project=project.slug, reason="settled", by=ANN)
    go(project)
    assert not any(left(run).values())
    with pytest.raises(NotFound, match="hold its run"):
        holds.place(project=project.slug, scope="operation", target=str(uuid.uuid4()), reason="a claim", by=ANN)


def test_a_unique_call_that_was_purged_is_still_a_twin(project):
    run = ended(project, 35)
    replaced(run, "UPDATE runs_operation SET unique_key = 'u', attempt = 1 WHERE run_id = %s AND position = 1")
    gone = Operation.objects.get(run=run, position=1)
    go(project)
    assert twins.earlier(Operation(id=uuid.uuid4(), project=project, unique_key="u")) == gone.id
    assert twins.earlier(Operation(id=uuid.uuid4(), project=make_project(), unique_key="u")) is None


@pytest.mark.parametrize(
    ("days", "why"),
    [
        ({"runs": 1}, "at least 7"), ({"events": 30}, "set runs first"), ({"runs": 30, "events": 20}, "taken for new"),
        ({"runs": 30, "idempotency_keys": 29}, "taken for new"),
        ({"runs": 30, "idempotency_keys": 30}, "taken for new"), ({"runs": 30, "idempotency_keys": 36}, "at least 37"),
        ({"runs": 30, "approvals": 7}, "taken for new"),
        ({"runs": 30, "artifact.log": 31}, "go with their run"), ({"inbox": 30}, "takes a repetition for new"),
        ({"audit": 30}, "whole"), ({"prompts": 3}, "no class"), ({"runs": 0}, "1 to"), ({"runs": 10**6}, "1 to"),
    ],
)  # fmt: skip
def test_t43_t57_settings_under_which_a_duplicate_could_be_taken_for_new_are_refused(days, why):
    project = make_project()
    with pytest.raises(Invalid, match=why):
        retention.change(project=project.slug, days=days, by=ANN)
    assert retention.rules(project.slug) == {}


def test_nothing_goes_without_a_rule_and_a_dry_run_deletes_nothing(project, capsys):
    bare = make_project()
    run, ruled = ended(bare, 1_000), ended(project, 1_000)
    before = left(run), left(ruled)
    assert go(bare).counts == {}
    call_command("purge", "--project", project.slug, "--dry-run", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["dry_run"], shown["deleted"]["runs with runs"]) == (True, 1)
    assert (left(run), left(ruled)) == before


def test_the_command_sets_rules_and_purges(capsys):
    project = make_project()
    call_command("purge", "--project", project.slug, "--set", "runs=30", "--set", "events=30", "--by", "ann")
    assert "30 days" in capsys.readouterr().out
    with pytest.raises(CommandError, match="CLASS=DAYS"):
        call_command("purge", "--project", project.slug, "--set", "runs=soon")
    run = ended(project, 40)
    call_command("purge", "--project", project.slug)
    assert "1  runs" in capsys.readouterr().out
    assert not Run.objects.filter(id=run.id).exists()
    call_command("purge", "--project", project.slug, "--set", "runs=forever", "--set", "events=forever", "--json")
    assert json.loads(capsys.readouterr().out) == {}


def test_messages_that_are_still_to_be_sent_keep_their_request(project):
    run = ended(project, 35)
    channel = Channel.objects.create(project=project.slug, kind="email", target="a@b.example", created_by="t")
    approval = Approval.objects.get(run_id=run.id)
    Delivery.objects.create(
        id=new_id(), approval=approval, channel=channel, occasion="reminder", target="a@b.example", body="b",
        next_attempt_at=approval.requested_at,
    )  # fmt: skip
    go(project)
    buried(run, 100)
    go(project)
    assert Approval.objects.filter(run_id=run.id).exists()
    assert not Event.objects.filter(run_id=run.id).exists()
