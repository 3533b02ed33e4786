"""The scene of the refund test: the external ledger, workers that are killed for real, runs, and what people see."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

from django.test import Client
from django.urls import reverse

from kernel_project.drill.ledger_process import LedgerProcess
from runs.models import Operation, Run, Tool
from tests.acceptance.refund_tools import KEY_SECONDS, MODULE, SCHEMA
from tests.api_client import Api, api_for, make_person
from tests.kernel import (
    WorkerProcess,
    begin,
    begin_again,
    call,
    calls,
    ended,
    make_project,
    rule,
    said,
    says,
    tool_calls,
)
from tests.waiting import until_sync

MODES: dict[str, dict[str, Any]] = {
    "probed": {"probe": {}},
    "keyed": {"idempotent_for_seconds": KEY_SECONDS},
    "opaque": {},
}  # the opaque one last: nothing mends a second, accidental crash of it
DEATH_SECONDS_MAX = 90.0
END_SECONDS_MAX = 120.0


class Workers(WorkerProcess):
    """Workers that know the refund tools; one at a time."""

    def __init__(self, folder: Path, ledger: LedgerProcess) -> None:
        super().__init__(folder)
        self._environment |= {"KERNEL_TOOL_MODULES": MODULE, **ledger.environment()}

    def fresh(self, faults: str = "") -> subprocess.Popen[bytes]:
        """A new worker in the place of the last one."""
        for process in self.processes:
            process.kill()
            process.wait()
        self._environment["KERNEL_FAULTS"] = faults
        return self.start()


class Desk:
    """One project whose agent pays refunds. An order is what a refund is for, and what the ledger's lines name."""

    def __init__(self, folder: Path) -> None:
        self.ledger = LedgerProcess(folder / "refunds")

    def __enter__(self) -> Self:
        self.ledger.__enter__()
        self.workers = Workers(self.ledger.path.parent, self.ledger)
        self.project = make_project()
        self.api: Api = api_for(self.project)
        rule(self.project, "refund*", "allow")
        for mode, declared in MODES.items():
            self.tool(mode, {"unique_by": ["order"], "absent_after_seconds": 0}, **declared)
        return self

    def __exit__(self, *_: object) -> None:
        self.workers.__exit__()
        self.ledger.__exit__()

    def tool(self, mode: str, configuration: dict[str, Any], name: str = "", **declared: Any) -> Tool:
        return Tool.objects.create(
            project=self.project, kind="python", name=name or f"refund-{mode}", remote_name=f"refund-{mode}",
            exposed_name=name or f"refund-{mode}", description="Pay a refund.", input_schema=SCHEMA,
            definition_digest=mode, configuration=configuration, **declared,
        )  # fmt: skip

    # acting

    def order(self) -> str:
        return f"order-{uuid4().hex[:8]}"

    def refund(self, tool: str, order: str, **agent: Any) -> Run:
        """A run whose model pays the refund, asks for it again whatever it was told, and repeats both answers."""
        pay = [calls(call(tool, order=order, amount=30)) for _ in range(2)]
        script = [*pay, says("{result:0.1} // {result:1.1}")]
        return begin(script, [tool], project=self.project, **{"on_uncertain": "continue", **agent})

    def killed_refunds(self, faults: Callable[[str], str], fault: str = "") -> dict[str, tuple[Run, str]]:
        """A refund in each mode, each with a worker of its own that is dead when this returns; another one lives on.

        `faults` arms the worker of a mode; `fault` is what the ledger does after it has committed.
        """
        refunds = {mode: self._killed_refund(f"refund-{mode}", faults, fault) for mode in MODES}
        self.workers.fresh()
        return refunds

    def _killed_refund(self, tool: str, faults: Callable[[str], str], fault: str) -> tuple[Run, str]:
        worker, order = self.workers.fresh(faults(tool)), self.order()
        if fault:
            self.ledger.breaks(order, fault)
        run = self.refund(tool, order)
        until_sync(lambda: worker.poll() is not None, DEATH_SECONDS_MAX, lambda: self.seen(run))
        return run, order

    def again(self, run: Run) -> Run:
        """The operator starts the same run once more, as a new one."""
        return ended(begin_again(run.agent_version), END_SECONDS_MAX)

    # looking

    def lines(self, order: str) -> int:
        return self.ledger.counts()[order]

    def told(self, run: Run) -> list[str]:
        """What the model was told of its first call and of its second."""
        assert ended(run, END_SECONDS_MAX).state == "completed"
        return said(run).split(" // ")

    def first(self, run: Run) -> Operation:
        return tool_calls(run)[0]

    def until(self, run: Run, state: str) -> Operation:
        until_sync(lambda: [o.state for o in tool_calls(run)[:1]] == [state], END_SECONDS_MAX)
        return self.first(run)

    def seen(self, run: Run) -> list[tuple[str, str, str]]:
        """Where the run's calls stand, and why."""
        return [(o.name, o.state, o.error_message) for o in run.operations.order_by("turn", "position")]

    def queue(self) -> list[str]:
        """The uncertain operations, as the API lists them."""
        return [item["id"] for item in self.api.get("/operations", state="uncertain").data["items"]]

    def page(self, operation: Operation) -> str:
        """The operation's page in the admin."""
        client = Client()
        client.force_login(make_person())
        answer = client.get(reverse("admin:runs_operation_change", args=[operation.id]))
        assert answer.status_code == 200
        return answer.content.decode()
