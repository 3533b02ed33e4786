"""C83, T57. What is on legal hold is deleted by nobody, on no path; the rest goes."""

from __future__ import annotations

import re
import subprocess
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import ProtectedError

from approvals.models import Approval, Channel, Decision, Delivery, Policy
from kernel_project.devstack.postgres import binary
from kernel_project.primitives.errors import Conflict, Invalid, NotFound
from outbox import partitions, retention
from outbox.contracts import Actor
from outbox.models import Event, ParkedEvent, Stream
from runs.keeping import holds, rules
from runs.loop import starts
from runs.models import AgentVersion, Artifact, Hold, IdempotencyKey, Operation, Project, Run, RunMessage, Tombstone
from tests.api_client import api_for, is_problem
from tests.api_scene import Scene, make_scene
from tests.boundary_scene import at_once, committed  # noqa: F401  a fixture
from tests.waiting import until_sync

pytestmark = pytest.mark.usefixtures("committed")
LEA = Actor(id="lea", type="human")
ROOT = Path(__file__).resolve().parents[2]
APPS = ("kernel_project", "runs", "approvals", "outbox", "temporality")


@pytest.fixture
def scene() -> Scene:
    """A run with all that can hang on one, not held."""
    made = make_scene()
    holds.release(made.hold.id, project=made.project.slug, reason="for the test", by=LEA)
    channel = Channel.objects.create(project=made.project.slug, kind="email", target="a@b.example", created_by="t")
    Delivery.objects.create(
        approval=made.approval, channel=channel, occasion="requested", target="a@b.example", body="b", dropped="test"
    )
    Decision.objects.create(
        approval=made.approval, actor="x", verdict="reject", via="api", applied=False, refusal="late"
    )
    Policy.objects.create(project=made.project.slug, name="p", version=1, answer="deny", created_by="t")
    IdempotencyKey.objects.create(project=made.project, owner="o", key_hash="k", body_hash="b", run_id=made.run.id)
    RunMessage.objects.create(run=made.run, number=1, digest="d", sent_by="o")
    ParkedEvent.objects.create(event_id=uuid.uuid4(), run_id=made.run.id, sequence=1, reason="invalid", last_error="e")
    Tombstone.objects.create(project=made.project.slug, run_id=made.run.id, digest="d", ended_at="2026-01-01T00:00Z")
    return made


def hold(scene: Scene, scope: str = "run", target: object = None) -> Hold:
    return holds.place(
        project=scene.project.slug, scope=scope, target=str(target or scene.run.id), reason="a claim", by=LEA
    )


def rows_of(scene: Scene) -> dict[str, Any]:
    """All rows of the scene's project, by model."""
    run, project = scene.run.id, scene.project.slug
    return {
        "approvals.Delivery": Delivery.objects.filter(approval__run_id=run),
        "approvals.Decision": Decision.objects.filter(approval__run_id=run),
        "approvals.Approval": Approval.objects.filter(run_id=run),
        "runs.Operation": Operation.objects.filter(run_id=run),
        "runs.Artifact": Artifact.objects.filter(run_id=run),
        "runs.IdempotencyKey": IdempotencyKey.objects.filter(run_id=run),
        "runs.RunMessage": RunMessage.objects.filter(run_id=run),
        "outbox.ParkedEvent": ParkedEvent.objects.filter(run_id=run),
        "outbox.Event": Event.objects.filter(run_id=run),
        "outbox.Stream": Stream.objects.filter(run_id=run),
        "runs.Tombstone": Tombstone.objects.filter(run_id=run),
        "runs.Run": Run.objects.filter(id=run),
        "approvals.Policy": Policy.objects.filter(project=project),
        "approvals.Channel": Channel.objects.filter(project=project),
        "runs.AgentVersion": AgentVersion.objects.filter(agent__project_id=project),
        "runs.Agent": apps.get_model("runs.Agent").objects.filter(project_id=project),
        "runs.Tool": apps.get_model("runs.Tool").objects.filter(project_id=project),
        "runs.McpServer": apps.get_model("runs.McpServer").objects.filter(project_id=project),
        "runs.ApiKey": apps.get_model("runs.ApiKey").objects.filter(project_id=project),
        "runs.Project": Project.objects.filter(slug=project),
    }


