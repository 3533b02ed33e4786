"""The model port: contracts, `ask`, and the providers behind it."""

from runs.boundary.models.arguments import ArgumentsError, parse_arguments
from runs.boundary.models.contracts import (
    ApiKeyReference,
    AssistantMessage,
    ErrorCode,
    FinishReason,
    Message,
    ModelAnswer,
    ModelRequest,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    Usage,
    UserMessage,
)
from runs.boundary.models.errors import ModelError
from runs.boundary.models.port import aclose, ask, check_model, split_model

__all__ = [
    "ApiKeyReference",
    "ArgumentsError",
    "AssistantMessage",
    "ErrorCode",
    "FinishReason",
    "Message",
    "ModelAnswer",
    "ModelError",
    "ModelRequest",
    "ToolCall",
    "ToolDefinition",
    "ToolMessage",
    "Usage",
    "UserMessage",
    "aclose",
    "ask",
    "check_model",
    "parse_arguments",
    "split_model",
]
