"""manage.py policy try: what a draft policy would have decided on past calls."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml
from django.core.management.base import BaseCommand, CommandError, CommandParser
from pydantic import TypeAdapter, ValidationError

from approvals import trials
from approvals.contracts import Rule
from approvals.trials import Trial
from kernel_project.primitives.errors import KernelError

FILE_BYTES_MAX = 256 * 1024
PROBLEMS_SHOWN_MAX = 10
RULE = TypeAdapter(Rule)
KNOWN = tuple(field.name for field in fields(Rule))


class Command(BaseCommand):
    help = "Try a draft policy on past calls; nothing is put in force."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        trial = actions.add_parser("try", help="judge past calls by the rules in force and a draft")
        trial.add_argument("file", type=Path, help="YAML of one rule, or of a project with `policies`")
        trial.add_argument("--project", required=True, help="whose past calls")
        trial.add_argument("--name", default="", help="which rule of the file, if it holds several")
        trial.add_argument("--limit", type=int, default=trials.CALLS_MAX, help="how many calls, the newest")
        trial.add_argument("--json", action="store_true", help="one JSON object")

    def handle(self, *, file: Path, project: str, name: str, limit: int, **options: Any) -> None:
        if limit < 1:
            raise CommandError("--limit is a number from 1")
        try:
            trial = trials.try_rule(project, read(file, name), limit)
        except KernelError as error:
            raise CommandError(error.message) from error
        self.stdout.write(as_json(trial) if options["json"] else as_text(trial))


def read(path: Path, name: str) -> Rule:
    """The rule of a file. Raises CommandError with what is wrong."""
    if not path.is_file() or path.stat().st_size > FILE_BYTES_MAX:
        raise CommandError(f"there is no file {path} of at most {FILE_BYTES_MAX} bytes")
    try:
        content = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CommandError(f"{path} is not valid YAML in UTF-8: {error}") from None
    listed = content.get("policies", [content]) if isinstance(content, dict) else content
    found = [one for one in listed or () if isinstance(one, dict) and name in ("", one.get("name"))]
    if len(found) != 1:
        raise CommandError(f"{path} holds {len(found)} rules of that name: name one with --name")
    return _rule(found[0])


def _rule(given: dict[str, Any]) -> Rule:
    if unknown := sorted(set(given) - set(KNOWN)):
        raise CommandError(f"a rule has no {unknown[0]!r}; it has {', '.join(KNOWN)}")
    try:
        return RULE.validate_python(given)
    except ValidationError as error:
        wrong = error.errors(include_input=False, include_url=False)[:PROBLEMS_SHOWN_MAX]
        raise CommandError("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong)) from None


def as_json(trial: Trial) -> str:
    changed = [
        {**asdict(one), "operation_id": str(one.operation_id), "at": one.at.isoformat()} for one in trial.changed
    ]
    moves = [{"was": was, "would": would, "calls": count} for was, would, count in trial.rows]
    whole = {"project": trial.project, "looked_at": trial.looked_at, "decided_by_draft": trial.decided}
    return json.dumps(whole | {"moves": moves, "changed": trial.changed_total, "examples": changed})


def as_text(trial: Trial) -> str:
    decides = f"the draft decides {trial.decided}, {trial.changed_total} otherwise than they were"
    lines = [f"{trial.looked_at} calls of {trial.project}; {decides}"]
    lines += [f"  {was:<8} → {would:<8} {count:>6}" for was, would, count in trial.rows]
    lines += [
        f"  {one.at:%Y-%m-%d %H:%M:%S} {one.operation_id} {one.agent} → {one.tool}: "
        f"{one.was} ({one.was_by}) → {one.would} ({one.would_by})"
        for one in trial.changed
    ]
    return "\n".join(lines)
