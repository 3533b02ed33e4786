"""/metrics: numbers from the tables, in the form that Prometheus reads, naming no project."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from django.test import Client

from kernel_project.metrics import cache
from tests.api_scene import make_scene

pytestmark = [pytest.mark.django_db(transaction=True)]
DOCS = Path(__file__).resolve().parents[2] / "docs"
SAMPLE = re.compile(r'agent_kernel_[a-z_]+(\{state="[a-z]+"\})? -?[0-9.e+-]+')


def numbers() -> dict[str, float]:
    cache.forget()
    answer = Client().get("/metrics")
    assert answer.status_code == 200
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.content.decode().splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in lines), lines
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_what_waits_is_counted():
    make_scene()
    found = numbers()
    assert found['agent_kernel_runs{state="running"}'] == 1
    assert found["agent_kernel_operations_uncertain"] == 1
    assert found["agent_kernel_approvals_waiting"] == 1
    assert found["agent_kernel_outbox_pending_events"] == 3
    assert found["agent_kernel_outbox_unaccounted_events"] == 0
    assert found["agent_kernel_outbox_lag_seconds"] > 0


def test_an_empty_kernel_has_numbers_too():
    found = numbers()
    assert found["agent_kernel_operations_uncertain"] == 0
    assert "agent_kernel_oldest_uncertain_seconds" not in found


def test_no_project_is_named():
    scene = make_scene()
    cache.forget()
    assert scene.project.slug not in Client().get("/metrics").content.decode()


def test_each_number_is_explained_once():
    text = Client().get("/metrics").content.decode()
    explained = re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)
    assert len(explained) == len(set(explained))
    assert {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"} <= set(explained)


def explained() -> set[str]:
    cache.forget()
    return set(re.findall(r"^# HELP (\S+) \S", Client().get("/metrics").content.decode(), re.MULTILINE))


def test_the_table_in_the_documentation_is_what_is_told():
    rows = re.findall(r"^\| `([a-z_]+)`", (DOCS / "observing.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert {f"agent_kernel_{name}" for name in rows} == explained()


def test_the_dashboard_asks_for_each_number_and_for_no_other():
    panels = json.loads((DOCS / "grafana/agent-kernel.json").read_text())["panels"]
    asked = "\n".join(target["expr"] for panel in panels for target in panel.get("targets", []))
    assert set(re.findall(r"agent_kernel_[a-z_]+", asked)) == explained()
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_it_is_only_read():
    assert Client().post("/metrics").status_code == 405
