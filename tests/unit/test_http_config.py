"""The declaration of an HTTP tool: every mistake a sentence, and no argument that leads elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from runs.boundary.contracts import NotSent
from runs.boundary.http_config import HttpProbe, HttpRequest, address, header_values
from runs.boundary.mcp_config import FromEnv
from runs.boundary.placeholders import Values

GOOD: dict[str, Any] = {"method": "POST", "url": "https://pay.example/v1/orders/{argument:order}/refunds"}


def values(**arguments: Any) -> Values:
    return Values("op-1", arguments, "/workspace")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"url": "ftp://pay.example/"}, "http://"),
        ({"url": "https://{argument:host}/x"}, "not in the host"),
        ({"url": "https://pay.{argument:tld}/x"}, "not in the host"),
        ({"url": "https://user:pw@pay.example/"}, "no user or password"),
        ({"url": "https://pay.example:99999/"}, "not a URL"),
        ({"url": "https:///path"}, "name a host"),
        ({"url": "https://pay.example/a b"}, "without spaces"),
        ({"url": "https://päy.example/"}, "ASCII"),
        ({"url": "https://pay.example/#part"}, "fragment"),
        ({"url": "https://pay.example/{result:id}"}, "compensation only"),
        ({"method": "TRACE"}, "method"),
        ({"method": "GET", "body": {}}, "takes no body"),
        ({"headers": {"Authorization": "Bearer abc"}}, "from_env"),
        ({"headers": {"X-Api-Key": "abc"}}, "from_env"),
        ({"headers": {"Cookie": "a=b"}}, "from_env"),
        ({"headers": {"Host": "other"}}, "kernel itself"),
        ({"headers": {"Content-Length": "3"}}, "kernel itself"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "kernel itself"),
        ({"headers": {"X": "a\r\nY: b"}}, "printable"),
        ({"headers": {"X Y": "a"}}, "no name of an HTTP header"),
        ({"headers": {"idempotency-key": "mine"}}, "filled in by the kernel"),
        ({"key_header": "Host"}, "kernel writes itself"),
        ({"key_header": "a b"}, "no name"),
        ({"query": {"api_key": "abc"}}, "looks like a secret"),
        ({"query": {"q": ["a"]}}, "one value"),
        ({"body": ["a"], "body_type": "form"}, "fields"),
        ({"body": {"a": {}}, "body_type": "form"}, "one value each"),
        ({"body": {"a": 1}, "body_type": "text"}, "must be a text"),
        ({"private_hosts": ["*"]}, "no host's name"),
        ({"redirects_max": 99}, "redirects_max"),
        ({"refused_statuses": [200]}, "refused_statuses"),
        ({"response_bytes_max": 10**9}, "response_bytes_max"),
        ({"urll": "x"}, "urll"),
    ],
)
def test_a_mistake_is_named(change, says):
    with pytest.raises(ValidationError, match=says):
        HttpRequest.model_validate(GOOD | change)


@pytest.mark.parametrize(
    "probe",
    [
        {"url": "https://a.example"},
        {"url": "https://{argument:x}/", "absent_statuses": [404]},
        {"url": "https://a.example", "found_when": {"regex": "("}},
        {"url": "https://a.example", "absent_statuses": [200]},
    ],
)
def test_a_look_up_that_could_prove_nothing_is_refused(probe):
    with pytest.raises(ValidationError):
        HttpProbe.model_validate(probe)


def test_arguments_are_quoted_for_their_place():
    filled = address(
        GOOD["url"] + "?a={argument:note}", {"b": "{argument:note}", "c": "{argument:none?}"},
        values(order="1/admin?x=1#y", note="ä&b=c d"),
    )  # fmt: skip
    assert filled == (
        "https://pay.example/v1/orders/1%2Fadmin%3Fx%3D1%23y/refunds?a=%C3%A4%26b%3Dc%20d&b=%C3%A4%26b%3Dc%20d"
    )


@pytest.mark.parametrize("order", ["", ".", "..", "1/../../admin", "..\\x"])
def test_an_argument_that_would_lead_to_another_resource_is_not_sent(order):
    with pytest.raises(NotSent, match="cannot stand"):
        address(GOOD["url"], {}, values(order=order))


def test_a_missing_argument_a_half_character_and_an_endless_address_are_not_sent():
    for given in ({}, {"order": "\ud800"}, {"order": "x" * 9_000}):
        with pytest.raises(NotSent):
            address(GOOD["url"], {}, values(**given))


def test_numbers_and_flags_are_written_as_json_does():
    assert address("http://a.example/{argument:n}/{argument:yes}", {}, values(n=10**20, yes=True)).endswith(
        "/100000000000000000000/true"
    )


def test_a_secret_is_read_at_use_and_its_place_is_named_when_it_is_missing(monkeypatch):
    declared = {"Authorization": FromEnv(from_env="PAY_TOKEN"), "X-Plain": "a"}
    with pytest.raises(NotSent, match="PAY_TOKEN is not set"):
        header_values(declared)
    monkeypatch.setenv("PAY_TOKEN", "Bearer secret-token")
    assert header_values(declared) == (
        {"Authorization": "Bearer secret-token", "X-Plain": "a"}, ("Bearer secret-token",)
    )  # fmt: skip


def test_a_secret_that_no_header_can_hold_is_not_shown(monkeypatch):
    monkeypatch.setenv("PAY_TOKEN", "geheim-ß")
    with pytest.raises(NotSent) as error:
        header_values({"Authorization": FromEnv(from_env="PAY_TOKEN")})
    assert "geheim" not in str(error.value)
