"""C39. A deadline is a number of seconds by the database's clock; no text of a time can get into one."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction
from django.urls import reverse

from approvals import policy, services
from approvals.contracts import Rule
from approvals.models import Approval
from kernel_project.primitives.errors import Invalid, KernelError
from runs import registry
from tests import console
from tests.boundary_scene import committed, decider, make_project, make_scene

pytestmark = pytest.mark.usefixtures("committed")
__all__ = ["committed"]

FILE = "project: {project}\npolicies:\n- {{name: pay, answer: require, deadline_seconds: {deadline}}}\n"


@pytest.mark.parametrize(
    "text",
    [
        "2030-01-01", "'2030-01-01T00:00:00'", "'2030-01-01T00:00:00+14:00'", "2030-01-01T00:00:00Z", "9999-12-31",
        "1970-01-01", "0", "-1", "31536001", ".inf", ".nan", "1.5", "'2026-03-29T02:30:00'", "null", "[]",
    ],
)  # fmt: skip
def test_a_project_file_with_another_deadline_than_seconds_is_refused(tmp_path, text):
    path = tmp_path / "project.yaml"
    path.write_text(FILE.format(project=make_project().slug, deadline=text))
    with pytest.raises(Invalid):
        registry.load(path, "test")


@pytest.mark.parametrize("seconds", [0, -1, 365 * 24 * 3600 + 1])
def test_a_deadline_in_the_past_or_out_of_sight_is_refused(seconds):
    with pytest.raises(KernelError):
        policy.save(make_project().slug, Rule(name="x", answer="require", deadline_seconds=seconds), "test")


@pytest.mark.parametrize("bad", ["infinity", "-infinity", "9999-12-31T00:00Z", "1970-01-01T00:00Z"])
def test_a_bad_time_cannot_be_written_into_a_row_by_anybody(bad):
    scene = make_scene("opaque", allow=False)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE approvals_approval SET deadline_at = %s::timestamptz WHERE operation_id = %s", [bad, scene.id]
        )


def test_a_row_that_cannot_be_understood_is_closed_and_the_list_and_the_others_go_on():
    bad, good = make_scene("opaque", allow=False), make_scene("opaque", allow=False)
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # as if it had been there before the rules were
        cursor.execute(
            "UPDATE approvals_approval SET binding = '{', deadline_at = clock_timestamp() + interval '1 hour'"
            " WHERE operation_id = %s",
            [bad.id],
        )
        cursor.execute("SET session_replication_role = DEFAULT")
    broken, whole = (Approval.objects.get(operation_id=scene.id) for scene in (bad, good))
    page = console.logged_in(console.viewer("c39", "approvals.decide_approval"))
    assert page.get(reverse("admin:approvals_approval_changelist"), {"state": "waiting"}).status_code == 200
    html = page.get(reverse("admin:approvals_approval_change", args=[broken.id])).content.decode()
    assert "The stored text of this call is damaged" in html
    assert 'value="approve"' not in html
    with pytest.raises(services.Damaged):
        services.decide(broken.id, bad.project.slug, decider(), "approve")
    assert services.decide(whole.id, good.project.slug, decider(), "approve").state == "granted"


def test_one_request_that_cannot_be_ended_does_not_keep_the_others(monkeypatch):
    stuck, other = make_scene("opaque", allow=False), make_scene("opaque", allow=False)
    for scene, minutes in ((stuck, 2), (other, 1)):
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE approvals_approval SET deadline_at = clock_timestamp() - make_interval(mins => %s)"
                " WHERE operation_id = %s",
                [minutes, scene.id],
            )
    plain = services.expire

    def breaks(operation_ids):
        assert operation_ids != [stuck.id], "this one and its operation disagree"
        return plain(operation_ids)

    monkeypatch.setattr(services, "expire", breaks)
    services.expire_due()
    assert Approval.objects.get(operation_id=other.id).state == "expired"
    assert Approval.objects.get(operation_id=stuck.id).state == "waiting"
