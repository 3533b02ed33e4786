"""Wrong settings fail at the start, with a sentence that names them and never shows a secret."""

from __future__ import annotations

import pytest
from django.core.exceptions import ImproperlyConfigured

from kernel_project import environment

PRODUCTION = {
    "KERNEL_MODE": "production",
    "SECRET_KEY": "x" * 50,
    "ALLOWED_HOSTS": "kernel.example",
    "DATABASE_URL": "postgresql://kernel:hush@db/kernel",
    "REDIS_URL": "redis://redis:6379/0",
    "TEMPORAL_ADDRESS": "temporal:7233",
    "TEMPORALITY_URL": "https://events.example",
    "TEMPORALITY_TOKEN": "token",
    "KERNEL_SOURCE_ID": "kernel-1",
    "ARTIFACT_URL": "s3://artifacts",
    "WORKSPACE_ROOT": "/srv/workspaces",
}


@pytest.fixture
def given(monkeypatch):
    """An environment of exactly these variables."""

    def give(**variables: str) -> environment.Environment:
        for name in environment.Environment.model_fields:
            monkeypatch.delenv(name.upper(), raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return environment.read()

    return give


def test_production_takes_what_is_complete(given):
    assert given(**PRODUCTION).kernel_source_id == "kernel-1"


@pytest.mark.parametrize("name", sorted(PRODUCTION.keys() - {"KERNEL_MODE"}))
def test_production_names_what_is_missing(given, name):
    with pytest.raises(ImproperlyConfigured, match=name):
        given(**{key: value for key, value in PRODUCTION.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "hush"),
        ("DATABASE_URL", "mysql://kernel:hush@db/kernel"),
        ("REDIS_URL", "hush"),
        ("TEMPORAL_ADDRESS", "hush"),
        ("TEMPORALITY_URL", "hush"),
        ("ARTIFACT_URL", "ftp://hush"),
        ("WORKSPACE_ROOT", "hush"),
        ("KERNEL_SOURCE_ID", "hush hush/;"),
        ("KERNEL_MODE", "hush"),
        ("DATABASE_POOL_MAX", "hush"),
    ],
)
def test_a_wrong_value_is_named_and_not_shown(given, name, value):
    with pytest.raises(ImproperlyConfigured, match=name) as refused:
        given(**{name: value})
    assert "hush" not in str(refused.value)


def test_production_refuses_a_short_secret_and_armed_faults(given):
    for more in ({"SECRET_KEY": "short"}, {"KERNEL_FAULTS": "after_effect:pay=kill"}):
        with pytest.raises(ImproperlyConfigured, match=next(iter(more))):
            given(**PRODUCTION | more)


def test_development_needs_nothing(given, tmp_path):
    found = given(KERNEL_VAR=str(tmp_path))
    assert found.database_url.startswith("postgresql://")
    assert found.artifact_url.startswith("file://")
