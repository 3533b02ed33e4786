"""What a model says is told live, through Redis and to who listens; the events stay true with and without it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx2
import pytest
import redis
from django.db import transaction

from outbox import services as outbox
from outbox.models import Event
from runs import keys
from runs.boundary import live
from runs.boundary.models import ModelError, UserMessage, aclose, ask
from runs.boundary.threads import in_thread
from runs.loop.turns import run_event
from runs.models import Run
from tests.api_scene import make_scene
from tests.api_server import serving
from tests.fakes.llm_server import LlmServer, Reply
from tests.fakes.model_requests import ANTHROPIC, OPENAI, Provider, question
from tests.kernel import begin, ended, make_project, said
from tests.unit.test_model_streams import ANTHROPIC as ANTHROPIC_EVENTS
from tests.unit.test_model_streams import OPENAI as OPENAI_EVENTS

both = pytest.mark.parametrize(
    ("provider", "events"), [(OPENAI, OPENAI_EVENTS), (ANTHROPIC, ANTHROPIC_EVENTS)], ids=["openai", "anthropic"]
)


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with LlmServer() as running:
        yield running


@pytest.fixture(autouse=True)
async def _close():
    yield
    await aclose()
    await live.aclose()


@pytest.fixture
def heard():
    """The words that an adapter tells."""
    words: list[str] = []
    token = live._listener.set(words.append)
    yield words
    live._listener.reset(token)


def streamed(events, **more) -> Reply:
    frames = [f"event: {event.get('type', 'x')}\r\ndata: {json.dumps(event)}\r\n\r\n" for event in events]
    return Reply(raw="".join(frames), content_type="text/event-stream; charset=utf-8", **more)


@both
async def test_a_streamed_answer_is_the_answer_and_its_words_are_heard_on_the_way(
    provider: Provider, events, server, heard
):
    server.reply(streamed(events))
    answer = await ask(provider.question(server))
    assert (answer.text, "".join(heard), answer.finish_reason) == ("Hello", "Hello", "tool_calls")
    assert json.loads(answer.calls[0].arguments) == {"a": 1}
    assert answer.usage.output_tokens in (4, 9)
    assert server.seen[0].body["stream"] is True
    assert server.seen[0].headers["idempotency-key"] == "operation-1"
    assert len(server.seen) == 1


@both
async def test_a_stream_that_breaks_off_may_have_acted(provider: Provider, events, server, heard):
    for reply in (streamed(events[:4]), streamed(events, drop="middle")):
        server.reply(reply)
        with pytest.raises(ModelError) as failed:
            await ask(provider.question(server))
        assert (failed.value.code, failed.value.may_have_acted) == ("connection", True)


@both
async def test_a_server_that_does_not_stream_is_understood(provider: Provider, events, server, heard):
    assert (await ask(provider.question(server))).text == "hello"
    assert heard == []


@both
async def test_who_does_not_want_words_does_not_ask_for_a_stream(provider: Provider, events, server):
    await ask(provider.question(server))
    assert not server.seen[0].body.get("stream")


class Line:
    """An open stream of a run, as a client reads it."""

    def __init__(self, url: str, token: str, run: Run, **query: str) -> None:
        self.client = httpx2.AsyncClient(timeout=30)
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        where = f"{url}/api/v1/runs/{run.id}/events"
        self.asked = self.client.stream("GET", where, headers=headers, params=query)

    async def __aenter__(self):
        self.lines = (await self.asked.__aenter__()).aiter_lines()
        return self

    async def __aexit__(self, *error):
        await self.asked.__aexit__(*error)
        await self.client.aclose()

    async def next(self) -> tuple[str, dict]:
        event = ""
        while True:
            name, _, value = (await asyncio.wait_for(anext(self.lines), 10)).partition(": ")
            if name == "event":
                event = value
            elif name == "data":
                return event, json.loads(value)


@pytest.fixture
def scene(transactional_db):
    return make_scene()


@pytest.fixture
def url(scene):
    with serving() as address:
        yield address


def key(scene, *scopes):
    return keys.create(project=scene.project.slug, name="t", scopes=["runs:read", *scopes])[1]


def say(run: Run, event_type: str) -> None:
    with transaction.atomic():
        outbox.append([run_event(run, event_type, {}, subject=event_type)])


async def until_somebody_listens(run: Run) -> None:
    async with asyncio.timeout(10):
        while not (await live.client().pubsub_numsub(live.channel(run.id)))[0][1]:
            await asyncio.sleep(0.02)


async def test_words_come_between_the_events_to_who_listens_and_are_kept_nowhere(valkey, scene, url, settings):
    settings.LIVE_TOKENS = True
    token = await in_thread(key, scene, "artifacts:read")
    async with Line(url, token, scene.run, tokens="true") as listening, Line(url, token, scene.run) as deaf:
        for line in (listening, deaf):
            assert [(await line.next())[0] for _ in range(3)] == ["run.started", "tool.started", "approval.requested"]
        await until_somebody_listens(scene.run)
        async with live.speaking(scene.run.id, 7):
            for word in ("Dear ", "customer,\n", "thank you"):
                live.listener()(word)
        assert await listening.next() == ("token", {"turn": 7, "offset": 0, "text": "Dear customer,\nthank you"})
        await in_thread(say, scene.run, "turn.completed")
        assert (await listening.next())[0] == "turn.completed"
        assert (await deaf.next())[0] == "turn.completed"
    events = await in_thread(lambda: list(Event.objects.values_list("envelope", flat=True)))
    assert "customer" not in "".join(events)


async def test_words_need_the_right_to_read_bodies(valkey, scene, url):
    token = await in_thread(key, scene)
    async with httpx2.AsyncClient() as client:
        where, given = f"{url}/api/v1/runs/{scene.run.id}/events", {"Authorization": f"Bearer {token}"}
        answer = await client.get(where, headers=given, params={"tokens": "true"})
    assert (answer.status_code, answer.json()["scope"]) == (403, "artifacts:read")


async def test_without_redis_nothing_is_said_and_nothing_fails(valkey, scene, url, settings, monkeypatch):
    settings.LIVE_TOKENS = True
    monkeypatch.setattr(live, "_quiet_until", 0.0)
    token = await in_thread(key, scene, "artifacts:read")
    with valkey.stopped():
        async with Line(url, token, scene.run, tokens="true") as line:
            assert (await line.next())[0] == "run.started"
            async with asyncio.timeout(3), live.speaking(scene.run.id, 1):
                live.listener()("lost")
            await in_thread(say, scene.run, "turn.completed")
            assert [(await line.next())[0] for _ in range(3)][-1] == "turn.completed"
    async with live.speaking(scene.run.id, 1):
        assert live.listener() is None, "for a moment after a failure, nobody is asked"


async def test_too_much_is_lost_and_the_offset_says_so(valkey, settings, monkeypatch, scene):
    settings.LIVE_TOKENS = True
    monkeypatch.setattr(live, "_quiet_until", 0.0)
    monkeypatch.setattr(live, "WAITING_CHARS_MAX", 10)
    async with live.client().pubsub() as heard:
        await heard.subscribe(live.channel(scene.run.id))
        async with live.speaking(scene.run.id, 1):
            live.listener()("12345678")
            live.listener()("abcdefgh")
        messages = [await heard.get_message(timeout=2) for _ in range(2)]
    assert json.loads(messages[1]["data"]) == {"turn": 1, "offset": 8, "text": "abcdefgh"}


async def test_a_script_speaks_too(heard, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNEL_SCRIPTS", str(tmp_path))
    (tmp_path / "words.yaml").write_text("turns: [{text: 'one two  three', delay_seconds: 0.1}]")
    answer = await ask(question(model="scripted:words.yaml", messages=(UserMessage(text="go"),)))
    assert (answer.text, "".join(heard), len(heard)) == ("one two  three", "one two  three", 3)


def test_a_run_is_heard_while_its_model_speaks(valkey, carrier, transactional_db, settings, monkeypatch):
    settings.LIVE_TOKENS = True
    monkeypatch.setattr(live, "_quiet_until", 0.0)
    with redis.Redis.from_url(settings.CELERY_BROKER_URL) as client, client.pubsub() as heard:
        heard.psubscribe("kernel:tokens:*")
        heard.get_message(timeout=5)
        run = ended(begin([{"text": "one two three", "delay_seconds": 0.3}], project=make_project()))
        told = []
        while message := heard.get_message(timeout=0.5):
            told.append((message["channel"].decode(), json.loads(message["data"])))
    assert {channel for channel, _ in told} == {live.channel(run.id)}
    assert "".join(words["text"] for _, words in told) == said(run) == "one two three"
    assert told[0][1]["turn"] == 1
