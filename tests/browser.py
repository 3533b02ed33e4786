"""Debian's Chromium against the console of a live server. What the browser complains of fails the test."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.chromium import ARGUMENTS, CHROMIUM, PATIENCE_MILLISECONDS
from tests.console import PASSWORD


@dataclass
class Watch:
    """What a browser did that the console never should: errors, policy violations, requests to elsewhere."""

    origin: str
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def on(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("request", lambda request: self._request(request.url))

    def _request(self, url: str) -> None:
        if urlsplit(url).scheme in ("http", "https") and not url.startswith(self.origin + "/"):
            self.foreign.append(url)

    def check(self) -> None:
        assert self.errors == [], self.errors
        assert self.foreign == [], self.foreign


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for one module. Playwright keeps an event loop in this thread, so Django must be told not to mind."""
    if not Path(CHROMIUM).exists() and shutil.which("chromium") is None:
        pytest.fail(f"the console's tests need Chromium at {CHROMIUM}: apt-get install chromium")
    with pytest.MonkeyPatch.context() as environment, sync_playwright() as playwright:
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield made
        made.close()


LogIn = Callable[[str], Page]


@pytest.fixture
def log_in(browser: Browser, live_server) -> Iterator[LogIn]:
    """Log somebody in through the form and answer with their page; all complaints are checked at the end."""
    contexts: list[BrowserContext] = []
    watch = Watch(live_server.url)

    def enter(name: str, width: int = 1280, scheme: str = "light") -> Page:
        context = browser.new_context(
            base_url=live_server.url,
            viewport={"width": width, "height": 900},
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        context.set_default_timeout(PATIENCE_MILLISECONDS)
        contexts.append(context)
        page = context.new_page()
        watch.on(page)
        page.goto("/admin/")
        page.fill("input[name=username]", name)
        page.fill("input[name=password]", PASSWORD)
        page.click("button[type=submit]")
        page.wait_for_selector("#home-cards")
        return page

    yield enter
    for context in contexts:
        context.close()
    watch.check()
