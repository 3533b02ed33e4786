"""The crash matrix: each fault point × N kills × each kind of adapter, judged by what the ledger says. Works on the
database of the environment and leaves its rows there.

For each kill one process is forked, performs one call across the real boundary, and dies by SIGKILL at the armed
point. Then another process delivers the call again, as Temporal would.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

from django.core.management import call_command
from django.db import close_old_connections, transaction
from django.db.models import F
from django.db.models.functions import Coalesce, Now

from approvals import services as approvals
from approvals.contracts import Decider
from approvals.models import Approval
from kernel_project.devstack.api_client import NotAsPromised
from kernel_project.drill import adapters
from kernel_project.drill.adapters import SANDBOX_LEDGER, Cell
from kernel_project.drill.ledger_process import LedgerProcess
from kernel_project.drill.report import Row
from kernel_project.drill.victims import Nursery
from kernel_project.primitives.canonical import canonical_bytes, sha256_hex
from outbox import seen
from outbox import selectors as outbox
from outbox.models import Event, Stream
from runs import registry
from runs.boundary import artifacts, intents, workspaces
from runs.boundary.intents import Wanted
from runs.contracts import AgentDefinition
from runs.models import Agent, AgentVersion, Artifact, Operation, Project, Run
from runs.registry_contracts import ProjectFile

PROJECT = "crash-matrix"
REASON_CHARS_MAX = 500
KILLS_MAX = 1_000  # of one cell; all its calls are one turn of one run
DELIVERY_SECONDS_MAX = 300.0
PUBLISH_SECONDS = 2.0  # of the publisher, between two looks at the lag
SEEN_SECONDS_MAX = 120.0  # until the event store says that it has all; it is asked again about a run after 30 s only
SEEN_PAUSE_SECONDS = 1.0
STARTED = ("tool.started", "model.started")
ENDED = ("tool.completed", "tool.failed", "model.completed", "model.failed")
STATE = Operation.State

Say = Callable[[str], None]


@dataclass(frozen=True)
class Death:
    """One call as its killed process left it; `may_have_acted`: by its own mark, or by the ledger."""

    operation_id: UUID
    text: str
    killed: bool
    may_have_acted: bool


@dataclass(frozen=True)
class Crashed:
    """All calls of one cell, after their deaths and second deliveries."""

    cell: Cell
    run: Run
    deaths: list[Death]
    seconds: float


def play(kills: int, say: Say, points: Sequence[str] = (), names: Sequence[str] = ()) -> list[Row]:
    """Play the cells of these points and adapters (of all, if none are named); judge them when all is delivered."""
    assert 1 <= kills <= KILLS_MAX
    version = _register()
    crashed: list[Crashed | Row] = []
    with tempfile.TemporaryDirectory(prefix="agent-kernel-ledger-") as folder:
        with LedgerProcess(Path(folder) / "ledger") as ledger:
            nursery = Nursery(ledger.environment())
            for cell in adapters.cells(points, names):
                crashed.append(_tried(partial(_crash, nursery, ledger, version, cell, kills), cell, say))
        try:
            deliver()
        except NotAsPromised as error:
            say(str(error))  # what is missing over there is counted as lost, cell by cell
        return [one if isinstance(one, Row) else judge(one, kills, _booked(ledger, one.run)) for one in crashed]


def _tried(crash: Callable[[], Crashed], cell: Cell, say: Say) -> Crashed | Row:
    """One cell; what breaks it off is told as its reason, and the others go on."""
    try:
        one = crash()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"[:REASON_CHARS_MAX]
        say(f"{cell.tool}: broken off: {why}")
        return Row(cell.adapter.name, cell.point, expected=cell.is_expected, broken=[f"broken off: {why}"])
    say(f"{cell.tool}: {_kills(one)} kills in {one.seconds:.0f} s")
    return one


def _kills(one: Crashed) -> int:
    return sum(death.killed for death in one.deaths)


# making the calls


def _register() -> AgentVersion:
    registry.register(ProjectFile.model_validate(adapters.project(PROJECT)), "drill")
    definition = AgentDefinition(
        model="scripted:none.yaml", tools=tuple(cell.tool for cell in adapters.cells())
    ).canonical()
    agent, _ = Agent.objects.get_or_create(project=Project.objects.get(slug=PROJECT), name="matrix")
    digest = sha256_hex(canonical_bytes(definition))
    version = AgentVersion.objects.filter(agent=agent).first()
    return version or AgentVersion.objects.create(
        agent=agent, version=1, definition=definition, digest=digest, created_by="drill"
    )


def _proposed(version: AgentVersion, cell: Cell, kills: int) -> tuple[Run, list[tuple[UUID, str]]]:
    """A run under way whose model has asked for so many calls; those that need it have a person's yes."""
    kept = artifacts.stage(b"the crash matrix")
    run = Run.objects.create(
        project_id=PROJECT, agent_version=version, state=Run.State.RUNNING, started_at=Now(), started_by="drill",
        input_digest=kept.digest,
    )  # fmt: skip
    artifacts.claim(run.id, Artifact.Kind.INPUT, [kept])
    run = Run.objects.select_related("agent_version__agent").get(id=run.id)
    workspaces.ensure(run)
    texts = [f"{cell.tool}-{run.id}-{number}" for number in range(kills)]
    drafts = intents.draft(run, 1, [Wanted(cell.tool, {"text": text}) for text in texts])
    with transaction.atomic():
        intents.propose(run, drafts)
    for request in Approval.objects.filter(run_id=run.id, state=Approval.State.WAITING):
        approvals.decide(request.id, PROJECT, Decider("drill", frozenset(), "command"), "approve")
    return run, [(one.operation.id, text) for one, text in zip(drafts, texts, strict=True)]


