"""Celery's doors to runs."""

from __future__ import annotations

from celery import shared_task

from runs.boundary import artifacts, reconcile, sandbox_upkeep
from runs.keeping import audit
from runs.keeping import purge as purging
from runs.loop import resumes, starts, sweeps, waiting, wakes

PURGE_SECONDS = 600.0  # one tick's share; the next one goes on


@shared_task(name="runs.probe_uncertain", ignore_result=True)
def probe_uncertain() -> int:
    """Look for uncertain operations whose probe is due."""
    return reconcile.probe_due()


@shared_task(name="runs.settle_unclear_starts", ignore_result=True)
def settle_unclear_starts() -> int:
    """Ask Temporal about starts and resumes that nobody confirmed."""
    return starts.settle_unclear_starts() + resumes.settle_unclear_resumes()


@shared_task(name="runs.wake_overdue", ignore_result=True)
def wake_overdue() -> int:
    """Tell workflows again what they have not looked at."""
    return wakes.wake_overdue()


@shared_task(name="runs.explain_waiting", ignore_result=True)
def explain_waiting() -> int:
    """Say of each run that does not move what it waits for."""
    return waiting.explain()


@shared_task(name="runs.forget_old_news", ignore_result=True)
def forget_old_news() -> int:
    """Remove news of runs that have ended since."""
    return sweeps.forget_old_news()


@shared_task(name="runs.sweep_sandboxes", ignore_result=True)
def sweep_sandboxes() -> int:
    """End and remove, on this machine, what dead workers left of their sandboxes."""
    return sandbox_upkeep.sweep()


@shared_task(name="runs.purge", ignore_result=True)
def purge() -> int:
    """Delete what the projects' retention lets go."""
    return purging.purge_all(PURGE_SECONDS)


@shared_task(name="runs.seal_audit", ignore_result=True)
def seal_audit() -> int:
    """Put what was done and decided into the chains of their projects."""
    return audit.seal()


@shared_task(name="runs.sweep_artifacts", ignore_result=True)
def sweep_artifacts() -> int:
    """Remove objects that no row refers to any more."""
    return artifacts.sweep()
