"""How the console's templates show texts, ages and numbers. Every text from outside goes through `shown`."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.safestring import SafeString

from kernel_project import visible_text
from kernel_project.primitives.clock import now

register = template.Library()
UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
SHORT_CHARS_MAX = 300  # of a text in a table
LIVE_SECONDS_DIGITS_BELOW = 10  # below it a duration shows a decimal


@register.filter
def shown(value: object) -> SafeString:
    """A text from anywhere, as text."""
    return visible_text.shown("" if value is None else value)


@register.filter
def shown_short(value: object) -> SafeString:
    """The same, for a cell of a table."""
    return visible_text.shown("" if value is None else value, SHORT_CHARS_MAX)


@register.filter
def duration(seconds: float | None) -> str:
    """Seconds as people say them: 0.4 s, 12 s, 3 min 5 s, 2 h, 4 d 3 h."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds < LIVE_SECONDS_DIGITS_BELOW:
        return f"{seconds:.1f} s" if seconds >= 0.1 else f"{seconds * 1000:.0f} ms"
    whole = int(seconds)
    told: list[str] = []
    for size, name in UNITS:
        if whole >= size and len(told) < 2:
            told.append(f"{whole // size} {name}")
        elif told:
            break
        whole %= size
    return " ".join(told)


@register.filter
def since(moment: datetime | None) -> str:
    """The age of a moment."""
    return duration((now() - moment).total_seconds()) if moment else "–"


@register.filter
def until(moment: datetime | None) -> str:
    """The time that is left before a moment, or by how much it is past."""
    if moment is None:
        return "–"
    left = (moment - now()).total_seconds()
    return f"in {duration(left)}" if left > 0 else f"{duration(-left)} ago"


@register.filter
def stamp(moment: datetime | None) -> str:
    """A moment in UTC, to the second."""
    return moment.strftime("%Y-%m-%d %H:%M:%S") if moment else "–"


@register.filter
def clock(moment: datetime | None) -> str:
    """The time of day in UTC, to the millisecond, for a row of a timeline."""
    return moment.strftime("%H:%M:%S.%f")[:-3] if moment else "–"


@register.filter
def grouped(number: int | None) -> str:
    """A number with its thousands apart."""
    return "–" if number is None else f"{number:,}".replace(",", "\u202f")


@register.filter
def tone(state: str) -> str:
    """The colour family of a state, of whatever thing."""
    return TONES.get(str(state), "idle")


TONES = {
    "starting": "live", "running": "live", "proposed": "live", "dispatched": "live", "replayed": "good",
    "cancelling": "warn", "awaiting_approval": "ask", "waiting": "ask",
    "completed": "good", "succeeded": "good", "granted": "good", "approve": "good", "allow": "good", "occurred": "good",
    "tool_error": "warn", "uncertain": "warn", "expired": "warn", "voided": "warn", "unknown": "warn", "parked": "bad",
    "failed": "bad", "rejected": "bad", "denied": "bad", "blocked": "bad", "deny": "bad", "reject": "bad",
    "reconciled": "good", "cancelled": "idle", "withdrawn": "idle", "given_up": "idle", "none": "idle",
    "superseded": "idle", "escalated": "warn", "opaque": "warn", "low": "good", "medium": "warn", "high": "bad",
    "require": "ask", "write": "warn", "read": "idle",
}  # fmt: skip
