"""Follow a run's events as they are written (server-sent events). One look at the database serves all followers.

A follower costs a coroutine and a place in a table, never a thread or a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar
from uuid import UUID

from asgiref.sync import SyncToAsync
from django.db import DatabaseError, connection
from redis.asyncio.client import PubSub
from redis.exceptions import RedisError

from kernel_project.primitives.errors import Unavailable
from runs import selectors
from runs.api import answers
from runs.api.contracts import EventPage
from runs.boundary import live

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25  # how late a follower may learn of an event
FOLLOWERS_MAX = 1_000  # of one web process
EVENTS_PER_PAGE = 100
WORDS_WAITING_MAX = 200  # messages for a follower who is slow; the oldest are lost
WORDS_BYTES_MAX = 64 * 1024  # of one message; ours are far smaller
READERS_MAX = 4  # pages that are read at the same time; the others wait in line
SILENCE_SECONDS = 15.0  # then a comment keeps proxies from closing the line
FOLLOW_SECONDS_MAX = 900.0  # then the client comes back with Last-Event-ID, and its key is looked at again

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Told:
    """A page of events, the state in which the run had ended before it was read (if it had), and the page's frames."""

    page: EventPage
    state: str
    frames: bytes


@dataclass(eq=False)
class Follower:
    """One open line: what it was sent last, words that wait for it, and a bell for either."""

    run_id: UUID
    sent: int
    listens: bool = False  # to what the model says while it says it
    behind: bool = True  # there may be events that it was not sent
    words: deque[bytes] = field(default_factory=lambda: deque(maxlen=WORDS_WAITING_MAX))
    bell: asyncio.Event = field(default_factory=asyncio.Event)


class Followers:
    """Everybody who follows, on one event loop, and the one task that looks for all of them."""

    def __init__(self) -> None:
        self.open: set[Follower] = set()
        self.readers = asyncio.Semaphore(READERS_MAX)
        self._looking: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._reading: dict[tuple[UUID, int], asyncio.Task[Told]] = {}

    def check_room(self) -> None:
        """Raise Unavailable when this process has as many as it takes."""
        if len(self.open) >= FOLLOWERS_MAX:
            raise Unavailable("too many followers; read the events in pages", code="too_many_followers")

    @contextlib.contextmanager
    def place(self, run_id: UUID, sent: int, *, listens: bool = False) -> Iterator[Follower]:
        """A follower for as long as the block lasts."""
        follower = Follower(run_id, sent, listens)
        self.open.add(follower)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        if listens and (self._listening is None or self._listening.done()):
            self._listening = asyncio.create_task(self._listen())
        try:
            yield follower
        finally:
            self.open.discard(follower)

    async def read(self, follower: Follower) -> Told:
        """What follows after what the follower was sent. Those who stand at the same place share one read.

        A read that began before the newest event misses it; the next look rings again for whoever is behind.
        """
        place = (follower.run_id, follower.sent)
        reading = self._reading.get(place)
        if reading is None:
            reading = self._reading[place] = asyncio.create_task(self._read(*place))
            reading.add_done_callback(lambda done: self._read_done(place, done))
        return await asyncio.shield(reading)  # one who leaves does not end it for the others

    async def _read(self, run_id: UUID, sent: int) -> Told:
        async with self.readers:
            page, state = await off_loop(lambda: read_page(run_id, sent, EVENTS_PER_PAGE))
        return Told(page, state, b"".join(_frames(page)))

    def _read_done(self, place: tuple[UUID, int], done: asyncio.Task[Told]) -> None:
        del self._reading[place]
        if not done.cancelled():
            done.exception()  # those who still wait hear of it; with none left, nobody needs to

    async def _look(self) -> None:
        """Ring the bells of those whose run has more than they were sent; ends with the last follower."""
        while self.open:
            try:
                heads = await off_loop(lambda: selectors.heads({follower.run_id for follower in list(self.open)}))
            except DatabaseError as error:
                logger.warning("followers wait: the database does not answer (%s)", type(error).__name__)
            else:
                for follower in self.open:
                    head, ended = heads.get(follower.run_id, (0, False))
                    if head > follower.sent or ended:
                        follower.behind = True
                        follower.bell.set()
            await asyncio.sleep(LOOK_SECONDS)

    async def _listen(self) -> None:
        """Pass on what is said in the runs of those who listen; ends with the last of them. Without Redis, nothing."""
        while any(follower.listens for follower in self.open):
            try:
                async with live.client().pubsub() as heard:
                    await self._pass_on(heard)
            except (RedisError, OSError) as error:
                logger.info("nobody hears live words: Redis does not answer (%s)", type(error).__name__)
                await asyncio.sleep(live.WITHOUT_REDIS_SECONDS)
        await live.aclose()

    async def _pass_on(self, heard: PubSub) -> None:
        known: set[str] = set()
        while wanted := {live.channel(follower.run_id) for follower in self.open if follower.listens}:
            if wanted - known:
                await heard.subscribe(*(wanted - known))
            if known - wanted:
                await heard.unsubscribe(*(known - wanted))
            known = wanted
            message = await heard.get_message(ignore_subscribe_messages=True, timeout=LOOK_SECONDS)
            if message is not None and len(message["data"]) <= WORDS_BYTES_MAX:
                self._say(message["channel"].decode(), message["data"])

    def _say(self, channel: str, words: bytes) -> None:
        for follower in self.open:
            if follower.listens and live.channel(follower.run_id) == channel:
                follower.words.append(b"event: token\ndata: " + words + b"\n\n")
                follower.bell.set()


