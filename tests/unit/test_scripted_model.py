"""The `scripted:` provider answers from a file, the same for the same history, and says that it is a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernel_project.primitives.errors import Invalid, NotFound
from runs.boundary.models import (
    AssistantMessage,
    Message,
    ModelAnswer,
    ModelError,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
    ask,
    check_model,
    script_files,
)
from tests.fakes.model_requests import question

TURNS = """
- text: "I look for {input} in {workspace}."
  calls:
    - {tool: search, arguments: {q: "{input}", deep: ["{turn}", 1, {a: "{workspace}/x"}]}}
    - {tool: search, arguments: '{"q": "a" "b"}', id: dup}
  usage: {input_tokens: 7}
- text: "First {result:0.1}, then {result:0.2}, at last {result:last}."
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNEL_SCRIPTS", str(tmp_path / "scripts"))
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "turns.yaml").write_text(TURNS)
    return tmp_path / "scripts"


def write(folder: Path, text: str) -> None:
    (folder / "turns.yaml").write_text(text)


def answered(turns: int) -> tuple[Message, ...]:
    """A history in which so many turns, of two calls each, have been answered."""
    messages: list[Message] = [UserMessage(text="gold")]
    for turn in range(turns):
        calls = tuple(ToolCall(id=f"c{position}", name="search") for position in (1, 2))
        results = [ToolMessage(call_id=call.id, name="search", text=f"r{turn}.{call.id[1]}") for call in calls]
        messages += [AssistantMessage(calls=calls), *results]
    return tuple(messages)


async def turn(number: int, **changes: Any) -> ModelAnswer:
    changes = {"messages": answered(number), "context": {"workspace": "/w"}} | changes
    return await ask(question(**changes))


async def fail(number: int = 0, **changes: Any) -> ModelError:
    with pytest.raises(ModelError) as failed:
        await turn(number, **changes)
    return failed.value


async def test_a_turn_has_text_and_calls() -> None:
    answer = await turn(0)
    assert answer.text == "I look for gold in /w."
    first, second = answer.calls
    assert json.loads(first.arguments) == {"q": "gold", "deep": ["0", 1, {"a": "/w/x"}]}
    assert (first.id, second.id, second.arguments) == ("call_0_1", "dup", '{"q": "a" "b"}')
    assert (answer.finish_reason, answer.usage) == ("tool_calls", Usage(input_tokens=7))


async def test_it_is_never_presented_as_a_real_model() -> None:
    answer = await turn(0)
    assert (answer.provider, answer.model, answer.response_id) == ("scripted", "scripted:turns.yaml", "scripted-0")


async def test_results_of_the_run_are_put_in() -> None:
    answer = await turn(1)
    assert answer.text == "First r0.1, then r0.2, at last r0.2."
    assert answer.finish_reason == "stop"


async def test_what_is_put_in_is_not_looked_at_again() -> None:
    assert (await turn(0, messages=(UserMessage(text="{workspace}"),))).text == "I look for {workspace} in /w."


async def test_braces_that_are_no_placeholder_stay(folder: Path) -> None:
    write(folder, "- text: 'awk {print} ${x} {other} {input:x}'")
    assert (await turn(0)).text == "awk {print} ${x} {other} {input:x}"


async def test_the_same_history_gets_the_same_answer() -> None:
    answers = [(await turn(1)).model_copy(update={"seconds": 0.0}) for _ in range(2)]
    assert answers[0] == answers[1]


async def test_a_result_that_does_not_exist_is_a_clear_error(folder: Path) -> None:
    write(folder, "- text: '{result:4.2}'")
    assert "{result:4.2}" in (await fail()).message


async def test_after_the_last_turn_the_script_says_so() -> None:
    error = await fail(2)
    assert (error.code, error.retryable) == ("rejected", False)
    assert error.message == "turns.yaml has 2 turns, and the run asks for one more"


async def test_repeat_makes_long_runs(folder: Path) -> None:
    write(folder, "- {repeat: 10, calls: [{tool: search, arguments: {q: '{turn}'}}]}\n- text: done")
    assert [(await turn(number)).calls[0].arguments for number in (0, 9)] == ['{"q": "0"}', '{"q": "9"}']
    assert (await turn(10)).text == "done"


async def test_without_tools_nothing_is_called() -> None:
    answer = await turn(0, tools=())
    assert (answer.calls, answer.finish_reason) == ((), "stop")


async def test_an_alternative_is_chosen_by_the_newest_message(folder: Path) -> None:
    write(folder, "- any_of: [{when: silver, text: not yet}, {when: gold, text: yes it is}]")
    assert (await turn(0)).text == "yes it is"
    assert "no alternative" in (await fail(messages=(UserMessage(text="tin"),))).message


async def test_an_expectation_that_fails_is_told(folder: Path) -> None:
    write(folder, "- {expect: silver, text: found}")
    assert "turn 0 expects 'silver'" in (await fail()).message


async def test_an_error_can_pass_after_some_attempts(folder: Path) -> None:
    write(folder, "- {text: at last, error: {code: rate_limited, retry_after: 2, attempts: 2}}")
    error = await fail(attempt=2)
    assert (error.code, error.retryable, error.retry_after_seconds) == ("rate_limited", True, 2)
    assert (await turn(0, attempt=3)).text == "at last"


