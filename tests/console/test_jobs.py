"""Jobs in the browser: how they do, submit by a form of the handler's parameters, hold and release."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.console import fill
from tests.console.conftest import Open, Up

BROKEN = {"run": {"type": "command", "argv": ["sh", "-c", "exit 3"]}, "description": "Fails always.", "timeout": 60}


@pytest.fixture(scope="module")
def broken(up: Up) -> str:
    """A job of which three tasks have failed alike."""
    up.call("PUT /jobs/{name}", BROKEN, name="r-broken")
    for _ in range(3):
        up.submit("r-broken", wait=20)
    return "r-broken"


def test_a_failing_job_is_seen_in_the_list_and_its_errors_are_one(broken: str, open_page: Open) -> None:
    page = open_page("jobs?name=r-brok")
    row = page.locator(f'tr[data-id="{broken}"]')
    row.get_by_role("link", name="3", exact=True).wait_for()  # failed in the last hour
    assert "sh -c 'exit 3'" in row.inner_text()
    row.get_by_role("link", name=broken).click()
    page.get_by_role("heading", name=broken, level=1).wait_for()
    group = page.locator(".failures li")
    group.get_by_text("3 tasks").wait_for()
    assert group.count() == 1
    assert "exit code 3" in group.inner_text()
    policies = page.get_by_role("region", name="Policies").inner_text()
    assert "an attempt is stopped after 1 min" in policies
    assert "at least once" in policies
    page.get_by_role("button", name="as tables").click()
    table = page.get_by_role("region", name="Ended, in 1 min each, as a table")
    table.get_by_role("cell", name="3", exact=True).wait_for()
    page.get_by_role("button", name="24 h").click()
    page.wait_for_url("**/jobs/r-broken?as=table&range=24h")
    page.reload()
    assert page.get_by_role("button", name="24 h").get_attribute("aria-pressed") == "true"


def test_a_chart_ends_with_the_last_step_that_is_over(up: Up, open_page: Open) -> None:
    fill.figures(up, "hello")
    page = open_page("jobs/hello?range=24h")
    ended = page.get_by_role("figure", name="Ended, in 5 min each")
    ended.wait_for()
    since = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    found = up.call("GET /figures", job="hello", step="5m", **{"from": since})
    end = datetime.fromisoformat(found["end"])
    *_, last = (
        point["ended"]
        for point in found["points"]
        if datetime.fromisoformat(point["at"]) + timedelta(seconds=found["step"]) <= end
    )
    well = last.get("succeeded", 0)
    ended.locator(".key", has_text="well").get_by_text(str(well), exact=True).wait_for()


def test_a_chart_of_one_sample_has_a_dot(up: Up, open_page: Open) -> None:
    fill.figures(up, "hello")
    page = open_page("settings")

    def cut(route: Any) -> None:
        answer = route.fetch()
        found = answer.json()
        over = [one for one in found["points"] if one["ended"].get("succeeded")]
        route.fulfill(response=answer, json={**found, "points": over[-2:-1]})

    page.route("**/api/v1/figures?*", cut)
    page.goto("jobs/hello?range=24h")
    ended = page.get_by_role("figure", name="Ended, in 5 min each")
    dots = ended.locator("path.points")
    dots.first.wait_for(state="attached")
    assert dots.first.get_attribute("d").startswith("M500.0 "), "in the middle of its time"
    page.get_by_text(re.compile("all that ended in the same (minute|hour)")).wait_for()
    page.unroute("**/api/v1/figures?*")
    page.reload()
    dots.first.wait_for(state="attached")
    assert dots.first.get_attribute("d") == "", "none where there is a line"


def test_what_a_limit_holds_is_counted_beyond_what_is_listed(up: Up, open_page: Open) -> None:
    sleeps = {"run": {"type": "command", "argv": ["sleep", "60"]}, "gate": {"max_running": 30}}
    up.call("PUT /jobs/{name}", sleeps, name="r-limit")
    try:
        for _ in range(23):
            up.submit("r-limit")
        page = open_page("jobs/r-limit")
        page.get_by_role("region", name="Limits").get_by_text("23 of 30").wait_for()
    finally:
        up.call("POST /actions/tasks", {"action": "kill", "filter": {"job": ["r-limit"]}})


def test_a_task_is_submitted_by_a_form_of_its_parameters(up: Up, open_page: Open) -> None:
    page = open_page("jobs/sleeps")
    page.get_by_role("button", name="Submit").click()
    dialog = page.get_by_role("dialog")
    field = dialog.get_by_label("seconds (optional)")
    field.fill("soon")
    dialog.get_by_role("button", name="Submit").click()
    dialog.get_by_text("a number", exact=True).wait_for()
    assert field.input_value() == "soon"  # what was typed stays
    field.fill("0.5")
    dialog.get_by_role("button", name="JSON").click()
    assert '"seconds": 0.5' in dialog.get_by_role("textbox", name="Arguments").input_value()
    dialog.get_by_role("button", name="Form").click()
    dialog.get_by_text("Priority, time, key, tags").click()
    dialog.get_by_label("Priority").select_option("high")
    dialog.get_by_label("Tags").fill("r-form")
    dialog.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/tasks/*")
    task = up.call("GET /tasks/{id}", id=page.url.rpartition("/")[2])
    assert (task["job"], task["args"], task["priority"], task["tags"]) == ("sleeps", {"seconds": 0.5}, 7, ["r-form"])


def test_a_refusal_is_said_in_the_dialog_and_what_was_typed_stays(open_page: Open, broken: str) -> None:
    page = open_page(f"jobs/{broken}")
    page.strict.allow("422")
    page.get_by_role("button", name="Submit").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("Priority, time, key, tags").click()
    dialog.get_by_label("Delay").fill("later")
    dialog.get_by_role("button", name="Submit").click()
    dialog.get_by_text("later").wait_for()
    assert dialog.get_by_label("Delay").input_value() == "later"


def test_a_job_is_held_with_a_note_and_released_by_undo(up: Up, open_page: Open, check_axe: Any) -> None:
    up.call("PUT /jobs/{name}", BROKEN, name="r-held")
    page = open_page("jobs/r-held", theme="dark")
    page.get_by_role("button", name="Hold").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Why").fill("the disk is full")
    check_axe(page)
    dialog.get_by_role("button", name="Hold").click()
    page.get_by_text("r-held is held: no task had to be taken back; none runs.").wait_for()
    page.get_by_text("“the disk is full”").wait_for()
    [held] = [one for one in up.call("GET /hold")["jobs"] if one["job"] == "r-held"]
    assert (held["note"], held["released_at"]) == ("the disk is full", None)
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("r-held is released: nothing waited.").wait_for()
    page.get_by_role("button", name="Hold").wait_for()
    assert (
        up.call("GET /jobs/{name}", name="r-held")["held"] is None
        or up.call("GET /jobs/{name}", name="r-held")["held"]["released_at"]
    )
