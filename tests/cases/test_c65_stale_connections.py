"""C65. The database cut every connection: each thread is healthy at once, without a restart."""

from __future__ import annotations

import asyncio

import pytest
from django.db import connection

from kernel_project.devstack.process import Server
from runs.boundary.threads import DATABASE_THREADS, in_thread
from tests.boundary_scene import committed, make_scene, perform_now

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]


def test_after_all_connections_were_cut_every_thread_is_healthy_at_once(postgres: Server):
    async def before_and_after() -> tuple[list[int], list[int]]:
        before = await everywhere()
        await asyncio.to_thread(postgres.terminate_backends)
        return before, await everywhere()

    connection.close()  # the test's own would be cut as well
    assert asyncio.run(before_and_after()) == ([7] * DATABASE_THREADS, [7] * DATABASE_THREADS)


def look() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.05), 7")
        return int(cursor.fetchone()[1])


async def everywhere() -> list[int]:
    return list(await asyncio.gather(*(in_thread(look) for _ in range(DATABASE_THREADS))))


def test_a_call_whose_tool_took_the_connections_with_it_is_settled(postgres: Server):
    scene = make_scene("opaque")
    scene.outside.plan = [lambda _: f"cut {postgres.terminate_backends()}"]
    connection.close()  # the test's own would be cut as well
    assert perform_now(scene.id).state == "succeeded"
