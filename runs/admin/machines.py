"""The machines of workers in the console: what each can enforce on commands, as its workers say. Starts nothing."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from kernel_project.admin import FactAdmin, badge, cell, moment, wide_cell
from runs.models import SandboxReport


@admin.register(SandboxReport)
class SandboxReportAdmin(FactAdmin):
    """Said anew by each living worker; a machine that is silent for a day is forgotten."""

    list_display = ["machine", "commands", "says", "heard"]
    list_display_links = None
    ordering = ["place"]

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whoever may look at operations may see where they can run."""
        return request.user.has_perm("runs.view_operation")

    @admin.display(description="Machine")
    def machine(self, report: SandboxReport) -> SafeString:
        return cell(report.place)

    @admin.display(description="Commands")
    def commands(self, report: SandboxReport) -> SafeString:
        return badge("failed", "cannot run") if report.unavailable else badge("succeeded", "run")

    @admin.display(description="What it says")
    def says(self, report: SandboxReport) -> SafeString:
        return wide_cell(report.unavailable or "; ".join([*report.problems, report.sentence]))

    @admin.display(description="Heard from")
    def heard(self, report: SandboxReport) -> SafeString:
        return moment(report.reported_at)
