"""Ids that must survive a retry are computed: the same place in the same run has the same id for ever."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from kernel_project.primitives import ids

RUN = UUID("018f0000-0000-7000-8000-000000000001")
places = st.tuples(st.integers(0, 10_000), st.integers(0, 300))


def test_the_id_of_a_place_never_changes():
    assert ids.operation_id(RUN, 3, 1) == UUID("780cd877-79d8-5188-a3c0-44a51209ded7")


@given(places, places)
def test_two_places_have_two_ids(one, other):
    assert (ids.operation_id(RUN, *one) == ids.operation_id(RUN, *other)) == (one == other)


def test_two_runs_never_share_an_operation():
    assert ids.operation_id(RUN, 1, 1) != ids.operation_id(ids.new_id(), 1, 1)


def test_an_event_is_the_same_by_subject_type_and_attempt():
    first = ids.event_id(RUN, "turn/1", "turn.started")
    assert first == ids.event_id(RUN, "turn/1", "turn.started", attempt=1)
    assert (
        len({first, ids.event_id(RUN, "turn/1", "turn.started", 2), ids.event_id(RUN, "turn/2", "turn.started")}) == 3
    )


def test_new_ids_are_ordered_by_time():
    made = [ids.new_id() for _ in range(1_000)]
    assert made == sorted(made)
    assert {one.version for one in made} == {7}


def test_the_workflow_id_is_derived_from_the_run():
    assert ids.workflow_id(RUN) == f"run-{RUN}"
