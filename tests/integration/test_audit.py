"""The audit chain and the signed bundle: what was done is on record, and a change shows."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.db.models.functions import Now

from kernel_project import verify
from outbox.models import Event
from runs.boundary import artifacts
from runs.keeping import audit, bundles
from runs.models import ApiKey, Artifact, AuditEntry, Operation, Run
from tests import console
from tests.boundary_scene import at_once, committed  # noqa: F401  a fixture
from tests.kernel import make_project

pytestmark = pytest.mark.usefixtures("committed")


@pytest.fixture
def run() -> Run:
    operation = console.uncertain_run(make_project())
    audit.seal()
    return Run.objects.get(id=operation.run_id)


def tampered(statement: str, *values: object) -> list[str]:
    """What a look at the chains finds after somebody who may do anything changed something; then all is as before."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(statement, values)
        found = audit.broken()
        transaction.set_rollback(True)
    return found


def test_each_action_and_decision_is_in_the_chain_of_its_project(run):
    entries = list(AuditEntry.objects.filter(project=run.project_id).order_by("sequence"))
    assert [entry.action for entry in entries] == ["run.started", "tool.started", "tool.failed"]
    assert [entry.sequence for entry in entries] == [1, 2, 3]
    assert [entry.previous_hash for entry in entries[1:]] == [entry.hash for entry in entries[:-1]]
    assert entries[1].actor == Operation.objects.get(run=run, position=1).actor
    assert audit.broken() == []


def test_what_people_do_in_the_console_is_in_it_too():
    client = console.logged_in(console.person("olga", superuser=True))
    project = make_project()
    client.post("/admin/runs/hold/add/", {"project": project.slug, "scope": "project", "reason": "a claim"})
    audit.seal()
    last = AuditEntry.objects.filter(project="").latest("sequence")
    assert (last.action, last.actor) == ("console", "olga")
    assert "a claim" in last.detail
    assert AuditEntry.objects.get(project=project.slug).action == "hold.placed"


def test_keys_and_replays_are_in_it(capsys):
    project = make_project()
    command = ["create_api_key", "--project", project.slug, "--name", "Lager ü", "--scope", "runs:read"]
    call_command(*command)
    key = ApiKey.objects.get(project=project)
    ApiKey.objects.filter(id=key.id).update(last_used_at=Now())
    ApiKey.objects.filter(id=key.id).update(revoked_at=Now())
    audit.seal()
    made, revoked = AuditEntry.objects.filter(project=project.slug).order_by("sequence")
    assert (made.action, made.actor) == ("key.created", f"command by {getpass.getuser()}")
    assert (revoked.action, revoked.actor.partition(" ")[0]) == ("key.revoked", "database")  # by hand, past all doors
    assert key.prefix in made.detail
    assert key.secret_hash not in made.detail
    assert capsys.readouterr().out.strip() not in made.detail
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_get_triggerdef(oid) FROM pg_trigger"
            " WHERE tgname = 'kernel_audit' AND tgrelid = 'outbox_event'::regclass"
        )
        assert "event.replay_requested" in cursor.fetchone()[0]
    assert audit.broken() == []


def test_nobody_who_may_write_to_the_table_can_forge_an_entry_or_a_seal(run):
    event = Event.objects.filter(run_id=run.id).first()
    facts = {"action": "run.completed", "event_id": event.event_id, "run_id": run.id, "content_hash": "0" * 64}
    for more in ({}, {"project": run.project_id, "sequence": 4, "hash": "1" * 64}):
        with pytest.raises(IntegrityError, match="nobody else"), transaction.atomic():
            AuditEntry.objects.create(**facts, **more)
    own = console.uncertain_run(make_project()).project_id
    fresh = AuditEntry.objects.filter(sequence=None).earliest("id")
    facts = (fresh.action, fresh.event_id, fresh.run_id, fresh.content_hash)
    for actor, project, sequence in (("ann", own, 1), ("ann", own, 9), ("ann", run.project_id, 1)):
        sealed = audit.link("", project, sequence, *facts, actor, fresh.at)
        values = {"actor": actor, "project": project, "sequence": sequence, "previous_hash": "", "hash": sealed}
        with pytest.raises(IntegrityError, match=r"does not follow|another project|audit_place"), transaction.atomic():
            AuditEntry.objects.filter(id=fresh.id).update(**values)
    audit.seal()
    assert audit.broken() == []


def test_the_record_can_be_neither_changed_nor_deleted(run):
    rows = AuditEntry.objects.filter(run_id=run.id)
    for change in (
        lambda: rows.update(actor="somebody else"),
        rows.delete,
        lambda: rows.update(sequence=None, hash=""),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            change()


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE runs_auditentry SET actor = 'x' WHERE run_id = %s AND sequence = 2", "#2: is not what was sealed"),
        ("DELETE FROM runs_auditentry WHERE run_id = %s AND sequence = 2", "#3: does not follow #1"),
        ("UPDATE outbox_event SET envelope = envelope || ' ' WHERE run_id = %s", "is not what was told"),
    ],
)  # fmt: skip
def test_a_change_by_somebody_who_may_do_anything_shows(run, statement, found):
    assert found in " ".join(tampered(statement, run.id))


