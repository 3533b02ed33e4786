"""For how long a project keeps what: rules are set here, and refused where a repetition could be taken for new."""

from __future__ import annotations

from collections.abc import Mapping

from django.db import transaction
from django.db.models import Max
from django.db.models.functions import Now

from kernel_project.primitives.errors import Invalid, NotFound
from kernel_project.primitives.ids import new_id
from outbox import services as outbox
from outbox.contracts import Actor, NewEvent
from runs.models import Project, Purge, RetentionRule

CLASS = RetentionRule.RecordClass
DAYS_MAX = 36_500
# Within it Temporal may deliver an activity again, a frozen worker may come back, and clients try a start again.
RUNS_DAYS_MIN = 7
# A client that tries a start again finds the run until it is purged, and is told so for as long again.
KEYS_OUTLIVE_DAYS = 7
OUTLIVE_RUNS = (CLASS.EVENTS, CLASS.APPROVALS, CLASS.KEYS)
FOR_EVER = {
    "inbox": "the event store knows a repeated event by its row: an inbox that forgets takes a repetition for new",
    "audit": "the audit chain is whole or worth nothing",
}


def rules(project: str) -> dict[str, int]:
    """Days by class; a class that is not named is kept for ever."""
    return dict(RetentionRule.objects.filter(project=project).values_list("record_class", "days"))


def change(*, project: str, days: Mapping[str, int | None], by: Actor) -> dict[str, int]:
    """Set some classes of a project, None for ever; returns all rules that are in force then.

    All or none: raises Invalid for rules under which a duplicate could be taken for new, or a record would outlive what
    explains it.
    """
    if not Project.objects.filter(slug=project).exists():
        raise NotFound("there is no such project")
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(slug=project)
        wanted = {name: value for name, value in {**rules(project), **days}.items() if value is not None}
        check(wanted)
        RetentionRule.objects.filter(project=project).exclude(record_class__in=wanted).delete()
        for name, value in wanted.items():
            RetentionRule.objects.update_or_create(
                project=project, record_class=name, defaults={
                "days": value, "set_by": by.id, "set_at": Now(), "looked_until": None, "looked_all_at": None,
            })  # fmt: skip
        stream = new_id()
        outbox.append([NewEvent(stream, project, "retention.changed", stream, {"days": wanted}, actor=by)])
    return wanted


def check(days: Mapping[str, int]) -> None:
    """Refuse what cannot be kept safely, with a sentence that says what would be right."""
    for name, value in days.items():
        if name in FOR_EVER:
            raise Invalid(f"{name} is kept for ever: {FOR_EVER[name]}")
        if name not in CLASS.values:
            raise Invalid(f"there is no class {name!r}; there are {', '.join(CLASS.values)}")
        if not 1 <= value <= DAYS_MAX:
            raise Invalid(f"{name}: 1 to {DAYS_MAX} days, or nothing for ever")
    runs = days.get(CLASS.RUNS)
    if runs is not None and runs < RUNS_DAYS_MIN:
        raise Invalid(f"runs: at least {RUNS_DAYS_MIN} days, for so long a call or a start may come again")
    for name in OUTLIVE_RUNS:
        if name in days and (runs is None or days[name] < runs):
            raise Invalid(
                f"{name}: not before the runs that they belong to ({runs or 'for ever'} days): a repetition could be "
                f"taken for new; set runs first, or {name} to as many days or more"
            )
    if runs is not None and days.get(CLASS.KEYS, DAYS_MAX) < runs + KEYS_OUTLIVE_DAYS:
        raise Invalid(
            f"idempotency_keys: at least {runs + KEYS_OUTLIVE_DAYS} days, {KEYS_OUTLIVE_DAYS} longer than runs: a "
            f"repeated start could be taken for new"
        )
    for kind in (CLASS.INPUT, CLASS.ARGUMENTS, CLASS.RESULT, CLASS.LOG):
        if runs is not None and days.get(kind, 0) > runs:
            raise Invalid(f"{kind}: artifacts go with their run, after {runs} days at the latest")


def projects() -> list[str]:
    """The projects that have rules, whose last purge is the longest ago first."""
    named = RetentionRule.objects.values_list("project", flat=True).distinct()
    last = dict(Purge.objects.filter(project__in=named).values_list("project").annotate(Max("started_at")))
    return sorted(named, key=lambda project: (project in last, last.get(project)))
