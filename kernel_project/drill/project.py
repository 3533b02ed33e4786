"""The project that the drill's rows play in: tools, policies, and agents whose models follow a script."""

from __future__ import annotations

import sys
from typing import Any

from kernel_project.devstack.api_client import Json
from kernel_project.devstack.layout import PROJECT_ROOT
from kernel_project.drill import mcp_server
from kernel_project.drill.ledger_process import ADDRESS_VARIABLE
from kernel_project.drill.tools import MODULE

DEADLINE_SECONDS = 3
CANARY = "CANARY-7f3a91"  # stands in prompts and arguments, and must be in no event
COUNT_SECONDS = 6  # long enough for the worker to be killed meanwhile
NOBODY: Json = {"type": "object", "properties": {}, "additionalProperties": False}


def _call(tool: str, text: str, **more: Any) -> Json:
    return {"calls": [{"tool": tool, "arguments": {"text": text, **more}}]}


def _command(tool: str) -> Json:
    return {"calls": [{"tool": tool}]}


DONE: Json = {"text": "done"}
AGENTS: dict[str, list[Json]] = {
    "f1": [{"error": {"code": "rate_limited", "retry_after": 0.5, "attempts": 2}, "text": "done after all"}],
    "f1-hopeless": [{"error": {"code": "overloaded", "retry_after": 0.05}}],
    "f2": [_call("pay_and_lose", f"f2-{CANARY}"), DONE],
    "f2-refused": [_call("pay_refused", "f2-refused"), DONE],
    "f2-mcp-dies": [_call(f"{mcp_server.NAME}__pay_and_die", f"f2-mcp-{CANARY}"), DONE],
    "f2-mcp-fails": [_call(f"{mcp_server.NAME}__pay_and_fail", "f2-mcp-fails"), DONE],
    "f3": [_command("count_slowly"), DONE],
    "f3-once": [_command("count_once"), DONE],
    "f3-cancel": [_command("tick"), DONE],
    "f4": [_call("look", "f4", seconds=8), DONE],
    "f5": [DONE],
    "f6": [{**_call("look", "f6"), "delay_seconds": 3}, DONE],
    "f7": [{**_call("pay", "f7"), "delay_seconds": 3}, DONE],
    "f8": [_call("pay", "f8"), DONE],
    "f8-probed": [_call("pay_probed", "f8-probed"), DONE],
    "f9": [_call("look", "f9"), DONE],
    "f10": [DONE],
    "f11-granted": [_call("ask_first", "f11-granted"), DONE],
    "f11-expired": [_call("ask_briefly", "f11-expired"), DONE],
    "f11-rejected": [_call("ask_first", "f11-rejected"), DONE],
    "f11-cancelled": [_call("ask_or_cancel", "f11-cancelled"), DONE],
    "f11-without-temporal": [_call("ask_first", "f11-without-temporal"), DONE],
    "f11-without-worker": [_call("ask_first", "f11-without-worker"), DONE],
    "f12": [_call("pay", "f12", seconds=4), _call("pay", "f12-never"), DONE],
}
POLICIES: list[Json] = [
    {"name": "the drill's writes", "tool": "pay*", "answer": "allow"},
    {"name": "the server's writes", "tool": f"{mcp_server.NAME}/*", "answer": "allow"},
    {"name": "commands", "tool": "count_once", "answer": "allow"},
    {"name": "ask first", "tool": "ask_first", "answer": "require"},
    {"name": "ask briefly", "tool": "ask_briefly", "answer": "require", "deadline_seconds": DEADLINE_SECONDS},
    {
        "name": "ask or cancel", "tool": "ask_or_cancel", "answer": "require", "deadline_seconds": DEADLINE_SECONDS,
        "on_expiry": "cancel_run",
    },
]  # fmt: skip
FUNCTIONS = ("look", "pay", "pay_and_lose", "pay_refused", "pay_probed", "ask_first", "ask_briefly", "ask_or_cancel")


LATE = "f1-late"  # the agent whose provider is a real HTTP server that answers too late
LATE_AFTER_SECONDS = 3  # the libraries behind a real provider are loaded in the first call
LATE_ANSWERS = 2
SERVER: Json = {
    "name": mcp_server.NAME,
    "transport": "stdio",
    "command": sys.executable,
    "args": ["-m", mcp_server.__name__],
    "working_directory": str(PROJECT_ROOT),
    "environment": {"PYTHONPATH": str(PROJECT_ROOT), ADDRESS_VARIABLE: {"from_env": ADDRESS_VARIABLE}},
}


def _sandbox(name: str, script: str, **declared: Any) -> Json:
    return {
        "kind": "sandbox",
        "name": name,
        "description": "A command of the drill.",
        "timeout_seconds": 60,
        "input_schema": NOBODY,
        "configuration": {"argv": ["/bin/sh", "-c", script], "accept_missing": ["tree_limits"]},
        **declared,
    }


COMMANDS: list[Json] = [
    _sandbox("count_slowly", f"echo began >> began; sleep {COUNT_SECONDS}; echo counted", effect="read",
             replay_safe=True),
    _sandbox("count_once", f"echo began >> began; sleep {COUNT_SECONDS}; echo counted", effect="write"),
    _sandbox("tick", "echo ticking; while :; do date +%s.%N >> ticks; sleep 0.1; done", effect="read"),
]  # fmt: skip


def file(provider_url: str) -> Json:
    """What `load_agents` reads, without the project's name; at `provider_url` is a provider that is late at first."""
    python = [{"kind": "python", "module": MODULE, "function": name} for name in FUNCTIONS]
    remote = [{"kind": "mcp", "server": mcp_server.NAME, "tool": name} for name in mcp_server.TOOLS]
    names = [
        *FUNCTIONS,
        *(command["name"] for command in COMMANDS),
        *(f"{mcp_server.NAME}/{name}" for name in mcp_server.TOOLS),
    ]
    late = {
        "name": LATE,
        "model": "openai:drill",
        "base_url": provider_url,
        "model_timeout_seconds": LATE_AFTER_SECONDS,
    }
    return {
        "mcp_servers": [SERVER],
        "tools": [*python, *remote, *COMMANDS],
        "policies": POLICIES,
        "agents": [{"name": name, "model": f"scripted:{name}.yaml", "tools": names} for name in AGENTS] + [late],
    }
