"""The state machine of operations: what the database refuses, and what no order of events can bring about."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from outbox.contracts import Actor
from outbox.models import Event
from runs.boundary import operations, reconcile
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeAnswer, ProbeVerdict
from runs.boundary.operations import Superseded, Unclear
from runs.models import Operation, Run
from tests.boundary_scene import KINDS, committed, dispatched, make_scene, put_back, quiet

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

STATES = Operation.State.values
LEGAL = {
    ("proposed", "denied"), ("proposed", "blocked"), ("proposed", "awaiting_approval"), ("proposed", "withdrawn"),
    ("awaiting_approval", "rejected"), ("awaiting_approval", "expired"), ("awaiting_approval", "withdrawn"),
    ("awaiting_approval", "denied"), ("awaiting_approval", "blocked"),
    ("dispatched", "succeeded"), ("dispatched", "tool_error"), ("dispatched", "failed"), ("dispatched", "uncertain"),
    ("uncertain", "reconciled"), ("reconciled", "blocked"), ("reconciled", "withdrawn"),
}  # fmt: skip
WHOLE = {
    "dispatched_at": "2026-01-01T00:00Z", "first_dispatched_at": "2026-01-01T00:00Z",
    "deadline_at": "2026-01-01T00:00Z", "settled_at": "2026-01-01T00:00Z", "result_digest": "a" * 64,
    "error_class": "Boom", "verdict": "none", "reconciled_by": "olga", "reconciled_at": "2026-01-01T00:00Z",
}  # fmt: skip


def put_into(scene, state: str, **values) -> None:
    """The row in any state, past the trigger."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
    Operation.objects.filter(id=scene.id).update(**{"state": state, "attempt": 1, **WHOLE, **values})
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = DEFAULT")


def is_let(scene, **values) -> bool:
    try:
        with transaction.atomic():
            Operation.objects.filter(id=scene.id).update(**values)
            transaction.set_rollback(True)
    except IntegrityError:
        return False
    return True


def test_the_trigger_lets_exactly_the_drawn_transitions_happen():
    scene = make_scene("opaque")
    found = set()
    for old in STATES:
        put_into(scene, old)
        found |= {(old, new) for new in STATES if new != old and is_let(scene, state=new)}
    assert found == LEGAL


@pytest.mark.parametrize(
    ("old", "verdict", "let"),
    [
        ("proposed", "", True), ("awaiting_approval", "", True), ("dispatched", "", True),
        ("reconciled", "none", True), ("reconciled", "occurred", False), ("reconciled", "unknown", False),
        ("succeeded", "", False), ("tool_error", "", False), ("failed", "", False), ("uncertain", "", False),
        ("blocked", "", False), ("denied", "", False), ("rejected", "", False),
    ],
)  # fmt: skip
def test_an_attempt_begins_only_where_the_call_has_not_left_or_had_no_effect(old, verdict, let):
    scene = make_scene("opaque")
    put_into(scene, old, verdict=verdict or "none")
    assert is_let(scene, state="dispatched", attempt=2) is let
    assert not is_let(scene, state="dispatched", attempt=3)
    assert not is_let(scene, attempt=0)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"}, {"arguments_digest": "b" * 64}, {"call_digest": "b" * 64}, {"unique_key": "b" * 64},
        {"definition_digest": "b" * 64}, {"effect": "read"}, {"actor": "other"}, {"turn": 9}, {"position": 9},
        {"idempotent_for_seconds": 60}, {"probes": True}, {"kind": "mcp"}, {"call_label": "x"}, {"tool": None},
        {"compensates_id": "6f1c2f0e-1111-5222-8333-444455556666"}, {"run_id": "6f1c2f0e-1111-5222-8333-444455556666"},
        {"proposed_at": "2026-01-01T00:00Z"}, {"twin_id": "6f1c2f0e-1111-5222-8333-444455556666"},
    ],
)  # fmt: skip
def test_the_intent_of_an_operation_cannot_change(change):
    assert not is_let(make_scene("opaque"), **change)


@pytest.mark.parametrize("change", [{"result_digest": "b" * 64}, {"error_class": "Other"}, {"verdict": "unknown"}])
def test_an_outcome_stays_as_it_was_written(change):
    scene = make_scene("opaque")
    for state in ("succeeded", "tool_error", "failed", "uncertain", "reconciled"):
        put_into(scene, state)
        assert not is_let(scene, **change), state


def test_a_judged_call_keeps_its_judgement():
    scene = make_scene("opaque")
    assert is_let(scene, policy="other v1", policy_answer="require")
    dispatched(scene.id)
    assert not is_let(scene, policy="other v1")


