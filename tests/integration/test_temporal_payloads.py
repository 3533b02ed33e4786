"""What Temporal keeps is sealed where keys are set, and shown to whoever may read bodies, in the UI's own page."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import Client
from google.protobuf import json_format
from temporalio.api.common.v1 import Payload, Payloads

from kernel_project.primitives import keyring
from runs.loop import payloads, temporal
from tests import console
from tests.integration.test_canary import history
from tests.kernel import Carrier, begin, call, calls, ended, make_project, make_tool, says

UI = "https://temporal.example.org"
DECODE = "/temporal/codec/decode"


@pytest.fixture(scope="module")
def _sealing() -> Iterator[None]:
    """As if all processes had been started with a key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAYLOAD_KEY", keyring.new_key())
        patch.setattr(settings, "TEMPORAL_PAYLOAD_KEYS", "k=env:PAYLOAD_KEY")
        patch.setattr(settings, "TEMPORAL_CODEC_ORIGINS", [UI])
        patch.setattr(temporal, "_loop", temporal._Loop())
        payloads.codec.cache_clear()
        yield
    payloads.codec.cache_clear()


@pytest.fixture(scope="module")
def _sealing_carrier(_sealing: None, temporal_server: object, django_db_setup: None) -> Iterator[None]:
    with Carrier():
        yield


def sealed() -> Payload:
    codec = payloads.codec()
    assert codec
    return codec.seal(Payload(metadata={"encoding": b"json/plain"}, data=b'"the plain text"'))


def ask(client: Client, *given: Payload, origin: str = UI, **headers: str):
    body = json_format.MessageToJson(Payloads(payloads=given))
    return client.post(DECODE, body, content_type="application/json", headers={"Origin": origin, **headers})


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_sealing_carrier")
def test_a_run_is_carried_as_ever_and_its_history_says_nothing():
    project = make_project()
    make_tool(project, "note", lambda dispatch, text: "wrote", idempotent_for_seconds=3600)
    run = ended(begin([calls(call("note", text="a")), says("the end of it")], ["note"], project=project))
    assert run.state == "completed"
    kept = history(run)
    assert b"binary/encrypted" in kept
    assert not [word for word in (b"the end of it", b"run_id", project.slug.encode()) if word in kept]


@pytest.mark.django_db
@pytest.mark.usefixtures("_sealing")
class TestEndpoint:
    def test_it_opens_payloads_for_who_may_read_bodies(self):
        plain = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
        answer = ask(console.logged_in(console.person("olga", superuser=True)), sealed(), plain)
        opened = json_format.Parse(answer.content, Payloads()).payloads
        assert [one.data for one in opened] == [b'"the plain text"', b"1"]
        assert answer["Access-Control-Allow-Origin"] == UI
        assert answer["Cache-Control"] == "no-store"

    def test_nobody_else_gets_anything(self):
        root = console.logged_in(console.person("olga", superuser=True))
        assert ask(Client(), sealed()).status_code == 401
        assert ask(console.logged_in(console.person("vera", "runs.view_run")), sealed()).status_code == 403
        elsewhere = ask(root, sealed(), origin="https://evil.example.org")
        assert (elsewhere.status_code, elsewhere.has_header("Access-Control-Allow-Origin")) == (403, False)
        assert ask(root, sealed(), **{"X-Namespace": "another"}).status_code == 404

    def test_bad_input_is_a_clear_error(self):
        root = console.logged_in(console.person("olga", superuser=True))
        damaged = sealed()
        damaged.data = damaged.data[:-1]
        assert "changed" in json.loads(ask(root, damaged).content)["detail"]
        assert root.post(DECODE, "no", content_type="application/json").status_code == 400
        assert root.get(DECODE).status_code == 405
        asked = root.options(DECODE, headers={"Origin": UI})
        assert (asked.status_code, asked["Access-Control-Allow-Credentials"]) == (204, "true")
