"""What goes to a model and what comes back, in the kernel's own words. Imports no framework and parses no argument."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

OUTPUT_TOKENS_MAX = 1_000_000  # more than any model writes; a larger number is a typing error
TIMEOUT_SECONDS_MAX = 3600  # a model that thinks longer than this is not waited for
KEY_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,91}_API_KEY")  # so that no agent can name SECRET_KEY or DATABASE_URL

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "error", "unknown"]
ErrorCode = Literal[
    "rate_limited",
    "overloaded",
    "server_error",
    "timeout",
    "connection",
    "bad_response",
    "quota_exceeded",
    "authentication",
    "not_found",
    "rejected",
    "context_exceeded",
    "content_filter",
    "unsupported",
]


class Frozen(BaseModel):
    """Stored and sent; unknown fields of a later version are ignored, and an error never quotes a prompt."""

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)


class ToolDefinition(Frozen):
    """A tool as it is offered to the model; `input_schema` is the JSON schema of an object."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)


class ToolCall(Frozen):
    """A call as the model wrote it. `id` is a label of the provider; `arguments` is raw text and may be anything."""

    id: str = ""
    name: str
    arguments: str = ""


class UserMessage(Frozen):
    kind: Literal["user"] = "user"
    text: str


class AssistantMessage(Frozen):
    kind: Literal["assistant"] = "assistant"
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolMessage(Frozen):
    """The one result of the call with this id in the assistant message before it."""

    kind: Literal["tool"] = "tool"
    call_id: str = ""
    name: str
    text: str
    is_error: bool = False


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="kind")]


class ApiKeyReference(Frozen):
    """Where the key is, never the key: an environment variable of the worker whose name ends in `_API_KEY`."""

    from_env: str

    @field_validator("from_env")
    @classmethod
    def is_the_name_of_a_key(cls, name: str) -> str:
        if not KEY_NAME.fullmatch(name):
            raise ValueError("from_env must be a variable in capitals whose name ends in _API_KEY")
        return name


class ModelRequest(Frozen):
    """One question to one model.

    `request_id` is the operation's id and goes out as `Idempotency-Key`; `attempt` counts dispatches of the same
    operation from 1. `context` is read by the scripted provider only (`{workspace}` and the like).
    """

    model: str
    base_url: str | None = None
    api_key_ref: ApiKeyReference | None = None
    instructions: str = ""
    messages: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...] = ()
    max_output_tokens: int = Field(ge=1, le=OUTPUT_TOKENS_MAX)
    temperature: float | None = Field(default=None, ge=0, le=2)
    timeout_seconds: float = Field(gt=0, le=TIMEOUT_SECONDS_MAX)
    request_id: str = Field(pattern=r"^[\x21-\x7e]{1,200}$")  # it becomes a header
    attempt: int = Field(default=1, ge=1)
    context: dict[str, str] = Field(default_factory=dict)

    @field_validator("base_url")
    @classmethod
    def is_a_plain_address(cls, url: str | None) -> str | None:
        if url is not None:
            check_base_url(url)
        return url


class Usage(Frozen):
    """Tokens as the provider counted them. None is unknown, which is not zero.

    `input_tokens` is the whole input; `cached_input_tokens` is the part of it that was read from a cache.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_input_tokens: int | None = None


class ModelAnswer(Frozen):
    """What the model said.

    `provider` is `openai`, `anthropic`, `openai-compatible` and `anthropic-compatible` (a `base_url` was given), or
    `scripted`; `model` is the name that answered, which can differ from the one asked. With `length` nothing of the
    answer may be executed, whatever it looks like.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason
    usage: Usage = Usage()
    provider: str
    model: str = ""
    response_id: str = ""
    provider_request_id: str = ""
    seconds: float = 0.0


def check_base_url(url: str) -> None:
    """Raises ValueError unless the URL is http(s), names a host, and carries no credentials, query or fragment."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("base_url must be an http or https address, such as https://host/v1")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError("base_url must carry no user, password, query or fragment: the key has a setting of its own")
