"""Webhooks tell that a run has ended and that an operation is uncertain: once written, at least once sent, and signed.

How they are signed, tried again and given up is in test_approval_announcements.py: it is the same mechanism.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import uuid
from pathlib import Path

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from approvals import announcements, deliveries, webhooks
from approvals.models import Channel, Delivery
from kernel_project.primitives.errors import Invalid
from outbox.models import Event
from runs.loop import endings
from runs.loop.contracts import FinishInput
from tests.boundary_scene import committed, make_project, make_run, make_scene, perform_now
from tests.fakes.webhook_server import webhook_server
from tests.outbox_victim import die, kill_in, then

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]
SECRET_ENV, SECRET = "KERNEL_WEBHOOK_TEST", "a-secret-of-enough-bytes"
ROOT = Path(__file__).resolve().parents[2]
ALL = tuple(Channel.Event.values)


@pytest.fixture(autouse=True)
def hook(committed, monkeypatch, settings):
    Delivery.objects.filter(next_attempt_at__isnull=False).update(next_attempt_at=None, dropped="another test")
    monkeypatch.setenv(SECRET_ENV, SECRET)
    settings.PRIVATE_HOSTS = ("127.0.0.1",)
    with webhook_server() as server:
        yield server


def listen(project, target, events=ALL):
    return announcements.add_channel(
        project.slug, "webhook", "test", target=target, secret_env=SECRET_ENV, events=events
    )


def ended_run(hook, outcome="completed"):
    project = make_project()
    listen(project, hook.url)
    run = make_run(project)
    endings.finish(FinishInput(run_id=run.id, outcome=outcome, code="" if outcome == "completed" else "model_timeout"))
    return run


def told(hook) -> list[dict]:
    return [json.loads(got.body) for got in hook.received]


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled"])
def test_the_end_of_a_run_is_told_once_and_signed(hook, outcome):
    run = ended_run(hook, outcome)
    assert deliveries.send_due() == 1
    assert deliveries.send_due() == 0
    [got], [facts] = hook.received, told(hook)
    assert (facts["type"], facts["run_id"], facts["state"]) == ("run.ended", str(run.id), outcome)
    assert facts["path"] == f"/api/v1/runs/{run.id}"
    assert Event.objects.get(event_id=facts["event_id"]).type == f"run.{outcome}"
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    wanted = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{wanted}"


def test_an_uncertain_operation_is_told_without_its_arguments(hook):
    scene = make_scene("opaque", plan=["effect"])
    listen(scene.project, hook.url)
    assert perform_now(scene.id).state == "uncertain"
    assert deliveries.send_due() == 1
    [facts] = told(hook)
    assert (facts["type"], facts["operation_id"], facts["tool"]) == (
        "operation.uncertain", str(scene.id), scene.tool.name,
    )  # fmt: skip
    assert '"text"' not in hook.received[0].body.decode()


def test_what_only_failed_is_not_told_as_uncertain(hook):
    scene = make_scene("read", plan=["nothing"] * 9)
    listen(scene.project, hook.url)
    assert perform_now(scene.id).state == "failed"
    assert not Delivery.objects.filter(run_id=scene.run.id).exists()


def test_only_what_the_channel_asks_for_and_only_of_its_project(hook):
    project, other = make_project(), make_project()
    listen(project, hook.url, ("operation.uncertain",))
    retired = listen(project, hook.url)
    announcements.retire_channel(retired.pk)
    listen(other, hook.url)
    run = make_run(project)
    endings.finish(FinishInput(run_id=run.id, outcome="completed"))
    assert not Delivery.objects.filter(run_id=run.id).exists()


def test_the_message_is_there_with_the_event_or_not_at_all(hook):
    """Whoever ends the run dies right before the commit: neither is there, and the next one writes both."""
    project = make_project()
    listen(project, hook.url)
    run = make_run(project)

    def dies_inside():
        with transaction.atomic():
            endings.finish(FinishInput(run_id=run.id, outcome="completed"))
            die()

    kill_in(dies_inside)
    assert not Event.objects.filter(run_id=run.id, type="run.completed").exists()
    assert not Delivery.objects.filter(run_id=run.id).exists()
    endings.finish(FinishInput(run_id=run.id, outcome="completed"))
    endings.finish(FinishInput(run_id=run.id, outcome="completed"))
    assert Delivery.objects.filter(run_id=run.id).count() == 1


def test_a_sender_that_is_killed_after_the_request_is_followed_with_the_same_id_and_bytes(hook):
    run = ended_run(hook)

    def dies_after_sending():
        webhooks.Webhook.send = then(webhooks.Webhook.send, die)
        deliveries.send_due()

    kill_in(dies_after_sending)
    assert len(hook.received) == 1
    assert Delivery.objects.get(run_id=run.id).sent_at is None
    assert deliveries.send_due() == 0, "the dead one's lease holds"
    Delivery.objects.filter(run_id=run.id).update(next_attempt_at=F("created_at"))
    assert deliveries.send_due() == 1
    assert len({(got.headers["webhook-id"], got.body) for got in hook.received}) == 1
    assert len(hook.received) == 2


@pytest.mark.parametrize(
    ("allowed", "sent"), [((), 0), (("other.internal",), 0), (("127.0.0.1:1",), 0), (("127.0.0.1",), 1)]
)
def test_a_private_address_is_reached_only_where_the_installation_names_it(hook, settings, allowed, sent):
    settings.PRIVATE_HOSTS = allowed
    run = ended_run(hook)
    assert deliveries.send_due() == sent
    assert len(hook.received) == sent
    if not sent:
        assert "KERNEL_PRIVATE_HOSTS" in Delivery.objects.get(run_id=run.id).last_error


def test_a_message_of_a_run_stays_as_it_was_written(hook):
    run = ended_run(hook)
    for column, value in (("body", "x"), ("event_id", str(run.id)), ("run_id", str(make_run(make_project()).id))):
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"UPDATE approvals_delivery SET {column} = %s WHERE run_id = %s", [value, run.id])


@pytest.mark.parametrize(("kind", "events"), [("email", ALL), ("webhook", ()), ("webhook", ("run.started",))])
def test_a_channel_tells_what_there_is_and_e_mail_of_requests_alone(kind, events):
    target, secret = ("a@b.example", "") if kind == "email" else ("https://host/", SECRET_ENV)
    with pytest.raises(Invalid):
        announcements.add_channel("p", kind, "test", target=target, secret_env=secret, events=events)


def test_the_console_makes_such_a_channel(client):
    person = User.objects.create_superuser(f"ann-{uuid.uuid4().hex[:8]}")
    client.force_login(person)
    form = {
        "project": make_project().slug, "kind": "webhook", "target": "https://hooks.example/", "group": "",
        "secret_env": SECRET_ENV, "events": ["run.ended", "operation.uncertain"],
    }  # fmt: skip
    assert client.post("/admin/approvals/channel/add/", form).status_code == 302
    made = Channel.objects.get(project=form["project"])
    assert (made.events, made.created_by) == (["operation.uncertain", "run.ended"], person.username)
    assert LogEntry.objects.filter(user=person, change_message__contains="run.ended").exists()
    assert client.get(f"/admin/approvals/channel/{made.pk}/change/").status_code == 200


def test_the_console_shows_what_became_of_a_message(client, hook):
    run = ended_run(hook)
    client.force_login(User.objects.create_superuser(f"ann-{uuid.uuid4().hex[:8]}"))
    page = client.get("/admin/approvals/delivery/", {"q": str(run.id)}).content.decode()
    assert f"/admin/runs/run/{run.id}/change/" in page


def test_the_recipe_of_the_documentation_knows_ours_and_nobody_elses(hook):
    recipe = re.search(r"```python\n(import base64.*?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL)
    assert recipe is not None
    names: dict = {}
    exec(recipe[1], names)
    is_ours = names["is_ours"]
    ended_run(hook)
    deliveries.send_due()
    [got] = hook.received
    headers, secret = got.headers, SECRET.encode()
    assert is_ours(headers, got.body, secret, set())
    assert not is_ours(headers, got.body, secret, {headers["webhook-id"]})
    assert not is_ours(headers, got.body + b" ", secret, set())
    assert not is_ours(headers, got.body, b"another-secret-of-bytes", set())
    assert not is_ours({**headers, "webhook-timestamp": "1"}, got.body, secret, set())
