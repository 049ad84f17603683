"""Why? in the browser: the story of a plan time, its neighbours, another time, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.console.conftest import Open, Up, picture
from tests.console.past import Fire, give_past

MINUTE = timedelta(minutes=1)


def iso(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


@pytest.fixture(scope="module")
def ago(up: Up) -> Callable[[int], datetime]:
    """The plan time so many hours before the last whole one of a schedule with a past."""
    spec = {"job": "hello", "enabled": True, "cron": "0 * * * *", "tz": "Europe/Paris", "overlap": "skip"}
    up.call("PUT /schedules/{name}", spec, name="p-hourly")
    last = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)

    def ago(hours: int) -> datetime:
        return last - timedelta(hours=hours)

    reasons = ["overlap", "paused", "misfire", "coalesced", "queue_full", "no_scopes", "skipped"]
    fires = [
        Fire(ago(0)),
        *(Fire(ago(number), reason) for number, reason in enumerate(reasons, 1)),
        Fire(ago(8), state="failed", took=7200),
    ]
    give_past(up, "p-hourly", ago(12), fires)
    return ago


WHY = {
    1: "Skipped, overlap: the run of",
    2: "Skipped, paused:",
    3: "Skipped, misfire:",
    4: "Skipped, coalesced:",
    5: "Skipped, queue full:",
    6: "Skipped, no scopes:",
    7: "Skipped by hand",
    9: "Missing: the ledger has no row of it",
}


def test_why_did_it_not_run_is_answered_for_each_reason_by_the_neighbours(
    up: Up, ago: Callable[[int], datetime], open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    page = open_page(f"schedules/p-hourly/at/{iso(ago(0))}")
    page.locator(".p-told").get_by_text("Succeeded after 20 s").wait_for()
    assert [one.get_attribute("data-kind") for one in page.locator(".p-step").all()] == [
        "expected",
        "planned",
        "armed",
        "fired",
        "ended",
    ]
    check_axe(page)
    picture(page, "explain")
    for hours in range(1, 10):
        if hours % 2:
            page.keyboard.press("ArrowLeft" if hours > 4 else "[")
        else:
            page.locator(".p-neighbours a[rel=prev]").click()
        page.wait_for_url(lambda url, hours=hours: iso(ago(hours)).replace(":", "%3A") in url)
        page.locator(".p-told").get_by_text(WHY.get(hours, "Failed after 2 h")).first.wait_for()
    page.keyboard.press("]")
    page.locator(".p-told").get_by_text("RuntimeError: the shop does not answer").first.wait_for()


def test_a_reason_leads_to_the_run_the_version_and_the_outage_behind_it(
    up: Up, ago: Callable[[int], datetime], open_page: Open
) -> None:
    page = open_page(f"schedules/p-hourly/at/{iso(ago(3))}")
    step = page.locator('.p-step[data-kind="outage"]')
    step.get_by_role("link", name="the outage in the timeline").click()
    page.locator(".p-legend").wait_for()
    assert "name=p-hourly" in page.url
    page.go_back()
    page.get_by_role("link", name="version 1").wait_for()
    page.goto(f"schedules/p-hourly/at/{iso(ago(4))}")
    page.get_by_role("link", name="what ran instead").click()
    page.locator(".p-told").get_by_text("Succeeded after 20 s").wait_for()


def test_any_time_can_be_asked_for_also_one_that_clocks_skip_or_repeat(
    up: Up, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    spec = {"job": "hello", "enabled": True, "cron": "30 2 * * *", "tz": "Europe/Paris"}
    up.call("PUT /schedules/{name}", spec, name="p-at-night")
    page = open_page("schedules/p-at-night/at/2027-07-01T02:31", width=360, theme="dark")
    page.get_by_text("Not expected: it is no time of the schedule (At 02:30 every day)").first.wait_for()
    ask = page.get_by_label("Date and time")
    ask.fill("2027-03-28T02:30")
    page.get_by_role("button", name="Why?").click()
    page.get_by_text("28 March 2027 has no 02:30 in Europe/Paris").first.wait_for()
    page.get_by_text("it is moved to 03:00 (gap=shift)").first.wait_for()
    check_axe(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
    picture(page, "explain-gap-360-dark")
    ask.fill("2027-10-31T02:30")
    ask.press("Enter")
    page.get_by_text("comes twice in Europe/Paris").wait_for()
    page.get_by_text("02:30 comes twice that day: this is the first").first.wait_for()
    page.get_by_text("and fold=first takes the first").first.wait_for()
    page.get_by_role("link", name="that plan time").click()
    page.get_by_text("Not decided yet: it lies in the future").first.wait_for()


def test_what_did_not_run_is_run_and_what_failed_is_tried_again(
    up: Up, ago: Callable[[int], datetime], open_page: Open
) -> None:
    page = open_page(f"schedules/p-hourly/at/{iso(ago(10))}")
    page.get_by_text("Missing: the ledger has no row of it").first.wait_for()
    page.get_by_role("button", name="Run this plan time").click()
    page.locator(".toast").get_by_text("Submitted task").wait_for()
    page.locator('.p-step[data-kind="ended"][data-code="succeeded"]').wait_for()  # live: it runs now
    [fire] = up.call("GET /schedules/{name}/fires", name="p-hourly", since=iso(ago(10)), until=iso(ago(10)))["items"]
    assert fire["origin"] == "backfill"
    viewer = open_page(f"schedules/p-hourly/at/{iso(ago(8))}", role="viewer", width=1440)
    retry = viewer.get_by_role("button", name="Retry task")
    retry.wait_for()
    assert retry.get_attribute("aria-disabled") == "true"
    retry.click(force=True)
    viewer.locator(".toast").get_by_text("Not possible: needs the role operator").wait_for()
    page.goto(f"schedules/p-hourly/at/{iso(ago(8))}")
    page.get_by_role("button", name="Retry task").click()
    page.locator(".toast").get_by_text("Task ").wait_for()
    page.locator('.p-step[data-kind="ended"][data-code="succeeded"]').wait_for()
