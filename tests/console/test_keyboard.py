"""Without a mouse, on a phone, enlarged; and what the frame says: hold, clock, environment, theme."""

from __future__ import annotations

import json
from typing import Any

from tests.console.conftest import Open, Up

HOUR_AHEAD = """
    const Real = Date;
    globalThis.Date = class extends Real {
        constructor(...given) { given.length ? super(...given) : super(Real.now() + 3600000) }
        static now() { return Real.now() + 3600000 }
    };
"""


def focused(page: Any) -> str:
    return str(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))


def test_a_visit_without_a_mouse(up: Up, open_page: Open) -> None:
    up.call("PUT /jobs/{name}", {"run": {"type": "command", "argv": ["true"]}}, name="r-keys")
    page = open_page("settings")
    page.get_by_role("heading", name="Settings", level=1).wait_for()
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to content"
    page.keyboard.press("Enter")
    assert focused(page) == "content"
    # sequences go to pages, and the focus goes to the content
    for keys, title in (("gj", "Jobs"), ("gb", "Batches"), ("gt", "Tasks")):
        page.keyboard.press(keys[0])
        page.keyboard.press(keys[1])
        page.get_by_role("heading", name=title, level=1).wait_for()
        assert focused(page) == "content"
    # `?` lists the keys of the page and those that are everywhere
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("region", name="On this page").get_by_text("retry the task").wait_for()
    dialog.get_by_role("region", name="Everywhere").get_by_text("go to Jobs").wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    # `/` goes to the filter, where letters are letters
    page.keyboard.press("/")
    page.keyboard.type("gj?")
    assert page.locator("[data-filter]").first.input_value() == "gj?"
    # and Enter leaves it for what was found
    page.keyboard.press("Control+a")
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.get_by_role("heading", name="Jobs", level=1).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("r-keys")
    page.keyboard.press("Enter")
    page.locator('tr[data-id="r-keys"]').wait_for()
    page.locator("tr[data-id]").nth(1).wait_for(state="detached")  # the rows of the new filter are there, only these
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="r-keys", level=1).wait_for()
    page.go_back()
    page.get_by_role("heading", name="Jobs", level=1).wait_for()
    page.wait_for_function("() => document.activeElement.id === 'content'")


def test_single_letters_can_be_switched_off(open_page: Open) -> None:
    page = open_page("settings?tab=browser")
    page.get_by_role("button", name="off", exact=True).click()
    page.locator("#content").focus()
    for key in ("g", "j", "?"):
        page.keyboard.press(key)
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert page.get_by_role("dialog").count() == 0
    assert page.url.endswith("/settings?tab=browser")
    page.keyboard.press("Control+k")  # this is no letter
    page.get_by_role("dialog").get_by_role("combobox").wait_for()


def test_what_is_typed_at_once_is_typed_into_the_palette(open_page: Open) -> None:
    page = open_page("settings")
    page.get_by_role("heading", name="Settings", level=1).wait_for()
    # as fast as keys can come: one after another, with nothing drawn between them
    role = page.evaluate("""async () => {
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "k", ctrlKey: true, bubbles: true }));
        await new Promise((next) => setTimeout(next));
        return document.activeElement.getAttribute("role");
    }""")
    assert role == "combobox"
    page.keyboard.type("gt?")
    assert page.get_by_role("combobox").input_value() == "gt?"


def test_what_is_told_lies_above_a_dialog(open_page: Open, check_axe: Any) -> None:
    page = open_page("access", role="admin")
    page.get_by_role("button", name="New token …").click()
    page.get_by_role("button", name="Make it").press("Enter")  # it has no name yet
    told = page.get_by_text("Not possible: give it a name.")
    told.wait_for()
    box = told.bounding_box()
    assert page.evaluate(
        "([x, y]) => document.elementFromPoint(x, y).textContent", [box["x"] + 5, box["y"] + 5]
    ).startswith("Not possible")
    check_axe(page)
    page.get_by_role("button", name="Dismiss").click()  # nothing is in its way
    told.wait_for(state="detached")
    assert page.get_by_role("dialog").count() == 1


def test_the_theme_is_that_of_the_system_until_one_is_chosen(open_page: Open) -> None:
    page = open_page("settings?tab=browser", theme="dark")
    page.get_by_role("heading", name="Settings", level=1).wait_for()
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    dark = page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    page.locator("html[data-theme=light]").wait_for()
    assert page.evaluate(ground) != dark
    page.get_by_role("button", name="dark", exact=True).click()
    assert page.evaluate(ground) == dark, "whatever the system has"
    # before the console has started there are no colours but the browser's
    page.evaluate("delete document.documentElement.dataset.theme")
    assert page.evaluate(ground) == "rgba(0, 0, 0, 0)"


