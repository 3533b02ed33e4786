"""Tools that are commands in the sandbox: makes a command of a tool's arguments, and a result of what it said.

Configuration of such a tool, as the registry holds it:

    argv            the command, one item per argument; an item that is exactly {name} is replaced by that argument
    stdin           the same for its standard input (optional)
    environment     variables by name (optional); nothing of the worker's own environment is ever passed
    limits          fields of SandboxLimits (optional)
    workspace_root  the folder that the workspace must lie in (optional; the WORKSPACE_ROOT setting if absent)
    protected_names entries that the command may read but not change or create (optional; [".git"] if absent)
    accept_missing  what the machine need not be able to enforce for this tool, such as ["tree_limits"] (optional)
    image           the image to run in, for the docker driver (optional; the SANDBOX_IMAGE setting if absent)

An argument is never split and never read by a shell, unless the author wrote a shell into `argv` himself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from django.conf import settings

from kernel_project.primitives import clock
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeAnswer, ProbeVerdict
from runs.boundary.sandbox import SandboxCommand, SandboxCrashed, SandboxLimits, SandboxResult, drivers
from runs.boundary.sandbox.contracts import DEMANDS, Left
from runs.boundary.sandbox.drivers import Driver
from runs.boundary.sandbox.lifecycle import End, Life

HEARTBEAT_SECONDS = 0.5  # cancellation travels back on heartbeats, and must reach a command within 2 s
PROBE_WAIT_SECONDS = 10.0  # that a probe waits for the end of a command that still runs
PROBE_POLL_SECONDS = 0.5
PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,254}")  # never an option of the engine's command line
ESCAPED_ITEM = re.compile(r"\{\{[A-Za-z_][A-Za-z0-9_]*\}\}")  # {{name}} stands for the literal {name}


class Told(Protocol):
    """Who is told of the sandbox's life; see `lifecycle.Life`."""

    async def created(self) -> None: ...

    async def ended(self, end: End) -> None: ...


async def perform(dispatch: Dispatch) -> EffectResult:
    """Run the command and report it. A command that fails or is ended by a limit is a result that says so (`is_error`).
    What one that a limit ended had done by then is not known (`cut_short`).

    Raises NotSent when the command was not executed, SandboxCrashed when it is not known how it ended. That it stands
    and how it ends is told in the journal; what a command said that gives no result is kept as a log.
    """
    driver = drivers.chosen()
    return await carry_out(dispatch, driver, Life.of(dispatch, driver.name))


async def carry_out(dispatch: Dispatch, driver: Driver, told: Told) -> EffectResult:
    """`perform` with a driver and a listener of the caller's choice."""
    command = command_of(dispatch)
    heard: list[SandboxResult] = []

    async def begin() -> None:
        await told.created()
        await dispatch.sending()

    async with _heartbeats(dispatch):
        try:
            result = await driver.run(command, before_start=begin, on_cancelled=heard.append)
        except NotSent:
            await told.ended(End("ended", "the command was not executed"))
            raise
        except SandboxCrashed as crash:
            await told.ended(End("crashed", str(crash), crash.result, crash.result.log()))
            raise
        except asyncio.CancelledError:
            await told.ended(_cancelled(heard))
            raise
        except Exception as error:
            await told.ended(End("ended", f"the command was not begun: {type(error).__name__}"))
            raise
        await told.ended(_end_of(result))
    return result_of(result, command.limits)


def _cancelled(heard: list[SandboxResult]) -> End:
    return End("killed", "cancelled", heard[0], heard[0].log()) if heard else End("killed", "cancelled")


def _end_of(result: SandboxResult) -> End:
    if result.timed_out:
        return End("killed", "time limit", result)
    if result.disk_low:
        return End("killed", "disk low", result)
    if result.out_of_memory:
        return End("killed", "out of memory", result)
    return End("ended", "exit", result)


async def probe(dispatch: Dispatch) -> ProbeAnswer:
    """Ask for what is left of the operation's sandbox. One that is not there proves nothing: it may be elsewhere."""
    driver = drivers.chosen()
    left = await driver.look(dispatch.idempotency_key)
    for _ in range(int(PROBE_WAIT_SECONDS / PROBE_POLL_SECONDS)):
        if left.state != "running":
            break
        await asyncio.sleep(PROBE_POLL_SECONDS)
        left = await driver.look(dispatch.idempotency_key)
    return answer_of(left)


def answer_of(left: Left) -> ProbeAnswer:
    """What the remains of a sandbox say about the command's effect."""
    match left.state:
        case "ended":
            assert left.result is not None
            if cut_short(left.result):
                return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail="the command was ended while it ran")
            return ProbeAnswer(verdict=ProbeVerdict.ONE, result=result_of(left.result, SandboxLimits()))
        case "never_started":
            return ProbeAnswer(verdict=ProbeVerdict.ABSENT, detail="the sandbox was made and nothing ran in it")
        case "running":
            return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail="the command still runs")
        case "killed":
            return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail="the command was killed while it ran")
        case "gone":
            return ProbeAnswer(verdict=ProbeVerdict.CANNOT_TELL, detail="nothing is left of the sandbox")


