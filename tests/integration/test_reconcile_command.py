"""manage.py reconcile: an operator lists, looks at, probes and resolves what is unclear."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from kernel_project.primitives.errors import NotFound
from outbox.models import Event
from runs.boundary import artifacts, reconcile
from runs.boundary.contracts import ProbeVerdict
from tests.boundary_scene import committed, make_scene, perform_now, put_back

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def said(*words: str) -> str:
    out = io.StringIO()
    call_command("reconcile", *words, stdout=out)
    return out.getvalue()


def uncertain(kind: str = "opaque", plan=("effect",)):
    scene = make_scene(kind, plan)
    assert perform_now(scene.id).state == ("uncertain" if kind == "opaque" else scene.row().state)
    return scene


def test_list_shows_what_is_unclear_and_who_must_look():
    scene = uncertain()
    assert str(scene.id) in said("list", "--project", scene.project.slug)
    assert "needs a person" in said("list", "--project", scene.project.slug)
    (fact,) = json.loads(said("list", "--json", "--project", scene.project.slug))
    assert (fact["id"], fact["needs_attention"], fact["error_class"]) == (str(scene.id), True, "ConnectionResetError")


def test_show_gives_the_call_and_its_story_without_control_characters():
    scene = make_scene("opaque", ["effect"])
    operation = scene.another(text="\x1b[2J harmless")
    perform_now(operation.id)
    shown = said("show", str(operation.id))
    assert "\x1b" not in shown
    assert "tool.started" in shown


def test_resolve_writes_the_verdict_with_its_note_and_evidence(tmp_path):
    scene, proof = uncertain(), tmp_path / "statement.txt"
    proof.write_text("paid on Monday")
    said(
        "resolve", str(scene.id), "--verdict", "occurred", "--note", "it is in the books", "--evidence", str(proof),
        "--by", "olga",
    )  # fmt: skip
    row = scene.row()
    assert (row.state, row.verdict, row.reconciled_by, row.note) == (
        "reconciled", "occurred", "olga", "it is in the books",
    )  # fmt: skip
    assert artifacts.read(row.run_id, row.evidence_digest) == b"paid on Monday"
    event = Event.objects.get(operation_id=scene.id, type="operation.reconciled")
    assert f'"evidence":[{{"ref":"artifact://sha256/{row.evidence_digest}"}}]' in event.envelope


@pytest.mark.parametrize(
    "words",
    [
        ["resolve", "{id}", "--verdict", "none", "--note", " "],
        ["resolve", "{id}", "--verdict", "none", "--note", "x" * 2_001],
        ["resolve", "{id}", "--verdict", "none", "--note", "x", "--evidence", "/nowhere"],
        ["resolve", "--verdict", "none", "--note", "x"],
        ["resolve", "00000000-0000-0000-0000-000000000000", "--verdict", "none", "--note", "x"],
        ["probe", "{id}"],
        ["show", "00000000-0000-0000-0000-000000000000"],
    ],
)
def test_what_cannot_be_done_is_an_error_and_changes_nothing(words):
    scene = uncertain()
    with pytest.raises(CommandError):
        said(*(word.replace("{id}", str(scene.id)) for word in words))
    assert scene.row().state == "uncertain"


def test_a_second_verdict_is_refused():
    scene = uncertain()
    said("resolve", str(scene.id), "--verdict", "none", "--note", "looked")
    with pytest.raises(CommandError, match="not uncertain"):
        said("resolve", str(scene.id), "--verdict", "occurred", "--note", "looked again")
    assert scene.row().verdict == "none"


def test_all_that_are_older_are_resolved_and_no_others():
    scene = uncertain()
    said("resolve", "--all-older-than", "1h", "--project", scene.project.slug, "--verdict", "unknown", "--note", "x")
    assert scene.row().state == "uncertain"
    said("resolve", "--all-older-than", "0s", "--project", scene.project.slug, "--verdict", "unknown", "--note", "x")
    assert scene.row().verdict == "unknown"


def probed_and_uncertain():
    scene = make_scene("probed", ["nothing"])
    scene.outside.verdict = ProbeVerdict.CANNOT_TELL
    assert perform_now(scene.id).state == "uncertain"
    return scene


def test_probe_asks_at_once_and_settles_what_it_finds():
    scene = probed_and_uncertain()
    scene.outside.verdict = ProbeVerdict.ONE
    assert "reconciled" in said("probe", str(scene.id))
    assert scene.row().verdict == "occurred"


def due(scene) -> None:
    from django.db.models.functions import Now

    from runs.models import Operation

    Operation.objects.filter(id=scene.id).update(next_probe_at=Now())


def test_the_tick_looks_with_back_off_and_then_calls_a_person(monkeypatch):
    monkeypatch.setattr(reconcile, "PROBES_MAX", 3)
    scene = probed_and_uncertain()
    for number in (1, 2, 3):
        due(scene)
        reconcile.probe_due()
        assert scene.row().probe_attempts == number
    row = scene.row()
    assert (row.needs_attention, row.next_probe_at) == (True, None)


def test_an_effect_that_is_there_twice_calls_a_person_at_once():
    scene = probed_and_uncertain()
    scene.outside.verdict = ProbeVerdict.MANY
    due(scene)
    reconcile.probe_due()
    assert (scene.row().state, scene.row().needs_attention) == ("uncertain", True)


def test_absent_is_believed_only_after_the_deadline():
    scene = probed_and_uncertain()
    scene.outside.verdict = ProbeVerdict.ABSENT
    due(scene)
    reconcile.probe_due()
    assert scene.row().state == "uncertain"
    put_back(scene.id, 100)
    due(scene)
    reconcile.probe_due()
    assert scene.row().verdict == "none"


def test_one_that_cannot_be_looked_for_does_not_hold_up_the_others():
    from runs.models import Artifact

    broken, fine = probed_and_uncertain(), probed_and_uncertain()
    Artifact.objects.filter(run=broken.run, digest=broken.row().arguments_digest).delete()
    fine.outside.verdict = ProbeVerdict.ONE
    due(broken)
    due(fine)
    reconcile.probe_due()
    assert (broken.row().state, fine.row().state) == ("uncertain", "reconciled")


def test_two_ticks_at_once_look_only_once():
    from tests.boundary_scene import at_once

    scene = probed_and_uncertain()
    due(scene)
    at_once(reconcile.probe_due, reconcile.probe_due)
    assert scene.row().probe_attempts == 1


def test_a_probe_is_only_for_a_call_of_the_project():
    scene = probed_and_uncertain()
    with pytest.raises(NotFound):
        reconcile.probe_now(scene.id, "another-project")
    with pytest.raises(NotFound):
        reconcile.probe_soon(scene.id, "another-project")
    assert reconcile.probe_soon(scene.id, scene.project.slug).next_probe_at is not None


def test_a_probe_that_somebody_asked_for_is_made_by_the_next_tick():
    from runs.models import Operation

    scene = probed_and_uncertain()
    Operation.objects.filter(id=scene.id).update(next_probe_at=None, probe_attempts=reconcile.PROBES_MAX)
    scene.outside.verdict = ProbeVerdict.ONE
    reconcile.probe_soon(scene.id, scene.project.slug)
    assert reconcile.probe_due() >= 1
    assert scene.row().verdict == "occurred"


def test_an_effect_is_undone_by_command(monkeypatch):
    from runs.loop import temporal
    from runs.models import Run, Tool

    monkeypatch.setattr(temporal, "start", lambda _: None)
    scene = make_scene("opaque")
    perform_now(scene.id)
    with pytest.raises(CommandError, match="declares no way"):
        said("compensate", str(scene.id), "--note", "wrong customer")
    Tool.objects.filter(id=scene.tool.id).update(compensation={"tool": scene.tool.name, "arguments": {}})
    assert "undoes it" in said("compensate", str(scene.id), "--note", "wrong customer", "--by", "olga")
    run = Run.objects.get(compensates_id=scene.id)
    assert run.started_by == "olga"
    listed = said("compensations", "--project", scene.project.slug)
    assert str(run.id) in listed
    assert "1 not undone" in listed
    with pytest.raises(CommandError, match="no such operation"):
        said("compensate", "00000000-0000-0000-0000-000000000000", "--note", "x")
