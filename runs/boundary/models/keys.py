"""Finding an API key at the moment of use. A key is never stored, logged or put into an error."""

from __future__ import annotations

import os

from runs.boundary.models.contracts import ApiKeyReference
from runs.boundary.models.errors import ModelError

DEFAULT_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
NO_KEY = "no-key"  # local servers want none, but the client libraries insist on a value


def resolve_key(provider: str, base_url: str | None, reference: ApiKeyReference | None) -> str:
    """The key for this endpoint, from the worker's environment.

    The provider's usual variable is only used for the provider's own address: another `base_url` gets a key when the
    agent names one, so that no agent can send the company's key to a server of its choice by leaving a field out.
    Raises ModelError (`authentication`) if the variable is not set.
    """
    if reference is None and base_url is not None:
        return NO_KEY
    name = reference.from_env if reference else DEFAULT_KEYS[provider]
    key = os.environ.get(name, "").strip()
    if not key:
        raise ModelError("authentication", f"the environment variable {name} is not set in the worker")
    if not (key.isascii() and key.isprintable()):
        raise ModelError("authentication", f"the environment variable {name} holds characters that no key has")
    return key
