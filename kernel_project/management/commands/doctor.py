"""`manage.py doctor`: what is reachable, what is not, and what to do. Writes nothing but one probe artifact."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import psycopg
import redis
from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError, connections, router
from django.db.migrations.executor import MigrationExecutor

from kernel_project.devstack.layout import Layout
from temporality.contracts import EVENTS_PATH, HEALTH_PATH

ANSWER_SECONDS_MAX = 5
POLL_AGE_MAX = timedelta(seconds=90)  # a worker's poll lasts up to a minute
UNAUTHORIZED = 401
CHECKS_AT_ONCE = 12
UP = "start it with `manage.py up`"
SANDBOX_ADVICE = {
    "bubblewrap": "install bubblewrap and allow user namespaces; until then no command is run",
    "docker": "start the engine, or set SANDBOX_ENGINE and SANDBOX_IMAGE; until then no command is run",
}


@dataclass(frozen=True)
class Finding:
    """`advice` says what to do; it is empty when nothing is to be done."""

    name: str
    ok: bool
    found: str
    advice: str = ""


class NotOk(Exception):
    """What is so, and what to do."""

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(found)
        self.found, self.advice = found, advice


class Command(BaseCommand):
    help = "Check every service that the kernel needs. Exits with 1 when one is missing."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
        parser.add_argument(
            "--only", nargs="+", choices=CHECKS, default=list(CHECKS), metavar="NAME", help=", ".join(CHECKS)
        )

    def handle(self, *_: Any, **options: Any) -> None:
        findings = examine(options["only"])
        if options["json"]:
            answer = {"ok": all(one.ok for one in findings), "checks": [asdict(one) for one in findings]}
            self.stdout.write(json.dumps(answer, indent=2))
        else:
            for one in findings:
                self.stdout.write(line(one))
        if not all(one.ok for one in findings):
            sys.exit(1)

    def run_from_argv(self, argv: list[str]) -> None:
        """End without the interpreter's own end, at which the Temporal library may abort after all work is done."""
        code = 0
        try:
            super().run_from_argv(argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def line(one: Finding) -> str:
    mark = "ok     " if one.ok else "MISSING"
    return f"{mark}  {one.name:<22} {one.found}" + (f"\n{'':<33}-> {one.advice}" if one.advice else "")


def examine(names: Sequence[str]) -> list[Finding]:
    """The findings of these checks, in their order."""
    with ThreadPoolExecutor(CHECKS_AT_ONCE) as pool:
        return list(pool.map(_finding, names, [CHECKS[name] for name in names]))


def _finding(name: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, check())
    except NotOk as problem:
        return Finding(name, False, problem.found, problem.advice)
    except Exception as error:  # a check that fails in its own way is a finding too
        return Finding(name, False, _words(error), "the check itself failed: see the reason beside it")
    finally:
        connections.close_all()


def _words(error: BaseException) -> str:
    """The first line of an error; none of ours and of the drivers used here contains a password."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def database(alias: str, variable: str) -> Callable[[], str]:
    def check() -> str:
        if alias not in settings.DATABASES:
            return "not used here: TEMPORALITY_URL names another server"
        target: dict[str, Any] = dict(settings.DATABASES[alias])
        try:
            with psycopg.connect(
                host=target["HOST"], port=target["PORT"] or None, user=target["USER"], password=target["PASSWORD"],
                dbname=target["NAME"], connect_timeout=ANSWER_SECONDS_MAX,
            ) as connection:  # fmt: skip
                version = connection.info.server_version // 10_000
        except psycopg.Error as error:
            raise NotOk(_words(error), f"{UP}, or set {variable} to a server that runs") from None
        return f"PostgreSQL {version}, database {target['NAME']}; {_migrations(alias)}"

    return check


def _migrations(alias: str) -> str:
    option = "" if alias == "default" else f" {alias} --database {alias}"
    try:
        executor = MigrationExecutor(connections[alias])
        ours = [leaf for leaf in executor.loader.graph.leaf_nodes() if router.allow_migrate(alias, leaf[0])]
        plan = executor.migration_plan(ours)
    except DatabaseError as error:
        raise NotOk(_words(error), f"run `manage.py migrate{option}`") from None
    if plan:
        raise NotOk(f"{len(plan)} migrations are pending", f"run `manage.py migrate{option}`")
    return "migrated"


def broker() -> str:
    client = redis.Redis.from_url(
        settings.CELERY_BROKER_URL, socket_connect_timeout=ANSWER_SECONDS_MAX, socket_timeout=ANSWER_SECONDS_MAX
    )
    try:
        with client:
            info = client.info("server")
    except redis.RedisError as error:
        raise NotOk(_words(error), f"{UP}, or set REDIS_URL to a server that runs") from None
    name = info.get("server_name", "redis")
    return f"{name} {info.get(f'{name}_version', info.get('redis_version', ''))}"


def temporal() -> str:
    return asyncio.run(_temporal())


async def _temporal() -> str:
    from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
    from temporalio.service import RPCError

    client = await _temporal_client()
    name = settings.TEMPORAL_NAMESPACE
    try:
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=name), timeout=_timeout())
    except RPCError as error:
        raise NotOk(
            _words(error), f"make it: `temporal operator namespace create {name}`, or set TEMPORAL_NAMESPACE"
        ) from None
    return f"{settings.TEMPORAL_ADDRESS}, namespace {name}"


async def _temporal_client() -> Any:
    from temporalio.client import Client

    connecting = Client.connect(settings.TEMPORAL_ADDRESS, namespace=settings.TEMPORAL_NAMESPACE)
    try:
        return await asyncio.wait_for(connecting, ANSWER_SECONDS_MAX)
    except (RuntimeError, TimeoutError):
        found = f"nothing answers at {settings.TEMPORAL_ADDRESS}"
        raise NotOk(found, f"{UP}, or set TEMPORAL_ADDRESS to a server that runs") from None


def _timeout() -> timedelta:
    return timedelta(seconds=ANSWER_SECONDS_MAX)


def worker() -> str:
    return asyncio.run(_worker())


async def _worker() -> str:
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

    client = await _temporal_client()
    request = DescribeTaskQueueRequest(
        namespace=settings.TEMPORAL_NAMESPACE,
        task_queue=TaskQueue(name=settings.TEMPORAL_TASK_QUEUE),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    answer = await client.workflow_service.describe_task_queue(request, timeout=_timeout())
    now = datetime.now(UTC)
    living = [one for one in answer.pollers if now - one.last_access_time.ToDatetime(UTC) < POLL_AGE_MAX]
    if not living:
        raise NotOk(f"nobody polls the task queue {settings.TEMPORAL_TASK_QUEUE}", "start `manage.py runs_worker`")
    return f"{len(living)} poll{'' if len(living) > 1 else 's'} the task queue {settings.TEMPORAL_TASK_QUEUE}"


def event_store() -> str:
    url = settings.TEMPORALITY_URL.rstrip("/")
    headers = {"Authorization": f"Bearer {settings.TEMPORALITY_TOKEN}"}
    try:
        with httpx2.Client(timeout=ANSWER_SECONDS_MAX, trust_env=False) as client:
            health = client.get(url + HEALTH_PATH)
            reading = client.get(url + EVENTS_PATH, params={"project": "doctor", "limit": "1"}, headers=headers)
    except httpx2.HTTPError as error:
        raise NotOk(_words(error), f"{UP}, or set TEMPORALITY_URL to a server that runs") from None
    if not health.is_success:
        raise NotOk(f"{HEALTH_PATH} answers {health.status_code}", "look into the event store's own log")
    if reading.status_code == UNAUTHORIZED:
        advice = "set TEMPORALITY_TOKEN to a valid one (`manage.py temporality_token`)"
        raise NotOk("the event store does not know our token", advice)
    return f"{url}, and it knows our token"


def artifact_store() -> str:
    from runs.boundary import objects

    path = f"doctor/{uuid.uuid4()}"
    try:
        objects.put(path, b"probe")
        objects.delete(path)
    except Exception as error:  # each kind of store fails with errors of its own
        raise NotOk(_words(error), "set ARTIFACT_URL to a store that this process may write to") from None
    return f"{settings.ARTIFACT_URL} can be written to"


def sandbox() -> str:
    from runs.boundary.sandbox import drivers

    found = drivers.chosen().capabilities()
    if found.unavailable:
        raise NotOk(found.unavailable, SANDBOX_ADVICE[found.driver])
    problems = "".join(f"; {problem}" for problem in found.problems)
    return f"{found.sentence()}{problems}{_sandboxes_of_workers()}"


def _sandboxes_of_workers() -> str:
    """What the workers say of their machines, which may be other ones than this."""
    from runs.boundary import sandbox_upkeep

    try:
        reports = sandbox_upkeep.living_reports()
    except DatabaseError:
        return ""  # the check of the database says why
    for one in reports:
        if one.unavailable:
            raise NotOk(f"the worker on {one.place}: {one.unavailable}", "on that machine, see docs/sandbox.md")
    return f"; {len(reports)} machine{'s' if len(reports) > 1 else ''} of workers can run commands" if reports else ""


def celery_worker() -> str:
    from kernel_project.celery import app

    try:
        answers = app.control.ping(timeout=1.0)
    except Exception as error:  # the broker's own errors, by the kind of broker
        raise NotOk(_words(error), "the broker must be reachable first") from None
    if not answers:
        raise NotOk("no Celery worker answers", f"{UP}, or `celery -A kernel_project worker`")
    return ", ".join(name for answer in answers for name in answer)


def beat() -> str:
    from outbox import selectors

    try:
        lag = selectors.lag()
    except DatabaseError as error:
        raise NotOk(_words(error), "the database must be reachable first") from None
    if lag.publisher_late:
        advice = f"{UP}, or `celery -A kernel_project beat`; meanwhile `manage.py outbox_publish` delivers"
        raise NotOk("no tick has made the publisher run lately", advice)
    return "ticks arrive and the publisher runs"


def web() -> str:
    url = Layout.from_environment().web_url
    try:
        answer = httpx2.get(f"{url}/healthz", timeout=ANSWER_SECONDS_MAX, trust_env=False)
    except httpx2.HTTPError as error:
        raise NotOk(_words(error), f"{UP}, or set KERNEL_WEB_PORT to the port it listens on") from None
    if not answer.is_success:
        raise NotOk(f"{url}/healthz answers {answer.status_code}", "look into its log")
    return url


CHECKS: dict[str, Callable[[], str]] = {
    "postgres": database("default", "DATABASE_URL"),
    "postgres temporality": database("temporality", "TEMPORALITY_DATABASE_URL"),
    "broker": broker,
    "temporal": temporal,
    "temporality": event_store,
    "artifact store": artifact_store,
    "sandbox": sandbox,
    "worker": worker,
    "celery worker": celery_worker,
    "beat": beat,
    "web": web,
}