def deletes(rows: Any) -> int:
    """Delete without Django's own rules, as a hand-written statement would, in a purge's transaction."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL kernel.purge = 'on'")
        return rows._raw_delete(rows.db)


def counts(scene: Scene) -> dict[str, int]:
    return {label: rows.count() for label, rows in rows_of(scene).items()}


RUN_TABLES = [
    label for label, how in rules.RULES.items() if how not in ("project", "project_id", "project_name", "agent")
]


def test_c83_every_model_has_a_hold_rule_or_a_written_exemption():
    models = {model._meta.label for model in apps.get_models(include_auto_created=True)}
    named = rules.RULES.keys() | rules.EXEMPT.keys()
    assert models - named == set(), "write a rule (and its trigger) or an exemption in runs/keeping/rules.py"
    assert named - models == set()
    assert rules.RULES.keys().isdisjoint(rules.EXEMPT)
    assert all(rules.EXEMPT.values())


def test_c83_every_rule_is_carried_out_by_triggers_of_its_table():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT tgrelid::regclass::text, encode(tgargs, 'escape') FROM pg_trigger"
            " WHERE tgname = 'kernel_hold' AND tgenabled = 'O'"
        )
        rowwise = {table: argument.removesuffix("\\000") for table, argument in cursor.fetchall()}
        cursor.execute("SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname = 'kernel_hold_whole'")
        whole = {table for (table,) in cursor.fetchall()}
    wanted = {apps.get_model(label)._meta.db_table: how for label, how in rules.RULES.items()}
    months = {month.name: "stream" for month in partitions.existing()}
    assert rowwise == wanted | months
    assert whole == wanted.keys()


DELETING = re.compile(r"\bDELETE\s+FROM\b|\bTRUNCATE\b|\bDROP TABLE\b|\.delete\(|_raw_delete|\bDETACH PARTITION\b")
# Every file that can delete, and what. The tables with a rule are kept by their triggers, whoever writes here.
CAN_DELETE = {
    "kernel_project/management/commands/doctor.py": "an object of its own, to try the store",
    "outbox/place.py": "outbox.PublisherHeartbeat",
    "outbox/bench.py": "a table of its own",
    "outbox/bench_peer.py": "a table of its own",
    "outbox/partitions.py": "makes the trigger that refuses to empty a month",
    "outbox/retention.py": "months of the journal, after asking for holds under the lock of the drop",
    "outbox/sql/forget_streams.sql": "outbox.Stream",
    "runs/boundary/artifacts.py": "outcomes kept for a row that has them by now, objects without a row",
    "runs/boundary/objects.py": "objects, for artifacts.py",
    "runs/boundary/sandbox/lifecycle.py": "runs.Sandbox",
    "runs/boundary/sandbox_upkeep.py": "runs.SandboxReport",
    "runs/keeping/purge.py": "what retention lets go, after locking the project against new holds",
    "runs/keeping/retention.py": "runs.RetentionRule",
    "runs/loop/endings.py": "runs.News",
    "runs/loop/starts.py": "runs.Run and runs.Artifact of a start that never was",
    "runs/loop/sweeps.py": "runs.News",
    "runs/loop/turns.py": "runs.News",
    "temporality/tokens.py": "temporality.Token",
}
DERIVED = re.compile(r"temporality_(item|progress|pending|edge|projector)\b")


def test_c83_every_file_that_can_delete_is_known():
    found = set()
    for app in APPS:
        for path in [*(ROOT / app).rglob("*.py"), *(ROOT / app).rglob("*.sql")]:
            if "migrations" in path.parts or "devstack" in path.parts:
                continue
            lines = [line for line in path.read_text().splitlines() if DELETING.search(line)]
            if app == "temporality" and path.suffix == ".sql":
                assert all(DERIVED.search(line) for line in lines), path
                continue
            if lines:
                found.add(str(path.relative_to(ROOT)))
    assert found == CAN_DELETE.keys(), "say in CAN_DELETE what it deletes, and see that its tables have a hold rule"


@pytest.mark.parametrize("label", RUN_TABLES)
def test_c83_no_row_of_a_held_run_is_deleted_by_any_statement(scene, label):
    hold(scene)
    assert rows_of(scene)[label].exists()
    with pytest.raises(IntegrityError, match="is on legal hold"):
        deletes(rows_of(scene)[label])


@pytest.mark.parametrize("label", [label for label in rules.RULES if label not in RUN_TABLES])
def test_c83_what_belongs_to_a_held_project_stays(scene, label):
    hold(scene, "project", scene.project.slug)
    api_for(scene.project)
    rows = rows_of(scene)[label]
    if label in ("runs.Tool", "runs.McpServer"):
        rows.model.objects.create(
            project=scene.project,
            name="x",
            **{"input_schema": {}, "definition_digest": ""} if label == "runs.Tool" else {"configuration": {}},
        )
    with pytest.raises(IntegrityError, match="is on legal hold"):
        deletes(rows)


def test_c83_a_hold_on_an_operation_keeps_its_run_whole(scene):
    hold(scene, "operation", scene.uncertain.id)
    before = counts(scene)
    for label in RUN_TABLES:
        with pytest.raises(IntegrityError, match="is on legal hold"):
            deletes(rows_of(scene)[label])
    assert counts(scene) == before


def test_c83_a_hold_on_an_artifact_keeps_it_and_lets_other_artifacts_go(scene):
    hold(scene, "artifact", scene.run.input_digest)
    mine = Artifact.objects.filter(run_id=scene.run.id)
    with pytest.raises(IntegrityError, match="is on legal hold"):
        deletes(mine.filter(digest=scene.run.input_digest))
    assert deletes(mine.exclude(digest=scene.run.input_digest)) == 2


def test_c83_what_is_not_held_goes_and_so_does_what_was_released(scene):
    other = make_scene()
    placed = hold(other)
    for label in sorted(RUN_TABLES, key=list(rows_of(scene)).index):
        deletes(rows_of(scene)[label])
    assert not any(counts(scene)[label] for label in RUN_TABLES)
    for one in (placed, other.hold):
        holds.release(one.id, project=other.project.slug, reason="settled", by=LEA)
    assert deletes(ParkedEvent.objects.filter(run_id=other.run.id)) == 0
    assert deletes(Artifact.objects.filter(run_id=other.run.id)) == 3


def test_c83_django_neither_deletes_nor_cascades_past_a_hold(scene):
    hold(scene)
    for label in RUN_TABLES:
        with pytest.raises((IntegrityError, ProtectedError, DatabaseError)), transaction.atomic():
            rows_of(scene)[label].delete()
    for deleted in (scene.project, scene.run):
        with pytest.raises((IntegrityError, ProtectedError)), transaction.atomic():
            deleted.delete()


def test_c83_no_table_is_emptied_while_anything_is_held(scene):
    hold(scene)
    month = partitions.existing()[0].name
    for table in ("runs_run", "outbox_event", "approvals_approval", "runs_hold", month):
        with pytest.raises(IntegrityError, match=r"legal holds|on record"):
            empties(table)


def empties(table: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL kernel.purge = 'on'")
        cursor.execute(f"TRUNCATE {table} CASCADE")


def test_c83_the_console_offers_no_deletion_of_what_a_hold_can_keep(rf):
    request = rf.get("/")
    request.user = type("Root", (), {"has_perm": lambda *_: True, "is_active": True, "is_staff": True})()
    for label in [*rules.RULES, "runs.Hold"]:
        if page := admin.site._registry.get(apps.get_model(label)):
            assert not page.has_delete_permission(request), label


def test_t57_a_hold_that_is_placed_while_a_deletion_is_at_work_waits_and_finds_what_is_left(scene):
    """The row is deleted and not committed: the hold must not say that it has it."""
    deleting, go = threading.Event(), threading.Event()

    def delete() -> None:
        with transaction.atomic():
            Artifact.objects.filter(run_id=scene.run.id, digest=scene.run.input_digest).delete()
            deleting.set()
            go.wait(20)

    def place() -> Hold:
        assert deleting.wait(20)
        return hold(scene, "artifact", scene.run.input_digest)

    def let_go() -> None:
        assert deleting.wait(20)
        until_sync(lambda: waits_for_a_lock() or None, 20)
        go.set()

    _, placed, _ = at_once(delete, place, let_go)
    assert isinstance(placed, NotFound)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ"])
def test_t57_a_hold_that_is_placed_in_the_midst_of_a_deletion_stops_what_it_has_not_reached(scene, isolation):
    """The deleting transaction looked before the hold was there, and deletes after it."""
    looked, placed = threading.Event(), threading.Event()

    def delete() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            cursor.execute("SELECT count(*) FROM runs_hold")
            looked.set()
            assert placed.wait(20)
            Artifact.objects.filter(run_id=scene.run.id).delete()

    def place() -> None:
        assert looked.wait(20)
        hold(scene)
        placed.set()

    deleted, _ = at_once(delete, place)
    assert isinstance(deleted, DatabaseError), deleted
    assert Artifact.objects.filter(run_id=scene.run.id).count() == 3


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("scope", ["project", "run", "artifact"])
def test_t57_a_month_of_the_journal_with_anything_held_is_not_dropped(scene, scope):
    finish(scene)
    targets = {"project": scene.project.slug, "run": scene.run.id, "artifact": scene.run.input_digest}
    hold(scene, scope, targets[scope])
    [month] = [one for one in partitions.existing() if one.first <= scene.run.id < one.beyond]
    assert "legal hold" in retention._held(month.first, month.beyond)
    with transaction.atomic():
        assert "legal hold" in retention._drop_unless_changed(month, retention._heads(month))
    assert Event.objects.filter(run_id=scene.run.id).exists()


def finish(scene: Scene) -> None:
    """Nothing but a hold that is placed now can keep the month of the scene's run any longer."""
    for placed in holds.in_force():
        holds.release(placed.id, project=placed.project, reason="for the test", by=LEA)
    replaced("UPDATE runs_run SET state = 'completed', ended_at = coalesce(ended_at, now()), resuming_since = NULL")
    replaced("UPDATE approvals_approval SET state = 'voided', decided_at = now() WHERE state = 'waiting'")
    replaced("UPDATE runs_operation SET state = 'blocked' WHERE state IN ('uncertain', 'awaiting_approval')")


