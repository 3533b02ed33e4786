"""Commands in a sandbox: `run` one, ask what this machine can enforce, sweep up after dead workers."""

from runs.boundary.sandbox.capabilities import capabilities
from runs.boundary.sandbox.contracts import (
    Capabilities,
    Demand,
    SandboxCommand,
    SandboxCrashed,
    SandboxLimits,
    SandboxResult,
)
from runs.boundary.sandbox.execution import run
from runs.boundary.sandbox.sweeping import sweep

__all__ = [
    "Capabilities",
    "Demand",
    "SandboxCommand",
    "SandboxCrashed",
    "SandboxLimits",
    "SandboxResult",
    "capabilities",
    "run",
    "sweep",
]
