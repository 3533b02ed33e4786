"""How the console looks and what its menu offers: unfold's settings. Decides no rights, only what is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse, reverse_lazy


def _may(permission: str) -> Callable[[HttpRequest], bool]:
    def may(request: HttpRequest) -> bool:
        elsewhere = permission.startswith("temporality.") and "temporality" not in settings.DATABASES
        return not elsewhere and request.user.has_perm(permission)

    return may


def _list(model: str, query: str = "") -> Callable[[HttpRequest], str]:
    return lambda _request: reverse(f"admin:{model}_changelist") + query


def _item(title: str, icon: str, model: str, query: str = "", **more: Any) -> dict[str, Any]:
    app, _, name = model.partition("_")
    link = _list(model, query) if query else reverse_lazy(f"admin:{model}_changelist")
    return {"title": title, "icon": icon, "link": link, "permission": _may(f"{app}.view_{name}"), **more}


UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Agent Kernel",
    "SITE_HEADER": "Agent Kernel",
    "SITE_SUBHEADER": "Oversight",
    "SITE_SYMBOL": "shield_toggle",
    "SITE_URL": None,
    "SHOW_VIEW_ON_SITE": False,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": lambda _request: static("kernel/icon.svg")}],
    "STYLES": [
        lambda _request: static("kernel/theme.css"),
        lambda _request: static("kernel/console.css"),
    ],
    "SCRIPTS": [lambda _request: static("kernel/console.js")],
    "COMMAND": {"search_models": False, "show_history": False},
    "SIDEBAR": {
        "show_search": False,
        "navigation": [
            {
                "title": "Oversight",
                "items": [
                    {"title": "Home", "icon": "space_dashboard", "link": reverse_lazy("admin:index")},
                    _item(
                        "Approvals", "approval", "approvals_approval", "?state=waiting",
                        badge="kernel_project.dashboard.waiting_badge",
                    ),
                    _item(
                        "Uncertain", "help_center", "runs_operation", "?state=uncertain",
                        badge="kernel_project.dashboard.uncertain_badge",
                    ),
                    _item("Runs", "play_circle", "runs_run"),
                    _item("Operations", "bolt", "runs_operation"),
                ],
            },
            {
                "title": "Outbox",
                "separator": True,
                "items": [
                    _item("Streams", "stacked_line_chart", "outbox_stream"),
                    _item("Events", "receipt_long", "outbox_event"),
                    _item("Parked events", "inventory_2", "outbox_parkedevent"),
                    _item("Destinations", "cloud_upload", "outbox_destination"),
                    _item("Publishers", "ecg_heart", "outbox_publisherheartbeat"),
                    _item("Periodic jobs", "schedule", "outbox_periodicjob"),
                ],
            },
            {
                "title": "Event store",
                "separator": True,
                "items": [
                    _item("Inbox", "inbox", "temporality_event"),
                    _item("Conflicts", "difference", "temporality_conflict"),
                    _item("Not applied", "pending_actions", "temporality_pending"),
                    _item("Projection", "account_tree", "temporality_item"),
                    _item("Gaps", "format_line_spacing", "temporality_progress"),
                ],
            },
            {
                "title": "Definitions",
                "separator": True,
                "items": [
                    _item("Agents", "smart_toy", "runs_agent"),
                    _item("Tools", "construction", "runs_tool"),
                    _item("MCP servers", "hub", "runs_mcpserver"),
                    _item("Policies", "policy", "approvals_policy"),
                    _item("Channels", "campaign", "approvals_channel"),
                    _item("Messages", "outgoing_mail", "approvals_delivery"),
                    _item("Projects", "folder", "runs_project"),
                    _item("Legal holds", "gavel", "runs_hold", "?in_force=1"),
                ],
            },
            {
                "title": "Access",
                "separator": True,
                "items": [
                    _item("API keys", "key", "runs_apikey"),
                    _item("Users", "person", "auth_user"),
                    _item("Groups", "group", "auth_group"),
                    _item("Audit", "history", "admin_logentry"),
                ],
            },
        ],
    },
}  # fmt: skip