_of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Followers] = weakref.WeakKeyDictionary()


def followers() -> Followers:
    """Those of the running event loop."""
    return _of_loop.setdefault(asyncio.get_running_loop(), Followers())


async def off_loop(read: Callable[[], Answer]) -> Answer:
    """Read in a thread of the loop's own small pool, and give the connection back at once."""

    def work() -> Answer:
        try:
            return read()
        finally:
            connection.close()

    return await asyncio.to_thread(work)


async def frames(run_id: UUID, after: int, *, listens: bool = False) -> AsyncIterator[bytes]:
    """The frames for one follower: events, gaps as `error`, and `end` once the run is over and all was sent.

    Who `listens` gets `token` frames between them, as they are said and with no promise.
    """
    until = monotonic() + FOLLOW_SECONDS_MAX
    everybody = followers()
    with everybody.place(run_id, after, listens=listens) as follower:
        yield b"retry: 1000\n\n"
        while monotonic() < until:
            follower.bell.clear()
            while follower.words:
                yield follower.words.popleft()
            if follower.behind:
                follower.behind = False
                told = await everybody.read(follower)
                if told.frames:
                    yield told.frames
                follower.sent = told.page.items[-1].sequence if told.page.items else follower.sent
                if told.page.next_after is not None:
                    follower.behind = True
                    continue
                if told.state:
                    yield frame_of("end", {"state": told.state, "head": told.page.head})
                    return
            if not await _wait(follower):
                follower.behind = True
                yield b": still here\n\n"


def read_page(run_id: UUID, after: int, limit: int) -> tuple[EventPage, str]:
    """A page of events, and the state in which the run had ended before it was read, if it had."""
    state = selectors.ended_as(run_id)
    return answers.event_page(selectors.events(run_id, after, limit), after), state


async def _wait(follower: Follower) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(follower.bell.wait(), SILENCE_SECONDS)
        return True
    return False


def _frames(page: EventPage) -> list[bytes]:
    missing = {last + 1: [first, last] for first, last in page.gaps}
    found = []
    for item in page.items:
        if item.sequence in missing:
            found.append(frame_of("error", {"code": "gap", "missing": missing[item.sequence]}))
        found.append(frame_of(item.type, item.model_dump(mode="json"), item.sequence))
    return found


def frame_of(event: str, data: object, number: int | None = None) -> bytes:
    """One frame; JSON holds no line breaks, and our event types hold none."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {event}\ndata: {json.dumps(data)}\n\n".encode()


def let_thread_go() -> None:
    """Give back the thread that Django took for this request; without it, each follower would keep one.

    asgiref keeps one per request for code that is not async. It makes a new one if the request needs it again.
    """
    context = SyncToAsync.thread_sensitive_context.get(None)
    executor = SyncToAsync.context_to_thread_executor.pop(context, None) if context else None
    if executor is not None:
        executor.shutdown(wait=False)
