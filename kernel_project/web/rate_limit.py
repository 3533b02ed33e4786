"""How many requests one caller may make: counted in Redis, atomically, for all web processes together.

It guards against a runaway client, not against anything that must be right: without Redis nobody is held up.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from functools import cache

import redis
from django.conf import settings

from kernel_project.web.problems import RateLimited

logger = logging.getLogger(__name__)

PER_SECOND = 100.0  # sustained, for one caller; a polling client needs a few
BURST = 500  # at once, before the rate counts
REDIS_TIMEOUT_SECONDS = 0.25  # a slow Redis must not slow the API
WITHOUT_REDIS_SECONDS = 5.0  # after a failure it is not asked again for so long
# One number per caller: the time at which its bucket will be empty again (GCRA). Redis runs a script as one step.
TAKE = """
local at = redis.call('TIME')
local now = at[1] + at[2] / 1000000
local step, burst = 1 / ARGV[1], ARGV[2] / ARGV[1]
local due = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) + step
if due - now > burst then return tostring(due - now - burst) end
redis.call('SET', KEYS[1], string.format('%.6f', due), 'PX', math.ceil((due - now) * 1000))
return '0'
"""


class _Outage:
    """Until when Redis is left alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until = 0.0

    def lasts(self) -> bool:
        return time.monotonic() < self._until

    def begin(self, error: Exception) -> None:
        with self._lock:
            if not self.lasts():
                logger.warning("requests are not counted: Redis does not answer (%s)", type(error).__name__)
            self._until = time.monotonic() + WITHOUT_REDIS_SECONDS


outage = _Outage()


def take(caller: str, per_second: float = PER_SECOND, burst: int = BURST) -> None:
    """Count one request of a caller. Raises RateLimited, with the seconds to wait, when it is one too many."""
    if outage.lasts():
        return
    try:
        wait = float(_client().eval(TAKE, 1, f"api-rate:{caller}", str(per_second), str(burst)))
    except redis.RedisError as error:
        outage.begin(error)
        return
    if wait > 0:
        raise RateLimited(
            f"more than {per_second:g} requests per second; slow down", retry_after_seconds=max(1, math.ceil(wait))
        )


@cache
def _client() -> redis.Redis:
    return redis.Redis.from_url(
        settings.CELERY_BROKER_URL,
        socket_timeout=REDIS_TIMEOUT_SECONDS,
        socket_connect_timeout=REDIS_TIMEOUT_SECONDS,
    )
