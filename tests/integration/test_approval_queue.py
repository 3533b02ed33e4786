"""The queue of ten thousand waiting requests opens at once, is filtered, and several are rejected with one reason."""

from __future__ import annotations

import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from approvals.models import Approval, Decision
from runs.models import Operation
from tests import console
from tests.api_client import api_for

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(300)]

WAITING = 10_000
CPU_SECONDS_MAX = 3.0  # generous as well: how many rows and queries a page takes is the real assertion
WALL_SECONDS_MAX = 3.0  # generous: other tests share the machine
TRIES = 5  # the best of them counts
ROWS_READ_MAX = 2 * 10_000  # by any step of any query of a page: what waits, and its index
QUERIES_MAX = 25
FILL = """
INSERT INTO approvals_approval (id, project, run_id, operation_id, agent, tool, effect, binding, binding_hash,
    arguments_hash, policy_name, "group", four_eyes, on_expiry, requested_by, state, requested_at, deadline_at,
    decided_by, reason, risk)
SELECT md5('a' || n)::uuid, %(project)s, md5('r' || n)::uuid, md5('o' || n)::uuid, 'clerk', 'pay', 'write',
    repeat('x', 2000), '', '', 'rule v1', CASE n %% 3 WHEN 0 THEN 'finance' ELSE '' END, n %% 5 = 0, 'reject',
    CASE n %% 7 WHEN 0 THEN 'anna' ELSE 'somebody' END, 'waiting', now() - make_interval(mins => n),
    now() + make_interval(mins => n), '', '', 1 + n %% 3
FROM generate_series(1, %(count)s) n
"""


def fill(project: str, count: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"project": project, "count": count})
        cursor.execute("ANALYZE approvals_approval")


def opened(client, **query) -> tuple[str, float, int]:
    """The page, the least CPU time of some tries, and how many queries it takes; each of them reads few rows."""
    address = reverse("admin:approvals_approval_changelist")
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(address, query)
    for one in asked.captured_queries:
        if one["sql"].startswith("SELECT") and "set_config" not in one["sql"]:
            read_few_rows(one["sql"])
    return answer.content.decode(), least_cpu(lambda: client.get(address, query)), len(asked)


def least_cpu(page) -> float:
    took = []
    for _ in range(TRIES):
        wall, cpu = time.perf_counter(), time.process_time()
        assert page().status_code == 200
        took.append((time.process_time() - cpu, time.perf_counter() - wall))
    assert min(wall for _, wall in took) <= WALL_SECONDS_MAX
    return min(cpu for cpu, _ in took)


def read_few_rows(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
        check_plan(cursor.fetchone()[0][0]["Plan"], sql)


def check_plan(node, sql: str) -> None:
    rows = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    assert rows <= ROWS_READ_MAX, (rows, node["Node Type"], sql)
    for child in node.get("Plans", ()):
        check_plan(child, sql)


def test_the_queue_of_ten_thousand_opens_at_once_with_every_filter():
    anna = console.viewer("anna", "approvals.decide_approval")
    client = console.logged_in(anna)
    fill("many", WAITING)
    for query in (
        {"state": "waiting"}, {"state": "waiting", "p": "200"}, {"mine": "1"}, {"mine": "groups"}, {"risk": "3"},
        {"left": "3600"}, {"age": "86400"}, {"mine": "1", "risk": "3", "age": "3600"}, {},
    ):  # fmt: skip
        _, seconds, queries = opened(client, **query)
        assert seconds <= CPU_SECONDS_MAX, (query, seconds)
        assert queries <= QUERIES_MAX, (query, queries)


@pytest.mark.django_db(databases=["default", "temporality"])
def test_the_home_page_and_the_api_open_at_once_too():
    fill("many", WAITING)
    project = console.make_project("many")
    client = console.logged_in(console.person("root", superuser=True))
    api = api_for(project, "approvals:read", "approvals:decide", user=console.person("ruth", superuser=True))
    pages = [
        lambda: client.get(reverse("admin:index")),
        lambda: api.get("/approvals", state="waiting"),
        lambda: api.get("/approvals", mine="true"),
    ]
    for page in pages:
        assert least_cpu(page) <= CPU_SECONDS_MAX


def test_the_filters_find_what_they_say():
    fill("few", 30)
    anna = console.viewer("anna", "approvals.decide_approval")
    client = console.logged_in(anna)
    assert listed(client, mine="1") == {n for n in range(1, 31) if n % 3 and not (n % 5 == 0 and n % 7 == 0)}
    anna.groups.create(name="finance")
    assert listed(client, mine="groups") == set(range(3, 31, 3))
    assert listed(client, risk="1") == set(range(3, 31, 3))
    assert listed(client, left="900") == set(range(1, 16))
    assert listed(client, left="0") == set()
    assert listed(client, left="nonsense") == set(range(1, 26))  # all of them, the first page


def listed(client, **query) -> set[int]:
    html = client.get(reverse("admin:approvals_approval_changelist"), query).content.decode()
    ids = {str(row): n for row, n in numbered()}
    return {n for row, n in ids.items() if row in html}


def numbered():
    with connection.cursor() as cursor:
        cursor.execute("SELECT md5('a' || n)::uuid, n FROM generate_series(1, 30) n")
        return cursor.fetchall()


class TestRejectingSeveral:
    def waiting(self, count=3):
        project = console.make_project()
        return [console.waiting_run(project, tool="pay", amount=n) for n in range(count)]

    def post(self, client, approvals, **form):
        wanted = {"action": "reject_selected", "_selected_action": [str(one.id) for one in approvals], **form}
        return client.post(reverse("admin:approvals_approval_changelist"), wanted, follow=True).content.decode()

    @pytest.mark.django_db(transaction=True)
    def test_one_reason_is_asked_for_and_each_is_decided_by_itself(self):
        first, second, third = self.waiting()
        client = console.logged_in(console.viewer("anna", "approvals.decide_approval"))
        other = console.logged_in(console.viewer("ben", "approvals.decide_approval"))
        other.post(reverse("admin:approvals_approval_decide", args=[third.id]), {"verdict": "approve"})
        html = self.post(client, [first, second])
        assert "one reason, a decision for each" in html
        assert Decision.objects.count() == 1
        html = self.post(client, [first, second, third], reason="not this month")
        assert html.count("rejected by anna") == 2
        assert "granted by ben" in html
        for approval in (first, second):
            approval.refresh_from_db()
            assert (approval.state, approval.reason) == ("rejected", "not this month")
            assert Operation.objects.get(id=approval.operation_id).error_message == "not this month"
        assert Approval.objects.get(id=third.id).state == "granted"

    @pytest.mark.django_db(transaction=True)
    def test_without_a_reason_or_the_right_nothing_is_decided(self):
        approvals = self.waiting(2)
        client = console.logged_in(console.viewer("anna", "approvals.decide_approval"))
        assert "say why they are rejected" in self.post(client, approvals, reason=" ")
        self.post(console.logged_in(console.viewer("vera")), approvals, reason="x")
        assert not Decision.objects.exists()

    @pytest.mark.django_db(transaction=True)
    def test_there_is_no_action_that_approves(self):
        approvals = self.waiting(2)
        client = console.logged_in(console.person("root", superuser=True))
        for name in ("approve_selected", "approve", "delete_selected"):
            self.post(client, approvals, action=name, reason="x", verdict="approve")
        assert set(Approval.objects.values_list("state", flat=True)) == {"waiting"}
