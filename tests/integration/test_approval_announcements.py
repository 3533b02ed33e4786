"""Requests are announced by e-mail and signed webhook: written with the request, sent at least once, never a way in."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import socket
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from approvals import announcements, deliveries, services, webhooks
from approvals.messages import NotDelivered
from approvals.models import Approval, Channel, Delivery
from kernel_project.primitives.addresses import Target
from kernel_project.primitives.clock import now
from kernel_project.primitives.errors import Invalid
from runs.boundary.intents import Wanted
from tests.boundary_scene import at_once, committed, decider, make_scene, propose, rule
from tests.fakes.mail_server import mail_server
from tests.fakes.webhook_server import webhook_server

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]
SECRET_ENV, SECRET = "KERNEL_WEBHOOK_TEST", "a-secret-of-enough-bytes"


@pytest.fixture(autouse=True)
def nothing_left_over(committed):
    """Each test sends its own messages only."""
    Delivery.objects.filter(next_attempt_at__isnull=False).update(next_attempt_at=None, dropped="another test")


@pytest.fixture
def hook(monkeypatch, settings):
    monkeypatch.setenv(SECRET_ENV, SECRET)
    settings.PRIVATE_HOSTS = ("127.0.0.1",)
    with webhook_server() as server:
        yield server


@pytest.fixture
def mail(settings):
    with mail_server() as server:
        settings.EMAIL_URL, settings.EMAIL_FROM = server.url, "kernel@example.org"
        yield server


def announced(kind="webhook", target="", only="", **policy):
    """A request of a project that has one channel."""
    scene = make_scene("read")
    add_channel(scene.project.slug, kind, target, only)
    rule(scene.project, "require", tool=scene.tool.name, **policy)
    scene.operation = scene.another(scene.run)
    return scene


def add_channel(project, kind, target, group="") -> Channel:
    secret = SECRET_ENV if kind == "webhook" else ""
    return announcements.add_channel(project, kind, "test", target=target, group=group, secret_env=secret)


def request(scene) -> Approval:
    return Approval.objects.get(operation_id=scene.id)


def messages(scene, **more):
    return Delivery.objects.filter(approval__operation_id=scene.id, **more).order_by("occasion")


def due_now(scene, **more) -> None:
    messages(scene, next_attempt_at__isnull=False, **more).update(next_attempt_at=F("created_at"))


def test_a_webhook_is_sent_once_signed_and_holds_a_link_and_no_argument(hook):
    scene = announced(target=hook.url)
    assert deliveries.send_due() == 1
    assert deliveries.send_due() == 0
    [got] = hook.received
    told = json.loads(got.body)
    assert (told["type"], told["approval_id"], told["tool"]) == (
        "approval.requested", str(request(scene).id), scene.tool.name,
    )  # fmt: skip
    assert told["url"].endswith(f"/admin/approvals/approval/{request(scene).id}/change/")
    assert '"text"' not in got.body.decode()
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    wanted = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert got.headers["webhook-signature"] == f"v1,{wanted}"


def test_the_message_commits_with_the_request_or_not_at_all(hook):
    scene = announced(target=hook.url)
    before = Delivery.objects.count()
    with transaction.atomic():
        propose(scene.run, Wanted(scene.tool.exposed_name, {"text": "y"}), turn=9)
        assert Delivery.objects.count() > before
        transaction.set_rollback(True)
    assert Delivery.objects.count() == before


def test_a_failure_is_tried_again_later_with_the_same_id_and_bytes(hook):
    scene = announced(target=hook.url)
    hook.statuses = [503, 302, 200]
    for sent in (0, 0, 1):
        assert deliveries.send_due() == sent
        assert deliveries.send_due() == 0, "it waits before it tries again"
        due_now(scene, occasion="requested")
    assert len({(got.headers["webhook-id"], got.body, got.path) for got in hook.received}) == 1
    assert len(hook.received) == 3
    delivery = messages(scene).get(occasion="requested")
    assert (delivery.attempts, delivery.sent_at is not None, delivery.next_attempt_at) == (3, True, None)


def test_nobody_there_or_no_secret_is_a_failure_that_names_the_cause(hook, monkeypatch):
    scene = announced(target="http://127.0.0.1:9/hook")
    assert deliveries.send_due() == 0
    assert "cannot be reached" in messages(scene).get(occasion="requested").last_error
    monkeypatch.delenv(SECRET_ENV)
    due_now(scene, occasion="requested")
    assert deliveries.send_due() == 0
    assert SECRET_ENV in messages(scene).get(occasion="requested").last_error
    assert hook.received == []


def test_one_that_breaks_its_sender_is_a_failed_attempt_and_the_others_are_sent(hook, monkeypatch):
    """Whatever a message or an address does to the sender, and without its words: they could hold a secret."""
    broken, sound = announced(target=hook.url), announced(target=hook.url)
    first, send = messages(broken).get(occasion="requested").id, webhooks.Webhook.send

    def breaking(self, message):
        if message.id == first:
            raise ValueError("no header: s3cret")
        send(self, message)

    monkeypatch.setattr(webhooks.Webhook, "send", breaking)
    assert deliveries.send_due() == 1
    assert messages(sound).get(occasion="requested").sent_at is not None
    failed = messages(broken).get(occasion="requested")
    assert (failed.attempts, failed.sent_at, failed.lease_token) == (1, None, None)
    assert failed.next_attempt_at is not None
    assert "ValueError" in failed.last_error
    assert "s3cret" not in failed.last_error


def test_a_server_that_never_comes_to_an_end_is_left(hook, monkeypatch):
    monkeypatch.setattr(webhooks, "SECONDS_MAX", 0.5)
    hook.trickle_seconds = 5.0
    scene = announced(target=hook.url)
    assert deliveries.send_due() == 0
    assert "NotDelivered" in messages(scene).get(occasion="requested").last_error


def test_two_senders_send_each_message_once(hook):
    scenes = [announced(target=hook.url) for _ in range(5)]
    assert sum(at_once(deliveries.send_due, deliveries.send_due, deliveries.send_due)) == len(scenes)
    assert len(hook.received) == len(scenes)


def test_a_sender_that_died_is_followed_after_its_lease_and_changes_nothing_when_it_wakes(hook):
    scene = announced(target=hook.url)
    token = deliveries.uuid4()
    dead = deliveries._claim(token)
    assert deliveries.send_due() == 0, "it is leased"
    due_now(scene, occasion="requested")
    assert deliveries.send_due() == 1
    assert deliveries._end(dead, token, error="late") is False
    assert messages(scene).get(occasion="requested").sent_at is not None


def test_it_is_given_up_after_so_many_attempts(hook, monkeypatch):
    monkeypatch.setattr(deliveries, "ATTEMPTS_MAX", 1)
    hook.statuses = [500]
    scene = announced(target=hook.url)
    assert deliveries.send_due() == 0
    assert messages(scene).get(occasion="requested").dropped.startswith("given up")


def test_the_reminder_comes_before_the_deadline_and_only_while_it_waits(hook):
    scene = announced(target=hook.url, deadline_seconds=3600)
    reminder, asked = messages(scene).get(occasion="reminder"), request(scene)
    assert reminder.next_attempt_at == asked.deadline_at - timedelta(minutes=15)
    due_now(scene)
    assert deliveries.send_due() == 2
    assert {json.loads(got.body)["type"] for got in hook.received} == {"approval.requested", "approval.reminder"}


def test_what_was_decided_meanwhile_is_not_announced_any_more(hook):
    scene = announced(target=hook.url)
    services.decide(request(scene).id, scene.project.slug, decider(), "approve")
    due_now(scene)
    assert deliveries.send_due() == 0
    assert {one.dropped for one in messages(scene)} == {"the request is over"}
    assert hook.received == []


def test_a_short_time_has_no_reminder(hook):
    assert messages(announced(target=hook.url, deadline_seconds=60)).count() == 1


def test_an_escalated_request_is_announced_to_the_other_group(hook):
    policy = {"on_expiry": "escalate", "escalate_to": "board", "group": "finance"}
    scene = announced(target=hook.url, only="board", **policy)
    assert not messages(scene).exists()
    Approval.objects.filter(operation_id=scene.id).update(deadline_at=F("requested_at"))
    services.expire([scene.id])
    assert deliveries.send_due() == 1
    assert json.loads(hook.received[0].body)["group"] == "board"


def test_an_e_mail_goes_to_the_members_of_the_group_with_a_link(mail):
    group = Group.objects.create(name="treasury")
    for name, active in (("tina", True), ("theo", True), ("gone", False)):
        user = User.objects.create(username=name, email=f"{name}@example.org", is_staff=True, is_active=active)
        user.groups.add(group)
    scene = announced("email", only="treasury")
    rule(scene.project, "require", tool=scene.tool.name, group="treasury", name="by treasury")
    scene.operation = scene.another(scene.run)
    assert deliveries.send_due() == 2
    assert sorted(mail.recipients) == ["theo@example.org", "tina@example.org"]
    text = mail.messages[0].get_content()
    assert f"/admin/approvals/approval/{request(scene).id}/change/" in text
    assert "nothing is decided by opening a link" in text


def test_hostile_names_stay_on_their_line_and_make_no_link_of_their_own(mail):
    facts = json.loads(messages_body("evil\r\nBcc: all@example.org\u202e https://evil.example/now"))
    from approvals.mail import Mail
    from approvals.messages import Message

    Mail().send(Message(deliveries.uuid4(), "anna@example.org", "", json.dumps(facts)))
    [got] = mail.messages
    assert got["Bcc"] is None
    assert mail.recipients == ["anna@example.org"]
    assert "https://evil.example" not in got.get_content()
    assert "[U+202E]" in got.get_content()


def messages_body(tool: str) -> str:
    scene = make_scene("opaque", allow=False)
    asked = request(scene)
    asked.tool = tool
    return announcements._body(asked, Delivery.Occasion.REQUESTED)


def test_a_mail_server_that_refuses_is_tried_again(mail):
    mail.answer = "451 not now"
    scene = announced("email", target="ops@example.org")
    assert deliveries.send_due() == 0
    mail.answer = "250 taken"
    due_now(scene, occasion="requested")
    assert deliveries.send_due() == 1
    assert mail.messages[0]["Message-ID"] == f"<{messages(scene).get(occasion='requested').id}@example.org>"


def test_without_a_mail_server_the_message_waits_and_says_why(settings):
    settings.EMAIL_URL = ""
    scene = announced("email", target="ops@example.org")
    assert deliveries.send_due() == 0
    assert "KERNEL_EMAIL_URL" in messages(scene).get(occasion="requested").last_error


@pytest.mark.parametrize(
    ("kind", "target", "secret_env"),
    [
        ("webhook", "", SECRET_ENV), ("webhook", "ftp://host/x", SECRET_ENV), ("webhook", "http://", SECRET_ENV),
        ("webhook", "https://user:pw@host/", SECRET_ENV), ("webhook", "https://host/ x", SECRET_ENV),
        ("webhook", "https://host:99999/", SECRET_ENV), ("webhook", "https://host/", "SECRET_KEY"),
        ("webhook", "https://host/", ""), ("webhook", "https://host/", "KERNEL_WEBHOOK_"),
        ("webhook", "https://host/\r\nX: y", SECRET_ENV), ("email", "nobody", ""), ("email", "a@b.example", SECRET_ENV),
        ("email", "a@b.example\nBcc: c@d.example", ""), ("pigeon", "x", ""),
    ],
)  # fmt: skip
def test_a_channel_that_cannot_be_is_refused(kind, target, secret_env):
    with pytest.raises(Invalid):
        announcements.add_channel("p", kind, "test", target=target, secret_env=secret_env)


def test_in_production_a_webhook_is_encrypted(settings):
    settings.PRODUCTION = True
    with pytest.raises(Invalid):
        announcements.add_channel("p", "webhook", "test", target="http://host/", secret_env=SECRET_ENV)


def test_a_message_and_a_channel_stay_as_they_were_written(hook):
    scene = announced(target=hook.url)
    for table, column in (("approvals_delivery", "body"), ("approvals_channel", "target")):
        with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"UPDATE {table} SET {column} = 'x'")
    assert messages(scene).exists()


def test_a_retired_channel_announces_nothing_more(hook):
    scene = make_scene("read")
    channel = add_channel(scene.project.slug, "webhook", hook.url)
    assert announcements.retire_channel(channel.pk)
    assert not announcements.retire_channel(channel.pk)
    rule(scene.project, "require", tool=scene.tool.name)
    scene.operation = scene.another(scene.run)
    assert not messages(scene).exists()


def test_a_channel_that_hangs_holds_up_its_own_messages_only(hook, monkeypatch):
    first, other = announced(target=hook.url), announced(target="http://127.0.0.1:9/")
    second = first.another(first.run)
    asked: list[str] = []

    class Hangs:
        def send(self, message):
            asked.append(message.target)
            if message.target == hook.url:
                raise NotDelivered("no answer within 10 s")

    monkeypatch.setattr(deliveries, "Webhook", Hangs)
    monkeypatch.setattr(deliveries, "SLOW_SECONDS", 0.0)
    assert deliveries.send_due() == 1
    assert asked == [hook.url, "http://127.0.0.1:9/"]
    waiting = Delivery.objects.get(approval__operation_id=second.id, occasion="requested")
    assert waiting.attempts == 0
    assert waiting.next_attempt_at > now()
    assert messages(other, occasion="requested").get().sent_at is not None


def test_a_channel_that_was_retired_sends_nothing_that_still_waited(hook):
    scene = announced(target=hook.url)
    announcements.retire_channel(messages(scene, occasion="requested").get().channel_id)
    assert deliveries.send_due() == 0
    assert messages(scene, occasion="requested").get().dropped == "the channel was retired"
    assert not hook.received


def test_an_address_that_swallows_connections_leaves_time_for_the_next(hook, monkeypatch):
    scene = announced(target=hook.url)
    port = urlsplit(hook.url).port
    monkeypatch.setattr(webhooks, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(webhooks, "SECONDS_MAX", 2.0)

    async def two_addresses(*_):
        return Target("http", "127.0.0.1", port, ("127.0.0.2", "127.0.0.1"))

    monkeypatch.setattr(webhooks, "checked_target", two_addresses)
    with socket.socket() as full, contextlib.ExitStack() as callers:
        full.bind(("127.0.0.2", port))
        full.listen(0)
        for _ in range(3):  # more than its queue takes: who comes now is not answered
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(("127.0.0.2", port))
        assert deliveries.send_due() == 1
    assert messages(scene, occasion="requested").get().sent_at is not None


@pytest.mark.parametrize("avoided", ["hashjoin", "indexscan", "nestloop"])
def test_one_is_claimed_at_a_time_whatever_the_plan(avoided):
    for _ in range(3):
        announced(target="http://127.0.0.1:9/")
    token = uuid4()
    with transaction.atomic(), connection.cursor() as cursor:
        for way in {"mergejoin", "bitmapscan", "material", avoided}:
            cursor.execute(f"SET LOCAL enable_{way} = off")
        assert deliveries._claim(token) is not None
    assert Delivery.objects.filter(lease_token=token).count() == 1
