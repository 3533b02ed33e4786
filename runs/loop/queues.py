"""Which task queue takes what: all in one, or one for each kind of work, so that each scales by itself."""

from __future__ import annotations

from typing import Literal, get_args

from django.conf import settings

from runs.models import Kind

Role = Literal["runs", "model", "tools", "sandbox"]
ROLES: tuple[Role, ...] = get_args(Role)


def name(role: Role) -> str:
    """The queue of one kind of work; that of runs has their workflows and short steps, and without others all work."""
    return settings.TEMPORAL_TASK_QUEUE if role == "runs" else f"{settings.TEMPORAL_TASK_QUEUE}-{role}"


def of_models() -> str:
    """Where calls of models are taken; empty: where the runs are."""
    return name("model") if settings.KERNEL_SEPARATE_QUEUES else ""


def of_tool(kind: str) -> str:
    """Where calls of such a tool are taken; empty: where the runs are."""
    if not settings.KERNEL_SEPARATE_QUEUES or kind == Kind.AGENT:
        return ""
    return name("sandbox" if kind == Kind.SANDBOX else "tools")
