"""Secret arguments: a word stands for the value, the same for the same, and opens at its own place alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from django.conf import settings

from kernel_project.primitives import keyring
from kernel_project.primitives.errors import Invalid
from runs.boundary import compensation, intents, objects, perform, secret_arguments
from runs.boundary.compensation_declared import Compensation
from runs.boundary.contracts import Refused
from runs.boundary.models.arguments import ArgumentsError, parse_arguments
from runs.boundary.models.contracts import ModelAnswer, ToolCall
from runs.models import Agent, AgentVersion, Operation, Run, Tool


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = keyring.Keyring({"k": b"1" * 32})
    monkeypatch.setattr(objects, "keys", lambda: ring)


def tool(name: str = "pay", **paths: Any) -> Tool:
    return Tool(name=name, exposed_name=name, input_schema={}, configuration={"secret_arguments": paths})


PIN = tool(**{"card.pin": {}})


def test_equal_values_have_equal_words_and_others_other_ones():
    one, same, other = (secret_arguments.sealed(PIN, {"card": {"pin": pin}, "to": "x"}) for pin in ("1", "1", "2"))
    assert one == same != other
    assert one["to"] == "x"
    assert one["card"]["pin"].startswith("secret:sealed:k:")
    assert secret_arguments.as_checked(PIN, one) == {"card": {"pin": "1"}, "to": "x"}
    assert secret_arguments.sealed(PIN, one) == one, "what is sealed already stays"


@pytest.mark.parametrize("value", [7, None, ["a", {"b": 1}], 'quote" and \n', ""])
def test_a_value_of_any_kind_comes_back_as_it_was(value):
    assert secret_arguments.as_checked(PIN, secret_arguments.sealed(PIN, {"card": {"pin": value}})) == {
        "card": {"pin": value}
    }


def test_a_word_opens_at_its_own_place_alone():
    word = secret_arguments.sealed(PIN, {"card": {"pin": "1234"}})["card"]["pin"]
    foreign = tool(**{"card.pin": {}})
    foreign.project_id = "another"
    for elsewhere in (tool("send", **{"card.pin": {}}), tool(note={}), foreign):
        path = next(iter(elsewhere.configuration["secret_arguments"]))
        given = {"card": {"pin": word}} if "." in path else {"note": word}
        moved = secret_arguments.sealed(elsewhere, given)
        assert word not in str(moved), "it is sealed like any other text"
        assert "1234" not in str(secret_arguments.as_checked(elsewhere, moved))


def test_an_answer_is_kept_without_what_the_model_wrote_as_secret():
    calls = (
        ToolCall(name="pay", arguments='{"card": {"pin": "98765"}}'),
        ToolCall(name="pay", arguments='{"card": {"pin": "98765"'),
        ToolCall(name="other", arguments='{"card": 1}'),
    )
    answer = ModelAnswer(text="I use 98765", calls=calls, finish_reason="tool_calls", provider="scripted")
    kept = secret_arguments.without_secrets(answer, [PIN, Tool(name="other", exposed_name="other")])
    assert "98765" not in kept.model_dump_json()
    assert kept.calls[2] == calls[2]
    read = answer.model_copy(update={"calls": calls[:1]})
    assert secret_arguments.without_secrets(read, [PIN]).text == "I use [a secret argument]"


def test_without_a_key_the_value_is_not_kept_and_the_call_says_so(monkeypatch):
    monkeypatch.setattr(objects, "keys", lambda: keyring.Keyring({}))
    kept = secret_arguments.sealed(PIN, {"card": {"pin": "98765"}})
    assert "98765" not in str(kept)
    with pytest.raises(keyring.KeyUnavailable, match="ARTIFACT_KEYS"):
        secret_arguments.as_checked(PIN, kept)


def test_a_named_value_stands_nowhere_but_in_the_environment(monkeypatch):
    named = tool(**{"auth.token": {"from_env": "SHOP_TOKEN"}})
    kept = secret_arguments.sealed(named, {"auth": {"token": "made up by the model"}})
    assert kept == secret_arguments.sealed(named, {}) == {"auth": {"token": "secret:named:auth.token"}}
    monkeypatch.setenv("SHOP_TOKEN", "t0ken")
    opened, values = secret_arguments._open_all(named, kept, secret_arguments.resolve)
    assert (opened, values) == ({"auth": {"token": "t0ken"}}, ["t0ken"])
    with pytest.raises(ValueError, match="cannot be read"):
        secret_arguments.declared({"secret_arguments": {"a": {"from_env": "no name"}}})


async def test_a_late_refusal_does_not_repeat_the_value(monkeypatch):
    settled = AsyncMock()
    monkeypatch.setattr(perform.outcomes, "settle", settled)

    async def refuses() -> Any:
        raise Refused("the PIN 98765 is not known")

    opened = secret_arguments.Opened(Mock(), ("98765",))
    await perform._take_up(asyncio.create_task(refuses()), opened)
    assert settled.call_args.args[1].message == "the PIN [a secret argument] is not known"


def undoing(tool_that_undoes: Tool, template: dict[str, Any], kept: dict[str, Any], monkeypatch: Any) -> Any:
    monkeypatch.setattr(compensation.artifacts, "read", lambda *_: json.dumps(kept).encode())
    original = Operation(tool=PIN, name="pay", result_digest="")
    return compensation._arguments(original, Compensation(tool="unpay", arguments=template), tool_that_undoes)


def test_an_undo_gets_the_secret_of_the_call_where_it_is_secret_there_too(monkeypatch):
    kept = secret_arguments.sealed(PIN, {"card": {"pin": "98765"}})
    unpay = tool("unpay", code={})
    made = undoing(unpay, {"code": "{argument:card.pin}"}, kept, monkeypatch)
    assert "98765" not in str(made)
    assert secret_arguments.as_checked(unpay, made) == {"code": "98765"}


@pytest.mark.parametrize("template", [{"note": "{argument:card.pin}"}, {"note": ["of {argument:card.pin}"]}])
def test_an_undo_that_would_send_the_word_of_a_secret_is_refused(template, monkeypatch):
    kept = secret_arguments.sealed(PIN, {"card": {"pin": "98765"}})
    with pytest.raises(Invalid, match="declare that one in secret_arguments of unpay"):
        undoing(tool("unpay", code={}), template, kept, monkeypatch)
    named = {"card": {"pin": "secret:named:card.pin"}}
    with pytest.raises(Invalid, match="needs a secret argument"):
        undoing(tool("unpay", code={}), {"code": "{argument:card.pin}"}, named, monkeypatch)


def test_a_word_whose_key_is_gone_is_no_value(monkeypatch):
    kept = secret_arguments.sealed(PIN, {"card": {"pin": "98765"}})
    monkeypatch.setattr(objects, "keys", lambda: keyring.Keyring({"other": b"2" * 32}))
    with pytest.raises(keyring.KeyUnavailable, match="'k'"):
        secret_arguments.sealed(PIN, kept)
    call = ToolCall(name="pay", arguments=json.dumps(kept))
    answer = ModelAnswer(calls=(call,), finish_reason="tool_calls", provider="scripted")
    repeated = json.loads(secret_arguments.without_secrets(answer, [PIN]).calls[0].arguments)
    with pytest.raises(keyring.KeyUnavailable, match="ARTIFACT_KEYS"):
        secret_arguments.as_checked(PIN, secret_arguments.sealed(PIN, repeated))


def test_a_twin_is_known_after_the_keys_were_changed(monkeypatch, tmp_path):
    """Also once the older key is gone."""
    monkeypatch.setattr(settings, "ARTIFACT_URL", tmp_path.as_uri())
    objects.store.cache_clear()
    digests = set()
    for ring in ({"k": b"1" * 32}, {"new": b"2" * 32, "k": b"1" * 32}, {"new": b"2" * 32}):
        monkeypatch.setattr(objects, "keys", lambda ring=ring: keyring.Keyring(ring))
        objects._alike_key.cache_clear()
        configured = {**PIN.configuration, "unique_by": ["card.pin"]}
        pay = Tool(name="pay", exposed_name="pay", input_schema={}, kind="python", configuration=configured)
        wanted = [intents.Wanted("pay", {"card": {"pin": pin}}) for pin in ("98765", "11111")]
        run = Run(agent_version=AgentVersion(agent=Agent(name="a")))
        one, other = [draft.operation for draft in intents.draft(run, 1, wanted, [pay])]
        assert one.state == "proposed", one.error_message
        assert (one.call_digest, one.unique_key) != (other.call_digest, other.unique_key)
        digests.add((one.call_digest, one.unique_key))
        objects.reseal(objects.ALIKE)
    objects.store.cache_clear()
    assert len(digests) == 1


def test_another_call_that_repeats_the_value_is_not_kept_and_not_made():
    calls = (
        ToolCall(name="mail", arguments='{"text": "it is 98765"}'),
        ToolCall(name="pay", arguments='{"card": {"pin": "98765"}}'),
    )
    answer = ModelAnswer(text="", calls=calls, finish_reason="tool_calls", provider="scripted")
    kept = secret_arguments.without_secrets(answer, [PIN])
    assert "98765" not in kept.model_dump_json()
    assert isinstance(parse_arguments(kept.calls[0].arguments), ArgumentsError), "it is refused, not sent altered"


def test_text_beside_arguments_that_cannot_be_read_is_not_kept():
    call = ToolCall(name="pay", arguments='{"card": {"pin": "98765"')
    answer = ModelAnswer(text="I use 98765", calls=(call,), finish_reason="tool_calls", provider="scripted")
    assert "98765" not in secret_arguments.without_secrets(answer, [PIN]).model_dump_json()
