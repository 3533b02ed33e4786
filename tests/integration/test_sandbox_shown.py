"""What the workers' machines can do is shown to operators: on the console's home page and by `manage.py doctor`."""

from __future__ import annotations

import pytest
from django.db.models import F
from django.urls import reverse

from kernel_project.management.commands import doctor
from runs.boundary import sandbox_upkeep
from runs.boundary.sandbox import capabilities
from runs.models import SandboxReport
from tests import console

pytestmark = pytest.mark.django_db(databases=["default", "temporality"])


@pytest.fixture
def home(db):
    client = console.logged_in(console.viewer())
    return lambda: client.get(reverse("admin:index")).content.decode()


def test_a_machine_that_can_run_commands(home) -> None:
    sandbox_upkeep.report()
    assert capabilities().sentence() in home()


def test_a_machine_that_cannot_is_named_with_the_reason(home) -> None:
    SandboxReport.objects.create(place="host-7/<b>", sentence="", unavailable="bubblewrap is not installed")
    page = home()
    assert "host-7/&lt;b&gt; runs no command: bubblewrap is not installed" in page


def test_a_machine_that_was_not_heard_of_lately_is_not_shown(home) -> None:
    sandbox_upkeep.report()
    SandboxReport.objects.update(reported_at=F("reported_at") - sandbox_upkeep.REPORT_LIVES)
    assert "No worker has said lately what its machine can do." in home()


def test_doctor_says_what_this_machine_can_do() -> None:
    assert doctor.sandbox().startswith(capabilities().sentence())


def test_doctor_fails_for_a_worker_that_can_run_nothing() -> None:
    SandboxReport.objects.create(place="host-7", sentence="", unavailable="bubblewrap is not installed")
    with pytest.raises(doctor.NotOk, match="the worker on host-7: bubblewrap is not installed"):
        doctor.sandbox()


def test_doctor_says_which_engine_is_missing(settings) -> None:
    settings.SANDBOX_DRIVER, settings.SANDBOX_ENGINE, settings.SANDBOX_IMAGE = "docker", "no-such-engine", "image:1"
    with pytest.raises(doctor.NotOk, match="no-such-engine cannot be started") as problem:
        doctor.sandbox()
    assert "SANDBOX_ENGINE" in problem.value.advice
