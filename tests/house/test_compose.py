"""docker-compose.yml and Dockerfile hold together; no container engine is needed, and none is asked."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from kernel_project.celery import app
from kernel_project.devstack.layout import PROJECT_ROOT
from kernel_project.environment import REQUIRED_IN_PRODUCTION, Environment
from kernel_project.management.commands.doctor import CHECKS
from kernel_project.settings_temporality import Environment as EventStoreEnvironment

TEXT = (PROJECT_ROOT / "docker-compose.yml").read_text()
FILE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
SERVICE_MEMBERS = {
    "build", "cap_drop", "command", "configs", "depends_on", "env_file", "environment", "healthcheck", "image", "ports",
    "restart", "security_opt", "shm_size", "stop_grace_period", "stop_signal", "volumes",
}  # fmt: skip
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}


def test_all_processes_of_the_design_are_there() -> None:
    assert OURS.keys() == {"migrate", "temporality", "web", "worker", "celery", "publisher", "beat"}
    assert SERVICES.keys() - OURS.keys() == {"postgres", "valkey", "temporal", "temporal-ui"}


def test_every_queue_has_a_worker_and_publishing_has_one_of_its_own() -> None:
    """T34: six slow jobs on one worker of both queues kept all events waiting."""
    workers = [one["command"] for one in OURS.values() if "worker" in one.get("command", [])]
    queues = [command[command.index("-Q") + 1] for command in workers]
    assert sorted(queues) == sorted({tick["options"]["queue"] for tick in app.conf.beat_schedule.values()})
    assert "outbox" in queues


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_known_members_only_and_its_references_exist(name: str) -> None:
    service = SERVICES[name]
    assert service.keys() <= SERVICE_MEMBERS
    for needed, how in service.get("depends_on", {}).items():
        assert how["condition"] in CONDITIONS
        assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[needed]
    assert all(use["source"] in FILE["configs"] for use in service.get("configs", []))
    assert all(volume.partition(":")[0] in FILE["volumes"] for volume in service.get("volumes", []))


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - {"migrate"}))
def test_a_service_says_whether_it_is_healthy(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check.keys() >= {"test", "interval", "timeout", "retries"}
    if "doctor" in check["test"]:
        assert check["test"][-1] in CHECKS


def test_images_have_a_version_and_ports_are_on_the_loopback() -> None:
    foreign = [service for name, service in SERVICES.items() if name not in OURS]
    assert all(re.search(r":v?\d", service["image"]) for service in foreign)
    assert all(port.startswith("127.0.0.1:") for service in SERVICES.values() for port in service.get("ports", []))


@pytest.mark.parametrize("name", OURS)
def test_our_processes_get_what_production_requires_and_nothing_unknown(name: str) -> None:
    given = OURS[name]["environment"]
    model = EventStoreEnvironment if name == "temporality" else Environment
    required = {"temporality_database_url"} if name == "temporality" else set(REQUIRED_IN_PRODUCTION)
    assert given["KERNEL_MODE"] == "production"
    assert {one.upper() for one in required} <= given.keys() <= {one.upper() for one in model.model_fields}


def test_secrets_come_from_the_environment_and_have_no_default() -> None:
    used = set(re.findall(r"\$\{([A-Z_]*(?:PASSWORD|SECRET_KEY|TOKEN))(:\?set \1)?\}", TEXT))
    assert {name for name, _ in used} == {
        "POSTGRES_PASSWORD", "KERNEL_DB_PASSWORD", "TEMPORALITY_DB_PASSWORD", "TEMPORAL_DB_PASSWORD", "SECRET_KEY",
        "TEMPORALITY_TOKEN",
    }  # fmt: skip
    assert all(insists for _, insists in used)


def test_the_image_runs_as_a_user_without_rights() -> None:
    lines = (PROJECT_ROOT / "Dockerfile").read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1] == "10001:10001"
    assert all(service["cap_drop"] == ["ALL"] for service in OURS.values())
    assert all("no-new-privileges:true" in service["security_opt"] for service in OURS.values())


def test_the_image_leaves_out_secrets_history_and_data() -> None:
    kept = [line[1:] for line in (PROJECT_ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert "*" in (PROJECT_ROOT / ".dockerignore").read_text().splitlines()
    assert not {".git", "var", ".venv", ".env", "tests"} & set(kept)
    assert all((PROJECT_ROOT / name).exists() for name in kept)
