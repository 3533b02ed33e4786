"""Messages about requests: written in the transaction of what they tell, with a link and never a way to decide.

Those about runs and operations are written by the database, with the event that they tell of (migration 0004).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit
from uuid import UUID

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db.models import Q
from django.db.models.functions import Now
from django.urls import reverse

from approvals.models import Approval, Channel, Delivery
from kernel_project.primitives.canonical import canonical_json
from kernel_project.primitives.clock import wire_time
from kernel_project.primitives.errors import Invalid
from kernel_project.primitives.ids import new_id

CHANNELS_MAX = 20  # of one project in force
RECIPIENTS_MAX = 200  # members of a group that one e-mail channel writes to
SECRET_PREFIX = "KERNEL_WEBHOOK_"  # noqa: S105  a prefix of names: no channel may sign with what protects something else
SECRET_NAME_CHARS_MAX = 100
REMIND_SHARE = 4  # the reminder comes when a quarter of the time is left,
REMIND_BEFORE_MAX = timedelta(days=1)  # and never earlier than a day before the deadline,
REMIND_GIVEN_MIN = timedelta(minutes=5)  # and not at all where the whole time is shorter than this
REQUESTS_ALONE = (Channel.Event.APPROVAL_REQUESTED.value,)
SCHEMA = "agent-kernel.announcement/1"


def add_channel(
    project: str, kind: str, by: str, *, target: str = "", group: str = "", secret_env: str = "",
    events: Sequence[str] = REQUESTS_ALONE,
) -> Channel:  # fmt: skip
    """Tell a project's news there from now on. Raises Invalid for a place that cannot be written to."""
    check(kind, target, secret_env, events)
    if Channel.objects.filter(project=project, retired_at__isnull=True).count() >= CHANNELS_MAX:
        raise Invalid(f"a project may have {CHANNELS_MAX} channels in force: retire some first")
    return Channel.objects.create(
        project=project, kind=kind, target=target, group=group, secret_env=secret_env, created_by=by,
        events=sorted(set(events)),
    )  # fmt: skip


def retire_channel(channel_id: UUID) -> bool:
    """Announce nothing more there; what was written before is still sent. False if it was retired before."""
    return Channel.objects.filter(pk=channel_id, retired_at__isnull=True).update(retired_at=Now()) == 1


def check(kind: str, target: str, secret_env: str, events: Sequence[str] = REQUESTS_ALONE) -> None:
    """Raise Invalid unless a channel could be like this."""
    if not events or not set(events) <= set(Channel.Event.values):
        raise Invalid(f"say what is told there: {', '.join(Channel.Event.values)}")
    if kind == Channel.Kind.EMAIL and set(events) != set(REQUESTS_ALONE):
        raise Invalid("e-mail tells of approvals only; use a webhook for runs and operations")
    match kind:
        case Channel.Kind.WEBHOOK:
            _check_webhook(target, secret_env)
        case Channel.Kind.EMAIL:
            _check_email(target, secret_env)
        case _:
            raise Invalid("a channel is an email or a webhook")


def _check_webhook(target: str, secret_env: str) -> None:
    try:
        parts = urlsplit(target)
        port = parts.port
    except ValueError:
        raise Invalid("the webhook's URL cannot be read") from None
    schemes = ("https",) if settings.PRODUCTION else ("https", "http")
    if parts.scheme not in schemes or not parts.hostname or port == 0 or not target.isprintable() or " " in target:
        raise Invalid(f"a webhook's URL begins with {' or '.join(schemes)}:// and names a host")
    if parts.username is not None or parts.fragment:
        raise Invalid("a webhook's URL holds no password and no fragment; the secret is named by secret_env")
    known = secret_env.removeprefix(SECRET_PREFIX)
    if known == secret_env or not known or not secret_env.isidentifier() or not secret_env.isascii():
        raise Invalid(f"secret_env names an environment variable that begins with {SECRET_PREFIX}")
    if len(secret_env) > SECRET_NAME_CHARS_MAX:
        raise Invalid(f"secret_env has at most {SECRET_NAME_CHARS_MAX} characters")


def _check_email(target: str, secret_env: str) -> None:
    if secret_env:
        raise Invalid("e-mail is not signed: secret_env belongs to a webhook")
    try:
        if target:
            validate_email(target)
    except ValidationError:
        raise Invalid(f"{target!r} is no e-mail address") from None


def write(approval: Approval) -> None:
    """Write the messages about a new request and the reminders of it, inside the transaction that makes it."""
    channels = Channel.objects.filter(project=approval.project, retired_at__isnull=True)
    rows = [
        _delivery(approval, channel, occasion, target)
        for channel in channels.filter(Q(group="") | Q(group=approval.group), events__contains=REQUESTS_ALONE)[
            :CHANNELS_MAX
        ]
        for target in _targets(approval, channel)
        for occasion in _occasions(approval)
    ]
    Delivery.objects.bulk_create(rows)


def _targets(approval: Approval, channel: Channel) -> list[str]:
    return [channel.target] if channel.target else sorted(set(_members(approval)))


def _members(approval: Approval) -> Iterator[str]:
    """Addresses of those who may be asked: the group's members, or everybody who may decide."""
    people = User.objects.filter(is_active=True, is_staff=True).exclude(email="")
    if approval.group:
        people = people.filter(groups__name=approval.group)
    else:
        decides = {"content_type__app_label": "approvals", "codename": "decide_approval"}
        own = {f"user_permissions__{name}": value for name, value in decides.items()}
        by_group = {f"groups__permissions__{name}": value for name, value in decides.items()}
        people = people.filter(Q(**own) | Q(**by_group) | Q(is_superuser=True)).distinct()
    yield from people.order_by("email").values_list("email", flat=True)[:RECIPIENTS_MAX]


def _occasions(approval: Approval) -> list[Delivery.Occasion]:
    given = approval.deadline_at - approval.requested_at
    return [Delivery.Occasion.REQUESTED, *([Delivery.Occasion.REMINDER] if given >= REMIND_GIVEN_MIN else [])]


def _delivery(approval: Approval, channel: Channel, occasion: Delivery.Occasion, target: str) -> Delivery:
    made = new_id()
    return Delivery(
        id=made, approval=approval, project=approval.project, run_id=approval.run_id,
        channel=channel, occasion=occasion, target=target,
        body=_body(approval, occasion), next_attempt_at=_due_at(approval, occasion),
    )  # fmt: skip


def _due_at(approval: Approval, occasion: Delivery.Occasion) -> datetime | Now:
    if occasion == Delivery.Occasion.REQUESTED:
        return Now()
    given = approval.deadline_at - approval.requested_at
    return approval.deadline_at - min(given / REMIND_SHARE, REMIND_BEFORE_MAX)


def _body(approval: Approval, occasion: Delivery.Occasion) -> str:
    """What is told: who asks what of whom until when, and where to look. No argument of the call."""
    return canonical_json(
        {
            "schema": SCHEMA,
            "type": f"approval.{occasion.value}",
            "approval_id": str(approval.id),
            "project": approval.project,
            "run_id": str(approval.run_id),
            "agent": approval.agent,
            "tool": approval.tool,
            "effect": approval.effect,
            "risk": Approval.Risk(approval.risk).label,
            "group": approval.group,
            "quorum": approval.quorum,
            "deadline_at": wire_time(approval.deadline_at),
            "on_expiry": approval.on_expiry,
            "url": settings.PUBLIC_URL + reverse("admin:approvals_approval_change", args=[approval.id]),
        }
    )
