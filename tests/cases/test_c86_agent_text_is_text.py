"""C86. Text of agents, tools and people is text on every page: in lists, details, history, messages and downloads."""

from __future__ import annotations

import re

import pytest
from django.contrib import admin
from django.urls import reverse

from approvals.models import Approval
from outbox.contracts import Actor
from outbox.models import Destination, ParkedEvent, Stream
from runs.boundary import reconcile
from runs.models import Run
from tests import console
from tests.kernel import make_agent, make_project, says

pytestmark = pytest.mark.django_db(databases=["default", "temporality"])

MARK = "k7q"
HOSTILE = (
    f'<img src=x onerror=alert("{MARK}")></script><script>{MARK}()</script>'
    f"\"'`{{{{{MARK}}}}}{{% {MARK} %}} javascript:{MARK} ![x](https://canary.example/?q={MARK})"
    f' x-data="{MARK}" \u202e\x1b[31m'
)
PLAIN = HOSTILE.replace("\x1b", "")
TAGS = re.compile(r"<[^>]*>")


@pytest.fixture
def scene():
    """The same hostile text in every column that an agent, a tool, an application or a person can reach."""
    project = make_project()
    name = "<img src=x onerror=k7q()>"[:60]
    console.make_scene_tools(project, **{name: {"effect": "write"}})
    project.tool_set.update(description=HOSTILE)
    version = make_agent(project, [says("x")], [name], instructions=HOSTILE)
    version.agent.name = name
    version.agent.save()
    run = console.begin(version, HOSTILE, by=HOSTILE)
    [waiting] = console.turn(run, 1, HOSTILE, calls=[(name, {"a": HOSTILE, HOSTILE: "b"})])
    console.turn(run, 2, HOSTILE, calls=[(HOSTILE[:60], {})])
    Run.objects.filter(id=run.id).update(waiting_for=HOSTILE[:190].replace("\x1b", ""), failure_message=PLAIN)
    uncertain = console.uncertain_run(project, error=HOSTILE, note=HOSTILE)
    known = console.uncertain_run(project, amount=8)
    by = Actor(id=HOSTILE[:100], type="human")
    reconcile.resolve(known.id, project=project.slug, verdict="occurred", by=by, note=HOSTILE, result=HOSTILE)
    Stream.objects.update(last_error=HOSTILE)
    ParkedEvent.objects.create(
        event_id=console.first_event(run),
        run_id=run.id,
        sequence=1,
        reason="conflict",
        last_error=HOSTILE,
        note=HOSTILE,
    )
    Destination.objects.create(name=PLAIN[:90], failures=1, last_error=HOSTILE)
    return Approval.objects.get(operation_id=waiting.id), uncertain


@pytest.fixture
def root():
    return console.logged_in(console.person("root", superuser=True))


def check(html: str, where: str) -> None:
    """No tag and no attribute has anything of the hostile text in it, and nothing of it has left its place."""
    assert "<img src=x" not in html, where
    assert f"<script>{MARK}" not in html, where
    assert "\u202e" not in TAGS.sub("", html), where
    for tag in TAGS.findall(html):
        unquoted = re.sub(r'"[^"]*"', '""', tag)
        assert MARK not in unquoted, (where, tag)
        assert not re.search(rf'(href|src)="(?!/admin/|[?])[^"]*(javascript:|canary|{MARK})', tag), (where, tag)
        assert not re.search(rf'(x-[a-z:]+|on\w+|hx-\w+)="[^"]*{MARK}', tag), (where, tag)


def pages():
    yield "home", reverse("admin:index")
    yield "live", reverse("admin:live")
    for model in admin.site._registry:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        yield name, reverse(f"admin:{name}_changelist")
        for one in model._default_manager.all()[:6]:
            yield name, reverse(f"admin:{name}_change", args=[one.pk])
            yield name, reverse(f"admin:{name}_history", args=[one.pk])


def test_on_every_page_it_is_text(scene, root):
    approval, _ = scene
    root.post(
        reverse("admin:approvals_approval_decide", args=[approval.id]), {"verdict": "reject", "reason": HOSTILE[:-6]}
    )
    seen = 0
    for name, address in pages():
        html = root.get(address, follow=True).content.decode()
        check(html, f"{name} {address}")
        seen += html.count(MARK)
    assert seen > 50  # it was there to be looked at


def test_in_messages_it_is_text(scene, root):
    approval, uncertain = scene
    for address, form in (
        (reverse("admin:approvals_approval_decide", args=[approval.id]), {"verdict": HOSTILE}),
        (reverse("admin:runs_operation_resolve", args=[uncertain.id]), {"verdict": HOSTILE, "note": "n"}),
        (reverse("admin:runs_run_cancel", args=[approval.run_id]), {"reason": HOSTILE}),
    ):
        html = root.post(address, form, follow=True).content.decode()
        check(html, address)


def test_in_the_search_box_it_is_text(scene, root):
    for model in admin.site._registry:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        answer = root.get(reverse(f"admin:{name}_changelist"), {"q": HOSTILE, "state": HOSTILE}, follow=True)
        assert "<img src=x" not in answer.content.decode(), name


def test_a_download_is_a_file_and_never_a_page(scene, root):
    approval, _ = scene
    for artifact in Run.objects.get(id=approval.run_id).artifacts.all():
        answer = root.get(reverse("admin:runs_artifact_download", args=[artifact.id]))
        assert answer["Content-Type"] == "application/octet-stream"
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Content-Disposition"].startswith("attachment; filename=")


def test_every_answer_carries_a_policy_without_inline_script_and_other_origins(scene, root, client):
    for address in (reverse("admin:index"), reverse("admin:login"), "/admin/no/such/page/", reverse("admin:jsi18n")):
        for who in (root, client):
            policy = who.get(address)["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe-inline" not in policy
            assert "http" not in policy.replace("https:", "http")


def test_no_page_has_inline_script_or_style(scene, root):
    for name, address in pages():
        html = root.get(address, follow=True).content.decode()
        for tag in TAGS.findall(html):
            quoted = re.sub(r"'[^']*'", "''", tag)
            assert not re.search(r"\s(on[a-z]+|style)=", re.sub(r'"[^"]*"', '""', quoted)), (name, tag)
        assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>\s*\S", html), name
        assert "<style" not in html, name
        assert not re.findall(r'(?:src|href)="(?:https?:)?//(?!127\.0\.0\.1)[^"]*"', html), name
