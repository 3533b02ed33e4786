"""What an HTTP answer becomes, whatever it holds; and what a look-up proves."""

from __future__ import annotations

import httpx2
import pytest

from runs.boundary.contracts import ProbeVerdict
from runs.boundary.effects.http import verdict
from runs.boundary.http_config import HttpProbe
from runs.boundary.http_exchange import Answered
from runs.boundary.http_results import effect_result
from runs.boundary.placeholders import Values

JSON = "application/json"
KEY = "6f1c2f0e-1111-5222-8333-444455556666"


def answered(body: bytes, content_type: str = JSON, status: int = 200, **more) -> Answered:
    headers = {"content-type": content_type} | more.pop("headers", {})
    return Answered(status, httpx2.Headers(headers), body, **more)


def test_json_is_kept_as_text_and_as_a_value():
    result = effect_result(answered(b'{"id": 10000000000000000000000, "n": null}'))
    assert (result.text, result.structured) == ('{"id": 10000000000000000000000, "n": null}', {"id": 10**22, "n": None})
    assert (result.invalid, result.is_error, result.media_type) == ("", False, JSON)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (answered(b"{"), "is not"),
        (answered(b"[" * 100_000), "is not"),
        (answered(b"9" * 5_000), "is not"),
        (answered(b"caf\xe9", "text/plain"), "no utf-8"),
        (answered(b"\xff\xfe", "text/plain; charset=punycode"), "no utf-8"),
        (answered(b"zip", headers={"content-encoding": "gzip"}), "compressed unasked"),
        (answered(b'{"a": 1', broken="the answer broke off: ReadError"), "broke off"),
    ],
)
def test_what_cannot_be_read_is_marked_and_never_raises(given, says):
    result = effect_result(given)
    assert says in result.invalid
    assert result.text
    assert result.structured is None


def test_a_cut_answer_is_cut_between_characters_and_has_no_value():
    result = effect_result(answered("ä".encode()[:1] and "{ä".encode()[:-1], "text/plain", cut=True))
    assert (result.text, result.truncated, result.invalid) == ("{", True, "")


def test_bytes_are_named_and_an_empty_answer_says_so():
    assert "image/png, 3 bytes, sha256" in effect_result(answered(b"\x89PN", "image/png")).text
    assert effect_result(answered(b"", "")).text == "HTTP status 200 without a body"
    assert effect_result(answered(b"\x00\xff", "")).text.startswith("[bytes, 2 bytes")


def test_other_charsets_that_are_usual_are_read():
    assert effect_result(answered(b"caf\xe9", "text/plain; charset=ISO-8859-1")).text == "café"


@pytest.mark.parametrize(
    "body", [b'{"token": "Bearer secret/token"}', b'"secret/token"', b'"secret\\/token"', b'["s\\u0065cret/token"]']
)
def test_a_secret_that_the_server_repeats_is_not_kept(body):
    result = effect_result(answered(body), ("Bearer secret/token",))
    assert "secret" not in result.text.replace("[secret]", "")
    assert "secret/token" not in str(result.structured)


LISTED = {"url": "https://a.example/refunds", "found_when": {"contains": '"{operation_id}"'}}
SINGLE = {"url": "https://a.example/refunds/{operation_id}", "absent_statuses": [404]}


@pytest.mark.parametrize(
    ("declared", "given", "expected"),
    [
        (LISTED, answered(f'["{KEY}"]'.encode()), ProbeVerdict.ONE),
        (LISTED, answered(f'["{KEY}", "{KEY}"]'.encode()), ProbeVerdict.MANY),
        (LISTED, answered(b"[]"), ProbeVerdict.ABSENT),
        (LISTED, answered(b"[]", cut=True), ProbeVerdict.CANNOT_TELL),
        (LISTED, answered(b"[", broken="the answer broke off"), ProbeVerdict.CANNOT_TELL),
        (LISTED, answered(b"{", JSON), ProbeVerdict.CANNOT_TELL),
        (LISTED, answered(b"", headers={"content-encoding": "gzip"}), ProbeVerdict.CANNOT_TELL),
        (LISTED, answered(b"[]", status=404), ProbeVerdict.CANNOT_TELL),
        (LISTED, answered(b"[]", status=500), ProbeVerdict.CANNOT_TELL),
        (LISTED, answered(b"[]", status=302), ProbeVerdict.CANNOT_TELL),
        (LISTED | {"covers": {"entry": "x", "entries_max": 2}}, answered(b'["x", "x"]'), ProbeVerdict.CANNOT_TELL),
        (SINGLE, answered(b"{}"), ProbeVerdict.ONE),
        (SINGLE, answered(b"{}", status=404), ProbeVerdict.ABSENT),
        (SINGLE, answered(b"{}", status=403), ProbeVerdict.CANNOT_TELL),
        (SINGLE, answered(b"{}", status=410), ProbeVerdict.CANNOT_TELL),
    ],
)
def test_what_a_look_up_proves(declared, given, expected):
    assert verdict(HttpProbe.model_validate(declared), given, Values(KEY)).verdict is expected


def test_what_was_found_is_taken_for_the_result():
    found = verdict(HttpProbe.model_validate(SINGLE), answered(b'{"refund": 7}'), Values(KEY)).result
    assert found is not None
    assert (found.structured, '"refund": 7' in found.text) == ({"refund": 7}, True)
