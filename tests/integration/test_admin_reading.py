"""Transcripts, legal holds and the rules of retention, as the console shows them."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from outbox.contracts import Actor
from runs.keeping import holds, retention
from runs.models import Artifact, Run
from tests import console
from tests.kernel import make_agent, make_project, says

pytestmark = pytest.mark.django_db
LEA = Actor(id="lea", type="human")


def talk(turns: int = 2) -> Run:
    project = make_project()
    console.make_scene_tools(project, look={"effect": "read"})
    run = console.begin(make_agent(project, [says("done")], ["look"]), "find <b>it</b>")
    for number in range(1, turns + 1):
        [call] = console.turn(run, number, f"turn {number}: I look", calls=[("look", {"where": "shelf"})])
        console.succeed(call, f"{number} books")
    run.refresh_from_db()
    return run


def transcript(run: Run, *permissions: str, **form: str):
    client = console.logged_in(console.viewer(f"vera{len(permissions)}{len(form)}", *permissions))
    return client.post(reverse("admin:runs_run_transcript", args=[run.id]), form)


def test_who_may_read_bodies_reads_what_was_said_and_that_is_on_record():
    run = talk()
    html = transcript(run).content.decode()
    for said in ("find &lt;b&gt;it&lt;/b&gt;", "turn 1: I look", "2 books", "shelf"):
        assert said in html
    [entry] = LogEntry.objects.filter(object_id=str(run.id))
    assert entry.change_message == "read the transcript, turns 1 to 2 (from 127.0.0.1)"


def test_who_may_not_read_bodies_is_refused_and_that_is_on_record():
    run = talk(1)
    client = console.logged_in(console.person("paul", "runs.view_run"))
    assert client.post(reverse("admin:runs_run_transcript", args=[run.id])).status_code == 403
    assert "Transcript" not in client.get(reverse("admin:runs_run_change", args=[run.id])).content.decode()
    assert LogEntry.objects.get().change_message.startswith("refused: reading a transcript")


def test_a_long_transcript_comes_in_pages():
    run = talk(22)
    latest, earlier = transcript(run).content.decode(), transcript(run, last="2").content.decode()
    assert "turn 22: I look" in latest
    assert "turn 2: I look" not in latest
    assert 'name="last" value="2"' in latest
    assert "turn 2: I look" in earlier
    assert "turn 3: I look" not in earlier


def test_a_held_run_its_operations_and_artifacts_say_so_until_the_release():
    run = talk(1)
    hold = holds.place(project=run.project_id, scope="run", target=str(run.id), reason="a claim", by=LEA)
    client = console.logged_in(console.viewer())
    operation, artifact = run.operations.first(), Artifact.objects.filter(run=run).first()
    assert operation
    assert artifact
    pages = [
        reverse("admin:runs_run_change", args=[run.id]),
        reverse("admin:runs_operation_change", args=[operation.id]),
        reverse("admin:runs_artifact_change", args=[artifact.id]),
    ]
    assert all("Nothing deletes this run: a claim" in client.get(page).content.decode() for page in pages)
    holds.release(hold.id, project=run.project_id, reason="settled", by=LEA)
    assert not any("Nothing deletes" in client.get(page).content.decode() for page in pages)


def test_a_project_says_how_long_it_keeps_what():
    project = make_project()
    retention.change(project=project.slug, days={"runs": 30}, by=LEA)
    holds.place(project=project.slug, scope="project", reason="a claim", by=LEA)
    html = console.logged_in(console.viewer()).get(reverse("admin:runs_project_change", args=[project.pk]))
    told = html.content.decode()
    assert "runs: 30 days" in told
    assert "audit: for ever" in told
    assert f"?q={project.slug}&amp;in_force=1" in told
