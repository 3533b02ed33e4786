"""Which request, run and operation a log line is about, and lines as JSON. Holds ids, never what they stand for.

Ids are bound around a piece of work and follow it into the threads and tasks that it starts; lines of libraries written
meanwhile carry them, too.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

MESSAGE_CHARS_MAX = 4_000  # a longer one is cut and says so
TRACE_CHARS_MAX = 16_000  # its end is what tells
FRAMES_MAX = 50  # of one exception; the last ones tell
CAUSES_MAX = 10  # exceptions in a chain
NAMES = ("request_id", "run_id", "operation_id")

_bound: ContextVar[dict[str, str] | None] = ContextVar("log_ids", default=None)


@contextmanager
def about(**ids: object) -> Iterator[None]:
    """Let log lines of the block carry these ids, beside those that are bound already. Empty ones are left out."""
    assert ids.keys() <= set(NAMES), ids.keys()
    token = _bound.set({**(_bound.get() or {}), **{name: str(value) for name, value in ids.items() if value}})
    try:
        yield
    finally:
        _bound.reset(token)


def ids() -> dict[str, str]:
    """The ids that are bound here."""
    return dict(_bound.get() or {})


class JsonLines(logging.Formatter):
    """One JSON object per line: `time`, `level`, `logger`, `message`, the ids that are known, `error` and `trace`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage(), MESSAGE_CHARS_MAX),
            **ids(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
            line["trace"] = _places(record.exc_info[1])[-TRACE_CHARS_MAX:]
        return json.dumps(line, ensure_ascii=True)  # nothing in a message can begin a line of its own


class TextLines(logging.Formatter):
    """Lines for people: the same, with the ids at the end."""

    def format(self, record: logging.LogRecord) -> str:
        known = " ".join(f"{name}={value}" for name, value in ids().items())
        first, *rest = super().format(record).split("\n")
        return "\n".join([f"{first} [{known}]" if known else first, *rest])


def configuration(level: str, form: str) -> dict[str, Any]:
    """Django's LOGGING: everything to standard error, as `text` or `json`."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "text": {"()": TextLines, "format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
            "json": {"()": JsonLines},
        },
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": form}},
        "root": {"handlers": ["console"], "level": level},
        # our own errors tell what an exchange came to; the libraries quote addresses
        "loggers": {"httpx2": {"level": "WARNING"}, "httpcore2": {"level": "WARNING"}},
    }


def _places(error: BaseException | None) -> str:
    """Where it was raised and of which type, causes first. Its words are left out: they may quote what was handled."""
    parts: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(parts) < CAUSES_MAX:
        seen.add(id(error))
        frames = traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]
        lines = [f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}' for frame in frames]
        parts.append("\n".join([*lines, type(error).__name__]))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(reversed(parts))


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}… ({len(text)} characters)"
