"""Following a run's events over a real uvicorn: live, after the end, from where one left off, with gaps named."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator

import httpx2
import pytest
from django.db import connection, transaction

from outbox import services as outbox
from outbox.models import Stream
from runs import keys
from runs.api import follow
from runs.boundary.threads import in_thread
from runs.loop.turns import run_event
from runs.models import Run
from tests.api_scene import Scene, make_run, make_scene
from tests.api_server import serving

pytestmark = [pytest.mark.django_db(transaction=True)]
FOLLOWERS = 100
THREADS_ALLOWED = 40  # the loop's pool, Django's and the test's own, whatever the number of followers


@pytest.fixture
def scene() -> Scene:
    return make_scene()


@pytest.fixture
def token(scene) -> str:
    return keys.create(project=scene.project.slug, name="t", scopes=["runs:read"])[1]


@pytest.fixture
def url() -> str:
    with serving() as address:
        yield address


def say(run: Run, event_type: str) -> None:
    with transaction.atomic():
        outbox.append([run_event(run, event_type, {"turn": 1}, subject=event_type)])


def end(run: Run) -> None:
    Run.objects.filter(id=run.id).update(state="completed", ended_at=run.created_at)


@contextlib.asynccontextmanager
async def following(url: str, token: str, run: Run, **headers: str) -> AsyncIterator[AsyncIterator[dict]]:
    given = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"} | headers
    async with (
        httpx2.AsyncClient(timeout=30) as client,
        client.stream("GET", f"{url}/api/v1/runs/{run.id}/events", headers=given) as response,
    ):
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"] == "text/event-stream"
        yield read_frames(response)


async def read_frames(response: httpx2.Response) -> AsyncIterator[dict]:
    frame: dict = {}
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if line and name in ("id", "event", "data"):
            frame[name] = json.loads(value) if name == "data" else value
        elif not line and frame:
            yield frame
            frame = {}


async def take(frames: AsyncIterator[dict], count: int) -> list[str]:
    return [(await asyncio.wait_for(anext(frames), 10))["event"] for _ in range(count)]


async def test_events_come_as_they_are_written_and_the_end_is_told(url, token, scene):
    async with following(url, token, scene.run) as frames:
        assert await take(frames, 3) == ["run.started", "tool.started", "approval.requested"]
        await in_thread(say, scene.run, "turn.started")
        assert await take(frames, 1) == ["turn.started"]
        await in_thread(end, scene.run)
        last = await asyncio.wait_for(anext(frames), 10)
        assert (last["event"], last["data"]) == ("end", {"state": "completed", "head": 4})
        with pytest.raises(StopAsyncIteration):
            await anext(frames)


async def test_a_run_that_has_ended_is_told_from_its_beginning(url, token, scene):
    await in_thread(end, scene.run)
    async with following(url, token, scene.run) as frames:
        assert [frame["event"] async for frame in frames] == [
            "run.started",
            "tool.started",
            "approval.requested",
            "end",
        ]


async def test_who_comes_back_goes_on_where_it_was(url, token, scene):
    await in_thread(end, scene.run)
    async with following(url, token, scene.run, **{"Last-Event-ID": "2"}) as frames:
        assert [(frame["event"], frame.get("id")) async for frame in frames] == [
            ("approval.requested", "3"), ("end", None),
        ]  # fmt: skip


def lose(scene: Scene) -> None:
    """Event 2 is gone, which no code of ours can do."""
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute("DELETE FROM outbox_event WHERE run_id = %s AND sequence = 2", [scene.run.id])
        cursor.execute("SET session_replication_role = origin")


async def test_a_gap_is_told_and_not_passed_over(url, token, scene):
    await in_thread(lose, scene)
    await in_thread(end, scene.run)
    async with following(url, token, scene.run) as frames:
        found = [frame async for frame in frames]
    assert [frame["event"] for frame in found] == ["run.started", "error", "approval.requested", "end"]
    assert found[1]["data"] == {"code": "gap", "missing": [2, 2]}


async def test_many_pages_come_in_one_stream(url, token, scene, monkeypatch):
    monkeypatch.setattr(follow, "EVENTS_PER_PAGE", 7)
    for number in range(40):
        await in_thread(say, scene.run, f"turn.extra{number}")
    await in_thread(end, scene.run)
    async with following(url, token, scene.run) as frames:
        numbers = [int(frame["id"]) async for frame in frames if "id" in frame]
    assert numbers == list(range(1, 44))


async def test_a_stranger_cannot_follow(url, scene):
    other = await in_thread(make_scene)
    _, token = await in_thread(lambda: keys.create(project=other.project.slug, name="t", scopes=["runs:read"]))
    headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"{url}/api/v1/runs/{scene.run.id}/events", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_followers_have_no_thread_no_connection_and_no_read_each(url, token, scene, monkeypatch):
    reads: list[tuple] = []
    read_page = follow.read_page
    monkeypatch.setattr(follow, "read_page", lambda *given: reads.append(given) or read_page(*given))
    runs = await in_thread(lambda: [make_run(scene.version) for _ in range(5)])
    async with contextlib.AsyncExitStack() as stack:
        lines = [
            await stack.enter_async_context(following(url, token, runs[number % 5])) for number in range(FOLLOWERS)
        ]
        assert await asyncio.gather(*[take(line, 1) for line in lines]) == [["run.started"]] * FOLLOWERS
        assert threading.active_count() < THREADS_ALLOWED
        reads.clear()
        for run in runs:
            await in_thread(say, run, "turn.started")
        assert await asyncio.gather(*[take(line, 1) for line in lines]) == [["turn.started"]] * FOLLOWERS
        assert len(reads) <= FOLLOWERS / 2  # of a run's twenty, those that are rung together read together
    assert await in_thread(Stream.objects.count) == 6


async def test_there_is_a_limit_to_followers(url, token, scene, monkeypatch):
    monkeypatch.setattr(follow, "FOLLOWERS_MAX", 1)
    async with following(url, token, scene.run) as frames:
        await take(frames, 1)
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        async with httpx2.AsyncClient() as client:
            answer = await client.get(f"{url}/api/v1/runs/{scene.run.id}/events", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "too_many_followers")
