"""manage.py reconcile: find out, or say, what became of unclear operations; undo effects. Repeats no call."""

from __future__ import annotations

import getpass
import json
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import QuerySet
from django.db.models.functions import Now

from kernel_project.primitives.canonical import parse_json
from kernel_project.primitives.clock import wire_time
from kernel_project.primitives.errors import KernelError
from outbox.contracts import Actor
from outbox.models import Event
from runs.boundary import artifacts, compensation
from runs.boundary import reconcile as reconciling
from runs.loop import compensations
from runs.models import Operation

LISTED_MAX = 200
MANY_MAX = 1_000  # operations that one `--all-older-than` takes
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
AGE = re.compile(r"(\d{1,6})([smhd])")


class Command(BaseCommand):
    help = "List, show, probe and resolve operations whose outcome is uncertain; undo effects that are known."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        lists = verbs.add_parser("list", help="the uncertain operations, those that need a person first")
        lists.add_argument("--project", default="")
        lists.add_argument("--json", action="store_true")
        show = verbs.add_parser("show", help="one operation with its events and its arguments")
        show.add_argument("operation", type=UUID)
        probe = verbs.add_parser("probe", help="ask the other side now")
        _add_choice(probe)
        undo = verbs.add_parser("compensate", help="undo an effect with the call that its tool declares")
        undo.add_argument("operation", type=UUID)
        undo.add_argument("--note", required=True, help="why it is to be undone")
        undo.add_argument("--by", default="", help="who answers for it (default: your account on this machine)")
        undone = verbs.add_parser("compensations", help="compensations that have not undone their effect")
        undone.add_argument("--project", default="")
        resolve = verbs.add_parser("resolve", help="write down what you found out")
        _add_choice(resolve)
        resolve.add_argument("--verdict", required=True, choices=Operation.Verdict.values)
        resolve.add_argument("--note", required=True, help="how you know")
        resolve.add_argument("--evidence", type=Path, help="a file that shows it; it is kept with the run")
        resolve.add_argument("--result", default="", help="what the model is told of an effect that occurred")
        resolve.add_argument("--by", default="", help="who answers for it (default: your account on this machine)")

    def handle(self, *, verb: str, **options: Any) -> None:
        work: dict[str, Callable[..., None]] = {
            "list": self._list,
            "show": self._show,
            "probe": self._probe,
            "resolve": self._resolve,
            "compensate": self._compensate,
            "compensations": self._compensations,
        }
        try:
            work[verb](**options)
        except KernelError as error:
            raise CommandError(error.message) from error

    def _list(self, *, project: str, **options: Any) -> None:
        found = _uncertain(project).order_by("-needs_attention", "settled_at")[:LISTED_MAX]
        if options["json"]:
            self.stdout.write(json.dumps([_facts(operation) for operation in found]))
            return
        for operation in found:
            flag = "needs a person" if operation.needs_attention else f"{operation.probe_attempts} probes"
            since = wire_time(operation.settled_at) if operation.settled_at else "-"
            line = f"{operation.id}  {since}  {operation.project_id}  {operation.name}  {operation.error_class}  {flag}"
            self.stdout.write(_printable(line))
        self.stdout.write(f"{_uncertain(project).count()} uncertain")

    def _show(self, *, operation: UUID, **_: Any) -> None:
        row = Operation.objects.filter(id=operation).first()
        if row is None:
            raise CommandError("there is no such operation")
        arguments = parse_json(artifacts.read(row.run_id, row.arguments_digest))
        for name, value in {**_facts(row), "arguments": arguments}.items():
            self.stdout.write(f"{name:<22}{_printable(value if isinstance(value, str) else json.dumps(value))}")
        for event in Event.objects.filter(run_id=row.run_id, operation_id=row.id).order_by("sequence"):
            self.stdout.write(f"{event.sequence:>6}  {wire_time(event.occurred_at)}  {event.type}")

    def _probe(self, *, operation: UUID | None, all_older_than: timedelta | None, project: str, **_: Any) -> None:
        for row in _chosen(operation, all_older_than, project):
            if operation is None and not row.probes:
                self.stdout.write(f"{row.id}  has no probe")
                continue
            self.stdout.write(f"{row.id}  {reconciling.probe_now(row.id)}")

    def _resolve(
        self,
        *,
        operation: UUID | None,
        all_older_than: timedelta | None,
        project: str,
        verdict: str,
        note: str,
        evidence: Path | None,
        result: str,
        by: str,
        **_: Any,
    ) -> None:
        actor = Actor(id=by or getpass.getuser(), type="human")
        proof = _read(evidence) if evidence else b""
        for row in _chosen(operation, all_older_than, project):
            settled = reconciling.resolve(
                row.id, project=row.project_id, verdict=verdict, by=actor, note=note, result=result, evidence=proof
            )
            self.stdout.write(f"{settled.id}  {settled.verdict}, by {settled.reconciled_by}")

    def _compensate(self, *, operation: UUID, note: str, by: str, **_: Any) -> None:
        row = Operation.objects.filter(id=operation).first()
        if row is None:
            raise CommandError("there is no such operation")
        actor = Actor(id=by or getpass.getuser(), type="human")
        run = compensations.compensate(row.id, project=row.project_id, by=actor, note=note)
        self.stdout.write(f"{row.id}  run {run.id} undoes it")

    def _compensations(self, *, project: str, **_: Any) -> None:
        found = compensation.not_done(project)
        for run, call in found:
            state = f"{run.state}, {call.name} {call.verdict or call.state}" if call else run.state
            self.stdout.write(_printable(f"{run.compensates_id}  run {run.id}  {run.project_id}  {state}"))
        self.stdout.write(f"{len(found)} not undone")


