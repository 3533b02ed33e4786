"""What a model says while it says it: told through Redis to whoever listens at that moment, kept nowhere, and lossy.

Nothing hangs on it. Redis away, nobody listening, too much text: words are lost, and the run does not notice. Each
message says at which character of the turn's text it begins, so that a listener sees what it missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from uuid import UUID
from weakref import WeakKeyDictionary

import redis.asyncio
from django.conf import settings
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

GATHER_SECONDS = 0.05  # words of so long go out together
WAITING_CHARS_MAX = 20_000  # that Redis has not taken; more is lost
MESSAGE_CHARS_MAX = 4_000
REDIS_TIMEOUT_SECONDS = 0.25
WITHOUT_REDIS_SECONDS = 5.0  # after a failure nothing is said for so long
LAST_WORDS_SECONDS_MAX = 0.5  # that the end of a turn waits for

Listener = Callable[[str], None]
_listener: ContextVar[Listener | None] = ContextVar("live_listener", default=None)
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.Redis] = WeakKeyDictionary()
_quiet_until = 0.0


def channel(run_id: UUID) -> str:
    """Where the words of a run are told."""
    return f"kernel:tokens:{run_id}"


def listener() -> Listener | None:
    """Whom a model's adapter tells its words; None: nobody, and it need not stream."""
    return _listener.get()


def client() -> redis.asyncio.Redis:
    """The connections of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        _clients[loop] = redis.asyncio.Redis.from_url(
            settings.CELERY_BROKER_URL, socket_timeout=REDIS_TIMEOUT_SECONDS,
            socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
        )  # fmt: skip
    return _clients[loop]


async def aclose() -> None:
    """Close this event loop's connections; a later word opens new ones."""
    if (known := _clients.pop(asyncio.get_running_loop(), None)) is not None:
        await known.aclose()


@contextlib.asynccontextmanager
async def speaking(run_id: UUID, turn: int) -> AsyncIterator[None]:
    """What models say in this block is told as words of this turn, if the installation wants that."""
    if not settings.LIVE_TOKENS or time.monotonic() < _quiet_until:
        yield
        return
    speech = _Speech(run_id, turn)
    token = _listener.set(speech.hear)
    try:
        yield
    finally:
        _listener.reset(token)
        await speech.end()


class _Speech:
    """The words of one turn on their way."""

    def __init__(self, run_id: UUID, turn: int) -> None:
        self._channel, self._turn = channel(run_id), turn
        self._waiting, self._begins_at = "", 0
        self._sending: asyncio.Task[None] | None = None

    def hear(self, text: str) -> None:
        if len(self._waiting) + len(text) > WAITING_CHARS_MAX:  # what waits is lost, and what comes counts on
            self._begins_at += len(self._waiting)
            self._waiting = ""
        self._waiting += text
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        global _quiet_until
        while self._waiting:
            await asyncio.sleep(GATHER_SECONDS)
            text, self._waiting = self._waiting[:MESSAGE_CHARS_MAX], self._waiting[MESSAGE_CHARS_MAX:]
            message = {"turn": self._turn, "offset": self._begins_at, "text": text}
            self._begins_at += len(text)
            try:
                await client().publish(self._channel, json.dumps(message))
            except (RedisError, OSError) as error:
                logger.info("live words are lost: Redis does not answer (%s)", type(error).__name__)
                _quiet_until = time.monotonic() + WITHOUT_REDIS_SECONDS
                self._waiting = ""

    async def end(self) -> None:
        if self._sending is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._sending, LAST_WORDS_SECONDS_MAX)
