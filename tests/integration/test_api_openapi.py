"""The OpenAPI document is true: schemathesis calls all of it, with right and wrong data, and finds no difference."""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from django.test import Client
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.engine import events, from_schema

from kernel_project.api import api
from kernel_project.web.callers import SCOPES
from runs import keys
from tests.api_client import make_person
from tests.api_routes import routes
from tests.api_scene import make_scene
from tests.api_server import serving

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("temporal_server")]
EXAMPLES = int(os.environ.get("KERNEL_API_EXAMPLES", "4"))  # per route and phase; a longer search is for by hand
SEED = 20


def document() -> dict[str, Any]:
    return Client().get("/api/v1/openapi.json").json()


def test_the_document_is_openapi_3_1_and_names_every_scope():
    found = document()
    assert found["openapi"] == "3.1.0"
    assert {route.scope for route in routes()} <= set(SCOPES)
    for methods in found["paths"].values():
        for operation in methods.values():
            assert {"401", "403", "404", "422", "429", "500", "503"} <= operation["responses"].keys()


def test_there_is_a_page_that_shows_it():
    page = Client().get("/api/v1/docs")
    assert page.status_code == 200
    assert api.title in page.content.decode()


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a failing example, in a report
@pytest.mark.parametrize("known", [True, False], ids=["ids that are there", "any ids"])
def test_schemathesis_finds_no_difference(known):
    scene = make_scene()
    _, token = keys.create(project=scene.project.slug, name="t", scopes=SCOPES, user=make_person())
    project = ProjectConfig(
        headers={"Authorization": f"Bearer {token}"},
        parameters={"query.cursor": ""} | (in_paths(scene.ids()) if known else {}),  # a cursor cannot be invented
        generation=GenerationConfig(max_examples=EXAMPLES, deterministic=True, database="none"),
        continue_on_failure=True,
    )
    config = SchemathesisConfig(seed=SEED, projects=ProjectsConfig(default=project))
    with serving() as url:
        failures, calls = explore(schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json", config=config))
    assert not failures, "\n\n".join(sorted(failures))
    assert calls > len(routes())


def in_paths(ids: dict[str, str]) -> dict[str, str]:
    return {f"path.{name}": value for name, value in ids.items()}


def explore(schema: Any) -> tuple[set[str], int]:
    """Run all phases; what was found, and how many requests were sent."""
    failures, calls = set(), 0
    for event in from_schema(schema).execute():
        match event:
            case events.ScenarioFinished():
                calls += len(event.recorder.interactions)
                failures |= {told(event, check) for check in failed(event)}
            case events.NonFatalError():
                failures.add(f"{event.label}: {event.info.title} {event.info.message}")
            case events.FatalError():
                raise event.exception
    return failures, calls


def failed(event: events.ScenarioFinished) -> list[Any]:
    return [
        check
        for case, checks in event.recorder.checks.items()
        for check in checks
        if check.failure_info is not None and not needs_a_folder(event.recorder.interactions[case].response)
    ]


def needs_a_folder(response: Any) -> bool:
    """A workspace's name can be right in form, and only the disk knows that nobody has prepared it."""
    return response is not None and b"there is no workspace" in response.content


def told(event: events.ScenarioFinished, check: Any) -> str:
    failure = check.failure_info.failure
    return f"{event.label} ({check.name}): {failure.title}: {failure.message}\n{check.failure_info.code_sample[:800]}"