def _add_choice(parser: CommandParser) -> None:
    parser.add_argument("operation", nargs="?", type=UUID)
    parser.add_argument(
        "--all-older-than", type=_age, metavar="AGE", help="all that are unclear for longer: 30m, 12h, 3d"
    )
    parser.add_argument("--project", default="", help="with --all-older-than: only of this project")


def _age(text: str) -> timedelta:
    match = AGE.fullmatch(text)
    if match is None:
        raise ValueError("an age is a number with s, m, h or d")
    return timedelta(seconds=int(match[1]) * UNITS[match[2]])


def _uncertain(project: str) -> QuerySet[Operation]:
    found = Operation.objects.filter(state=Operation.State.UNCERTAIN)
    return found.filter(project_id=project) if project else found


def _chosen(operation: UUID | None, older: timedelta | None, project: str) -> list[Operation]:
    if operation is not None and older is None:
        row = Operation.objects.filter(id=operation).first()
        if row is None:
            raise CommandError("there is no such operation")
        return [row]
    if operation is None and older is not None:
        return list(_uncertain(project).filter(settled_at__lt=Now() - older).order_by("settled_at")[:MANY_MAX])
    raise CommandError("name one operation, or --all-older-than AGE")


def _read(path: Path) -> bytes:
    if not path.is_file():
        raise CommandError(f"there is no file {path}")
    with path.open("rb") as file:
        return file.read(reconciling.EVIDENCE_BYTES_MAX + 1)


def _facts(operation: Operation) -> dict[str, Any]:
    return {
        "id": str(operation.id),
        "project": operation.project_id,
        "run": str(operation.run_id),
        "tool": operation.name,
        "state": operation.state,
        "attempt": operation.attempt,
        "error_class": operation.error_class,
        "error_message": operation.error_message,
        "uncertain_since": wire_time(operation.settled_at) if operation.settled_at else None,
        "can_be_probed": operation.probes,
        "probes_done": operation.probe_attempts,
        "needs_attention": operation.needs_attention,
        "verdict": operation.verdict,
        "reconciled_by": operation.reconciled_by,
        "note": operation.note,
    }


def _printable(text: str) -> str:
    """Text of tools and models, fit for a terminal: nothing in it moves the cursor or changes what is read."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
