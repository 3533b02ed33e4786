"""The same job done by django-outbox-pattern, in an environment of its own: run by its Python, never imported by us.

    PYTHON bench_peer.py append WRITERS SECONDS | publish EVENTS      with the database in PEER_DATABASE (a libpq URL)

Prints one JSON object. Its broker is replaced by one that takes everything at once, as our null sink does.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

BODY = {"tool": "bench/tool", "status": "succeeded", "arguments_hash": "0" * 64, "attempt": 1, "padding": "x" * 400}


WRITER_SECONDS_MAX = 60.0  # that one may be late by


class NullBroker:
    """A connection that takes everything at once."""

    def __init__(self, **_: Any) -> None:
        self.sent = 0

    def is_connected(self) -> bool:
        return True

    def connect(self, **_: Any) -> None: ...

    def disconnect(self) -> None: ...

    def send(self, **_: Any) -> None:
        self.sent += 1


def configure() -> None:
    import django
    from django.conf import settings
    from django.core.management import call_command

    url = urlsplit(os.environ["PEER_DATABASE"])
    host = parse_qs(url.query).get("host", [url.hostname or ""])[0]
    database = {
        "ENGINE": "django.db.backends.postgresql", "NAME": url.path.lstrip("/"), "USER": url.username or "",
        "PASSWORD": url.password or "", "HOST": host, "PORT": str(url.port or parse_qs(url.query).get("port", [""])[0]),
        "CONN_MAX_AGE": None,
    }  # fmt: skip
    settings.configure(
        INSTALLED_APPS=["django_outbox_pattern"], DATABASES={"default": database}, USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DJANGO_OUTBOX_PATTERN={"DEFAULT_CONNECTION_CLASS": "bench_peer.NullBroker", "DEFAULT_PRODUCER_WAITING_TIME": 0},
    )  # fmt: skip
    django.setup()
    call_command("migrate", verbosity=0)


def append(writers: int, seconds: float) -> float:
    """Messages committed per second, one in each transaction; each writer is a process, as in our own benchmark."""
    from django.db import connection, transaction
    from django_outbox_pattern.models import Published  # type: ignore[import-not-found]

    def write(counted: Any) -> None:
        count, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            with transaction.atomic():
                Published.objects.create(destination="bench", body=BODY)
            count += 1
        counted.put(count / (time.perf_counter() - began))

    connection.close()  # each process opens its own
    fork = multiprocessing.get_context("fork")
    counted = fork.Queue()
    processes = [fork.Process(target=write, args=[counted]) for _ in range(writers)]
    for process in processes:
        process.start()
    total: float = sum(counted.get(timeout=seconds + WRITER_SECONDS_MAX) for _ in processes)
    for process in processes:
        process.join()
    return total


def publish(events: int) -> float:
    """Messages of a backlog published per second."""
    from django_outbox_pattern.factories import factory_producer  # type: ignore[import-not-found]
    from django_outbox_pattern.models import Published

    Published.objects.all().delete()
    Published.objects.bulk_create([Published(destination="bench", body=BODY) for _ in range(events)], batch_size=1_000)
    producer = factory_producer()
    began = time.perf_counter()
    producer.publish_message_from_database()
    took = time.perf_counter() - began
    assert producer.connection.sent == events, f"{producer.connection.sent} of {events} were published"
    return events / took


def main(name: str, *numbers: str) -> None:
    configure()
    if name == "append":
        rate = append(int(numbers[0]), float(numbers[1]))
    else:
        rate = publish(int(numbers[0]))
    sys.stdout.write(json.dumps({"per_s": rate}) + "\n")


if __name__ == "__main__":
    sys.modules["bench_peer"] = sys.modules["__main__"]
    main(*sys.argv[1:])
