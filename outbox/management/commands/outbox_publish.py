"""manage.py outbox_publish: the publisher without Celery."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from outbox.destination import EventStore
from outbox.publisher import Publisher

FOREVER_SECONDS = 10 * 365 * 24 * 3600.0


class Command(BaseCommand):
    help = "Publish the outbox to the event store, like the Celery task, until Ctrl-C or for --seconds."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seconds", type=float, default=FOREVER_SECONDS, help="how long; default: until stopped")

    def handle(self, *, seconds: float, **options: Any) -> None:
        publisher = Publisher(EventStore(settings.TEMPORALITY_URL, settings.TEMPORALITY_TOKEN))
        try:
            count = publisher.run(seconds)
        except KeyboardInterrupt:
            count = publisher.published
        self.stdout.write(f"{count} events published, {publisher.fenced} acknowledgements fenced")
