"""Regular expressions that strangers write, on an engine whose time is linear. Knows no rule and no schema."""

from __future__ import annotations

from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

PATTERNS_MAX = 1_024  # compiled patterns kept


@lru_cache(maxsize=PATTERNS_MAX)
def compiled(pattern: str) -> SchemaValidator | None:
    """Rust's engine, which takes a text where the pattern is found in it.

    None for what it does not speak: look-around, back-references.
    """
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except (SchemaError, ValueError):
        return None
