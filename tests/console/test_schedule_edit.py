"""The form of a schedule in the browser: words and cron, what it will do, a clock change, two people at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.console.conftest import Open, Up, picture


def spec(up: Up, name: str) -> dict[str, Any]:
    found: dict[str, Any] = up.call("GET /schedules/{name}", name=name)["schedule"]["spec"]
    return found


def test_a_schedule_is_made_in_words_by_keyboard_and_its_clock_change_previewed(
    up: Up, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    page = open_page("new/schedule")
    page.strict.allow("POST|422|400")  # the browser notes each refusal in its console
    page.get_by_label("Name").focus()
    page.keyboard.type("s-words")
    page.keyboard.press("Tab")
    page.keyboard.type("hello")
    page.get_by_label("When, in cron or in words").fill("weekly on sun")
    page.get_by_text("has no time of day", exact=False).wait_for()  # beside the field
    page.get_by_label("When, in cron or in words").fill("weekly on sun at 02:30")
    page.get_by_label("Zone").fill("Europe/Paris")
    preview = page.get_by_role("complementary", name="What it will do")
    preview.get_by_text("At 02:30 on Sunday").wait_for()
    page.get_by_text("30 2 * * SUN").wait_for()
    preview.get_by_role("button", name="see the clock change").click()
    preview.get_by_text("02:30 does not exist that day: moved to 03:00").wait_for()
    check_axe(page)
    picture(page, "schedule-edit")
    page.reload()  # nothing typed is lost
    page.get_by_text("What you had typed before is here again.").wait_for()
    assert page.get_by_label("Name").input_value() == "s-words"
    preview.get_by_text("does not exist that day").wait_for()
    page.get_by_role("button", name="write it as cron").click()
    assert page.get_by_label("When, in cron or in words").input_value() == "30 2 * * SUN"
    page.get_by_role("button", name="write it in words").click()
    page.get_by_label("When, in cron or in words").press("Enter")
    page.get_by_text("s-words is made, enabled.").wait_for()
    page.get_by_role("heading", name="s-words").wait_for()
    made = spec(up, "s-words")
    assert (made["cron"], made["tz"], made["enabled"]) == ("30 2 * * SUN", "Europe/Paris", True)


def test_two_people_at_once_see_both_versions_and_choose(up: Up, open_page: Open) -> None:
    up.call("PUT /schedules/{name}", {"job": "hello", "daily": "09:00", "enabled": True}, name="s-two")
    mine, theirs = open_page("schedules/s-two/edit"), open_page("schedules/s-two/edit")
    when, zone = "When, in cron or in words", "Zone"
    mine.get_by_label(when).fill("daily at 10:00")
    mine.get_by_text("At 10:00 every day").wait_for()
    theirs.get_by_label(when).fill("daily at 11:00")
    theirs.get_by_label(zone).fill("Europe/Paris")
    theirs.get_by_role("button", name="Save", exact=True).click()
    theirs.get_by_text("s-two is saved").wait_for()
    mine.strict.allow("412")  # the browser notes each refusal in its console
    mine.get_by_role("button", name="Save", exact=True).click()
    both = mine.get_by_role("table", name="Both versions")
    both.get_by_role("row", name="When").get_by_text("daily at 10:00").wait_for()
    both.get_by_role("row", name="When").get_by_text("0 11 * * *").wait_for()
    assert both.get_by_role("row", name="Zone").get_by_role("radio").first.is_checked()  # only they changed it
    mine.get_by_role("button", name="Back to my form").click()
    assert mine.get_by_label(when).input_value() == "daily at 10:00"
    assert spec(up, "s-two")["cron"] == "0 11 * * *"
    mine.get_by_role("button", name="Save", exact=True).click()
    mine.get_by_role("button", name="Save what is chosen").click()
    mine.get_by_text("s-two is saved").wait_for()
    assert (spec(up, "s-two")["cron"], spec(up, "s-two")["tz"]) == ("0 10 * * *", "Europe/Paris")


def test_a_change_is_told_before_it_is_saved(up: Up, open_page: Open, check_axe: Callable[[Any], None]) -> None:
    up.call("PUT /schedules/{name}", {"job": "hello", "every": "2h", "enabled": True}, name="s-more")
    page = open_page("schedules/s-more/edit", role="operator", width=360, theme="dark")
    page.strict.allow("422|400")
    page.get_by_label("When, in cron or in words").fill("every 5m")
    preview = page.get_by_role("complementary", name="What it will do")
    preview.get_by_text("now 12 → then 288 fires in 24 h").wait_for()
    preview.get_by_text("in the second of its next fire").wait_for()
    page.get_by_text("Bounds, and spreading").click()
    page.get_by_label("Jitter").fill("often")
    page.get_by_text("jitter: ", exact=False).wait_for()
    button = page.get_by_role("button", name="Save disabled")
    assert button.get_attribute("title") == "needs the role admin; yours is operator"
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    check_axe(page)
    picture(page, "schedule-edit-360-dark")
