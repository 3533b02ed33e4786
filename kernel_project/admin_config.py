"""Puts our site in the place of Django's default admin site. Imports no models."""

from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class OversightConfig(AdminConfig):
    default_site = "kernel_project.admin_site.OversightSite"
