"""F6. The kernel's PostgreSQL is away before a read: it fails closed, and nothing is claimed to be durable."""

from __future__ import annotations

import pytest
from django.db import connection

from kernel_project.devstack.process import Server
from tests.boundary_scene import committed, make_scene, perform_now, told
from tests.failures.test_f07_store_down import AWAY, impatient, is_back
from tests.waiting import until_sync

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed", "impatient"]


def test_a_read_is_not_made_and_not_told(postgres: Server, impatient):
    scene = make_scene("read")
    connection.close()
    with postgres.stopped(), pytest.raises(AWAY):
        perform_now(scene.id)
    assert scene.outside.calls == []
    until_sync(is_back)
    assert told(scene.id) == []
    assert perform_now(scene.id).state == "succeeded"
