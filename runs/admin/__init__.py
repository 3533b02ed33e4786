"""The runs' pages of the operator's console."""

from runs.admin import definitions, holds, keys, machines, operations, runs  # noqa: F401  registers the pages