async def test_a_delay_beyond_the_time_limit_is_a_timeout(folder: Path) -> None:
    write(folder, "- {text: late, delay_seconds: 60}")
    assert (await fail(timeout_seconds=0.05)).code == "timeout"


@pytest.mark.parametrize("reason", ["length", "content_filter", "refusal", "unknown"])
async def test_odd_endings_can_be_ordered(reason: str, folder: Path) -> None:
    write(folder, f"- {{finish_reason: {reason}, calls: [{{tool: search}}]}}")
    answer = await turn(0)
    assert (answer.finish_reason, answer.calls[0].arguments) == (reason, "{}")


async def test_a_changed_file_is_read_again(folder: Path) -> None:
    await turn(0)
    write(folder, "- text: changed")
    assert (await turn(0)).text == "changed"


async def test_json_is_read_too(folder: Path) -> None:
    (folder / "turns.json").write_text(json.dumps({"turns": [{"text": "from json"}]}))
    assert (await turn(0, model="scripted:turns.json")).text == "from json"


async def test_dates_stay_text(folder: Path) -> None:
    write(folder, "- calls: [{tool: search, arguments: {day: 2026-01-01}}]")
    assert (await turn(0)).calls[0].arguments == '{"day": "2026-01-01"}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- text: a\n- text: [", "turns.yaml:2:"),
        ("- text: a\n- txt: b", "turns.yaml:2: 1.txt: Extra inputs"),
        ("- text: a\n- calls:\n  - tool: x\n  - {arguments: {}}", "turns.yaml:4: 1.calls.1.tool: Field required"),
        ("turns:\n- error: {code: tired}", "turns.yaml:2: turns.0.error.code"),
        ("- &a {text: x}\n- *a", "turns.yaml:2: aliases are not allowed"),
        ("- text: a\n  text: b", "turns.yaml:2: a key occurs twice"),
        ("- {repeat: 1000000, text: a}", "turns.yaml:1: 0.repeat"),
        ("- calls: [{tool: x, arguments: !!binary aGk=}]", "turns.yaml:1: could not determine a constructor"),
        ("- !!python/object/apply:os.system [id]", "turns.yaml:1:"),
        ("[]", "turns.yaml:1: turns"),
        ("", "turns.yaml:1: script"),
        ("\x00", "turns.yaml:1: this is neither YAML nor JSON"),
        ("[" * 5000, "turns.yaml:1:"),
    ],
)
async def test_a_bad_script_is_told_by_file_and_line(text: str, said: str, folder: Path) -> None:
    write(folder, text)
    with pytest.raises(Invalid) as refused:
        check_model("scripted:turns.yaml")
    assert said in refused.value.message
    assert (await fail()).code == "rejected"


def test_an_error_never_quotes_the_file(folder: Path) -> None:
    write(folder, "SECRET=canary\n- [canary")
    with pytest.raises(Invalid) as refused:
        check_model("scripted:turns.yaml")
    assert "canary" not in refused.value.message


def test_a_script_has_a_size_limit(folder: Path) -> None:
    write(folder, "# " + "x" * script_files.SCRIPT_BYTES_MAX)
    with pytest.raises(Invalid, match="bytes"):
        check_model("scripted:turns.yaml")


@pytest.mark.parametrize(
    "name",
    [
        "missing.yaml",
        "../outside.yaml",
        "/etc/passwd",
        "link.yaml",
        ".",
        "turns.yaml\x00",
        "turns.txt",
        "var/outside.yaml",
        ".git/config",
        "x" * 5000 + ".yaml",
    ],
)
async def test_no_file_outside_can_be_read(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "outside.yaml").write_text("- text: canary")
    (folder / "link.yaml").symlink_to(folder.parent / "outside.yaml")
    project = folder.parent / "project"
    (project / "var").mkdir(parents=True)
    (project / "var" / "outside.yaml").write_text("- text: canary")
    monkeypatch.setattr(script_files, "PROJECT", project)
    error = await fail(model=f"scripted:{name}")
    assert error.code == "not_found"
    assert "there is no script" in error.message


def test_a_script_of_the_project_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_files, "PROJECT", folder.parent)
    (folder.parent / "agents").mkdir()
    (folder.parent / "agents" / "demo.yaml").write_text("- text: hello")
    check_model("scripted:agents/demo.yaml")


def test_a_saved_agent_is_told_about_its_model() -> None:
    with pytest.raises(NotFound, match="missing"):
        check_model("scripted:missing.yaml")
    with pytest.raises(Invalid, match="base_url"):
        check_model("openai:gpt-some", "ftp://host")
    with pytest.raises(Invalid, match="openai:NAME"):
        check_model("gpt-some")


def test_a_scripted_run_never_loads_a_model_library() -> None:
    heavy = "{'pydantic_ai', 'openai', 'anthropic', 'httpx2'}"
    code = f"import sys, runs.boundary.models; sys.exit(bool({heavy} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)