# killing


def _crash(nursery: Nursery, ledger: LedgerProcess, version: AgentVersion, cell: Cell, kills: int) -> Crashed:
    began = time.monotonic()
    run, calls = _proposed(version, cell, kills)
    killed = nursery.were_killed([operation_id for operation_id, _ in calls[:1]], cell.faults)
    if not killed[0]:
        calls = calls[:1]  # calls of this kind do not pass the point
    killed += nursery.were_killed([operation_id for operation_id, _ in calls[1:]], cell.faults)
    booked = _booked(ledger, run)
    left = {o.id: o for o in Operation.objects.filter(run=run)}
    deaths = [
        Death(
            operation_id,
            text,
            was_killed,
            was_killed
            and left[operation_id].state == STATE.DISPATCHED
            and (left[operation_id].sending_at is not None or booked[text] > 0),
        )
        for (operation_id, text), was_killed in zip(calls, killed, strict=True)
    ]
    if any(killed):
        nursery.rescue([operation_id for operation_id, _ in calls])
    return Crashed(cell, run, deaths, time.monotonic() - began)


def _booked(ledger: LedgerProcess, run: Run) -> Counter[str]:
    """How often each text was booked: by the ledger's process, or by commands in the run's workspace."""
    own = workspaces.path(run) / SANDBOX_LEDGER
    return ledger.counts() + Counter(own.read_text().split() if own.exists() else ())


def deliver() -> None:
    """Publish all that is in the outbox, and ask the event store what it has. Raises NotAsPromised if that fails."""
    deadline = time.monotonic() + DELIVERY_SECONDS_MAX
    while (behind := outbox.lag()).pending:
        if time.monotonic() > deadline:
            hindered = behind.destination_error or "the event store said nothing of an error"
            raise NotAsPromised(f"{behind.pending} events could not be delivered: {hindered}")
        call_command("outbox_publish", seconds=PUBLISH_SECONDS, stdout=io.StringIO())
    unseen = Stream.objects.filter(project=PROJECT, published__gt=Coalesce(F("seen"), 0))
    until = time.monotonic() + SEEN_SECONDS_MAX
    while unseen.exists() and time.monotonic() < until:
        seen.look()
        time.sleep(SEEN_PAUSE_SECONDS)
    close_old_connections()


# judging


