"""Alerts in the browser: one fires, is acknowledged, is over; rules and channels by form; what a viewer may not do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from tests.console.conftest import Open, Up, in_database, picture
from tests.console.test_tasks import job

_FIRE = """
    insert into mainspring.alert (rule, kind, severity, subject, job, state, is_event, message, details, since,
                                  pending_at, seen_at, fired_at, count, untold, events, changed_at)
    select 'w-failing', 'failing', 'critical', 'job:{name}', null, 'firing', false, 'the last 3 tasks of {name} failed',
           '{{"tasks": [1, 2, 3]}}', at - interval '2 min', at, at, at, 1, 0, '[]', at
      from (select mainspring.now() as at) now
"""
_RESOLVE = """
    update mainspring.alert set state = 'resolved', resolved_at = mainspring.now(), changed_at = mainspring.now()
     where subject = 'job:{name}'
"""


def test_a_failure_is_an_alert_is_acknowledged_and_leads_to_its_output(
    up: Up, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    """A job that really fails, by a rule that is there from the start; its error is two clicks from the navigation."""
    job(up, "w-report", "echo the shop is away >&2; exit 3")
    page = open_page("alerts")
    page.get_by_role("tab", name="Firing").wait_for()
    page.locator(".live-dot.live").wait_for()
    id = up.submit("w-report", wait=20)
    show = page.get_by_role("button", name=re.compile("new alert"))
    card = page.locator(".alert-card", has_text="w-report")
    card.or_(show).first.wait_for(timeout=30_000)
    if not card.is_visible():
        show.click()
    expect(card.locator(".alert-message")).to_have_text(
        f"task {id} of w-report failed (exit_code: exit code 3: the shop is away)"
    )
    expect(page.locator(".places .badge.firing")).to_contain_text(re.compile(r"^[1-9]"))
    check_axe(page)
    picture(page, "alerts")
    card.get_by_role("button", name="Acknowledge").focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Note").fill("known, TICKET-7")
    check_axe(page)
    page.keyboard.press("Enter")
    card.get_by_text("known, TICKET-7").wait_for()
    page.get_by_text("Muted until").wait_for()
    assert [mute["subjects"] for mute in up.call("GET /mutes")["items"]] == [["job:w-report"]]
    card.get_by_role("link", name=f"task {id}").click()
    page.get_by_role("group", name="Error").get_by_text("exit code 3: the shop is away").wait_for()
    page.get_by_label("Output", exact=True).get_by_text("the shop is away").wait_for()
    page.go_back()
    card.get_by_role("link", name="its failed tasks").click()
    page.locator(f'tr[data-id="{id}"]').wait_for()
    page.go_back()
    card.wait_for()
    in_database(up.dsn, _RESOLVE.format(name="w-report"))
    card.get_by_text("resolved", exact=True).wait_for()
    page.get_by_role("tab", name="Resolved").click()
    page.locator("tr", has_text="w-report").wait_for()
    page.get_by_role("tab", name="Muted").click()
    page.locator("tr", has_text="TICKET-7").get_by_role("button", name="Unmute").click()
    page.get_by_text("Nothing is muted.").wait_for()
    assert up.call("GET /mutes")["items"] == []
    page.get_by_role("button", name="Undo").last.click()
    page.locator("tr", has_text="TICKET-7").wait_for()


def test_rules_are_tried_made_and_deleted(up: Up, open_page: Open, check_axe: Callable[[Any], None]) -> None:
    page = open_page("alerts?tab=rules", theme="dark")
    page.locator(".rule-words", has_text="The clock of an agent is wrong.").wait_for()
    check_axe(page)
    page.get_by_role("button", name="Test no-agents").click()
    page.get_by_role("dialog").get_by_text("It finds nothing.").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="New rule").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name", exact=True).fill("w-slow")
    form.get_by_label("Looks for").select_option("late")
    form.get_by_label("after", exact=True).fill("soon")
    page.strict.allow("422")
    form.get_by_role("button", name="Save").click()
    form.get_by_text(re.compile("parameters.after")).wait_for()
    expect(form.get_by_label("Name", exact=True)).to_have_value("w-slow")
    form.get_by_label("after", exact=True).fill("30s")
    check_axe(page)
    form.get_by_role("button", name="Save").click()
    row = page.locator('tr[data-id="w-slow"]')
    row.get_by_text("after 30 s, count 1, window 5 min").wait_for()
    assert up.call("GET /alert-rules/{name}", name="w-slow")["spec"]["parameters"] == {"after": 30}
    row.get_by_role("button", name="Turn off w-slow").click()
    row.get_by_text("w-slow (off)").wait_for()
    row.get_by_role("button", name="Delete w-slow").click()
    page.get_by_role("dialog").get_by_label("Type w-slow to confirm").fill("w-slow")
    page.get_by_role("button", name="Delete it").click()
    expect(row).to_have_count(0)


def test_a_channel_shows_its_secret_once_and_tells_of_its_test(
    up: Up, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    page = open_page("alerts?tab=channels", width=360)
    page.get_by_role("button", name="New channel").click()
    form = page.get_by_role("dialog")
    form.get_by_label("Name").fill("w-ops")
    form.get_by_label("Address").fill("http://127.0.0.1:9/alerts")
    form.get_by_role("button", name="Save").click()
    page.get_by_text(re.compile("^whsec_")).wait_for()
    page.get_by_role("button", name="I have copied it").click()
    row = page.locator('tr[data-id="w-ops"]')
    row.get_by_role("button", name="Send test to w-ops").click()
    page.get_by_text(re.compile("w-ops has not taken it")).wait_for()
    check_axe(page)
    assert page.evaluate("document.querySelector('main').scrollWidth <= innerWidth")
    page.get_by_role("tab", name="Messages").click()
    page.locator("tr", has_text="w-ops").first.wait_for()
    assert "whsec_" not in page.content()
    page.get_by_role("tab", name="Channels").click()
    row.get_by_role("button", name="Delete w-ops").click()
    form.get_by_label("Type w-ops to confirm").fill("w-ops")
    form.get_by_role("button", name="Delete it").click()
    expect(row).to_have_count(0)
    assert up.call("GET /channels")["items"] == []


def test_a_viewer_sees_what_they_may_not_do(up: Up, open_page: Open, check_axe: Callable[[Any], None]) -> None:
    in_database(up.dsn, _FIRE.format(name="w-viewed"))
    page = open_page("alerts", role="viewer", width=360, theme="dark")
    button = page.locator(".alert-card", has_text="w-viewed").get_by_role("button", name="Acknowledge")
    expect(button).to_have_attribute("aria-disabled", "true")
    assert button.get_attribute("title") == "needs the role operator; yours is viewer"
    check_axe(page)
    picture(page, "alerts-360-dark")
    button.focus()
    page.keyboard.press("Enter")
    page.get_by_text("Not possible: needs the role operator").wait_for()
    in_database(up.dsn, _RESOLVE.format(name="w-viewed"))
    assert up.call("GET /mutes")["items"] == [] or all(
        "w-viewed" not in str(mute) for mute in up.call("GET /mutes")["items"]
    )
