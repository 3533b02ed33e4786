"""The JSON API's doors to runs, operations, agents and tools."""

from ninja import Router

from runs.api import artifacts, catalogue, holds, operations, runs

routers: tuple[Router, ...] = (runs.router, operations.router, artifacts.router, catalogue.router, holds.router)
