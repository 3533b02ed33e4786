"""Agents, tools, servers and projects in the console. No definition is changed: saving makes the next."""

from __future__ import annotations

import difflib
from functools import partial
from typing import Any
from urllib.parse import urlencode

import yaml
from django import forms
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import Max, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_http_methods, require_safe
from pydantic import ValidationError

from kernel_project.admin import FactAdmin, badge, cell, demand, moment, report, short_id
from kernel_project.primitives.errors import Invalid
from kernel_project.visible_text import shown
from runs import registry
from runs.contracts import AgentDefinition
from runs.keeping import retention
from runs.models import (
    Agent,
    AgentVersion,
    Hold,
    IdempotencyKey,
    McpServer,
    ModelPrice,
    Project,
    Purge,
    RetentionRule,
    Tool,
)

NEW_VERSION = "runs.add_agentversion"
DEFINITION_BYTES_MAX = 256 * 1024
VERSIONS_SHOWN_MAX = 50
PROBLEMS_SHOWN_MAX = 5
HOLDS_COUNTED_MAX = 1_000
CONTEXT_LINES = 4  # around a change


@admin.register(Project)
class ProjectAdmin(FactAdmin):
    """Tenants."""

    list_display = ["slug", "title", "created_at"]
    exact_texts = ["slug"]
    search_help_text = "A whole slug"
    ordering = ["slug"]
    fields = ["slug", "title", "created_at", "kept", "purged", "held"]
    readonly_fields = ["title", "kept", "purged", "held"]

    @admin.display(description="Kept for")
    def kept(self, project: Project) -> SafeString:
        """The rules of retention; a class that they do not name is kept for ever."""
        days = retention.rules(project.slug)
        told = [f"{name}: {_days(days.get(name))}" for name in RetentionRule.RecordClass.values]
        return _block("\n".join([*told, *(f"{name}: for ever" for name in retention.FOR_EVER)]))

    @admin.display(description="Last purge")
    def purged(self, project: Project) -> SafeString:
        return moment(Purge.objects.filter(project=project.slug).aggregate(last=Max("started_at"))["last"])

    @admin.display(description="Legal holds in force")
    def held(self, project: Project) -> SafeString:
        count = Hold.objects.filter(project=project.slug, released_at__isnull=True)[:HOLDS_COUNTED_MAX].count()
        where = f"{reverse('admin:runs_hold_changelist')}?{urlencode({'q': project.slug, 'in_force': 1})}"
        return format_html('<a class="k-link" href="{}">{}</a>', where, count)

    @admin.display(description="Name")
    def title(self, project: Project) -> SafeString:
        return cell(project.name)


def _days(days: int | None) -> str:
    return "for ever" if days is None else f"{days} days"


@admin.register(Agent)
class AgentAdmin(FactAdmin):
    """Agents with their versions and what changed between them."""

    list_display = ["named", "project", "latest", "asks"]
    list_select_related = ["project"]
    ordering = ["project", "name"]
    exact_texts = ["name", "project__slug"]
    search_help_text = "A whole agent name or project"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        return super().get_queryset(request).prefetch_related("versions")

    def get_urls(self) -> list[URLPattern]:
        write = path(
            "<int:agent_id>/new-version/", self.admin_site.admin_view(self.new_version), name="runs_agent_new_version"
        )
        return [write, *super().get_urls()]

    @admin.display(description="Agent")
    def named(self, agent: Agent) -> SafeString:
        return cell(agent.name)

    @admin.display(description="Version")
    def latest(self, agent: Agent) -> str:
        newest = _newest(agent)
        return f"v{newest.version}" if newest else "–"

    @admin.display(description="Model")
    def asks(self, agent: Agent) -> SafeString:
        newest = _newest(agent)
        name = str(newest.definition.get("model", "")) if newest else ""
        scripted = format_html(" {}", badge("idle", "scripted")) if name.startswith("scripted:") else ""
        return format_html("{}{}", cell(name), scripted)

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The versions of an agent, each with its difference from the one before."""
        self.may_look(request)
        agent = _agent(object_id)
        versions = list(agent.versions.order_by("-version")[:VERSIONS_SHOWN_MAX])
        context = {
            **self._context(request, agent),
            "versions": [(one, _difference(older, one)) for one, older in _pairs(versions)],
            "may_write": request.user.has_perm(NEW_VERSION),
            "title": "Agent",
        }
        return TemplateResponse(request, "kernel/agent.html", context)

    @method_decorator(require_http_methods(["GET", "POST"]))
    def new_version(self, request: HttpRequest, agent_id: int) -> HttpResponse:
        """Write the next version of an agent from YAML."""
        agent = _agent(agent_id)
        demand(request, NEW_VERSION, agent, "writing a version")
        self.may_look(request)
        newest = _newest(agent)
        text = _yaml(newest.definition) if newest else ""
        if request.method == "POST":
            text = request.POST.get("definition", "")
            if report(request, agent, partial(_write, request, agent, text)):
                return HttpResponseRedirect(reverse("admin:runs_agent_change", args=[agent.id]))
        context = {**self._context(request, agent), "text": text, "title": "New version"}
        return TemplateResponse(request, "kernel/agent_new_version.html", context)

    def _context(self, request: HttpRequest, agent: Agent) -> dict[str, Any]:
        return {**self.admin_site.each_context(request), "agent": agent, "opts": self.opts, "original": agent}


def _newest(agent: Agent) -> AgentVersion | None:
    versions = list(agent.versions.all())
    return versions[0] if versions else None


def _agent(object_id: str | int) -> Agent:
    known = str(object_id)
    found = Agent.objects.select_related("project").filter(id=int(known)).first() if known.isdecimal() else None
    if found is None:
        raise Http404("there is no such agent")
    return found


def _yaml(definition: dict[str, Any]) -> str:
    return yaml.safe_dump(definition, sort_keys=False, allow_unicode=True, width=100)


def _pairs(versions: list[AgentVersion]) -> list[tuple[AgentVersion, AgentVersion | None]]:
    """Each version with the one before it."""
    return list(zip(versions, [*versions[1:], None], strict=True))


def _difference(older: AgentVersion | None, newer: AgentVersion) -> list[tuple[str, str]]:
    """Lines of the newer definition near what changed, each marked; of the first version all lines."""
    after = _yaml(newer.definition).splitlines()
    if older is None:
        return [("same", line) for line in after]
    kinds = {"+": "added", "-": "removed", " ": "same"}
    lines = list(difflib.unified_diff(_yaml(older.definition).splitlines(), after, lineterm="", n=CONTEXT_LINES))[2:]
    return [(kinds[line[:1]], line[1:]) for line in lines if line[:1] in kinds]


def _write(request: HttpRequest, agent: Agent, text: str) -> str:
    if len(text.encode()) > DEFINITION_BYTES_MAX:
        raise Invalid(f"a definition has at most {DEFINITION_BYTES_MAX} bytes")
    definition = _parse(text)
    assert isinstance(request.user, User)
    with transaction.atomic():
        version, created = registry.save_version(agent.project, agent.name, definition, request.user.get_username())
    return f"{version} written" if created else f"nothing changed: {version} says the same"


def _parse(text: str) -> AgentDefinition:
    try:
        return AgentDefinition.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, RecursionError) as error:
        raise Invalid(f"this is not YAML: {str(error)[:300]}") from error
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc'])) or 'definition'}: {e['msg']}" for e in error.errors()]
        raise Invalid("; ".join(wrong[:PROBLEMS_SHOWN_MAX])) from error


class EnabledForm(forms.ModelForm):  # type: ignore[type-arg]
    """The one thing about a registered tool or server that is switched here."""

    class Meta:
        fields = ["enabled"]


class SwitchAdmin(FactAdmin):
    """Registered from files; here it can only be switched off and on."""

    form = EnabledForm

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [str(name) for name in self.get_fields(request, obj) if name != "enabled"]


@admin.register(ModelPrice)
class ModelPriceAdmin(FactAdmin):
    """What models cost, as the project's file says."""

    list_display = ["model", "project", "input", "output", "cached_input", "changed_at"]
    list_select_related = ["project"]
    ordering = ["project", "model"]


