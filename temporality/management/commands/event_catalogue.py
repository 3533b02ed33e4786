"""Write the event catalogue to docs/events/: a JSON Schema per type and version, and an AsyncAPI document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from temporality import catalogue_documents

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "events"


class Command(BaseCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--folder", type=Path, default=FOLDER)

    def handle(self, *args: Any, **options: Any) -> None:
        folder: Path = options["folder"]
        folder.mkdir(parents=True, exist_ok=True)
        documents = catalogue_documents.documents()
        for name, text in documents.items():
            (folder / name).write_text(text)
        self.stdout.write(f"{len(documents)} documents in {folder}")