def replaced(statement: str) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement)


GOES_ON = {
    "it runs": "UPDATE runs_run SET state = 'running', ended_at = NULL",
    "it is being resumed": "UPDATE runs_run SET state = 'failed', failure_code = 'x', resuming_since = now()",
    "a call of it is uncertain": "UPDATE runs_operation SET state = 'uncertain', error_class = 'x', settled_at = now()"
    " WHERE attempt > 0 AND effect = 'write'",
    "a person is asked": "UPDATE approvals_approval SET state = 'waiting', decided_at = NULL",
}


@pytest.mark.parametrize("change", GOES_ON.values(), ids=list(GOES_ON))
def test_t43_a_month_of_a_run_that_may_tell_more_is_not_dropped(scene, change):
    finish(scene)
    [month] = [one for one in partitions.existing() if one.first <= scene.run.id < one.beyond]
    assert retention._held(month.first, month.beyond) == ""
    replaced(change)
    assert "may tell more" in retention._held(month.first, month.beyond)


def test_t05_the_stream_of_a_run_that_is_still_there_outlives_its_month(scene):
    """Its numbers go on where they were: none is given twice."""
    gone = Stream.objects.create(run_id=uuid.uuid4(), project="gone", head=1, published=1)
    assert retention._kept([scene.run.id, gone.run_id]) == {scene.run.id}
    holds.place(project=scene.project.slug, scope="project", reason="a claim", by=LEA)
    held = Hold.objects.latest("placed_at")
    assert held.id in retention._kept([held.id])


