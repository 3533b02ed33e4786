"""axe-core's automated checks on a page in the browser. Its script comes with the package axe-playwright-python."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

FOUND = find_spec("axe_playwright_python")
PACKAGE = "axe-playwright-python"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
NODES_SHOWN_MAX = 3


def is_installed() -> bool:
    return FOUND is not None


def violations(page: Page) -> list[str]:
    """What axe finds wrong on the page as it is now, one line per place. Injected past the page's own policy."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(_script())
    found = page.evaluate(
        "tags => axe.run(document, {runOnly: tags, resultTypes: ['violations']})"
        ".then(report => report.violations.map(({id, impact, nodes}) => ({id, impact, nodes: nodes.map("
        "node => ({target: node.target.join(' '), summary: node.failureSummary}))})))",
        list(RULES),
    )
    return [_line(page.url, rule, node) for rule in found for node in rule["nodes"][:NODES_SHOWN_MAX]]


def _script() -> str:
    assert FOUND is not None
    assert FOUND.origin
    return Path(FOUND.origin).with_name("axe.min.js").read_text()


def _line(url: str, rule: dict[str, Any], node: dict[str, Any]) -> str:
    return f"{url} {rule['id']} ({rule['impact']}): {node['target']}: {' '.join(node['summary'].split())}"
