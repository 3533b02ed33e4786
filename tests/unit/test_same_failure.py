"""The same call that fails the same way is counted as the same, whatever key is written into its arguments."""

from __future__ import annotations

from runs.loop.turns import _fingerprint
from runs.models import Operation


def failed(**facts: str) -> str:
    known = {"name": "commit", "arguments_digest": "a" * 64, "call_digest": "c" * 64, "error_class": "Boom"}
    return _fingerprint(Operation(**known | facts))


def test_a_key_in_the_arguments_does_not_make_it_another_call():
    assert failed() == failed(arguments_digest="b" * 64)


def test_other_arguments_of_the_model_do():
    assert failed() != failed(call_digest="d" * 64)


def test_a_call_that_could_not_be_read_is_told_apart_by_what_stands_in_its_row():
    assert failed(call_digest="") != failed(call_digest="", arguments_digest="b" * 64)
