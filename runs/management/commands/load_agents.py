"""manage.py load_agents FILE: register servers, tools, policies and agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from kernel_project.primitives.errors import KernelError
from runs import registry


class Command(BaseCommand):
    help = "Register a project's MCP servers, tools, policies and agents from a YAML file: all of it or nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="see docs/agents.md")
        parser.add_argument("--by", default="load_agents", help="who is recorded as the author of new versions")
        parser.add_argument("--workspace", default="", help="stands for {workspace} while servers list their tools")

    def handle(self, *, file: Path, by: str, workspace: str, **options: Any) -> None:
        try:
            report = registry.load(file, by, workspace)
        except KernelError as error:
            raise CommandError(error.message) from error
        for line in report.done:
            self.stdout.write(line)
        for problem in report.problems:
            self.stderr.write(f"left out: {problem}")
