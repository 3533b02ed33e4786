"""manage.py outbox_publish: the publisher without Celery. Beside another one it waits until that one is gone."""

from __future__ import annotations

import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from outbox.destination import EventStore
from outbox.publisher import Publisher

FOREVER_SECONDS = 10 * 365 * 24 * 3600.0


class Command(BaseCommand):
    help = "Publish the outbox to the event store, like the Celery task, until SIGTERM, Ctrl-C or for --seconds."
    requires_system_checks: list[str] = []  # they import every page of the admin; a step of the deployment

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seconds", type=float, default=FOREVER_SECONDS, help="how long; default: until stopped")

    def handle(self, *, seconds: float, **options: Any) -> None:
        store = EventStore(settings.TEMPORALITY_URL, settings.TEMPORALITY_TOKEN)
        publisher = Publisher(store)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: publisher.stop())
        try:
            count = publisher.run(seconds, stand_by=True)
        finally:
            publisher.close()
            store.close()
        self.stdout.write(f"{count} events published, {publisher.fenced} acknowledgements fenced")
