"""The docker driver: commands in containers of docker or podman. What the engine can enforce is tried, not assumed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from runs.boundary.contracts import NotSent
from runs.boundary.sandbox import container, engine, workspace
from runs.boundary.sandbox.capabilities import TRIAL_FOLDER_PREFIX, TRIAL_SECONDS
from runs.boundary.sandbox.container import ContainerRun
from runs.boundary.sandbox.contracts import (
    Capabilities,
    DriverName,
    Left,
    SandboxCommand,
    SandboxCrashed,
    SandboxLimits,
    SandboxResult,
)
from runs.boundary.sandbox.engine import Container, EngineSilent
from runs.boundary.sandbox.execution import refuse_unmet, within_workspace
from runs.boundary.sandbox.sweeping import Over
from runs.boundary.sandbox.uids import UID_FIRST
from runs.boundary.sandbox.waiting import in_thread

logger = logging.getLogger(__name__)

ASK_AGAIN_SECONDS = 30.0  # after an engine was found wanting: it may be started, or an image pulled, meanwhile
SWEPT_MAX = 500  # containers looked at by one sweep
TRIAL_PREFIX = "trial-"  # of the operation id
# The variables that an engine and a shell add by themselves; any other one comes from somebody's settings.
USUAL_VARIABLES = frozenset(
    ("PATH", "HOME", "LANG", "OPERATION_ID", "HOSTNAME", "TERM", "container", "PWD", "OLDPWD", "SHLVL", "_")
)
# Only what a shell can do by itself, so that the smallest image will do.
TRIAL = """
while read -r key value; do
  case $key in Seccomp:|NoNewPrivs:|CapEff:|CapBnd:) echo "$key $value";; Uid:) echo "$key ${value%%[!0-9]*}";; esac
done < /proc/self/status
for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
  if [ -r $file ]; then read -r value < $file; echo "memory $value"; fi
done
for file in /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max; do
  if [ -r $file ]; then read -r value < $file; echo "processes $value"; fi
done
while read -r name rest; do case $name in *:*) echo "network ${name%%:*}";; esac; done < /proc/net/dev
if (: > /written) 2>/dev/null; then echo "root writable"; else echo "root read-only"; fi
if (: > /workspace/written) 2>/dev/null; then echo "workspace writable"; fi
export -p
"""
TRIAL_LIMITS = SandboxLimits(wall_seconds=TRIAL_SECONDS, memory_bytes=64 * 1024 * 1024, processes_max=32)
NO_TREE_LIMITS = (
    "the engine does not limit memory and processes of a container; give it a cgroup that it may write to, or let a "
    'tool do without by "accept_missing": ["tree_limits"]'
)


@dataclass
class Docker:
    """`program` is the engine's command line, `image` the default image; trials are made below `root`."""

    program: str
    image: str
    root: Path
    name: DriverName = "docker"
    leaves_evidence: bool = True
    _known: list[Capabilities] = field(default_factory=list)
    _known_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def capabilities(self, *, refresh: bool = False) -> Capabilities:
        """The answer of the first trial in this process; a bad one is asked for again after ASK_AGAIN_SECONDS."""
        with self._lock:
            known = self._known[0] if self._known else None
            is_stale = known is None or (known.unavailable and time.monotonic() - self._known_at > ASK_AGAIN_SECONDS)
            if refresh or is_stale or known is None:
                known = self._probe()
                self._known[:], self._known_at = [known], time.monotonic()
            return known

    async def run(
        self,
        command: SandboxCommand,
        *,
        before_start: Callable[[], Awaitable[None]],
        on_cancelled: Callable[[SandboxResult], None],
    ) -> SandboxResult:
        """As `execution.run`, in a container that stays until the sweep removes it."""
        refuse_unmet(command, await in_thread(self.capabilities))
        return await self._execute(command, before_start, on_cancelled)

    async def _execute(
        self,
        command: SandboxCommand,
        before_start: Callable[[], Awaitable[None]],
        on_cancelled: Callable[[SandboxResult], None],
    ) -> SandboxResult:
        async def in_container(place: workspace.Workspace, protected: list[str]) -> SandboxResult:
            running = ContainerRun(self.program, command.image or self.image, command, place, protected)
            try:
                return await running.run(before_start)
            except asyncio.CancelledError:
                on_cancelled(running.result())
                raise

        return await within_workspace(command, in_container)

    async def look(self, operation_id: str) -> Left:
        """What is left of an operation's container. Another engine than the one that ran it knows nothing of it."""
        return await container.look(self.program, operation_id, SandboxLimits().output_bytes_max)

    # --- what this engine can enforce

    def _probe(self) -> Capabilities:
        path = engine.found(self.program)
        version, unavailable = "", ""
        problems: list[str] = []
        try:
            with ThreadPoolExecutor(1) as thread:  # of its own: the caller may be inside an event loop
                version, problems = thread.submit(lambda: asyncio.run(self._tried())).result()
        except (NotSent, EngineSilent, SandboxCrashed, OSError) as error:
            unavailable = str(error).removeprefix("sandbox unavailable: ")
        return Capabilities(
            driver="docker",
            unavailable=unavailable,
            program=path,
            version=version,
            user_namespaces=False,
            seccomp=not unavailable,
            cgroup="none" if unavailable or problems else "engine",
            uid_pool=None,
            problems=tuple([unavailable] if unavailable else problems),
            image=self.image,
        )

    async def _tried(self) -> tuple[str, list[str]]:
        """The engine's version, and what it cannot do. Raises NotSent or EngineSilent when it can run nothing here."""
        answer = await engine.call(self.program, "--version")
        words = answer.stdout.decode(errors="replace").replace(",", " ").split()
        version = next((word for word in words if word[:1].isdigit()), "")
        allowed = USUAL_VARIABLES | await self._variables_of_image()
        with tempfile.TemporaryDirectory(prefix=TRIAL_FOLDER_PREFIX, dir=_made(self.root)) as folder:
            result = await self._trial(_with_workspace(folder))
        if result.exit_code != 0:
            said = (result.stderr or result.stdout).decode(errors="backslashreplace").strip()[:300]
            raise NotSent(f"a trial command failed in the image {self.image} (exit code {result.exit_code}): {said}")
        return version, list(_judged(result.stdout.decode(errors="replace"), allowed))

    async def _variables_of_image(self) -> frozenset[str]:
        answer = await engine.call(self.program, "image", "inspect", "--format", "{{json .Config.Env}}", self.image)
        if answer.code != 0:
            raise NotSent(
                f"the engine does not give the image {self.image} ({answer.said}); pull it, or start the engine"
            )
        try:
            return frozenset(str(item).partition("=")[0] for item in json.loads(answer.stdout) or ())
        except (ValueError, TypeError):
            raise EngineSilent(f"`{self.program} image inspect` answered something else") from None

    async def _trial(self, trial_workspace: Path) -> SandboxResult:
        command = SandboxCommand(
            ("/bin/sh", "-c", TRIAL),
            str(trial_workspace),
            str(trial_workspace.parent),
            TRIAL_PREFIX + secrets.token_hex(8),
            limits=TRIAL_LIMITS,
        )
        try:
            return await self._execute(command, _nothing, _unheard)
        finally:
            await engine.call(self.program, "rm", "--force", container.name_of(command.operation_id))

    # --- what dead workers left

    async def sweep(self, source: str, over: Over) -> list[str]:
        """Remove containers of operations that are over, end those past their time. Returns their operation ids."""
        swept = []
        for name in (await engine.names(self.program, container.OPERATION_LABEL))[:SWEPT_MAX]:
            found = await engine.inspect(self.program, name)
            if found is None or (ours := _Ours.of(found, source)) is None:
                continue
            if await in_thread(partial(ours.is_over, over)):
                await engine.call(self.program, "rm", "--force", name)
                swept.append(ours.operation_id)
            elif found.running and ours.is_late:
                await engine.call(self.program, *container.KILL, name)
                swept.append(ours.operation_id)
        return swept