class Life(RuleBasedStateMachine):
    """One operation, many workers: each may act, die, come back late; people and probes look in between."""

    @initialize(kind=st.sampled_from(sorted(KINDS)))
    def propose(self, kind: str) -> None:
        self.kind = kind
        self.scene = make_scene(kind, allow=True)
        self.given: list[Dispatch] = []
        self.sent: set[int] = set()
        self.effects: list[int] = []
        self.known_absent: set[int] = set()

    def row(self) -> Operation:
        return self.scene.row()

    @rule()
    def deliver(self) -> None:
        """The engine delivers; the row decides. An unclear attempt goes by the table's first lines."""
        step = operations.dispatch(self.scene.id, quiet)
        if isinstance(step, Unclear):
            row = self.row()
            unsent = operations.marks_sending(row) and row.sending_at is None
            if row.attempt < 6 and (row.effect == "read" or unsent or self.kind == "keyed"):
                effect = "uncertain" if self.kind == "keyed" else "none"
                step = operations.again(step, quiet, effect, unsent=unsent)
            elif row.effect == "write":
                operations.settle_uncertain(step)
        if isinstance(step, Dispatch):
            self.given.append(step)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """A worker that has a permission, however old, tries to let the effect happen."""
        given = data.draw(st.sampled_from(self.given))
        if given.attempt in self.sent:
            return
        if self.row().effect == "write":
            try:
                if operations.marks_sending(self.row()):
                    operations.mark_sending(given.operation_id, given.attempt)
                else:
                    operations.check_sending(given.operation_id, given.attempt, given.timeout_seconds)
            except (Superseded, NotSent):
                return
            assert Run.objects.get(id=self.scene.run.id).cancel_requested_at is None, "sent after the cancel"
        self.sent.add(given.attempt)
        self.effects.append(given.attempt)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        given = data.draw(st.sampled_from(self.given))
        if given.attempt in self.sent:
            operations.settle_answer(given, EffectResult(text=f"attempt {given.attempt}"))
        else:
            self.known_absent.add(given.attempt)
            self.sent.add(given.attempt)  # it said that it did not send, and keeps to it
            operations.settle_not_done(given, "NotSent", "no route")

    @rule(verdict=st.sampled_from(["occurred", "none", "unknown"]))
    def person(self, verdict: str) -> None:
        """A person tells the truth, as far as it can be told."""
        row = self.row()
        seen = bool(self.effects) if self.kind == "keyed" else row.attempt in self.effects
        if row.state != "uncertain" or (verdict == "none" and seen):
            return
        self.sent.add(row.attempt)  # whoever says that it did not happen has made sure that it will not
        by = Actor(id="olga", type="human")
        reconcile.resolve(self.scene.id, project=self.scene.project.slug, verdict=verdict, by=by, note="looked")

    @rule()
    def look(self) -> None:
        row = self.row()
        if not row.probes or row.state != "uncertain":
            return
        seen = row.attempt in self.effects
        if not seen:
            self.sent.add(row.attempt)
        verdict = ProbeVerdict.ONE if seen else ProbeVerdict.ABSENT
        reconcile.by_probe(row.id, row.attempt, ProbeAnswer(verdict=verdict), absent_counts=True)

    @rule()
    def cancel(self) -> None:
        Run.objects.filter(id=self.scene.run.id).update(state="cancelling", cancel_requested_at="2026-01-01T00:00Z")

    @rule()
    def resume(self) -> None:
        Run.objects.filter(id=self.scene.run.id).update(state="running", cancel_requested_at=None)

    @rule()
    def time_passes(self) -> None:
        if self.row().attempt:
            put_back(self.scene.id, int(timedelta(minutes=2).total_seconds()))

    @invariant()
    def a_write_that_cannot_be_recognised_has_one_effect(self) -> None:
        if self.kind in ("opaque", "probed", "expired"):
            assert len(self.effects) <= 1

    @invariant()
    def every_dispatch_has_its_intent_and_at_most_one_end(self) -> None:
        row = self.row()
        types = Counter(Event.objects.filter(operation_id=row.id).values_list("type", flat=True))
        assert types["tool.started"] == row.attempt
        ended = types["tool.completed"] + types["tool.failed"]
        assert ended == row.attempt - (row.state == "dispatched")

    @invariant()
    def sequences_have_no_gap(self) -> None:
        found = list(
            Event.objects.filter(run_id=self.scene.run.id).order_by("sequence").values_list("sequence", flat=True)
        )
        assert found == list(range(1, len(found) + 1))

    @invariant()
    def a_known_effect_is_not_denied(self) -> None:
        row = self.row()
        if row.state == "failed":
            assert row.attempt not in self.effects or self.kind == "read"
            assert not self.effects or self.kind != "keyed"


def test_no_order_of_crashes_answers_and_verdicts_breaks_it():
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=40, stateful_step_count=15, deadline=None, suppress_health_check=checks, print_blob=True,
            database=None,
        ),
    )  # fmt: skip
