"""Who gets in, who may do what, and what is told of it: login links, tokens, roles, settings, the audit, the API."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.console.conftest import Open, Up


def test_the_printed_link_logs_in_once_and_says_how_to_get_another(up: Up, open_page: Open) -> None:
    page = open_page(up.link, role=None)
    page.get_by_role("navigation", name="Pages").wait_for()
    assert "#" not in page.url
    again = open_page(up.link, role=None)
    again.strict.allow("401")
    again.get_by_text("this link was used or has expired; mainspring login makes another").wait_for()
    again.locator(".command code", has_text="mainspring login").wait_for()
    # where it was used first, one can go on
    page.strict.allow("401")
    page.goto("about:blank")
    page.goto(up.link)
    page.get_by_role("button", name="Go on").click()
    page.get_by_role("navigation", name="Pages").wait_for()
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Or log in with a token").wait_for()


def ask(up: Up, secret: str) -> int:
    try:
        with urlopen(
            Request(f"{up.url}/api/v1/tasks", headers={"Authorization": f"Bearer {secret}"}), timeout=10
        ) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_a_token_is_made_used_and_revoked(up: Up, open_page: Open, check_axe: Any) -> None:
    page = open_page("access")
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("r-ci")
    dialog.get_by_label("Only these jobs").fill("r-* hello")
    dialog.get_by_label("Expires after").fill("30d")
    dialog.get_by_role("button", name="Make it").click()
    dialog.get_by_text("shown this once").wait_for()
    check_axe(page)
    secret = dialog.locator(".command code").inner_text()
    assert ask(up, secret) == 200
    dialog.get_by_role("button", name="I have copied it").click()
    row = page.get_by_role("row", name="r-ci")
    row.get_by_text("r-* hello").wait_for()
    assert secret not in page.content()
    page.get_by_role("button", name="Revoke r-ci").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    page.get_by_text("Token r-ci is revoked").wait_for()
    row.get_by_text("revoked").wait_for()
    until = time.monotonic() + 10  # servers believe a token for a second
    while ask(up, secret) != 401:
        assert time.monotonic() < until
    page.get_by_role("tab", name="Sessions").click()
    page.wait_for_url("**/access?tab=sessions")
    mine = page.get_by_role("row", name="this one")
    assert mine.get_by_role("button").get_attribute("aria-disabled") == "true"


def test_a_login_link_of_less_rights_works_once(open_page: Open) -> None:
    page = open_page("access")
    page.get_by_role("button", name="Login link").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Make the link").click()
    other = open_page(dialog.locator(".command code").inner_text(), role=None)
    other.get_by_text("viewer", exact=True).first.wait_for()


VIEWED = {  # what a viewer sees greyed, with the role that it needs
    "jobs/hello": {"Hold …": "operator", "Submit …": "submitter"},
    "settings": {"Change aging": "admin", "Reset aging": "admin"},
}


def test_a_viewer_sees_greyed_controls_with_the_reason(open_page: Open) -> None:
    page = open_page("jobs/hello", role="viewer")
    for path, controls in VIEWED.items():
        page.goto(path)
        for name, role in controls.items():
            button = page.get_by_role("button", name=name)
            button.wait_for()
            assert button.get_attribute("aria-disabled") == "true"
            assert button.get_attribute("title") == f"needs the role {role}; yours is viewer"
            button.click(force=True)
            page.get_by_text(f"Not possible: needs the role {role}; yours is viewer.").first.wait_for()
    for path in ("activity", "access"):
        page.goto(path)
        page.get_by_text("needs the role admin; yours is viewer").wait_for()


def test_a_submitter_sees_tasks_and_batches_and_is_told_the_rest(up: Up, open_page: Open) -> None:
    page = open_page("batches", role="submitter")
    page.strict.allow("403")
    page.get_by_role("heading", name="Batches").wait_for()
    page.get_by_text("Loading …").wait_for(state="detached")
    assert page.get_by_role("alert").count() == 0
    page.goto("jobs")
    page.get_by_role("alert").get_by_text("submitter").wait_for()
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill("hello")
    page.get_by_text("Nothing has “hello” in its name.").wait_for()


def test_a_setting_that_two_change_at_once_shows_both(up: Up, open_page: Open, check_axe: Any) -> None:
    page = open_page("settings")
    page.locator(".settings li", has_text="default_timeout").get_by_text("default 1 d").wait_for()  # with its unit
    page.strict.allow("412", "422")
    try:
        page.get_by_role("button", name="Change metrics_jobs").click()
        dialog = page.get_by_role("dialog")
        value = dialog.get_by_label("Value")
        value.fill("many")
        dialog.get_by_role("button", name="Save").click()
        dialog.get_by_text("give a whole number").wait_for()
        up.call("PATCH /settings", {"metrics_jobs": 11})
        value.fill("12")
        dialog.get_by_role("button", name="Save").click()
        clash = dialog.get_by_role("alert")
        clash.wait_for()
        assert ["11" in clash.inner_text(), "12" in clash.inner_text()] == [True, True]
        assert up.call("GET /settings")["metrics_jobs"] == 11
        check_axe(page)
        dialog.get_by_role("button", name="Save mine in its place").click()
        page.get_by_text("metrics_jobs is 12; servers follow within seconds.").wait_for()
        card = page.locator(".settings li", has_text="metrics_jobs")
        card.get_by_text("by ").wait_for()
        page.get_by_role("button", name="Reset metrics_jobs").click()
        page.get_by_text("metrics_jobs is back at its default, 200.").wait_for()
        assert up.call("GET /settings")["metrics_jobs"] == 200
    finally:
        up.call("PATCH /settings", {"metrics_jobs": None})


def test_the_audit_tells_who_changed_what_and_its_filters_are_in_the_address(up: Up, open_page: Open) -> None:
    up.call("PUT /jobs/{name}", {"run": {"type": "command", "argv": ["true"]}, "timeout": 60}, name="r-audited")
    up.call("PATCH /jobs/{name}", {"timeout": 90}, name="r-audited")
    page = open_page("activity")
    page.get_by_label("To", exact=True).fill("job:r-audited")
    page.get_by_label("To", exact=True).press("Enter")
    page.wait_for_url("**/activity?subject=job%3Ar-audited")
    entries = page.locator(".entries li")
    page.get_by_text("2 entries").wait_for()
    entries.first.locator("summary").click()
    change = entries.first.get_by_role("row", name="timeout")
    assert change.inner_text().split() == ["timeout", "60", "90"]
    page.get_by_role("button", name="1 h").click()
    page.reload()
    page.get_by_text("2 entries").wait_for()
    entries.first.locator("summary").click()
    entries.first.get_by_role("link", name="job:r-audited").click()
    page.wait_for_url("**/jobs/r-audited")


def test_the_api_is_found_and_its_curl_works(up: Up, open_page: Open) -> None:
    page = open_page("api-reference")
    page.get_by_label("Search operations").fill("/batches flow")
    page.wait_for_url("**/api-reference?q=%2Fbatches+flow")
    page.locator(".operations summary").filter(has_text="/batches/{id}/flow").click()
    page.wait_for_url("**&op=flows_of_batch")
    curl = page.locator(".curl pre").first
    curl.wait_for()
    assert f"{up.url}/api/v1/batches/ID/flow" in curl.inner_text()
    assert "admin, operator, submitter, viewer" in page.locator(".operation").first.inner_text()


def test_a_priority_rule_is_tried(up: Up, open_page: Open) -> None:
    rule = {"order": 50, "jobs": "hello", "when": [{"field": "args.name", "is": "=", "value": "r-vip"}], "priority": 9}
    up.call("PUT /priority-rules/{name}", rule, name="r-vip")
    try:
        page = open_page("settings?tab=rules")
        page.get_by_role("cell", name="r-vip").first.wait_for()
        page.get_by_label("Job").fill("hello")
        page.get_by_label("Arguments").fill(json.dumps({"name": "r-vip"}))
        page.get_by_role("button", name="Test").click()
        page.get_by_text("Priority critical (9)").wait_for()
    finally:
        up.call("DELETE /priority-rules/{name}", name="r-vip")
