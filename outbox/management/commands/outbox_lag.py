"""manage.py outbox_lag: how far the event store is behind, and what is wrong. Reads only."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from outbox import selectors, source
from outbox.alarms import alarms

WATCH_SECONDS = 2.0
LOOKS_MAX = 10_000_000  # of one --watch: more than a year


class Command(BaseCommand):
    help = "Show lag, gaps, parked and unaccounted events, what the event store says it has, and alarms."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object per look")
        parser.add_argument(
            "--watch", nargs="?", type=float, const=WATCH_SECONDS, metavar="SECONDS", help="look again and again"
        )

    def handle(self, *, watch: float | None, **options: Any) -> None:
        show = self._as_json if options["json"] else self._as_text
        try:
            for _ in range(LOOKS_MAX if watch else 1):
                show(facts())
                self.stdout.flush()
                if watch:
                    time.sleep(max(watch, 0.1))
        except KeyboardInterrupt:
            return

    def _as_json(self, found: dict[str, Any]) -> None:
        self.stdout.write(json.dumps(found, default=str))

    def _as_text(self, found: dict[str, Any]) -> None:
        for part in ("lag", "latest_runs"):
            for name, value in found[part].items():
                shown = f"{value:.1f}" if isinstance(value, float) else "-" if value is None else value
                self.stdout.write(f"{name:<26}{_printable(str(shown))}")
        self.stdout.write(f"{'source':<26}{found['source']}")
        for stream in found["worst"]:
            self.stdout.write(
                f"  {stream['run_id']}  {stream['published']} of {stream['head']} published, "
                f"{'not asked' if stream['seen'] is None else stream['seen']} seen there, "
                f"waits {stream['oldest_age_seconds']:.0f} s  {_printable(stream['last_error'])}"
            )
        for sentence in found["alarms"]:
            self.stdout.write(self.style.ERROR(f"ALARM {_printable(sentence)}"))


def facts() -> dict[str, Any]:
    """Everything that is shown, as plain values."""
    lag, recent, snapshot = selectors.lag(), selectors.recent_delivery(), selectors.oldest_snapshot()
    return {
        "lag": asdict(lag) | {"is_minimum": lag.is_minimum, "publisher_late": lag.publisher_late},
        "latest_runs": asdict(recent),
        "worst": selectors.worst_streams(),
        "source": source.source_id(),
        "snapshot": asdict(snapshot) if snapshot else None,
        "alarms": alarms(lag, recent, snapshot),
    }


def _printable(text: str) -> str:
    """Text of the event store, fit for a terminal."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
