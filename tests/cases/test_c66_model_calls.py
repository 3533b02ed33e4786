"""C66. Ten runs wait for a slow model: no transaction is open meanwhile, the API answers, and all of them finish."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import connection

from kernel_project.devstack.process import Server
from runs.models import Operation
from tests.api_client import api_for
from tests.kernel import begin, ended, make_project, says
from tests.waiting import until_sync

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("carrier")]

RUNS = 10
MODEL_SECONDS = 6
OLD = (
    "SELECT state, query FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() "
    "AND datname = current_database() AND xact_start < now() - interval '1 s'"
)


def old_transactions(postgres: Server) -> list[Any]:
    with postgres.connect(connection.settings_dict["NAME"]) as other:
        return list(other.execute(OLD))


def test_over_model_calls(postgres: Server):
    project = make_project()
    runs = [begin([says("done") | {"delay_seconds": MODEL_SECONDS}], project=project) for _ in range(RUNS)]
    asked = Operation.objects.filter(run__in=runs, state="dispatched")
    until_sync(lambda: asked.count() >= RUNS // 2, 60)
    time.sleep(1.5)  # whoever held a transaction over the call would hold it by now for longer than a second
    assert old_transactions(postgres) == []
    assert len(api_for(project).get("/runs").data["items"]) == RUNS
    with connection.cursor() as cursor:  # what a migration needs is to be had at once
        cursor.execute("SET lock_timeout = '3s'")
        cursor.execute("ALTER TABLE runs_operation ALTER COLUMN note SET DEFAULT ''")
        cursor.execute("ALTER TABLE runs_operation ALTER COLUMN note DROP DEFAULT")
        cursor.execute("RESET lock_timeout")
    assert [ended(run).state for run in runs] == ["completed"] * RUNS
