"""Celery: beat ticks, tasks call services. Nothing needed for correctness lives only in the broker."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import task_success

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "kernel_project.settings")
# Django's checks import every page of the admin: `manage.py check` is a step of the deployment, not of each process.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("kernel_project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


def _tick(task: str, seconds: float, queue: str = "kernel") -> dict[str, Any]:
    """A tick that nobody took before the next one is dropped: it would only do the same."""
    return {"task": task, "schedule": seconds, "options": {"expires": seconds, "queue": queue}}


app.conf.update(
    timezone="UTC",
    enable_utc=True,
    worker_prefetch_multiplier=1,
    task_acks_late=False,  # a lost tick heals with the next one; a redelivered one would only come late
    task_default_queue="kernel",
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    beat_schedule={
        "publish": _tick("outbox.publish", 1.0, "outbox"),
        "wake overdue": _tick("runs.wake_overdue", 2.0),
        "expire approvals": _tick("approvals.expire", 5.0),
        "announce approvals": _tick("approvals.announce", 2.0),
        "probe uncertain operations": _tick("runs.probe_uncertain", 5.0),
        "settle unclear starts": _tick("runs.settle_unclear_starts", 5.0),
        "explain waiting runs": _tick("runs.explain_waiting", 5.0),
        "forget old news": _tick("runs.forget_old_news", 3600.0),
        "sweep sandboxes": _tick("runs.sweep_sandboxes", 30.0),
        "look over there": _tick("outbox.look_over_there", 5.0),
        "sample lag": _tick("outbox.sample_lag", 15.0),
        "seal audit": _tick("runs.seal_audit", 5.0),
        "sweep artifacts": _tick("runs.sweep_artifacts", 3600.0),
        "purge": _tick("runs.purge", 3600.0),
        "make partitions": _tick("outbox.make_partitions", 3600.0),
        "drop old months": _tick("outbox.drop_old_months", 3600.0),
    },
)

# A publishing task lasts; that it lives is told by its heartbeat.
INTERVALS = {
    tick["task"]: tick["schedule"] for tick in app.conf.beat_schedule.values() if tick["task"] != "outbox.publish"
}


@task_success.connect  # type: ignore[untyped-decorator]
def note_success(sender: Any = None, **_: Any) -> None:
    """Write down when each job last succeeded: a silent beat or a deaf worker shows by the age of it."""
    from outbox import jobs

    if interval := INTERVALS.get(sender.name):
        jobs.succeeded(sender.name, interval)
