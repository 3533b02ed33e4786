"""C39. A time without a zone is refused, one with any offset is understood, and answers are in UTC."""

from __future__ import annotations

import pytest

from runs.models import Run
from tests.api_client import Api, api_for, is_problem
from tests.api_scene import make_scene

pytestmark = [pytest.mark.django_db(transaction=True)]


@pytest.fixture
def scene():
    return make_scene()


@pytest.fixture
def api(scene) -> Api:
    return api_for(scene.project)


@pytest.mark.parametrize(
    "text",
    [
        "2030-01-01", "2030-01-01T00:00:00", "2030-01-01 00:00:00", "1893456000", "1893456000.5", "1e9", "now", "",
        "2030-02-30T00:00:00Z", "2030-01-01T24:00:01Z", "2030-01-01T00:00:00+25:00", "10000-01-01T00:00:00Z",
        "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2030-W01-1T00:00:00Z",
        "2030-01-01T00:00:00 Z", "２０３０-01-01T00:00:00Z", "infinity", "2030-01-01T00:00:00[Europe/Paris]",
    ],
)  # fmt: skip
def test_no_time_or_no_zone_is_422(api, text):
    for name in ("started_after", "started_before"):
        answer = api.get("/runs", **{name: text})
        assert is_problem(answer, 422, "invalid_request")
        assert answer.data["errors"][0]["path"] == name


@pytest.mark.parametrize(
    "text",
    [
        "2030-01-01T00:00:00Z", "2030-01-01T00:00:00z", "2030-01-01T00:00:00+14:00", "2030-01-01T00:00:00-00:00",
        "9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2030-03-31T02:30:00+01:00", "2030-01-01T00:00:00.123456Z",
        "0001-01-01T00:00:00Z", "2016-12-31T23:59:59.999999Z",
    ],
)  # fmt: skip
def test_a_time_with_its_offset_is_understood(api, text):
    assert api.get("/runs", started_after=text).status_code == 200


def test_the_same_moment_is_the_same_filter_in_any_offset(api, scene):
    Run.objects.filter(id=scene.run.id).update(started_at="2026-01-01T12:00:00Z")
    for moment in ("2026-01-01T12:00:00Z", "2026-01-02T02:00:00+14:00", "2026-01-01T00:00:00-12:00"):
        assert len(api.get("/runs", started_after=moment).data["items"]) == 1
        assert api.get("/runs", started_before=moment).data["items"] == []


def test_answers_are_in_utc_and_say_so(api, scene):
    run = api.get(f"/runs/{scene.run.id}").data
    request = api.get(f"/approvals/{scene.approval.id}").data
    for text in (run["created_at"], run["started_at"], request["deadline_at"], request["requested_at"]):
        assert text.endswith("Z")
        assert len(text) == len("2026-01-01T12:00:00.000000Z")