@admin.register(McpServer)
class McpServerAdmin(SwitchAdmin):
    """MCP servers that tools live on."""

    list_display = ["named", "project", "enabled", "created_at"]
    list_select_related = ["project"]
    ordering = ["project", "name"]
    exact_texts = ["name", "project__slug"]
    search_help_text = "A whole server name or project"

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return ["named", "project", "settings", "enabled", "created_at"]

    @admin.display(description="Server")
    def named(self, server: McpServer) -> SafeString:
        return cell(server.name)

    @admin.display(description="Configuration")
    def settings(self, server: McpServer) -> SafeString:
        return _block(_yaml(server.configuration))


@admin.register(Tool)
class ToolAdmin(SwitchAdmin):
    """Registered tools with what they declare, and the definition that is pinned."""

    list_display = ["named", "kind", "effect_badge", "key", "probing", "project", "enabled"]
    list_select_related = ["project", "server"]
    ordering = ["project", "name"]
    exact_texts = ["name", "project__slug"]
    search_help_text = "A whole tool name or project"

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [
            "named", "project", "kind", "server", "shown_as", "described", "effect_badge", "key", "probing",
            "replay_safe", "timeout_seconds", "schema", "definition_digest", "settings", "enabled",
        ]  # fmt: skip

    @admin.display(description="Tool")
    def named(self, tool: Tool) -> SafeString:
        return cell(tool.name)

    @admin.display(description="The model calls it")
    def shown_as(self, tool: Tool) -> SafeString:
        return cell(tool.exposed_name)

    @admin.display(description="Description, as the model reads it")
    def described(self, tool: Tool) -> SafeString:
        return _block(tool.description)

    @admin.display(description="Effect")
    def effect_badge(self, tool: Tool) -> SafeString:
        return badge(tool.effect)

    @admin.display(description="Keeps idempotency keys")
    def key(self, tool: Tool) -> str:
        return f"for {tool.idempotent_for_seconds} s" if tool.idempotent_for_seconds else "no"

    @admin.display(description="Can be probed", boolean=True)
    def probing(self, tool: Tool) -> bool:
        return tool.probe is not None

    @admin.display(description="Input schema")
    def schema(self, tool: Tool) -> SafeString:
        return _block(_yaml(tool.input_schema))

    @admin.display(description="Configuration")
    def settings(self, tool: Tool) -> SafeString:
        return _block(_yaml({"probe": tool.probe, **tool.configuration}))


def _block(text: str) -> SafeString:
    return format_html('<pre class="k-text">{}</pre>', shown(text))


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(FactAdmin):
    """Which client's key found which run."""

    list_display = ["owner_name", "project", "run_link", "created_at"]
    list_select_related = ["project"]
    ordering = ["-id"]

    @admin.display(description="Caller")
    def owner_name(self, key: IdempotencyKey) -> SafeString:
        return cell(key.owner)

    @admin.display(description="Run")
    def run_link(self, key: IdempotencyKey) -> SafeString:
        return short_id(key.run_id, reverse("admin:runs_run_change", args=[key.run_id]))
