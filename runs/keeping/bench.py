"""`manage.py bench purge`: old runs go by the million, by the command's own process, while somebody reads the API."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction
from django.test import Client

from kernel_project.bench import Figure
from kernel_project.primitives.canonical import sha256_hex
from kernel_project.primitives.clock import now
from kernel_project.primitives.ids import new_id
from outbox import partitions
from outbox.contracts import KERNEL
from outbox.models import Event, Stream
from runs import keys
from runs.contracts import AgentDefinition
from runs.keeping import retention
from runs.models import Agent, AgentVersion, Artifact, IdempotencyKey, Operation, Project, Run

ROWS = 2_000_000
READS_PER_S = 20
ALONE_SECONDS = 10.0
PURGE_SECONDS_MAX = 3_000.0
RUNS_PER_STATEMENT = 500
AGE = timedelta(days=400)
DAYS = 30
PER_RUN = {"operations": 10, "artifacts": 10, "events": 15}
ROWS_PER_RUN = sum(PER_RUN.values()) + 3  # with the run, its stream and its key
OLD, READ = "bench-old", "bench-read"
RESIDENT = re.compile(r"VmRSS:\s+(\d+) kB")
BODY = b"x" * 400


def purge(rows: int = ROWS) -> list[Figure]:
    """A project whose runs are all due, beside another one that is read."""
    old, read = (_project(name) for name in (OLD, READ))
    template, shown = _template(old), _template(read)
    _multiply(template, rows // ROWS_PER_RUN)
    _multiply(shown, 200)
    look = _reader(read, shown)
    alone = _read_while(look, lambda began: time.monotonic() - began < ALONE_SECONDS)
    retention.change(project=old.slug, days={"runs": DAYS, "events": DAYS, "idempotency_keys": DAYS + 7}, by=KERNEL)
    command = [sys.executable, "manage.py", "purge", "--project", old.slug, "--json"]
    child = subprocess.Popen(command, cwd=settings.BASE_DIR, stdout=subprocess.DEVNULL)  # noqa: S603  our own
    memory: list[int] = []

    def works(began: float) -> bool:
        memory.append(_resident(child.pid))
        return child.poll() is None and time.monotonic() - began < PURGE_SECONDS_MAX

    began = time.monotonic()
    during = _read_while(look, works)
    took = time.monotonic() - began
    assert child.wait(PURGE_SECONDS_MAX) == 0, "the purge failed"
    left = Run.objects.filter(project=old).count() + Event.objects.filter(run_id=template).count()
    assert left == 0, f"{left} rows are left"
    return _figures(rows, took, alone, during, [one for one in memory if one])


def _figures(
    rows: int, took: float, alone: Sequence[float], during: Sequence[float], memory: Sequence[int]
) -> list[Figure]:
    calm, busy = _p95(alone), _p95(during)
    # after a quarter of the time everything is loaded
    early, late = memory[len(memory) // 4], statistics.median(memory[-max(len(memory) // 10, 1) :])
    return [
        Figure("purged_rows_per_s", rows / took, "rows/s", beside={"rows": rows, "seconds": took}),
        Figure(
            "read_p95_ratio", busy / calm, "ratio", at_most=1.5,
            beside={"p95_ms": busy, "alone_p95_ms": calm, "reads": len(during)},
        ),
        Figure("memory_ratio", late / early, "ratio", at_most=1.1, beside={"early_kib": early, "late_kib": late}),
    ]  # fmt: skip


def _p95(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * 0.95)] * 1_000


def _reader(project: Project, run_id: UUID) -> Callable[[int], None]:
    _, token = keys.create(project=project.slug, name="bench", scopes=["runs:read", "operations:read"], user=None)
    client = Client(headers={"Authorization": f"Bearer {token}"})
    paths = ("/api/v1/runs", f"/api/v1/runs/{run_id}", "/api/v1/operations")

    def look(number: int) -> None:
        answer = client.get(paths[number % len(paths)])
        assert answer.status_code == 200, answer.content

    look(0)
    return look


def _read_while(look: Callable[[int], None], goes_on: Callable[[float], bool]) -> list[float]:
    """The seconds of each read, at a steady rate."""
    times: list[float] = []
    began = time.monotonic()
    while goes_on(began):
        time.sleep(max(0.0, began + len(times) / READS_PER_S - time.monotonic()))
        at = time.perf_counter()
        look(len(times))
        times.append(time.perf_counter() - at)
    return times


def _resident(pid: int) -> int:
    try:
        found = RESIDENT.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _project(slug: str) -> Project:
    return Project.objects.get_or_create(slug=slug, defaults={"name": slug})[0]


@transaction.atomic
def _template(project: Project) -> UUID:
    """One run that ended long ago, with one of everything."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")  # nothing of this happened
    agent, _ = Agent.objects.get_or_create(project=project, name="bench")
    definition = AgentDefinition(model="scripted:none").canonical()
    version, _ = AgentVersion.objects.get_or_create(
        agent=agent, version=1, defaults={"definition": definition, "digest": "", "created_by": "bench"}
    )
    run_id, then = new_id(), now() - AGE
    digest = sha256_hex(BODY)
    Run.objects.create(
        id=run_id, project=project, agent_version=version, state="completed", input_digest=digest, started_by="bench",
        created_at=then, started_at=then, ended_at=then,
    )  # fmt: skip
    Operation.objects.create(
        id=new_id(), run_id=run_id, project=project, turn=1, position=1, kind="python", name="bench", actor="bench",
        arguments_digest=digest, effect="read", state="succeeded", attempt=1, result_digest=digest, dispatched_at=then,
        first_dispatched_at=then, deadline_at=then, settled_at=then,
    )  # fmt: skip
    Artifact.objects.create(
        run_id=run_id, digest=digest, kind="result", size=len(BODY), media_type="text/plain", body=BODY
    )
    Stream.objects.create(run_id=run_id, project=project.slug, head=PER_RUN["events"], published=PER_RUN["events"])
    Event.objects.create(
        event_id=new_id(), run_id=run_id, sequence=1, type="tool.completed", occurred_at=then, envelope="x" * 600
    )
    IdempotencyKey.objects.create(
        project=project, owner="bench", key_hash=sha256_hex(run_id.bytes), body_hash=digest, run_id=run_id
    )
    return run_id


