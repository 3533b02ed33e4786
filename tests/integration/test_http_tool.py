"""HTTP tools against a real server: what is sent, what each failure becomes, and where nothing is ever sent."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kernel_project.primitives import clock
from runs.boundary import http_exchange
from runs.boundary.contracts import Dispatch, EffectResult, NotSent, ProbeVerdict, Refused
from runs.boundary.effects import http
from runs.boundary.http_exchange import CallTimedOut, ConnectionLost, RedirectFailed, Unclear
from tests.fakes.http_api import Api, Handler, http_api

HERE = ["127.0.0.1"]
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def api() -> Iterator[Api]:
    with http_api() as served:
        yield served


class Marks:
    """What the kernel is told before the first byte, and what the server had seen by then."""

    def __init__(self, api: Api | None = None) -> None:
        self.api, self.seen_then = api, []

    async def sending(self) -> None:
        self.seen_then.append(len(self.api.seen) if self.api else 0)


def dispatch(
    url: str, *, method: str = "POST", effect: str = "write", seconds: float = 10, arguments: Any = None,
    marks: Marks | None = None, probe: Any = None, private_hosts: Any = HERE, **request: Any,
) -> Dispatch:  # fmt: skip
    declared = {"method": method, "url": url, "private_hosts": private_hosts, **request}
    return Dispatch(
        operation_id=uuid4(),
        run_id=uuid4(),
        project_id="test",
        attempt=1,
        tool="refund",
        arguments=arguments or {},
        configuration={"request": declared, "effect": effect, "probe": probe},
        timeout_seconds=seconds,
        deadline_at=clock.now() + timedelta(seconds=seconds),
        workspace="",
        sending=(marks or Marks()).sending,
    )


async def answers(handler_plan: Any, api: Api, **declared: Any) -> EffectResult:
    api.plan = handler_plan
    return await http.perform(dispatch(api.url("/x"), **declared))


def says(status: int, body: Any = b"", **headers: str) -> Any:
    return lambda handler: handler.answer(status, body, **headers)


async def test_the_request_is_the_declared_one_with_the_operations_key(api, monkeypatch):
    monkeypatch.setenv("PAY_TOKEN", "Bearer canary-token")
    call = dispatch(
        api.url("/orders/{argument:order}/refunds?full={argument:full}"),
        headers={"Authorization": {"from_env": "PAY_TOKEN"}, "X-Team": "billing"},
        body={"amount": "{argument:amount}", "reference": "{operation_id}", "note": "{argument:note?}"},
        arguments={"order": "A/7", "full": True, "amount": 12.5},
    )
    result = await http.perform(call)
    [seen] = api.seen
    assert (seen.method, seen.path) == ("POST", "/orders/A%2F7/refunds?full=true")
    assert json.loads(seen.body) == {"amount": 12.5, "reference": call.idempotency_key}
    assert seen.headers["idempotency-key"] == call.idempotency_key
    assert (seen.headers["authorization"], seen.headers["x-team"]) == ("Bearer canary-token", "billing")
    assert (seen.headers["host"], seen.headers["content-type"]) == (f"127.0.0.1:{api.port}", "application/json")
    assert (result.structured, result.is_error) == ({"id": 1}, False)


@pytest.mark.parametrize(
    ("declared", "sent", "content_type"),
    [
        ({"body": {"a": "{argument:x}", "b": 1}, "body_type": "form"}, "a=1%262&b=1", FORM),
        ({"body": "<x>{argument:x}</x>", "body_type": "text"}, "<x>1&2</x>", "text/plain; charset=utf-8"),
        ({"body": "{arguments}"}, '{"x":"1&2"}', "application/json"),
        ({"body": "{arguments}", "headers": {"Content-Type": "text/x+json"}}, '{"x":"1&2"}', "text/x+json"),
    ],
)  # fmt: skip
async def test_bodies_of_each_type(api, declared, sent, content_type):
    await http.perform(dispatch(api.url(), arguments={"x": "1&2"}, **declared))
    assert (api.seen[0].body, api.seen[0].headers["content-type"]) == (sent, content_type)


async def test_a_post_without_a_body_and_a_key_under_another_name(api):
    call = dispatch(api.url(), key_header="X-Request-Id")
    await http.perform(call)
    assert api.seen[0].headers["content-length"] == "0"
    assert api.seen[0].headers["x-request-id"] == call.idempotency_key
    assert "idempotency-key" not in api.seen[0].headers


async def test_the_mark_is_set_once_with_a_connection_and_before_the_first_byte(api):
    marks = Marks(api)
    await http.perform(dispatch(api.url(), marks=marks))
    assert (marks.seen_then, len(api.seen)) == ([0], 1)


async def test_a_mark_that_fails_keeps_the_call_here(api):
    marks = Marks()

    async def stopped() -> None:
        raise NotSent("the run was asked to stop")

    marks.sending = stopped  # type: ignore[method-assign]
    with pytest.raises(NotSent, match="asked to stop"):
        await http.perform(dispatch(api.url(), marks=marks))
    assert api.seen == []


async def test_what_never_left_is_not_sent_and_not_marked(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    marks = Marks()
    for url, more in (
        (f"http://127.0.0.1:{port}/", {}),
        ("http://no-such-host.invalid/", {}),
        (f"http://127.0.0.1:{port}/", {"headers": {"Authorization": {"from_env": "NOT_SET_ANYWHERE"}}}),
        (f"http://127.0.0.1:{port}/{{argument:gone}}", {}),
        (f"https://127.0.0.1:{port}/", {"tls_ca_file": "/no/such/file"}),
    ):
        with pytest.raises(NotSent):
            await http.perform(dispatch(url, marks=marks, **more))
    with pytest.raises(NotSent, match="deadline"):
        await http.perform(dispatch(f"http://127.0.0.1:{port}/", seconds=0, marks=marks))
    assert marks.seen_then == []


async def test_plain_http_where_tls_was_declared_is_not_sent(api):
    with pytest.raises(NotSent):
        await http.perform(dispatch(f"https://127.0.0.1:{api.port}/"))
    assert api.seen == []


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
async def test_a_private_target_that_is_not_named_gets_nothing(api, host):
    marks = Marks()
    with pytest.raises(NotSent, match="private_hosts"):
        await http.perform(dispatch(api.url(host=host), private_hosts=[], marks=marks))
    assert (api.seen, marks.seen_then) == ([], [])


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 429])
async def test_a_request_that_was_rejected_had_no_effect(api, status):
    with pytest.raises(Refused, match=f"HTTP status {status}: .*no such order"):
        await answers(says(status, {"error": "no such order"}), api)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 408, 409, 423, 425, 500, 501, 502, 503, 504])
async def test_an_answer_that_does_not_tell_is_unclear(api, status):
    with pytest.raises(Unclear, match=f"HTTP status {status}"):
        await answers(says(status, {"error": "?"}), api)


async def test_an_operator_may_say_that_a_status_means_rejected(api):
    with pytest.raises(Refused):
        await answers(says(409, {"error": "version conflict"}), api, refused_statuses=[409])


async def test_no_answer_in_time_is_unclear(api):
    with pytest.raises(CallTimedOut):
        await answers(Handler.hold, api, seconds=0.5)
    assert len(api.seen) == 1


def lost(handler: Handler) -> None:
    handler.act()
    handler.break_off()


def garbage(handler: Handler) -> None:
    handler.act()
    handler.wfile.write(b"this is no HTTP\r\n\r\n")
    handler.break_off()


@pytest.mark.parametrize("plan", [lost, garbage])
async def test_a_connection_that_breaks_after_the_effect_is_unclear_and_nothing_is_sent_again(api, plan):
    with pytest.raises(ConnectionLost):
        await answers(plan, api)
    assert (len(api.seen), len(api.effects)) == (1, 1)


def half(handler: Handler) -> None:
    handler.act()
    handler.wfile.write(
        b'HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"id": 1'
    )
    handler.break_off()


def slow(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100\r\n\r\nbegun")
    handler.wfile.flush()
    handler.hold()


@pytest.mark.parametrize(("plan", "says"), [(half, "broke off"), (slow, "did not end in time")])
async def test_an_answer_that_breaks_off_after_its_status_is_an_effect_that_happened(api, plan, says):
    result = await answers(plan, api, seconds=1)
    assert says in result.invalid
    assert result.text


async def test_an_endless_answer_is_read_up_to_its_limit(api):
    def endless(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        while True:
            handler.wfile.write(b"x" * 65536)

    result = await answers(endless, api, response_bytes_max=100_000)
    assert (len(result.text), result.truncated) == (100_000, True)


async def test_endless_headers_end_too(api):
    def endless(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            handler.wfile.write(b"x-more: " + b"y" * 60_000 + b"\r\n")

    with pytest.raises(ConnectionLost):
        await answers(endless, api)


async def test_a_compressed_answer_is_not_unpacked(api):
    result = await answers(says(200, b"\x1f\x8b bomb", content_encoding="gzip"), api)
    assert "compressed unasked" in result.invalid


async def test_a_secret_that_the_server_repeats_is_in_no_result_and_no_error(api, monkeypatch):
    monkeypatch.setenv("PAY_TOKEN", "Bearer canary-token")
    headers = {"Authorization": {"from_env": "PAY_TOKEN"}}
    for status in (200, 422, 500):
        plan = lambda handler, status=status: handler.answer(  # noqa: E731
            status, {"you sent": handler.request_seen.headers["authorization"]}
        )
        try:
            told = (await answers(plan, api, headers=headers)).model_dump_json()
        except (Refused, Unclear) as error:
            told = str(error)
        assert "canary-token" not in told
        assert "[secret]" in told


async def test_the_host_of_the_name_is_told_to_the_address_that_was_checked(api, monkeypatch):
    """The name means another address a moment later; it is asked once."""
    asked: list[str] = []

    async def once(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        place = "127.0.0.1" if len(asked) == 1 else "10.255.255.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", once)
    await http.perform(dispatch(api.url(host="ledger.test"), private_hosts=["ledger.test"]))
    assert asked[:1] == ["ledger.test"]
    assert "ledger.test" not in asked[1:]
    assert api.seen[0].headers["host"] == f"ledger.test:{api.port}"


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
         "-addext", f"subjectAltName=DNS:{name}", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


async def test_the_certificate_must_be_that_of_the_name(tmp_path, monkeypatch):
    tls = certificate(tmp_path, "ledger.test")

    async def here(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", here)
    with http_api(tls=tls) as api:
        declared = {"private_hosts": ["ledger.test", "other.test"], "tls_ca_file": str(tls[0])}
        assert (await http.perform(dispatch(api.url(host="ledger.test"), **declared))).structured == {"id": 1}
        with pytest.raises(NotSent, match=r"certificate|CERTIFICATE"):
            await http.perform(dispatch(api.url(host="other.test"), **declared))
        with pytest.raises(NotSent, match=r"certificate|CERTIFICATE"):
            await http.perform(dispatch(api.url(host="ledger.test"), private_hosts=["ledger.test"]))
        assert len(api.seen) == 1


def goes(place: str, status: int = 302) -> Any:
    def plan(handler: Handler) -> None:
        if handler.path == "/x":
            handler.answer(status, location=place)
        else:
            handler.answer(200, {"at": handler.path})

    return plan


READ = {"method": "GET", "effect": "read", "redirects_max": 3}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_read_follows_within_its_limit(api, status):
    assert (await answers(goes("/y?z=1", status), api, **READ)).structured == {"at": "/y?z=1"}
    api.plan = goes("/x", status)
    with pytest.raises(Refused, match="was not followed"):
        await http.perform(dispatch(api.url("/x"), **READ))
    assert len(api.seen) == 2 + 4


async def test_a_read_that_is_sent_to_the_loopback_under_another_name_does_not_go_there(api):
    with http_api() as inner:
        for place in (
            inner.url("/admin", host="localhost"),
            inner.url("/admin", host="[::1]"),
            "http://169.254.169.254/",
        ):
            with pytest.raises(Refused, match="private_hosts"):
                await answers(goes(place), api, **READ)
        assert inner.seen == []


@pytest.mark.parametrize("status", [307, 308])
async def test_a_write_that_is_sent_to_the_loopback_does_not_go_there_and_is_unclear(api, status):
    with http_api() as inner:
        with pytest.raises(RedirectFailed):
            await answers(goes(inner.url("/pay", host="localhost"), status), api, redirects_max=3)
        assert inner.seen == []


async def test_a_write_is_sent_again_only_by_a_status_that_says_so_and_in_its_origin(api):
    result = await answers(goes("/y", 307), api, redirects_max=1, body={"a": 1})
    assert (result.structured, [seen.method for seen in api.seen]) == ({"at": "/y"}, ["POST", "POST"])
    assert api.seen[1].body == '{"a":1}'
    assert api.seen[0].headers["idempotency-key"] == api.seen[1].headers["idempotency-key"]
    with pytest.raises(Unclear, match="HTTP status 303"):
        await answers(goes("/y", 303), api, redirects_max=1)
    with http_api() as other, pytest.raises(RedirectFailed, match="another origin"):
        await answers(goes(other.url("/y"), 307), api, redirects_max=1)


async def test_a_read_that_leaves_its_origin_takes_no_secret_along(api, monkeypatch):
    monkeypatch.setenv("PAY_TOKEN", "Bearer canary-token")
    with http_api() as other:
        await answers(goes(other.url("/y")), api, headers={"Authorization": {"from_env": "PAY_TOKEN"}}, **READ)
        assert "authorization" in api.seen[0].headers
        assert "authorization" not in other.seen[0].headers
        assert "canary" not in str(other.seen)


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "http://", "http://user:pw@127.0.0.1/", "http://[::1", "gopher://x/"]
)
async def test_a_read_that_is_sent_to_what_is_no_address_ends(api, place):
    with pytest.raises(Refused):
        await answers(goes(place), api, **READ)


async def test_a_read_is_not_sent_from_tls_to_plain_text():
    request = http_exchange.Request("GET", "https://a.example/", {}, is_read=True, redirects_max=1)
    import httpx2

    answered = http_exchange.Answered(302, httpx2.Headers({"location": "http://a.example/"}), b"")
    with pytest.raises(Refused, match="plain HTTP"):
        http_exchange._redirected(request, answered)


PROBE = {"found_when": {"contains": '"{operation_id}"'}}


async def test_a_look_up_finds_the_effect_and_does_not_carry_the_key(api, monkeypatch):
    monkeypatch.setenv("PAY_TOKEN", "Bearer canary-token")
    call = dispatch(
        api.url("/refunds"), headers={"Authorization": {"from_env": "PAY_TOKEN"}},
        probe={"url": api.url("/refunds?reference={operation_id}")} | PROBE,
    )  # fmt: skip
    assert (await http.probe(call)).verdict is ProbeVerdict.ABSENT
    await http.perform(call)
    answer = await http.probe(call)
    assert answer.verdict is ProbeVerdict.ONE
    look = api.seen[-1]
    assert (look.method, look.path) == ("GET", f"/refunds?reference={call.idempotency_key}")
    assert "idempotency-key" not in look.headers
    assert look.headers["authorization"] == "Bearer canary-token"


async def test_a_look_up_that_fails_cannot_tell(api):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    gone = dispatch(api.url(), probe={"url": f"http://127.0.0.1:{port}/"} | PROBE)
    assert (await http.probe(gone)).verdict is ProbeVerdict.CANNOT_TELL
    forbidden = dispatch(api.url(), private_hosts=[], probe={"url": api.url()} | PROBE)
    assert (await http.probe(forbidden)).verdict is ProbeVerdict.CANNOT_TELL
    assert (await http.probe(dispatch(api.url()))).verdict is ProbeVerdict.CANNOT_TELL
    assert api.seen == []


async def test_nothing_of_the_workers_proxy_settings_is_used(api, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await http.perform(dispatch(api.url()))
    assert len(api.seen) == 1
