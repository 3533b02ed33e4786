"""C65. The database cut every connection: Celery's ticks are healthy again after at most one failure, by themselves."""

from __future__ import annotations

import pytest
from django.db import connection

from kernel_project.devstack.process import Server
from runs import tasks
from tests.boundary_scene import committed

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


@pytest.mark.parametrize("task", [tasks.probe_uncertain, tasks.forget_old_news], ids=lambda task: task.name)
def test_a_tick_fails_at_most_once(postgres: Server, task):
    assert task.apply().successful()
    connection.ensure_connection()
    postgres.terminate_backends()
    outcomes = [task.apply().successful() for _ in range(3)]
    assert outcomes.count(False) <= 1
    assert outcomes[1:] == [True, True]
