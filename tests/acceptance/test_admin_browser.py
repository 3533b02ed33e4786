"""The console in a real browser: what an operator does in a day, without one complaint of the browser."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, expect

from approvals.models import Approval
from outbox.models import ParkedEvent, PublisherHeartbeat, Stream
from runs.models import Operation, Run
from tests import accessibility, console
from tests.acceptance.screenshots import LISTS, SMALL_LISTS, addresses, shoot
from tests.browser import browser, log_in  # noqa: F401  fixtures
from tests.chromium import SCREENSHOTS
from tests.kernel import make_agent, make_project, says

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "temporality"]), pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def olga(browser, transactional_db):  # noqa: F811
    """An operator who may look at everything, decide, reconcile and cancel."""
    return console.viewer(
        "olga", "approvals.decide_approval", "runs.reconcile_operation", "runs.cancel_run", password=console.PASSWORD
    )


def open_row(page: Page, text: str) -> None:
    page.locator(".k-row", has_text=text).first.click()


def test_approve_from_the_home_page(log_in):  # noqa: F811
    approval = console.waiting_run(tool="refund", amount=120, to="ACME")
    page = log_in("olga")
    open_row(page, "refund")
    expect(page.locator("#arguments")).to_contain_text('"amount": 120')
    page.click("button[value=approve]")
    expect(page.locator("#approval-state")).to_have_text("granted")
    expect(page.get_by_text("refund: granted by olga")).to_be_visible()
    assert Approval.objects.get(id=approval.id).decided_by == "olga"


def test_reject_with_a_reason(log_in):  # noqa: F811
    approval = console.waiting_run(tool="refund")
    page = log_in("olga")
    open_row(page, "refund")
    page.click("button[value=reject]")
    expect(page.get_by_text("say why it is rejected")).to_be_visible()
    page.fill("#reason", "wrong customer")
    page.click("button[value=reject]")
    expect(page.locator("#approval-state")).to_have_text("rejected")
    assert Approval.objects.get(id=approval.id).reason == "wrong customer"


def test_resolve_an_uncertain_operation(log_in):  # noqa: F811
    operation = console.uncertain_run(tool="transfer")
    page = log_in("olga")
    open_row(page, "transfer")
    page.click("text=Resolve…")
    page.get_by_text("It happened", exact=True).click()
    page.fill("#resolve-note", "it is on the bank's statement")
    page.click("text=Write the verdict")
    expect(page.locator("#operation-state")).to_have_text("reconciled")
    operation.refresh_from_db()
    assert (operation.verdict, operation.reconciled_by) == ("occurred", "olga")


def test_cancel_a_run_and_watch_it_change(log_in):  # noqa: F811
    approval = console.waiting_run(tool="refund")
    page = log_in("olga")
    page.goto(f"/admin/runs/run/{approval.run_id}/change/")
    page.click("text=Cancel run")
    page.fill("#cancel-reason", "not wanted any more")
    page.click("text=Cancel the run")
    expect(page.locator("#run-state")).to_have_text("cancelling")
    console.end(Run.objects.get(id=approval.run_id))
    expect(page.locator("#run-state")).to_have_text("cancelled")  # by itself


def test_home_refreshes_itself_and_keeps_quiet_about_nothing(log_in):  # noqa: F811
    page = log_in("olga")
    expect(page.get_by_text("Nothing is unclear.")).to_be_visible()
    before = page.locator("#refreshed-at").inner_text()
    console.uncertain_run(tool="transfer")
    expect(page.locator(".k-card-uncertain")).to_contain_text("transfer")
    assert page.locator("#refreshed-at").inner_text() != before


def test_every_page_in_pictures(log_in):  # noqa: F811
    """Looked at by people, in var/screenshots; the browser must not complain, nor axe, and nothing may be too wide."""
    console.person("root", superuser=True, password=console.PASSWORD)
    busy_day()
    wrong: list[str] = []

    def look(page: Page) -> None:
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            wrong.append(f"{page.url} is wider than the window")
        if accessibility.is_installed():
            wrong.extend(accessibility.violations(page))

    for width, scheme, left_out in ((1280, "light", SMALL_LISTS), (390, "dark", {**LISTS, **SMALL_LISTS})):
        page = log_in("root", width, scheme)
        chosen = {name: url for name, url in addresses(page).items() if name not in left_out or name == "uncertain"}
        assert shoot(page, chosen, SCREENSHOTS, f"{width}-{scheme}", look)
    assert wrong == [], "\n".join(wrong)
    if not accessibility.is_installed():
        pytest.skip(f"axe did not look: {accessibility.PACKAGE} is not installed")


def busy_day() -> None:
    project = make_project("acme-billing")
    console.make_scene_tools(
        project,
        ledger__read={"effect": "read"},
        ledger__post={"effect": "write", "idempotent_for_seconds": 86400},
        bank__transfer={"effect": "write", "idempotent_for_seconds": 60},
        mail__send={"effect": "write"},
    )
    tools = ["ledger/read", "ledger/post", "bank/transfer", "mail/send"]
    version = make_agent(project, [says("done")], tools)
    version.agent.name = "invoice-clerk"
    version.agent.save()
    for text in ("one", "two"):
        run = console.begin(version, text)
        for call in console.turn(run, 1, calls=[("ledger/read", {"month": "2026-11"}), ("ledger/post", {"n": text})]):
            time.sleep(0.15)
            console.succeed(call, "42 rows")
        time.sleep(0.2)
        console.turn(run, 2, "Everything is booked.")
        console.end(run)
    run = console.begin(version, "Pay what is due and tell the customers.")
    read, post = console.turn(run, 1, calls=[("ledger/read", {"month": "2026-11"}), ("ledger/post", {"row": 7})])
    time.sleep(0.3)
    console.succeed(read, "42 rows")
    time.sleep(0.2)
    console.fail(post, "refused", "HTTP 422: the period is closed")
    [lost] = console.turn(
        run, 2, calls=[("bank/transfer", {"amount": "120.00", "iban": "DE02 1203 0000 0000 2020 51"})]
    )
    time.sleep(0.4)
    console.lose(lost)
    time.sleep(0.4)
    console.turn(run, 3, calls=[("mail/send", {"to": "kunde@example.com", "subject": "Ihre Rechnung", "body": "…"})])
    Run.objects.filter(id=run.id).update(waiting_for="approval of mail/send")
    console.waiting_run(project, by="anna", tool="mail/send", to="alle@example.com", subject="g\u202efdp.exe")
    failed = console.begin(version, "three")
    console.turn(failed, 1, "…")
    console.end(failed, "failed", "turns_max", "the limit of 50 turns was reached")
    Stream.objects.filter(run_id=failed.id).update(published=2, seen=1)
    ParkedEvent.objects.create(
        event_id=console.first_event(failed), run_id=failed.id, sequence=1, reason="conflict", last_error="exists"
    )
    PublisherHeartbeat.objects.create(publisher="celery@worker-1", published_total=1234)
    assert Operation.objects.filter(state="uncertain").exists()
