"""The week of everything in the browser: a herd is found and spread in preview; clock changes; keys; both themes."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Open, Up, picture

HERD = 25
BERLIN = "Europe/Berlin"
ADELAIDE = "Australia/Adelaide"  # half an hour beside the others


@pytest.fixture(scope="module")
def herd(up: Up) -> list[str]:
    """Schedules that start in one second, at 02:30 by the clocks of Berlin: in the hour that a change leaves out."""
    names = [f"w-night-{number:02}" for number in range(HERD)]
    for name in names:
        up.call(
            "PUT /schedules/{name}", {"job": "hello", "cron": "30 2 * * *", "tz": BERLIN, "enabled": True}, name=name
        )
    return names


def week(day: date) -> str:
    year, number, _ = day.isocalendar()
    return f"{year}-W{number:02}"


def last_sunday(month: int) -> date:
    """Of next year."""
    end = date(datetime.now(UTC).year + 1, month, 31)
    return end - timedelta(days=(end.weekday() + 1) % 7)


def at_cell(page: Any, day: int, row: int) -> tuple[float, float]:
    """Where a quarter of an hour is drawn."""
    box = page.locator(".week canvas").bounding_box()
    return box["x"] + 48 + (day + 0.4) * (box["width"] - 48) / 7, box["y"] + 44 + (row + 0.5) * (
        box["height"] - 44
    ) / 96


def drawn_of(page: Any, kind: str) -> list[Any]:
    """What the picture has drawn of a kind, once it is drawn: its words are there before."""
    found = page.wait_for_function(
        "kind => document.querySelector('.week canvas')?.drawn?.filter((one) => one.kind === kind)", arg=kind
    )
    drawn: list[Any] = found.json_value()
    return drawn


def hour(page: Any, hour: int, day: int) -> Any:
    return page.locator(".week-table tbody tr").nth(hour).locator("td").nth(day)


def test_a_herd_is_found_opened_and_spread_without_saving(
    up: Up, herd: list[str], open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    ahead = date.today() + timedelta(days=14)
    monday = ahead - timedelta(days=ahead.weekday())
    page = open_page(f"calendar?week={week(monday)}", timezone_id=BERLIN)
    page.locator(".week-words").wait_for()
    drawn = drawn_of(page, "herd")
    assert {(one["day"], one["row"]) for one in drawn} >= {(day, 10) for day in range(7)}, "02:30 on each of seven days"
    check_axe(page)
    page.mouse.click(*at_cell(page, 1, 10))
    panel = page.locator(".cell-panel")
    panel.get_by_role("heading", name=re.compile("02:30–02:45")).wait_for()
    panel.get_by_role("link", name="w-night-00").wait_for()
    panel.get_by_text(re.compile(r"herd · 2\d starts")).wait_for()
    panel.get_by_role("button", name="Spread these").click()
    panel.get_by_text(re.compile(r"peak 2\d → \d starts in one second.*, \d+ slots")).wait_for()
    panel.get_by_text(f"{HERD} of {HERD} schedules move").wait_for()
    check_axe(page)
    picture(page, "calendar-spread")
    panel.get_by_role("button", name="5 min", exact=True).click()
    panel.get_by_text("Each task up to 5 min later").wait_for()
    page.reload()
    panel.get_by_text("Each task up to 5 min later").wait_for()
    panel.get_by_text("A preview: nothing is saved.").wait_for()
    shown = up.call("GET /schedules/{name}", name=herd[0])["schedule"]
    assert (shown["expression"], shown["policies"]["jitter"], shown["version"]) == ("30 2 * * *", 0, 1)


def test_the_table_has_the_sums_of_the_forecast_in_the_zone_of_the_switch(
    up: Up, herd: list[str], open_page: Open
) -> None:
    ahead = date.today() + timedelta(days=21)
    monday = ahead - timedelta(days=ahead.weekday())
    page = open_page(f"calendar?week={week(monday)}&view=table", timezone_id=ADELAIDE)
    own = datetime(monday.year, monday.month, monday.day, tzinfo=ZoneInfo(ADELAIDE))
    for zone, start in (("Mine", own), ("UTC", own.replace(tzinfo=UTC)), ("Schedule's zone", own)):
        page.get_by_role("button", name=zone, exact=True).click()
        told = ADELAIDE if zone != "UTC" else "UTC"
        page.get_by_text(f"Days and hours are those of {told}.").wait_for()
        day = timedelta(days=1)
        for number in (0, 6):
            found = up.call(
                "GET /forecast",
                **{"from": (start + number * day).isoformat(), "to": (start + (number + 1) * day).isoformat()},
            )
            total = page.locator(".week-table thead th").nth(number + 1).locator(".quiet")
            expect(total).to_have_text(f"{found['starts']:,}")
    page.get_by_text("there is no zone of “the schedule”").wait_for()


@pytest.mark.parametrize(("month", "hours"), [(3, {2: "no such hour", 3: "herd"}), (10, {2: "+02:00"})])
def test_the_night_of_a_clock_change_is_read_from_the_table(
    herd: list[str], open_page: Open, month: int, hours: dict[int, str]
) -> None:
    sunday = last_sunday(month)
    page = open_page(f"calendar?week={week(sunday)}&view=table", timezone_id=BERLIN)
    expect(hour(page, 2, 0).get_by_role("button", name=re.compile("herd of 2"))).to_be_visible()
    if month == 3:
        expect(hour(page, 2, 6)).to_have_text("no such hour")
        expect(hour(page, 3, 6).get_by_role("button", name=re.compile("herd of 2.*03:00–03:15"))).to_be_visible()
    else:
        first, second = hour(page, 2, 6).locator(".week-hour").all()
        expect(first).to_contain_text("+02:00")
        expect(first.get_by_role("button", name=re.compile("herd of 2"))).to_be_visible()
        expect(second).to_contain_text("+01:00")
        assert second.get_by_role("button").count() == 0
    page.get_by_role("button", name="Picture").click()
    page.get_by_text(
        "torn: the clocks leave this hour out" if month == 3 else "doubled: this hour comes twice"
    ).wait_for()
    kind = "torn" if month == 3 else "doubled"
    drawn = drawn_of(page, kind)
    assert {(one["day"], one["row"]) for one in drawn} == {(6, row) for row in (8, 9, 10, 11)}
    picture(page, f"calendar-{kind}")


def test_keys_move_between_cells_and_weeks(herd: list[str], open_page: Open) -> None:
    ahead = date.today() + timedelta(days=14)
    monday = ahead - timedelta(days=ahead.weekday())
    page = open_page(f"calendar?week={week(monday)}", timezone_id=BERLIN, role="viewer")
    page.locator(".week").focus()
    words = page.locator(".week-words")
    page.keyboard.press("ArrowDown")
    expect(words).to_contain_text("00:00–00:15")
    page.keyboard.press("ArrowRight")
    for _ in range(10):
        page.keyboard.press("ArrowDown")
    expect(words).to_contain_text("Tue")
    expect(words).to_contain_text(re.compile(r"02:30–02:45 .*herd: 2\d in one second at 02:30:00"))
    page.keyboard.press("Enter")
    page.locator(".cell-panel").get_by_role("link", name="w-night-00").wait_for()
    assert f"at={quote((monday + timedelta(days=1)).isoformat())}" in page.url
    page.keyboard.press("Escape")
    expect(page.locator(".cell-panel")).to_have_count(0)
    page.keyboard.press("]")
    page.wait_for_url(f"**week={week(monday + timedelta(days=7))}*")
    page.keyboard.press("[")
    page.wait_for_url(f"**week={week(monday)}*")


def test_by_day_on_a_phone_and_in_the_dark(herd: list[str], open_page: Open, check_axe: Callable[[Any], None]) -> None:
    ahead = date.today() + timedelta(days=14)
    page = open_page(f"calendar?day={ahead}", width=360, theme="dark", timezone_id=BERLIN)
    page.locator(".week-words").wait_for()
    assert len(drawn_of(page, "slot")) == 96
    assert page.evaluate("document.querySelector('main').scrollWidth <= innerWidth")
    check_axe(page)
    picture(page, "calendar-360-dark")
    page.get_by_role("button", name="The next day").click()
    page.wait_for_url(f"**day={ahead + timedelta(days=1)}*")
    page.get_by_role("button", name="Table").click()
    hour(page, 2, 0).get_by_role("button", name=re.compile("herd of 2")).click()
    page.locator(".cell-panel").get_by_role("link", name="w-night-00").wait_for()
    check_axe(page)


def test_what_a_person_has_skipped_is_named(up: Up, open_page: Open) -> None:
    up.call("PUT /schedules/{name}", {"job": "hello", "every": "1h", "enabled": True}, name="w-skipped")
    until = (datetime.now(UTC) + timedelta(hours=3)).isoformat()
    up.call("POST /schedules/{name}/skip", {"until": until, "note": "release night"}, name="w-skipped")
    page = open_page("calendar")
    page.get_by_role("note").filter(has_text="w-skipped, skipped until").filter(has_text="release night").wait_for()
    up.call("DELETE /schedules/{name}", name="w-skipped")