def test_c83_holds_survive_a_dump_and_its_restoration(scene, tmp_path):
    hold(scene)
    settings = connection.settings_dict
    copy = f"{settings['NAME']}_copy"
    where = ["-h", settings["HOST"], "-p", str(settings["PORT"] or 5432), "-U", settings["USER"]]
    dump = tmp_path / "dump"

    def run(tool: str, *more: str) -> str:
        done = subprocess.run([binary(tool), *where, *more], capture_output=True, text=True, check=True)
        return done.stdout

    run("pg_dump", "-Fc", "-f", str(dump), settings["NAME"])
    run("createdb", copy)
    try:
        run("pg_restore", "-d", copy, str(dump))
        refused = subprocess.run(
            [binary("psql"), *where, "-d", copy, "-c", f"DELETE FROM runs_artifact WHERE run_id = '{scene.run.id}'"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "is on legal hold" in refused.stderr
    finally:
        run("dropdb", copy)


def test_a_hold_is_told_and_its_record_neither_changes_nor_goes(scene):
    placed = hold(scene)
    holds.release(placed.id, project=scene.project.slug, reason="settled", by=LEA)
    assert list(Event.objects.filter(run_id=placed.id).values_list("type", flat=True)) == [
        "hold.placed",
        "hold.released",
    ]
    with pytest.raises(Conflict):
        holds.release(placed.id, project=scene.project.slug, reason="again", by=LEA)
    rows = Hold.objects.filter(id=placed.id)
    for change in (rows.delete, lambda: rows.update(released_at=None), lambda: rows.update(reason="other")):
        with pytest.raises(IntegrityError, match="on record"), transaction.atomic():
            change()


ABSENT = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("scope", "target", "reason", "error"),
    [
        ("tenant", "", "r", Invalid), ("run", "no id", "r", Invalid), ("run", ABSENT, "r", NotFound),
        ("operation", ABSENT, "r", NotFound), ("artifact", "0" * 64, "r", NotFound),
        ("artifact", "xyz", "r", Invalid), ("project", "another", "r", Invalid), ("project", "", " ", Invalid),
    ],
)  # fmt: skip
def test_a_hold_names_something_that_is_there_and_a_reason(scene, scope, target, reason, error):
    with pytest.raises(error):
        holds.place(project=scene.project.slug, scope=scope, target=target, reason=reason, by=LEA)


def test_a_start_that_never_was_is_forgotten_even_in_a_held_project(scene):
    """The caller was told that there is no run, and there is none: nothing to keep."""
    hold(scene, "project", scene.project.slug)
    refused = Run.objects.create(
        project=scene.project, agent_version=scene.version, input_digest="0" * 64, started_by="t"
    )
    Artifact.objects.create(run=refused, digest="0" * 64, kind="input", size=1, media_type="text/plain", body=b"x")
    starts.forget(refused.id)
    assert not Run.objects.filter(id=refused.id).exists()


def test_the_api_places_lists_and_releases_holds(scene):
    api, stranger = api_for(scene.project), api_for(make_scene().project)
    body = {"scope": "run", "target": str(scene.run.id), "reason": "a claim"}
    placed = api.post("/holds", body)
    assert (placed.status_code, placed.data["target"], placed.data["released_at"]) == (201, str(scene.run.id), None)
    assert [one["id"] for one in api.get("/holds", in_force="true").data["items"]] == [placed.data["id"]]
    path = f"/holds/{placed.data['id']}/release"
    assert is_problem(stranger.post(path, {"reason": "mine now"}), 404, "not_found")
    assert api.post(path, {"reason": "settled"}).data["release_reason"] == "settled"
    assert is_problem(api.post(path, {"reason": "settled"}), 409, "hold_released")
    assert is_problem(api.post("/holds", body | {"target": "x"}), 422, "invalid_request")
    assert len(api.get("/holds", limit="1").data["items"]) == 1


def test_the_command_places_lists_and_releases_holds(scene, capsys):
    call_command("hold", "place", "project", "--project", scene.project.slug, "--reason", "a claim", "--by", "lea")
    placed = Hold.objects.get(project=scene.project.slug, released_at=None)
    assert str(placed.id) in capsys.readouterr().out
    call_command("hold", "list", "--project", scene.project.slug, "--json")
    assert f'"{placed.id}"' in capsys.readouterr().out
    call_command("hold", "release", str(placed.id), "--project", scene.project.slug, "--reason", "settled")
    assert not holds.in_force(scene.project.slug).exists()
