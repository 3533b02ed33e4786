"""Log in to a running console and make a picture of each page, for the README and for looking at.

    KERNEL_CONSOLE_PASSWORD=… python -m tests.acceptance.screenshots --url http://127.0.0.1:8000 --user admin

Changes nothing but the session that it opens.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.chromium import ARGUMENTS, CHROMIUM, PATIENCE_MILLISECONDS, SCREENSHOTS

WIDTHS = (1280, 390)
SCHEMES = ("light", "dark")
LISTS = {
    "runs": "/admin/runs/run/",
    "operations": "/admin/runs/operation/",
    "uncertain": "/admin/runs/operation/?state=uncertain",
    "approvals": "/admin/approvals/approval/?state=waiting",
    "decided": "/admin/approvals/approval/",
    "streams": "/admin/outbox/stream/",
    "events": "/admin/outbox/event/",
    "parked": "/admin/outbox/parkedevent/",
    "publishers": "/admin/outbox/publisherheartbeat/",
    "agents": "/admin/runs/agent/",
    "tools": "/admin/runs/tool/",
    "policies": "/admin/approvals/policy/",
    "keys": "/admin/runs/apikey/",
    "audit": "/admin/admin/logentry/",
}
SMALL_LISTS = {
    "servers": "/admin/runs/mcpserver/",
    "projects": "/admin/runs/project/",
    "holds": "/admin/runs/hold/",
    "machines": "/admin/runs/sandboxreport/",
    "destinations": "/admin/outbox/destination/",
    "jobs": "/admin/outbox/periodicjob/",
    "inbox": "/admin/temporality/event/",
    "conflicts": "/admin/temporality/conflict/",
    "not-applied": "/admin/temporality/pending/",
}
FIRST_OF = {
    "run": "runs", "operation": "uncertain", "approval": "approvals", "event": "events", "agent": "agents",
    "tool": "tools", "policy": "policies", "stream": "streams",
}  # fmt: skip


def addresses(page: Page) -> dict[str, str]:
    """Each page by name: home, the lists, and the first object of some of them."""
    found = {"home": "/admin/", **LISTS, **SMALL_LISTS}
    for name, listed in FIRST_OF.items():
        page.goto(LISTS[listed])
        first = page.locator("#result_list tbody th a, #result_list tbody td a").first
        if first.count():
            found[name] = first.get_attribute("href") or ""
    return found


def nothing(page: Page) -> None:
    """What is done on a page besides its picture."""


def shoot(
    page: Page, pages: dict[str, str], folder: Path, mark: str, look: Callable[[Page], None] = nothing
) -> list[Path]:
    """One picture of each page in full length; `look` sees each of them, too."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for name, address in pages.items():
        page.goto(address)
        page.wait_for_load_state("load")
        page.wait_for_timeout(SETTLE_MILLISECONDS)
        made.append(folder / f"{name}-{mark}.png")
        page.screenshot(path=made[-1], full_page=True)
        look(page)
    return made


SETTLE_MILLISECONDS = 250  # transitions and icons


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", default=os.environ.get("KERNEL_CONSOLE_PASSWORD", ""))
    parser.add_argument("--out", type=Path, default=SCREENSHOTS)
    parser.add_argument("--only", nargs="*", help="names of pages, such as home and run")
    given = parser.parse_args(arguments)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for scheme in SCHEMES:
            for width in WIDTHS:
                context = browser.new_context(
                    base_url=given.url, viewport={"width": width, "height": 900}, color_scheme=scheme
                )
                context.set_default_timeout(PATIENCE_MILLISECONDS)
                page = context.new_page()
                page.goto("/admin/")
                page.fill("input[name=username]", given.user)
                page.fill("input[name=password]", given.password)
                page.click("button[type=submit]")
                page.wait_for_selector("#home-cards")
                pages = addresses(page)
                wanted = {name: url for name, url in pages.items() if not given.only or name in given.only}
                for made in shoot(page, wanted, given.out, f"{width}-{scheme}"):
                    print(made)  # noqa: T201
                context.close()
        browser.close()


if __name__ == "__main__":
    main()
