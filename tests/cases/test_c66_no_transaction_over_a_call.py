"""C66. No transaction or row lock is held over a call."""

from __future__ import annotations

import pytest

from kernel_project.devstack.process import Server
from tests.boundary_scene import committed, make_scene, perform_now

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def test_no_transaction_is_open_while_an_effect_runs(postgres: Server):
    seen: list[tuple[str, str]] = []

    def looks_at_the_database(dispatch):
        with postgres.connect() as other:
            seen.extend(
                other.execute(
                    "SELECT state, query FROM pg_stat_activity WHERE backend_type = 'client backend' "
                    "AND pid <> pg_backend_pid() AND (state LIKE 'idle in transaction%%' OR xact_start IS NOT NULL)"
                )
            )
        return "done"

    for kind in ("read", "keyed", "opaque"):
        scene = make_scene(kind, [looks_at_the_database])
        assert perform_now(scene.id).state == "succeeded"
    assert seen == []
