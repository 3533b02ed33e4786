"""Write the event catalogue to docs/events/: a JSON Schema per type and version, and an AsyncAPI document.

Refuses to write over a document that says more than the new one: a later major version of a type has its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

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
        if broken := list(_broken(folder, documents)):
            raise CommandError("\n".join(["only additions are possible within a major version:", *broken]))
        for name, text in documents.items():
            (folder / name).write_text(text)
        self.stdout.write(f"{len(documents)} documents in {folder}")


def _broken(folder: Path, documents: Mapping[str, str]) -> Iterator[str]:
    for old in sorted(folder.glob("*.json")):
        if old.name not in documents:
            yield f"{old.name} is gone"
            continue
        changes = catalogue_documents.breaking_changes(json.loads(old.read_text()), json.loads(documents[old.name]))
        yield from (f"{old.name}: {change}" for change in changes)