def judge(one: Crashed, wanted: int, booked: Mapping[str, int]) -> Row:
    """Compare the rows, the journal and the event store with what the ledger has."""
    adapter = one.cell.adapter
    operations = {o.id: o for o in Operation.objects.filter(run=one.run)}
    effects = {death.operation_id: booked.get(death.text, 0) for death in one.deaths}
    row = Row(adapter.name, one.cell.point, kills=_kills(one), seconds=round(one.seconds, 1))
    row.executions = sum(effects.values())
    row.uncertain = sum(o.state == STATE.UNCERTAIN for o in operations.values())
    row.unaccounted = sum(not _agree(operations[id_], count) for id_, count in effects.items())
    row.lost_events = _lost_events(one.run, list(operations.values()))
    row.lost_approvals = _lost_approvals(list(operations.values()))
    if adapter.is_write:
        row.repeated_effects = sum(max(0, count - 1) for count in effects.values())
    row.expected = one.cell.is_expected
    if row.expected and not row.kills:
        row.not_run = _why_not(list(operations.values()))
    row.broken = _broken(row, one, wanted, operations)
    return row


def _why_not(operations: Sequence[Operation]) -> str:
    """What became of the first call, which should have died."""
    tried = [o for o in operations if o.attempt or o.error_class]
    said = [f"{o.state}: {o.error_class} {o.error_message}".strip() for o in tried]
    return f"no call passed the point; the first one is {said[0] if said else 'still proposed'}"[:REASON_CHARS_MAX]


def _agree(operation: Operation, effects: int) -> bool:
    """Whether the row has an end, and says nothing that the ledger contradicts."""
    match operation.state:
        case STATE.SUCCEEDED:
            return effects > 0
        case STATE.RECONCILED:
            return (effects > 0) == (operation.verdict == Operation.Verdict.OCCURRED)
        case STATE.FAILED:
            return effects == 0
    return operation.state == STATE.UNCERTAIN


def _end(operation: Operation) -> str:
    """Where a call stands; one that a probe found has had its effect."""
    found = operation.state == STATE.RECONCILED and operation.verdict == Operation.Verdict.OCCURRED
    return STATE.SUCCEEDED if found else operation.state


def _lost_events(run: Run, operations: Sequence[Operation]) -> int:
    """Starts and ends that were never told, numbers that are missing, and what the event store does not have."""
    told = list(Event.objects.filter(run_id=run.id).values_list("operation_id", "type"))
    starts = Counter(operation for operation, kind in told if kind in STARTED)
    ends = Counter(operation for operation, kind in told if kind in ENDED)
    missing = sum(
        abs(o.attempt - starts[o.id]) + abs(o.attempt - (o.state == STATE.DISPATCHED) - ends[o.id]) for o in operations
    )
    stream = Stream.objects.get(run_id=run.id)
    return missing + (stream.head - len(told)) + (stream.head - (stream.seen or 0))


def _lost_approvals(operations: Sequence[Operation]) -> int:
    asked = {o.id for o in operations if o.policy_answer == "require"}
    granted = Approval.objects.filter(operation_id__in=asked, state=Approval.State.GRANTED, decisions__applied=True)
    return len(asked - set(granted.values_list("operation_id", flat=True)))


def _broken(row: Row, one: Crashed, wanted: int, operations: Mapping[UUID, Operation]) -> list[str]:
    guessed = sum(
        death.may_have_acted and operations[death.operation_id].state != STATE.UNCERTAIN for death in one.deaths
    )
    is_opaque = one.cell.adapter.is_opaque
    must = one.cell.ends_as
    others = sum(_end(operations[death.operation_id]) != must for death in one.deaths if death.killed)
    problems = {
        f"{row.kills} kills instead of {wanted}": row.kills not in (0, wanted),
        f"{row.kills} kills at a point that such calls do not pass": row.kills > 0 and not one.cell.is_expected,
        f"{others} did not end as {must}": others > 0,
        f"{row.repeated_effects} repeated effects": row.repeated_effects > 0,
        f"{row.lost_events} lost events": row.lost_events > 0,
        f"{row.lost_approvals} lost approvals": row.lost_approvals > 0,
        f"{row.unaccounted} operations unaccounted for": row.unaccounted > 0,
        f"{guessed} ambiguous operations are not uncertain": is_opaque and guessed > 0,
        f"{row.uncertain} are uncertain that could be found out": not is_opaque and row.uncertain > 0,
    }
    return [text for text, is_so in problems.items() if is_so]
