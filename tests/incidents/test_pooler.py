"""T40. The delivery's tests once more through PgBouncer in transaction mode: each transaction on another session."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from django.conf import settings

FILES = ("test_publisher.py", "test_outbox_append.py")
TESTS_MIN = 34  # of these files; fewer: something was not run
RUN_SECONDS_MAX = 500


@pytest.mark.timeout(RUN_SECONDS_MAX + 20)
def test_t40_the_delivery_works_through_pgbouncer_in_transaction_mode():
    files = [f"tests/integration/{name}" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.pgbouncer", *files]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS_MAX,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= TESTS_MIN, done.stdout[-500:]
