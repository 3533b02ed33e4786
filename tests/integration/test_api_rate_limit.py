"""One caller's requests are counted over all processes; nobody else is held up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kernel_project.web import rate_limit
from kernel_project.web.problems import RateLimited
from tests.api_client import Api, api_for, is_problem
from tests.kernel import make_project

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey")]


@pytest.fixture
def api(monkeypatch) -> Api:
    monkeypatch.setattr(rate_limit.take, "__defaults__", (0.01, 3))
    monkeypatch.setattr(rate_limit, "outage", rate_limit._Outage())
    return api_for(make_project(), "runs:read")


def test_one_request_too_many_is_429_with_the_time_to_wait(api):
    assert [api.get("/runs").status_code for _ in range(3)] == [200] * 3
    refused = api.get("/runs")
    assert is_problem(refused, 429, "rate_limited")
    assert 1 <= int(refused["Retry-After"]) <= 100


def test_another_caller_is_not_held_up(api):
    for _ in range(4):
        api.get("/runs")
    assert api_for(make_project(), "runs:read").get("/runs").status_code == 200


def test_the_count_is_exact_when_many_ask_at_once(api):
    def one(_: int) -> bool:
        try:
            rate_limit.take("somebody", 0.01, 20)
        except RateLimited:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(one, range(100))) == 20


def test_without_redis_nobody_is_held_up(api, valkey):
    with valkey.stopped():
        assert [api.get("/runs").status_code for _ in range(6)] == [200] * 6
