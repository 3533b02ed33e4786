"""Puts our site in the place of Django's default admin site. Imports no models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.contrib.admin import autodiscover
from django.contrib.admin.apps import SimpleAdminConfig
from django.contrib.admin.checks import check_admin_app, check_dependencies
from django.core import checks


class OversightConfig(SimpleAdminConfig):
    """Only who serves or checks the pages imports them (`kernel_project.urls`): no worker waits a second for them."""

    default_site = "kernel_project.admin_site.OversightSite"

    def ready(self) -> None:
        checks.register(check_dependencies, checks.Tags.admin)
        checks.register(check_pages, checks.Tags.admin)


def check_pages(app_configs: Sequence[AppConfig] | None, **options: Any) -> list[checks.CheckMessage]:
    """Django's check of the admin's pages, once all of them are there."""
    autodiscover()
    return check_admin_app(app_configs, **options)
