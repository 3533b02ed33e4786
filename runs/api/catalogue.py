"""Doors to what is registered: agents and tools, for reading."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Query, Router

from kernel_project.web import pages
from kernel_project.web.callers import Needs, caller_of
from kernel_project.web.pages import Page, PageQuery
from runs import selectors
from runs.api import answers
from runs.api.contracts import NAME_CHARS_MAX, AgentItem, ToolItem

router = Router(tags=["catalogue"])


@router.get("/agents", auth=Needs("runs:read"), response=Page[AgentItem])
def list_agents(request: HttpRequest, asked: Query[PageQuery]) -> Page[AgentItem]:
    """The newest version of each agent, by name."""
    after = pages.decode(asked.cursor, _name) if asked.cursor else ""
    found = selectors.agents(caller_of(request).project, after)
    return pages.page(found, asked.limit, answers.agent_item, lambda version: [version.agent.name])


@router.get("/tools", auth=Needs("runs:read"), response=Page[ToolItem])
def list_tools(request: HttpRequest, asked: Query[PageQuery]) -> Page[ToolItem]:
    """The registered tools, by name."""
    after = pages.decode(asked.cursor, _name) if asked.cursor else ""
    return pages.page(
        selectors.tools(caller_of(request).project, after), asked.limit, answers.tool_item, lambda tool: [tool.name]
    )


def _name(position: list[Any]) -> str:
    [name] = position
    if not isinstance(name, str) or "\x00" in name or len(name) > 3 * NAME_CHARS_MAX:
        raise ValueError(name)
    name.encode()
    return name
