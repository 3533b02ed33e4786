"""A key without a person outlives its maker's rights: the list says so, for somebody to take it back."""

from __future__ import annotations

import pytest
from django.contrib import admin

from runs import keys
from runs.admin.keys import ApiKeyAdmin
from runs.models import ApiKey
from tests import console

pytestmark = pytest.mark.django_db


def test_the_list_says_that_the_maker_is_switched_off():
    olga, project = console.person("olga"), console.make_project()
    key, _ = keys.create(project=project.slug, name="ci", scopes=["runs:start"], by="olga")
    page = ApiKeyAdmin(ApiKey, admin.site)
    assert "switched off" not in page.standing(key)
    olga.is_active = False
    olga.save()
    assert "its maker is switched off" in page.standing(key)