def command_of(dispatch: Dispatch) -> SandboxCommand:
    """The command that this operation is. Raises NotSent with what is wrong in the configuration or the arguments."""
    configuration = dispatch.configuration
    stdin = configuration.get("stdin")
    return SandboxCommand(
        argv=tuple(_filled(item, dispatch.arguments) for item in _strings(configuration, "argv")),
        workspace=dispatch.workspace,
        workspace_root=str(configuration.get("workspace_root") or settings.WORKSPACE_ROOT),
        operation_id=dispatch.idempotency_key,
        environment=_environment(configuration.get("environment", {})),
        stdin=b"" if stdin is None else _filled(stdin, dispatch.arguments).encode(errors="surrogatepass"),
        limits=_limits(dispatch),
        protected_names=tuple(_strings(configuration, "protected_names", [".git"])),
        demands=DEMANDS - set(_strings(configuration, "accept_missing", [])),
        attempt=dispatch.attempt,
        image=_image(configuration),
        source=settings.KERNEL_SOURCE_ID,
    )


def _strings(configuration: Mapping[str, Any], name: str, absent: Sequence[str] | None = None) -> Sequence[str]:
    value = configuration.get(name, absent)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise NotSent(f"the tool's configuration needs `{name}` as a list of strings")
    return value


def _image(configuration: Mapping[str, Any]) -> str:
    image = configuration.get("image", "")
    if not isinstance(image, str) or (image and not IMAGE.fullmatch(image)):
        raise NotSent("the tool's configuration has an `image` that is no name of an image")
    return image


def _filled(item: Any, arguments: Mapping[str, Any]) -> str:
    if not isinstance(item, str):
        raise NotSent("the tool's configuration has an item that is no string")
    if ESCAPED_ITEM.fullmatch(item):
        return item[1:-1]
    if match := PLACEHOLDER.fullmatch(item):
        return _argument(match[1], arguments)
    for name in PLACEHOLDER.findall(item):
        if name in arguments:
            raise NotSent(f"the placeholder {{{name}}} in {item!r} must be an item of its own")
    return item


def _argument(name: str, arguments: Mapping[str, Any]) -> str:
    if name not in arguments:
        raise NotSent(f"the argument {name!r} is missing")
    value = arguments[name]
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise NotSent(f"the argument {name!r} must be a string, a number or a boolean")


def _environment(variables: Any) -> dict[str, str]:
    if not isinstance(variables, Mapping) or not all(isinstance(value, str) for value in variables.values()):
        raise NotSent("the tool's configuration needs `environment` as variables with string values")
    return {str(name): value for name, value in variables.items()}


def _limits(dispatch: Dispatch) -> SandboxLimits:
    """The configured limits; the operation's own time limit and deadline win when they are shorter."""
    left = min(dispatch.timeout_seconds, (dispatch.deadline_at - clock.now()).total_seconds())
    if left <= 0:
        raise NotSent("the deadline of the operation has passed")
    try:
        limits = SandboxLimits(**dispatch.configuration.get("limits", {}))
        return limits.with_wall_seconds(min(limits.wall_seconds, left))
    except (TypeError, ValueError) as error:
        raise NotSent(f"the tool's `limits` are wrong: {error}") from error


@contextlib.asynccontextmanager
async def _heartbeats(dispatch: Dispatch) -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            dispatch.heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


def cut_short(result: SandboxResult) -> bool:
    """Whether it was not the command that ended itself."""
    return result.exit_code is None or result.timed_out or result.out_of_memory or result.disk_low


def result_of(result: SandboxResult, limits: SandboxLimits) -> EffectResult:
    """The fixed text that a model and a person read, and the same facts as fields."""
    return EffectResult(
        text=f"{_verdict(result, limits)}\n{result.log()}",
        is_error=result.exit_code != 0 or result.out_of_memory,
        cut_short=cut_short(result),
        truncated=result.truncated,
        structured={
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "out_of_memory": result.out_of_memory,
            "disk_low": result.disk_low,
            "stdout_bytes_total": result.stdout_bytes_total,
            "stderr_bytes_total": result.stderr_bytes_total,
            "seconds": round(result.seconds, 3),
            "peak_memory_bytes": result.peak_memory_bytes,
            "notes": list(result.notes),
        },
    )


def _verdict(result: SandboxResult, limits: SandboxLimits) -> str:
    if result.timed_out:
        return f"timeout after {limits.wall_seconds:g} s: the command was ended"
    if result.disk_low:
        return f"the command was ended: less than {limits.disk_free_bytes_min} bytes are left on the disk"
    if result.out_of_memory:
        return f"out of memory (limit {limits.memory_bytes} bytes), exit code: {result.exit_code}"
    return f"exit code: {result.exit_code}"