@dataclass(frozen=True)
class _Ours:
    """What the labels of a container of ours say."""

    operation_id: str
    is_late: bool

    @classmethod
    def of(cls, found: Container, source: str) -> Self | None:
        operation_id = found.labels.get(container.OPERATION_LABEL, "")
        if not operation_id.startswith(TRIAL_PREFIX) and found.labels.get(container.SOURCE_LABEL) != source:
            return None  # another installation's
        return cls(operation_id, time.time() > float(found.labels.get(container.DEADLINE_LABEL) or 0))

    def is_over(self, over: Over) -> bool:
        return self.is_late if self.operation_id.startswith(TRIAL_PREFIX) else bool(over([self.operation_id]))


def _judged(said: str, allowed: frozenset[str]) -> Iterator[str]:
    """Yield what a tool may do without; raise NotSent for what nobody does without."""
    lines = said.splitlines()
    facts = [tuple(line.split(None, 1)) for line in lines if not line.startswith(("export ", "declare "))]
    for wanted in (("Seccomp:", "2"), ("NoNewPrivs:", "1"), ("root", "read-only"), ("workspace", "writable")):
        if wanted not in facts:
            raise NotSent(f"the engine does not give what is asked of it: {' '.join(wanted)}")
    for name, value in (fact for fact in facts if len(fact) == 2):
        if name in ("CapEff:", "CapBnd:") and int(value, 16) != 0:
            raise NotSent("the engine leaves capabilities to its containers")
        if (name, value) == ("Uid:", "0"):
            raise NotSent("the engine runs its containers as root")
        if name == "network" and value != "lo":
            raise NotSent(f"the engine gives its containers a network ({value})")
    exported = {line.split(None, 2)[-1].partition("=")[0] for line in lines if line.startswith(("export ", "declare "))}
    if added := sorted(exported - allowed):
        raise NotSent(
            f"the engine gives its containers variables of its own ({', '.join(added)}): take them out of its settings"
        )
    if not {("memory", str(TRIAL_LIMITS.memory_bytes)), ("processes", str(TRIAL_LIMITS.processes_max))} <= set(facts):
        yield NO_TREE_LIMITS


def _with_workspace(folder: str) -> Path:
    """A workspace in a new folder, which the user in the container may enter."""
    made = Path(folder).resolve() / "workspace"
    made.mkdir()
    if os.geteuid() == 0:
        made.parent.chmod(0o755)
        os.chown(made, UID_FIRST, UID_FIRST)
    return made


def _made(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    return root


async def _nothing() -> None:
    return None


def _unheard(_: SandboxResult) -> None:
    return None
