"""Three people at the queue in a real browser: one edits, one approves, one rejects. The browser must not complain."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import Page, expect

from approvals.models import Approval, Decision
from runs.boundary import artifacts
from runs.models import Operation
from tests import console
from tests.browser import browser, log_in  # noqa: F401  fixtures
from tests.chromium import SCREENSHOTS
from tests.kernel import make_project

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "temporality"]), pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def people(browser, transactional_db):  # noqa: F811
    for name in ("erika", "anton", "rita"):
        console.viewer(name, "approvals.decide_approval", password=console.PASSWORD)


def picture(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"approval-{name}.png", full_page=True)


def opened(page: Page, approval: Approval) -> None:
    page.goto(f"/admin/approvals/approval/{approval.id}/change/")


def newest(approval: Approval) -> Approval:
    return Approval.objects.filter(operation_id=approval.operation_id).latest("requested_at")


def test_one_edits_another_approves_and_a_third_rejects(log_in):  # noqa: F811
    """With four eyes: who wrote the arguments is not who says yes to them."""
    project = make_project("acme-billing")
    first = console.waiting_run(
        project, by="billing-service", tool="bank/transfer", rule={"four_eyes": True, "quorum": 1},
        amount=1200, to="ACME\u202e Ltd", password="hunter22",
    )  # fmt: skip
    second = console.waiting_run(project, tool="mail/send", to="all@example.org", subject="g\u202efdp.exe")

    erika = log_in("erika")
    erika.goto("/admin/approvals/approval/?state=waiting")
    picture(erika, "queue")
    erika.locator("#result_list a", has_text="bank/transfer").first.click()
    expect(erika.locator("#arguments")).to_contain_text("[redacted: 8 characters]")
    expect(erika.locator("#arguments")).to_contain_text("U+202E")
    expect(erika.locator("#run-so-far")).to_contain_text("approval.requested")
    picture(erika, "before-the-edit")
    erika.click("text=Edit…")
    text = erika.locator("#edited").input_value()
    erika.fill("#edited", text.replace("1200", "oops"))
    erika.click("text=Ask for this instead")
    expect(erika.get_by_text("not valid JSON")).to_be_visible()
    erika.fill("#edited", text.replace("1200", "120"))
    erika.fill("#reason", "a zero too many")
    picture(erika, "edit")
    erika.click("text=Ask for this instead")
    expect(erika.get_by_text("This is the new request")).to_be_visible()
    expect(erika.get_by_text("You wrote these arguments")).to_be_visible()
    expect(erika.locator("button[value=approve]")).to_have_count(0)
    picture(erika, "after-the-edit")

    anton = log_in("anton")
    opened(anton, first)
    expect(anton.locator("#approval-state")).to_have_text("superseded")
    opened(anton, newest(first))
    expect(anton.get_by_text("amount: 1200 → 120")).to_be_visible()
    picture(anton, "edited-for-the-approver")
    anton.click("#reveal")
    expect(anton.locator("#arguments")).to_contain_text("hunter22")
    anton.click("button[value=approve]")
    expect(anton.locator("#approval-state")).to_have_text("granted")

    rita = log_in("rita")
    opened(rita, second)
    rita.locator("#reason").focus()
    rita.keyboard.type("nobody mails everybody")
    for _ in range(4):  # to the button, with the keyboard alone
        rita.keyboard.press("Tab")
        if rita.evaluate("document.activeElement.value") == "reject":
            break
    picture(rita, "reject-by-keyboard")
    rita.keyboard.press("Enter")
    expect(rita.locator("#approval-state")).to_have_text("rejected")

    granted, rejected = newest(first), newest(second)
    assert (granted.decided_by, granted.edited_by, granted.state) == ("anton", "erika", "granted")
    assert (rejected.decided_by, rejected.reason, rejected.state) == ("rita", "nobody mails everybody", "rejected")
    operation = Operation.objects.get(id=first.operation_id)
    sent = json.loads(artifacts.read(operation.run_id, operation.arguments_digest))
    assert sent == {"amount": 120, "to": "ACME\u202e Ltd", "password": "hunter22"}


def test_several_are_rejected_with_one_reason_and_the_time_runs_out_in_front_of_a_person(log_in):  # noqa: F811
    project = make_project("acme-billing")
    for amount in range(3):
        console.waiting_run(project, tool="pay", amount=amount)
    page = log_in("rita")
    page.goto("/admin/approvals/approval/?state=waiting")
    for box in page.locator("input.action-select").all()[:2]:
        box.check()
    page.locator("select[name=action]").select_option("reject_selected")
    page.get_by_role("button", name="Run").click()
    page.fill("#reason", "not this month")
    picture(page, "reject-several")
    page.click("text=Reject them")
    expect(page.get_by_text("rejected by rita").first).to_be_visible()
    assert Decision.objects.filter(applied=True, reason="not this month").count() == 2

    last = console.waiting_run(project, tool="refund", rule={"deadline_seconds": 8})
    opened(page, last)
    expect(page.locator("button[value=approve]")).to_be_enabled()
    expect(page.locator("button[value=approve]")).to_be_disabled(timeout=20_000)  # by itself
    picture(page, "deadline-passed")


def test_a_draft_policy_is_tried_in_the_console(log_in):  # noqa: F811
    project = make_project("acme-billing")
    console.waiting_run(project, tool="pay", amount=500)
    console.person("root", superuser=True, password=console.PASSWORD)
    page = log_in("root", 1280)
    page.goto("/admin/approvals/policy/")
    page.click("text=Try a draft on past calls")
    page.fill("#id_project", project.slug)
    page.fill("#id_name", "large")
    page.fill("#id_tool", "pay")
    page.fill("#id_arguments", '[{"path": "$.amount", "range": {"min": 100}}]')
    page.select_option("#id_answer", "deny")
    page.click("button:has-text('Try it')")
    expect(page.locator("#trial")).to_contain_text("1 calls of acme-billing; the draft decides 1, 1 otherwise")
    picture(page, "policy-try")
