"""T40. The delivery's tests once more through PgBouncer in transaction mode: each transaction on another session."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from django.conf import settings

FILES = (
    "integration/test_publisher.py", "integration/test_outbox_append.py", "integration/test_outbox_parked.py",
    "integration/test_outbox_lag.py", "incidents/test_claim_and_lease.py", "incidents/test_ticks.py",
    "cases/test_c82_wrong_clocks.py",
)  # fmt: skip
# What looks at plans, pages, terminals or settings alone is the same through a pooler.
LEFT_OUT = ("t17", "console", "whoever_may_only_look", "hostile", "readiness", "t35", "each_job_leaves")
TESTS_MIN = 95  # of these files; fewer: something was not run
RUN_SECONDS_MAX = 500


@pytest.mark.timeout(RUN_SECONDS_MAX + 20)
def test_t40_the_delivery_works_through_pgbouncer_in_transaction_mode():
    files = [f"tests/{name}" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.pgbouncer", *files]
    command += ["-k", "not (" + " or ".join(LEFT_OUT) + ")"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS_MAX,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= TESTS_MIN, done.stdout[-500:]
