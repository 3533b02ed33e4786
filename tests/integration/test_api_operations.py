"""Looking for, and undoing, what an operation did over the JSON API; and all that an operation tells of itself."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.db.models.functions import Now

from approvals import services as approvals
from approvals.contracts import Decider
from approvals.models import Approval
from kernel_project.primitives import clock
from kernel_project.primitives.errors import Unavailable
from runs.boundary import artifacts, results
from runs.boundary.contracts import EffectResult
from runs.models import Artifact, Operation, Run, Tool
from tests.api_client import Api, api_for, is_problem, make_person
from tests.api_scene import Scene, make_operation, make_scene

pytestmark = [pytest.mark.django_db(transaction=True)]
SCHEMA = {"type": "object"}
NOTE = {"note": "wrong customer"}


@pytest.fixture
def scene() -> Scene:
    return make_scene()


@pytest.fixture
def api(scene) -> Api:
    return api_for(scene.project)


def put(operation: Operation, **facts) -> None:
    """Facts that only another writer could have left."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
    Operation.objects.filter(id=operation.id).update(**facts)
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = DEFAULT")


def void(approval: Approval) -> None:
    """Ann says yes, and the call then changes."""
    decider = Decider(name="ann", groups=frozenset(), via="api")
    approvals.decide(approval.id, approval.project, decider, "approve")
    with transaction.atomic():
        approvals.void(approval.operation_id)


def probe(api: Api, operation: Operation):
    return api.post(f"/operations/{operation.id}/probe", {})


def test_a_probe_on_demand_is_due_at_once_also_for_one_that_was_given_up(api, scene):
    put(scene.uncertain, probes=True, probe_attempts=10, needs_attention=True, next_probe_at=None)
    answer = probe(api, scene.uncertain)
    assert (answer.status_code, answer.data["state"], answer.data["probes"]) == (202, "uncertain", True)
    assert Operation.objects.filter(id=scene.uncertain.id, next_probe_at__lte=Now()).exists()


def test_what_cannot_be_looked_for_is_a_conflict(api, scene):
    assert is_problem(probe(api, scene.uncertain), 409, "conflict")
    assert "only a person" in probe(api, scene.uncertain).data["detail"]
    done = make_operation(scene.run, 5, "succeeded", settled_at=clock.now(), result_digest="a" * 64)
    assert is_problem(probe(api, done), 409, "conflict")


def test_a_probe_needs_the_scope_and_another_project_has_no_such_operation(scene):
    put(scene.uncertain, probes=True)
    assert is_problem(probe(api_for(scene.project, "operations:read"), scene.uncertain), 403, "missing_scope")
    assert is_problem(probe(api_for(make_scene().project), scene.uncertain), 404, "not_found")
    assert Operation.objects.get(id=scene.uncertain.id).next_probe_at is None


def test_an_operation_tells_its_twin_its_evidence_and_the_requests_that_were_voided(api, scene):
    kept = artifacts.stage(b"the statement")
    artifacts.claim(scene.run.id, Artifact.Kind.LOG, [kept])
    waiting = Operation.objects.get(id=scene.approval.operation_id)
    put(waiting, twin_id=scene.uncertain.id, evidence_digest=kept.digest)
    void(scene.approval)
    told = api.get(f"/operations/{waiting.id}").data
    assert told["twin_id"] == str(scene.uncertain.id)
    assert told["evidence_ref"] == f"artifact://sha256/{kept.digest}"
    assert [(one["state"], one["decided_by"]) for one in told["approvals"]] == [("voided", "ann")]
    assert (told["compensations"], told["compensates_id"]) == ([], None)


def paid(scene: Scene) -> Operation:
    """A write that happened, by a tool that declares how it is undone."""
    common = {"project": scene.project, "kind": "python", "input_schema": SCHEMA, "definition_digest": "d"}
    Tool.objects.create(name="unpay", remote_name="unpay", exposed_name="unpay", **common)
    tool = Tool.objects.create(
        name="pay", remote_name="pay", exposed_name="pay",
        compensation={"tool": "unpay", "arguments": {"id": "{result:id}"}}, **common,
    )  # fmt: skip
    packed = results.pack(EffectResult(text="done", structured={"id": 7}))
    artifacts.claim(scene.run.id, Artifact.Kind.RESULT, packed.bodies)
    return make_operation(
        scene.run, 3, "succeeded", tool=tool, settled_at=clock.now(), result_digest=packed.record.digest
    )


def undo(api: Api, operation: Operation, body=None):
    return api.post(f"/operations/{operation.id}/compensate", NOTE if body is None else body)


@pytest.mark.usefixtures("temporal_server")
def test_an_effect_is_undone_by_a_run_of_its_own_and_only_one(scene):
    operation = paid(scene)
    api = api_for(scene.project, "operations:compensate", "operations:read", user=make_person("olga"))
    answer = undo(api, operation)
    assert answer.status_code == 202
    run = Run.objects.get(id=answer.data["run_id"])
    assert (run.compensates_id, run.started_by, run.state) == (operation.id, "olga", "running")
    assert answer.data["operation_id"] is None
    again = undo(api, operation)
    assert is_problem(again, 409, "compensated")
    assert again.data["run"] == str(run.id)
    [told] = api.get(f"/operations/{operation.id}").data["compensations"]
    assert (told["run_id"], told["requested_by"]) == (str(run.id), "olga")


def test_without_temporal_it_is_503_and_nothing_was_begun(api, scene, monkeypatch):
    from runs.loop import temporal

    def down(_):
        raise temporal.Down("Temporal cannot be reached")

    operation = paid(scene)
    monkeypatch.setattr(temporal, "start", down)
    answer = undo(api, operation)
    assert is_problem(answer, 503, "temporal_unavailable")
    assert answer["Retry-After"]
    assert issubclass(temporal.Down, Unavailable)
    assert not Run.objects.filter(compensates_id=operation.id).exists()


def test_what_cannot_be_undone_is_refused(api, scene):
    operation = paid(scene)
    assert is_problem(undo(api, scene.uncertain), 409, "nothing_to_undo")
    plain = make_operation(scene.run, 4, "succeeded", settled_at=clock.now(), result_digest="a" * 64)
    assert is_problem(undo(api, plain), 409, "no_compensation")
    for body in ({}, {"note": " "}, {"note": "x" * 2_001}, {"note": "n", "force": True}):
        assert is_problem(undo(api, operation, body), 422, "invalid_request")
    assert is_problem(undo(api_for(make_scene().project), operation), 404, "not_found")
    assert is_problem(
        undo(api_for(scene.project, "operations:reconcile", user=make_person()), operation), 403, "missing_scope"
    )
    assert not Run.objects.filter(compensates_id__isnull=False).exists()


def test_a_key_without_a_person_cannot_undo_anything(scene):
    from kernel_project.primitives.errors import Invalid

    with pytest.raises(Invalid, match="needs a person"):
        api_for(scene.project, "operations:compensate")
