"""Schedules in the browser: the list, its actions and their undo, one schedule, and in whose time it is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.console import fill
from tests.console.conftest import Open, Up, opener, picture, running


def make(up: Up, name: str, **spec: object) -> None:
    up.call("PUT /schedules/{name}", {"job": "hello", "every": "1h", "enabled": True, **spec}, name=name)


def enabled(up: Up, pattern: str) -> list[bool]:
    return [one["enabled"] for one in up.call("GET /schedules", name=pattern)["items"]]


def far_from_nine() -> str:
    """A zone in which the next nine o'clock is hours away."""
    return next(zone for zone in ("Europe/Paris", "Asia/Tokyo") if not 6 <= datetime.now(ZoneInfo(zone)).hour <= 9)


def test_each_row_has_what_came_of_its_last_plan_times(
    up: Up, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    up.call(
        "PUT /schedules/{name}",
        {"job": "hello", "cron": "0 9 * * MON-FRI", "tz": far_from_nine(), "enabled": True},
        name="s-row-a",
    )
    make(up, "s-row-b")
    fill.past(up, "s-row-a")
    page = open_page("schedules?q=s-row")
    row = page.locator('tr[data-id="s-row-a"]')
    row.get_by_role("img", name=re.compile("last 30 plan times: .*on time.*late.*skipped")).wait_for()
    row.get_by_text("2.3 s", exact=True).wait_for()
    row.get_by_text("At 09:00 on Monday through Friday").wait_for()
    page.locator('tr[data-id="s-row-b"]').get_by_role("img", name="no plan times yet").wait_for()
    page.get_by_text("2 match").wait_for()
    check_axe(page)
    picture(page, "schedules")
    page.get_by_role("button", name="Next", exact=True).click()
    assert "sort=next" in page.url
    page.locator('tbody tr:first-child[data-id="s-row-b"]').wait_for()
    page.get_by_label("Find schedules by name").fill("s-nothing")
    page.get_by_text("No schedule matches this filter.").wait_for()
    page.get_by_role("button", name="Show all schedules").click()
    page.locator("tbody tr").nth(1).wait_for()


def test_all_that_match_are_disabled_and_that_is_undone(up: Up, open_page: Open) -> None:
    for number in range(3):
        make(up, f"s-bulk-{number}")
    up.call("POST /schedules/{name}/disable", {}, name="s-bulk-2")  # undo leaves it as it was
    page = open_page("schedules?q=s-bulk", role="operator")
    page.get_by_role("button", name="Disable all 3").click()
    page.get_by_role("button", name="Disable them").click()
    page.get_by_text("2 schedules disabled; 1 was so already.").wait_for()
    assert enabled(up, "s-bulk-*") == [False, False, False]
    page.locator('tr[data-id="s-bulk-0"]').get_by_text("disabled").wait_for()
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("Undone: 2 schedules enabled.").wait_for()
    assert enabled(up, "s-bulk-*") == [True, True, False]


def test_on_a_phone_a_state_is_a_shape_and_its_word(up: Up, open_page: Open) -> None:
    make(up, "s-one")
    make(up, "s-two", enabled=False)
    page = open_page("schedules?q=s-", width=360)
    for name, word in (("s-one", "enabled"), ("s-two", "disabled")):
        state = page.locator(f'tr[data-id="{name}"] .state')
        state.get_by_text(word, exact=True).wait_for()
        size, right = state.evaluate("one => [getComputedStyle(one).fontSize, one.getBoundingClientRect().right]")
        assert float(size.removesuffix("px")) >= 11, "and can be read"
        assert right <= 360
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_keyboard_switches_a_schedule_and_opens_it(up: Up, open_page: Open) -> None:
    make(up, "s-key-a")
    make(up, "s-key-b")
    page = open_page("schedules?q=s-key", role="operator")
    page.locator('tr[data-id="s-key-a"]').wait_for()
    page.keyboard.press("j")
    page.keyboard.press("p")
    page.get_by_text("s-key-a is disabled").wait_for()
    page.locator('tr[data-id="s-key-a"]').get_by_text("disabled").wait_for()
    assert enabled(up, "s-key-a") == [False]
    page.keyboard.press("x")
    page.get_by_text("1 schedule selected").wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Enable").wait_for()
    page.keyboard.press("]")
    page.get_by_role("heading", name="s-key-b").wait_for()
    page.get_by_role("button", name="Disable").wait_for()
    page.keyboard.press("p")
    page.get_by_text("s-key-b is disabled").wait_for()
    page.get_by_role("button", name="Undo").last.click()
    page.get_by_role("button", name="Disable").wait_for()
    assert enabled(up, "s-key-b") == [True]


def test_what_a_viewer_may_not_do_is_greyed_with_the_reason(up: Up, open_page: Open) -> None:
    make(up, "s-view")
    page = open_page("schedules/s-view", role="viewer")
    button = page.get_by_role("button", name="Run now")
    button.wait_for()
    assert button.get_attribute("aria-disabled") == "true"
    assert button.get_attribute("title") == "needs the role operator; yours is viewer"
    button.click(force=True)
    page.get_by_text("Not possible: needs the role operator; yours is viewer.").wait_for()
    page.get_by_role("tab", name="Changes").click()
    page.get_by_role("tabpanel").get_by_text("needs the role admin; yours is viewer").wait_for()


def test_a_schedule_is_run_skipped_backfilled_and_deleted(
    up: Up, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    make(up, "s-one", slo={"lateness": "2s"}, description="keeps the books", overlap="skip")
    fill.past(up, "s-one")
    page = open_page("schedules/s-one", width=360, theme="dark")
    page.get_by_role("button", name="Run now").click()
    page.get_by_text(re.compile(r"Task \d+ runs now\.")).wait_for()
    page.get_by_role("button", name="Skip next").click()
    page.get_by_text("skipped by session").first.wait_for()
    page.get_by_role("button", name=re.compile("after all")).wait_for()
    page.get_by_role("button", name="Undo").last.click()
    page.get_by_role("button", name=re.compile("after all")).wait_for(state="detached")
    page.get_by_role("table", name="Ledger").get_by_text("the run before it had not ended").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    check_axe(page)
    picture(page, "schedule-360-dark")
    page.get_by_role("tab", name="Policies").click()
    page.get_by_text("skip a run while the one before still runs").wait_for()
    page.get_by_role("tab", name="Changes").click()
    page.get_by_text("create", exact=False).first.wait_for()
    page.get_by_role("button", name="Backfill").click()
    page.get_by_role("button", name="Count them").click()
    page.get_by_text("to run", exact=False).last.wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Delete").click()
    confirm = page.get_by_role("button", name="Delete it")
    assert confirm.get_attribute("aria-disabled") == "true"
    page.get_by_label("Type s-one to confirm").fill("s-one")
    confirm.click()
    page.get_by_text("s-one is deleted").wait_for()
    page.get_by_role("heading", name="Schedules").wait_for()


def test_the_zone_switch_changes_every_instant_and_its_day(up: Up, open_page: Open) -> None:
    """00:30 of a day in India is the evening before in New York and in UTC."""
    up.call(
        "PUT /schedules/{name}",
        {"job": "hello", "once": "2027-06-10T00:30:00", "tz": "Asia/Kolkata", "enabled": True},
        name="s-zone",
    )
    page = open_page("schedules/s-zone", timezone_id="America/New_York")
    times = page.get_by_role("region", name="Next 10").locator("time")
    times.first.wait_for()
    assert times.all_inner_texts() == ["2027-06-09 15:00:00 -04:00"]
    for word, shown in (("UTC", "2027-06-09 19:00:00 Z"), ("Schedule's", "2027-06-10 00:30:00 +05:30")):
        page.get_by_role("group", name="Show times in").get_by_role("button", name=word).click()
        assert times.all_inner_texts() == [shown]
        every = page.locator("main time.instant").all_inner_texts()
        offset = shown.rsplit(" ", 1)[1]
        assert all(text.endswith(offset) for text in every if not text.startswith("in ")), every
    title = times.first.get_attribute("title")
    assert title is not None
    assert {"Asia/Kolkata", "America/New_York", "UTC"} <= set(re.findall(r"  (\S+)", title))
    page.reload()  # kept in this browser
    page.get_by_text("2027-06-10 00:30:00 +05:30").first.wait_for()


@pytest.fixture(scope="module")
def alone(server_dsn: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running(server_dsn, template, tmp_path_factory.mktemp("many"), "tests.console.app:app") as up:
        yield up


# The next of them fires in an hour.
_MANY = """
    insert into mainspring.schedule (name, job_id, kind, expression, segment, enabled, next_plan_at, look_at)
    select 's-' || lpad(n::text, 6, '0'), j.id, 'cron', '0 9 * * *', n % 100, true,
           mainspring.now() + interval '1 hour', mainspring.now() + interval '1 hour'
      from mainspring.job j, generate_series(1, 100000) n where j.name = 'hello'
"""


def test_none_teach_and_a_hundred_thousand_scroll(browser: Any, alone: Up) -> None:
    with opener(browser, alone) as open:
        page = open("schedules")
        page.get_by_text("A schedule says when a job runs; there are none yet.").wait_for()
        page.get_by_text("mainspring schedule create hello-daily hello --daily 09:00 --enable", exact=True).wait_for()
        page.goto("")
        page.get_by_text("No schedule has a plan time to come.").wait_for()
        page.get_by_text("No job fails").wait_for()
        fill.execute(alone, _MANY)
        page.goto("schedules")
        page.get_by_text("100,000 match").wait_for()
        page.locator('tr[data-id="s-000001"]').wait_for()
        for _ in range(6):
            loaded = int(page.get_by_role("table").get_attribute("aria-rowcount"))
            page.mouse.wheel(0, 37 * loaded)
            page.locator(f'table:not([aria-rowcount="{loaded}"])').wait_for()
        assert page.locator("tbody tr").count() < 150
        seen = page.evaluate("document.elementFromPoint(600, 500).closest('tr').dataset.id")
        assert int(seen.removeprefix("s-")) > 500
        page.locator(f'tr[data-id="{seen}"]').get_by_role("img", name="no plan times yet").wait_for()
        page.get_by_role("button", name="Disable all 100,000").click()
        assert page.get_by_role("button", name="Disable them").get_attribute("aria-disabled") == "true"
        page.get_by_label("Type 100000 to confirm").wait_for()
        page.keyboard.press("Escape")
        page.keyboard.press("Home")
        page.get_by_label("Find schedules by name").fill("s-099")
        page.get_by_text("1,000 match").wait_for()
        page.get_by_role("button", name="Disable all 1,000").click()
        page.get_by_label("Type 1000 to confirm").fill("1000")
        page.get_by_role("button", name="Disable them").click()
        page.get_by_role("button", name="Stop").click()
        page.get_by_text(re.compile("schedules disabled; stopped")).wait_for()
