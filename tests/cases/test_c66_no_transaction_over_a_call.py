"""C66. No transaction, row lock or connection is held over a call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from django.db import connection

from kernel_project.devstack.process import Server
from runs.boundary.intents import Wanted
from tests.boundary_scene import committed, make_scene, perform_now, performed, propose

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


@pytest.fixture
def impatient() -> Iterator[None]:
    """A database that ends whoever holds a transaction open without working in it."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '100ms'")
    new_pool()
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} RESET idle_in_transaction_session_timeout")
    new_pool()


def new_pool() -> None:
    connection.close()
    connection.close_pool()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["read", "keyed", "opaque"])
def test_the_database_cuts_no_call_whose_effect_takes_long(impatient, kind):
    async def takes_long(_dispatch):
        await asyncio.sleep(0.4)
        return "done"

    scene = make_scene(kind, [takes_long])
    with connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        assert cursor.fetchone() == ("100ms",)
    assert perform_now(scene.id).state == "succeeded"


@pytest.fixture
def five_connections(monkeypatch) -> Iterator[None]:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"]["pool"], "max_size", 5)
    new_pool()
    yield
    monkeypatch.undo()
    new_pool()


def test_twenty_calls_at_once_share_five_connections(five_connections):
    """Each waits for all others inside its effect, so that one connection held over an effect would be one too many."""
    together = 20
    scene = make_scene("opaque")
    inside: list[str] = []

    async def meets_the_others(dispatch):
        inside.append(dispatch.idempotency_key)
        async with asyncio.timeout(20):
            while len(inside) < together:
                await asyncio.sleep(0.01)
        return "done"

    scene.outside.plan = [meets_the_others] * together
    wanted = [Wanted(scene.tool.exposed_name, {"text": str(number)}) for number in range(together)]
    operations = propose(scene.run, *wanted, turn=2)

    async def all_of_them():
        return await asyncio.gather(*(performed(operation.id) for operation in operations))

    assert {settled.state for settled in asyncio.run(all_of_them())} == {"succeeded"}
    assert connection.pool.max_size == 5