def test_an_address_that_no_page_has_shows_the_way_home(open_page: Open) -> None:
    page = open_page("settings")
    page.strict.allow("404")
    answer = page.goto("nothing/here")
    assert answer.status == 404
    page.get_by_text("There is no such page.").wait_for()
    page.get_by_role("heading", level=1, name="Not found").wait_for()
    page.get_by_role("link", name="Go to the overview").click()
    page.get_by_role("heading", name="Overview", level=1).wait_for()


def test_the_palette_finds_and_acts_and_everything_is_held_and_released(
    up: Up, open_page: Open, check_axe: Any
) -> None:
    up.call("PUT /jobs/{name}", {"run": {"type": "command", "argv": ["true"]}}, name="r-palette")
    page = open_page("jobs/r-palette")
    page.get_by_role("heading", name="r-palette", level=1).wait_for()
    page.goto("tasks")
    page.get_by_role("heading", name="Tasks", level=1).wait_for()
    page.keyboard.press("Control+k")
    options = page.get_by_role("option")
    assert "r-palette" in options.first.inner_text()  # what was looked at last comes first
    page.keyboard.type("17")
    page.get_by_role("option", name="Task 17").wait_for()
    page.get_by_role("dialog").get_by_role("combobox").fill("theme dark")
    page.keyboard.press("Enter")
    page.locator("html[data-theme=dark]").wait_for()
    page.reload()
    page.locator("html[data-theme=dark]").wait_for()  # it is kept
    page.get_by_role("heading", name="Tasks", level=1).wait_for()
    try:
        page.keyboard.press("Control+k")
        page.get_by_role("dialog").get_by_role("combobox").fill("hold every")
        page.keyboard.press("Enter")
        page.get_by_role("dialog").get_by_label("Why").wait_for()
        page.keyboard.type("r-maintenance")
        page.keyboard.press("Enter")
        page.get_by_text("Everything is held:").wait_for()
        line = page.get_by_role("note").filter(has_text="r-maintenance")
        line.wait_for()
        check_axe(page)
        for place in ("settings", "batches"):
            page.goto(place)
            line.wait_for()  # on every page
        page.get_by_role("button", name="Release everything").click()
        page.get_by_text("Everything is released:").wait_for()
        line.wait_for(state="detached")
        assert up.call("GET /hold")["everything"] is None or up.call("GET /hold")["everything"]["released_at"]
    finally:
        up.call("POST /release", {"at_once": True})


def test_on_a_phone_the_menu_opens_closes_and_keeps_the_focus(open_page: Open, check_axe: Any) -> None:
    page = open_page("jobs", width=360, height=640)
    menu = page.get_by_role("button", name="Menu")
    menu.click()
    assert focused(page) == "Overview"
    check_axe(page)
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Menu"
    assert menu.get_attribute("aria-expanded") == "false"
    menu.press("Enter")
    page.get_by_role("link", name="Batches").click()
    page.get_by_role("heading", name="Batches", level=1).wait_for()
    assert menu.get_attribute("aria-expanded") == "false"
    menu.click()
    page.get_by_role("button", name="UTC").click()
    assert page.evaluate("localStorage.getItem('mainspring.zone')") == "utc"


def test_the_environment_is_a_band_and_twice_the_size_fits(open_page: Open, check_axe: Any) -> None:
    page = open_page("jobs", width=720, device_scale_factor=2)

    def answer(route: Any) -> None:
        told = route.fetch()
        route.fulfill(response=told, body=json.dumps({**told.json(), "environment": "production"}))

    page.route("**/api/v1/session", answer)
    page.reload()
    band = page.get_by_text("production", exact=True)
    band.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    page.get_by_role("button", name="Menu").click()
    first = page.get_by_role("link", name="Overview", exact=True).bounding_box()
    top = page.locator("header.top").bounding_box()
    assert first["y"] >= top["y"] + top["height"]  # not behind the band and the header
    check_axe(page)


def test_a_wrong_clock_of_the_browser_is_said(open_page: Open) -> None:
    page = open_page("jobs")
    page.get_by_role("heading", name="Jobs", level=1).wait_for()
    assert page.get_by_text("This browser's clock").count() == 0
    page.add_init_script(HOUR_AHEAD)
    page.reload()
    page.get_by_text("This browser's clock is 1 h ahead of the database's.").wait_for()
