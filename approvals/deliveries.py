"""Send the messages: at least once, each under a lease, and no transaction is open meanwhile."""

from __future__ import annotations

import logging
import random
import smtplib
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID, uuid4

from django.db import connection

from approvals.mail import Mail
from approvals.messages import Message, NotDelivered
from approvals.models import Approval, Delivery
from approvals.webhooks import Webhook
from kernel_project.primitives.sql import load

logger = logging.getLogger(__name__)

HERE = Path(__file__).parent
TICK_SECONDS = 20.0  # what one tick may take before it leaves the rest to the next one
TICK_MESSAGES_MAX = 500
LEASE_SECONDS = 120.0  # several times what an attempt takes; a sender that died is followed after it
ATTEMPTS_MAX = 60  # about a day of failures
AGAIN_FIRST_SECONDS = 2.0  # after a failure, doubled each time, with full jitter
AGAIN_MAX_SECONDS = 1_800.0
SLOW_SECONDS = 1.0  # a failure that took longer holds up the others: its channel waits for the next tick
CHANNEL_SECONDS = 5.0  # of one tick for one channel, so that a slow one leaves time to the others
CHANNEL_MESSAGES_MAX = 100  # of one tick for one channel
PUSHED_BACK_SECONDS_MAX = 60.0  # for the other messages of a channel that hangs: most often it hangs for them as well
PUSHED_BACK_MAX = 1_000  # messages in one statement
ERROR_CHARS_MAX = 300


@dataclass
class Shares:
    """What each channel has had of a tick, and the channels that get no more of it."""

    seconds: defaultdict[UUID, float] = field(default_factory=lambda: defaultdict(float))
    messages: Counter[UUID] = field(default_factory=Counter)
    spent: set[UUID] = field(default_factory=set)

    def count(self, channel: UUID, seconds: float, *, sent: bool) -> bool:
        """Count an attempt; whether it failed so slowly that the channel's other messages had better wait."""
        self.seconds[channel] += seconds
        self.messages[channel] += 1
        hangs = not sent and seconds >= SLOW_SECONDS
        if hangs or self.seconds[channel] >= CHANNEL_SECONDS or self.messages[channel] >= CHANNEL_MESSAGES_MAX:
            self.spent.add(channel)
        return hangs


class Carrier(Protocol):
    """One way to send."""

    def send(self, message: Message) -> None:
        """Send it. Raises what says that it was not taken."""


def send_due(seconds: float = TICK_SECONDS, limit: int = TICK_MESSAGES_MAX) -> int:
    """Send what is due, messages of requests first; returns how many were sent. Safe beside itself.

    No channel holds up the others: one that hangs waits for the next tick, and each has a share of this one.
    """
    carriers: dict[str, Carrier] = {"email": Mail(), "webhook": Webhook()}
    end, sent, shares = time.monotonic() + seconds, 0, Shares()
    for _ in range(limit):
        token, began = uuid4(), time.monotonic()
        if began >= end or (delivery := _claim(token, shares.spent)) is None:
            break
        was_sent = _attempt(delivery, token, carriers)
        sent += was_sent
        if shares.count(delivery.channel_id, time.monotonic() - began, sent=was_sent):
            _push_back(delivery)
    return sent


def _claim(token: UUID, spent: Collection[UUID] = ()) -> Delivery | None:
    """A person waits for the message of a request; nobody waits for news of a run in the same way."""
    return _claim_of(token, spent, of_requests=True) or _claim_of(token, spent, of_requests=False)


def _claim_of(token: UUID, spent: Collection[UUID], *, of_requests: bool) -> Delivery | None:
    values: dict[str, Any] = {
        "token": token,
        "lease_seconds": LEASE_SECONDS,
        "spent": list(spent),
        "of_requests": of_requests,
    }
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "claim_delivery"), values)
        row = cursor.fetchone()
    if row is None:
        return None
    return Delivery.objects.select_related("channel", "approval").defer("approval__binding").get(id=row[0])


def _attempt(delivery: Delivery, token: UUID, carriers: Mapping[str, Carrier]) -> bool:
    if delivery.approval is not None and delivery.approval.state != Approval.State.WAITING:
        _end(delivery, token, dropped="the request is over")
        return False
    if delivery.channel.retired_at is not None:
        _end(delivery, token, dropped="the channel was retired")
        return False
    message = Message(delivery.id, delivery.target, delivery.channel.secret_env, delivery.body)
    try:
        carriers[delivery.channel.kind].send(message)
    except (NotDelivered, OSError, smtplib.SMTPException) as error:
        _failed(delivery, token, f"{type(error).__name__}: {error}")
        return False
    except Exception as error:  # of this one alone: the others are sent
        logger.error("delivery %s: unexpected %s at %s", delivery.id, type(error).__name__, _place(error))
        _failed(delivery, token, f"unexpected {type(error).__name__}")  # its words could hold the secret
        return False
    if not _end(delivery, token, sent=True):
        logger.warning("delivery %s was sent after its lease had ended: it is sent again", delivery.id)
    return True


def _place(error: Exception) -> str:
    """Where it was raised, without a word of what was handled there."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "an unknown place"


def _failed(delivery: Delivery, token: UUID, error: str) -> None:
    told = error[:ERROR_CHARS_MAX].replace("\x00", "")
    logger.info("delivery %s attempt %s: %s", delivery.id, delivery.attempts, told)
    spent = "" if delivery.attempts < ATTEMPTS_MAX else f"given up after {ATTEMPTS_MAX} attempts"
    longest = _again_at_most(delivery)
    _end(delivery, token, error=told, dropped=spent, again_seconds=random.uniform(longest / 2, longest))  # noqa: S311


def _again_at_most(delivery: Delivery) -> float:
    return float(min(AGAIN_FIRST_SECONDS * 2 ** min(delivery.attempts - 1, 20), AGAIN_MAX_SECONDS))


def _push_back(delivery: Delivery) -> None:
    """Let the channel's other due messages wait, behind those of channels that answer. If we die before: they hang."""
    seconds = min(_again_at_most(delivery), PUSHED_BACK_SECONDS_MAX)
    values: dict[str, Any] = {"channel": delivery.channel_id, "seconds": seconds, "limit": PUSHED_BACK_MAX}
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "push_back_deliveries"), values)


def _end(
    delivery: Delivery, token: UUID, *, sent: bool = False, dropped: str = "", error: str = "",
    again_seconds: float = 0.0,
) -> bool:  # fmt: skip
    values: dict[str, Any] = {
        "id": delivery.id, "token": token, "sent": sent, "dropped": dropped, "error": error,
        "again_seconds": again_seconds,
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(load(HERE, "end_delivery"), values)
        return bool(cursor.rowcount == 1)