# By table: each run, and the rest as often as a run has it; what is different in each copy, and nothing else.
COPIES = {
    "runs_run": """
        INSERT INTO runs_run SELECT (jsonb_populate_record(t, jsonb_build_object('id', r))).*
        FROM runs_run t, unnest(%(runs)s::uuid[]) r WHERE t.id = %(template)s""",
    "runs_operation": """
        INSERT INTO runs_operation SELECT (jsonb_populate_record(
            t, jsonb_build_object('id', gen_random_uuid(), 'run_id', r, 'position', n))).*
        FROM runs_operation t, unnest(%(runs)s::uuid[]) r, generate_series(1, %(operations)s) n
        WHERE t.run_id = %(template)s""",
    "runs_artifact": """
        INSERT INTO runs_artifact SELECT (jsonb_populate_record(t, jsonb_build_object(
            'id', nextval('runs_artifact_id_seq'), 'run_id', r, 'digest', md5(r::text || n) || md5('')))).*
        FROM runs_artifact t, unnest(%(runs)s::uuid[]) r, generate_series(1, %(artifacts)s) n
        WHERE t.run_id = %(template)s""",
    "outbox_stream": """
        INSERT INTO outbox_stream SELECT (jsonb_populate_record(t, jsonb_build_object('run_id', r))).*
        FROM outbox_stream t, unnest(%(runs)s::uuid[]) r WHERE t.run_id = %(template)s""",
    "outbox_event": """
        INSERT INTO outbox_event SELECT (jsonb_populate_record(
            t, jsonb_build_object('event_id', gen_random_uuid(), 'run_id', r, 'sequence', n))).*
        FROM outbox_event t, unnest(%(runs)s::uuid[]) r, generate_series(1, %(events)s) n
        WHERE t.run_id = %(template)s AND t.sequence = 1""",
    "runs_idempotencykey": """
        INSERT INTO runs_idempotencykey SELECT (jsonb_populate_record(t, jsonb_build_object(
            'id', nextval('runs_idempotencykey_id_seq'), 'run_id', r, 'key_hash', md5(r::text)))).*
        FROM runs_idempotencykey t, unnest(%(runs)s::uuid[]) r WHERE t.run_id = %(template)s""",
}


def _multiply(template: UUID, runs: int) -> None:
    """As many runs like this one, made inside the database: their content does not matter, their number does."""
    while runs > 0:
        made = _ids(min(runs, RUNS_PER_STATEMENT))
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            for copy in COPIES.values():
                cursor.execute(copy, {"runs": made, "template": template, **PER_RUN})
        runs -= len(made)
    with connection.cursor() as cursor:
        for table in COPIES:
            cursor.execute(f"ANALYZE {table}")
        cursor.execute("CHECKPOINT")


def _ids(count: int) -> list[UUID]:
    first = partitions.floor(now() - timedelta(seconds=1)).int
    return [UUID(int=first + (new_id().int & ((1 << partitions.TIMESTAMP_SHIFT) - 1))) for _ in range(count)]
