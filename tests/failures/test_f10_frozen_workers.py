"""F10. A worker that was frozen between the dispatch and the first byte of a write with a key wakes up too late."""

from __future__ import annotations

import asyncio

import pytest
from django.db import connection

from outbox.contracts import Actor
from runs.boundary import operations, perform
from runs.boundary.contracts import NotSent
from runs.boundary.operations import Superseded, Unclear
from runs.loop import endings
from tests.boundary_scene import committed, dispatched, make_scene, perform_now, put_back, quiet

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def wake(given):
    asyncio.run(given.sending())


def second(scene):
    """A second attempt, after one that may have had its effect."""
    dispatched(scene.id)
    return operations.again(operations.interrupted(scene.id), quiet, "uncertain")


def cancel(scene):
    endings.request_cancel(scene.run.id, scene.project.slug, by=Actor(id="ann", type="human"))


def test_it_does_not_send_after_another_attempt_has_taken_over():
    scene = make_scene("keyed")
    frozen = dispatched(scene.id)
    perform_now(scene.id)
    with pytest.raises(Superseded):
        wake(frozen)


def test_it_does_not_send_after_the_operation_was_given_up():
    scene = make_scene("keyed")
    frozen = dispatched(scene.id)
    operations.settle_uncertain(Unclear(frozen, "interrupted", "gone"))
    assert asyncio.run(perform.carry_out(frozen)).state == "uncertain"
    assert scene.outside.calls == []


def test_it_does_not_send_after_a_cancel():
    scene = make_scene("keyed")
    frozen = dispatched(scene.id)
    cancel(scene)
    assert asyncio.run(perform.carry_out(frozen)).state == "failed"
    assert scene.outside.calls == []


def test_a_repeat_that_is_kept_back_by_a_cancel_leaves_the_first_attempt_unclear():
    scene = make_scene("keyed")
    frozen = second(scene)
    cancel(scene)
    assert asyncio.run(perform.carry_out(frozen)).state == "uncertain"
    assert scene.outside.calls == []


@pytest.mark.parametrize(("seconds_ago", "calls"), [(3500, [2]), (3580, []), (3700, [])])
def test_it_does_not_repeat_with_a_key_that_may_be_forgotten_under_way(seconds_ago, calls):
    """The key is kept for an hour, the call may take 30 s."""
    scene = make_scene("keyed")
    frozen = second(scene)
    put_back(scene.id, seconds_ago)
    settled = asyncio.run(perform.carry_out(frozen))
    assert (settled.state, scene.outside.calls) == ("succeeded" if calls else "uncertain", calls)


def test_a_redelivery_does_not_count_on_such_a_key():
    scene = make_scene("keyed")
    dispatched(scene.id)
    put_back(scene.id, 3580)
    assert perform_now(scene.id).state == "uncertain"
    assert scene.row().attempt == 1


def test_a_first_attempt_needs_no_key_to_be_recognised():
    scene = make_scene("expired")
    assert perform_now(scene.id).state == "succeeded"


@pytest.mark.parametrize(("kind", "statements"), [("read", 0), ("keyed", 1)])
def test_it_costs_one_statement_and_reads_none(kind, statements, django_assert_num_queries):
    scene = make_scene(kind)
    given = dispatched(scene.id)
    with django_assert_num_queries(statements):
        if kind == "keyed":
            operations.check_sending(given.operation_id, given.attempt, given.timeout_seconds)
        else:
            wake(given)
    connection.close()


def test_a_stopped_run_is_named():
    scene = make_scene("keyed")
    frozen = dispatched(scene.id)
    cancel(scene)
    with pytest.raises(NotSent, match="asked to stop"):
        wake(frozen)
