"""The `scripted:` provider: answers from a file, the same for the same history. Never presented as a real model."""

from __future__ import annotations

import asyncio
import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from kernel_project.primitives.errors import Invalid, NotFound
from runs.boundary import live
from runs.boundary.models.contracts import (
    AssistantMessage,
    FinishReason,
    ModelAnswer,
    ModelRequest,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from runs.boundary.models.errors import RETRY_AFTER_SECONDS_MAX, ModelError
from runs.boundary.models.script_files import Script, ScriptedError, ScriptedTurn, cached, load

PROVIDER = "scripted"
WORDS_SPOKEN_MAX = 1_000
WITHOUT_TOOLS = "(script: no tools are offered for this turn)"
_PLACEHOLDER = re.compile(r"\{([a-z_]{1,40})(?::([^{}\s]{1,40}))?\}")


async def ask(request: ModelRequest, name: str) -> ModelAnswer:
    """Answer with the turn whose number is the count of assistant messages, so that a repeat gets the same answer.

    Raises ModelError: what the script orders, `not_found` and `rejected` for a script that is missing or wrong.
    """
    started = time.monotonic()
    turn, number = _pick(request, await _script(name), name)
    heard = live.listener()
    if heard is not None and turn.text and not turn.error:
        await _speak(_filler(request, name, number)(turn.text), heard, turn.delay_seconds, request.timeout_seconds)
    else:
        await _delay(turn.delay_seconds, request.timeout_seconds)
    if turn.error and (turn.error.attempts is None or request.attempt <= turn.error.attempts):
        raise _error(turn.error)
    return _answer(request, name, turn, number, time.monotonic() - started)


async def _speak(text: str, heard: Callable[[str], None], seconds: float, timeout_seconds: float) -> None:
    """Say the text word by word over the turn's delay, as a model that streams does."""
    words = re.findall(r"\S+\s*|\s+", text)[:WORDS_SPOKEN_MAX]
    for word in words:
        heard(word)
        await _delay(seconds / len(words), timeout_seconds / len(words))


def check(name: str) -> None:
    """Read the script and say what is wrong with it. Raises Invalid or NotFound."""
    load(name)


async def _script(name: str) -> Script:
    try:
        script = cached(name)
        return await asyncio.to_thread(load, name) if script is None else script
    except NotFound as error:
        raise ModelError("not_found", error.message) from None
    except Invalid as error:
        raise ModelError("rejected", error.message) from None
    except OSError as error:
        raise ModelError("not_found", f"the script cannot be read: {error.strerror}") from None


def _pick(request: ModelRequest, script: Script, name: str) -> tuple[ScriptedTurn, int]:
    number = sum(isinstance(message, AssistantMessage) for message in request.messages)
    if number >= script.ends[-1]:
        raise ModelError("rejected", f"{name} has {script.ends[-1]} turns, and the run asks for one more")
    newest = request.messages[-1].text if request.messages else ""
    for turn in script.turns[bisect_right(script.ends, number)].any_of:
        if turn.when is None or turn.when in newest:
            return _expected(turn, newest, name, number), number
    raise ModelError("rejected", f"{name}: no alternative of turn {number} fits the newest message")


def _expected(turn: ScriptedTurn, newest: str, name: str, number: int) -> ScriptedTurn:
    if turn.expect is not None and turn.expect not in newest:
        raise ModelError("rejected", f"{name}: turn {number} expects {turn.expect!r} in the newest message")
    return turn


async def _delay(seconds: float, timeout_seconds: float) -> None:
    if seconds >= timeout_seconds:
        await asyncio.sleep(timeout_seconds)
        raise ModelError("timeout", f"the model did not answer within {timeout_seconds:g} s", may_have_acted=True)
    if seconds:
        await asyncio.sleep(seconds)


def _error(error: ScriptedError) -> ModelError:
    wait = None if error.retry_after is None else min(error.retry_after, RETRY_AFTER_SECONDS_MAX)
    return ModelError(error.code, error.message, retry_after_seconds=wait)


def _answer(request: ModelRequest, name: str, turn: ScriptedTurn, number: int, seconds: float) -> ModelAnswer:
    fill = _filler(request, name, number)
    calls = tuple(
        ToolCall(
            id=f"call_{number}_{position}" if call.id is None else call.id,
            name=fill(call.tool),
            arguments=fill(call.arguments) if isinstance(call.arguments, str) else _object(call.arguments, fill),
        )
        for position, call in enumerate(turn.calls, start=1)
    )
    text = fill(turn.text)
    if calls and not request.tools:  # as with a real model, no tool can be called that is not offered
        calls, text = (), text or WITHOUT_TOOLS
    ended: FinishReason = "tool_calls" if calls else "stop"
    asked = turn.finish_reason
    return ModelAnswer(
        text=text,
        calls=calls,
        finish_reason=ended if asked is None or (asked == "tool_calls" and not calls) else asked,
        usage=turn.usage,
        provider=PROVIDER,
        model=f"{PROVIDER}:{name}",
        response_id=f"scripted-{number}",
        seconds=seconds,
    )


def _object(arguments: dict[str, Any], fill: Callable[[str], str]) -> str:
    return json.dumps(_filled(arguments, fill), ensure_ascii=False)


def _filled(value: Any, fill: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return fill(value)
    if isinstance(value, dict):
        return {key: _filled(member, fill) for key, member in value.items()}
    return [_filled(member, fill) for member in value] if isinstance(value, list) else value


def _filler(request: ModelRequest, name: str, number: int) -> Callable[[str], str]:
    """Replaces `{input}`, `{turn}`, `{result:TURN.POSITION}`, `{result:last}` and the keys of the request's context.

    What is put in is not looked at again, and braces that are no placeholder stay as they are.
    """

    def replace(match: re.Match[str]) -> str:
        word, detail = match[1], match[2]
        if word == "result" and detail:
            return _result(request, detail, f"{name}: turn {number}")
        if detail is None and word == "input":
            return next((message.text for message in request.messages if isinstance(message, UserMessage)), "")
        if detail is None and word == "turn":
            return str(number)
        return request.context.get(word, match[0]) if detail is None else match[0]

    return lambda text: _PLACEHOLDER.sub(replace, text) if "{" in text else text


def _result(request: ModelRequest, detail: str, where: str) -> str:
    """The text of a tool's result: turns count from 0 and the calls of a turn from 1, as in an operation's identity."""
    turn, position, newest = -1, 0, None
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            turn, position = turn + 1, 0
        elif isinstance(message, ToolMessage):
            position, newest = position + 1, message.text
            if detail == f"{turn}.{position}":
                return message.text
    if detail == "last" and newest is not None:
        return newest
    raise ModelError("rejected", f"{where} uses {{result:{detail}}}, and there is no such result")