def test_verify_looks_at_the_chains(run, monkeypatch):
    assert [check.ok for check in verify.run() if check.id == "audit_chain_is_whole"] == [True]
    monkeypatch.setattr(audit, "broken", lambda: ["p #1: is not what was sealed"])
    assert [check.id for check in verify.run() if not check.ok] == ["audit_chain_is_whole"]


def test_two_sealers_at_once_make_one_chain():
    console.uncertain_run(make_project())
    assert min(at_once(audit.seal, audit.seal)) == 0
    assert audit.broken() == []


@pytest.fixture
def key(monkeypatch) -> str:
    private, public = bundles.new_key()
    monkeypatch.setattr(settings, "EXPORT_SIGNING_KEY", private)
    return public


def test_a_bundle_is_checked_elsewhere_without_the_database(run, key, tmp_path):
    target = tmp_path / "run.bundle"
    call_command("export", str(run.id), "--out", str(target))
    with tarfile.open(target) as bundle:
        names = bundle.getnames()
    assert {"run.json", "operations.jsonl", "events.jsonl", "audit.jsonl", f"artifacts/{run.input_digest}"} <= set(
        names
    )
    nowhere = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "KERNEL_VAR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "manage.py", "verify_bundle", str(target), "--public-key", key],
        cwd=settings.BASE_DIR, env=os.environ | nowhere, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "as it was signed" in done.stdout, done.stderr
    with pytest.raises(CommandError, match="is there already"):
        call_command("export", str(run.id), "--out", str(target))


def test_a_bundle_is_of_one_moment_whatever_goes_on_meanwhile(run, key, tmp_path, monkeypatch):
    plain, late = bundles._lines, "f" * 64

    def goes_on(found):
        at_once(lambda: Artifact.objects.get_or_create(
            run_id=run.id, digest=late, kind="log", defaults={"size": 1, "media_type": "text/plain", "body": b"x"}
        ))  # fmt: skip
        return plain(found)

    monkeypatch.setattr(bundles, "_lines", goes_on)
    manifest = bundles.export(run.id, tmp_path / "a.bundle")
    assert Artifact.objects.filter(run=run, digest=late).exists()
    assert f"artifacts/{late}" not in manifest["files"]
    assert bundles.check(tmp_path / "a.bundle", key) == []


def test_an_export_that_breaks_off_leaves_no_file(run, key, tmp_path, monkeypatch):
    def away(*_):
        raise OSError("the store is away")

    monkeypatch.setattr(artifacts, "read", away)
    with pytest.raises(OSError, match="away"):
        bundles.export(run.id, tmp_path / "a.bundle")
    assert list(tmp_path.iterdir()) == []


def repacked(source: Path, change: dict[str, bytes | None]) -> Path:
    """The bundle with other members."""
    with tarfile.open(source) as bundle:
        members = {name: bundle.extractfile(name).read() for name in bundle.getnames()}  # type: ignore[union-attr]
    target = source.with_suffix(".other")
    with tarfile.open(target, "w") as bundle:
        for name, data in (members | change).items():
            if data is not None:
                bundles._add(bundle, name, data)
    return target


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"events.jsonl": b""}, "events.jsonl was changed"), ({"run.json": None}, "run.json is missing"),
        ({"more": b"x"}, "more is not in the manifest"), ({"manifest.json": b"{}"}, "not signed"),
    ],
)  # fmt: skip
def test_a_changed_bundle_is_found_out(run, key, tmp_path, change, found):
    bundles.export(run.id, tmp_path / "a.bundle")
    assert bundles.check(tmp_path / "a.bundle", key) == []
    assert found in " ".join(bundles.check(repacked(tmp_path / "a.bundle", change), key))


def test_a_bundle_of_another_key_or_no_bundle_is_refused(run, key, tmp_path, monkeypatch):
    bundles.export(run.id, tmp_path / "a.bundle")
    assert bundles.check(tmp_path / "a.bundle", bundles.new_key()[1]) == ["the manifest is not signed by this key"]
    with tarfile.open(tmp_path / "twice", "w") as bundle:
        for data in (b"forged", b"genuine"):
            bundles._add(bundle, "run.json", data)
    assert "there twice" in bundles.check(tmp_path / "twice", key)[0]
    (tmp_path / "b").write_text("no")
    assert "not a bundle" in bundles.check(tmp_path / "b", key)[0]
    monkeypatch.setattr(settings, "EXPORT_SIGNING_KEY", "")
    with pytest.raises(CommandError, match="EXPORT_SIGNING_KEY"):
        call_command("export", str(run.id), "--out", str(tmp_path / "c"))
    assert Event.objects.filter(run_id=run.id).exists()
