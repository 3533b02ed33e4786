"""Questions for the model port's tests, and the two real providers pointed at the misbehaving server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from runs.boundary.models import ModelRequest, ToolDefinition, UserMessage
from tests.fakes.llm_server import LlmServer, Reply, anthropic_answer, openai_answer

TOOL = ToolDefinition(
    name="search",
    description="Find.",
    input_schema={"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
)


class Provider(NamedTuple):
    """One wire form: how to ask for it, and how its server answers."""

    name: str
    model: str
    answer: Callable[..., Reply]

    def question(self, server: LlmServer, **changes: Any) -> ModelRequest:
        url = server.openai_url if self.name == "openai" else server.anthropic_url
        return question(model=self.model, base_url=url, **changes)


OPENAI = Provider("openai", "openai:some-model", openai_answer)
ANTHROPIC = Provider("anthropic", "anthropic:claude-some", anthropic_answer)


def question(**changes: Any) -> ModelRequest:
    usual: dict[str, Any] = {
        "model": "scripted:turns.yaml",
        "messages": (UserMessage(text="find it"),),
        "tools": (TOOL,),
        "max_output_tokens": 100,
        "timeout_seconds": 5,
        "request_id": "operation-1",
    }
    return ModelRequest(**(usual | changes))
