"""Daemons in the browser: lamps, the open one in the address, scale by keyboard, stop with a way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.console.conftest import Open, Up, both_themes, picture

NAME = "f-keeper"


@pytest.fixture(scope="module")
def daemon(up: Up) -> Iterator[str]:
    definition = {"run": {"type": "command", "argv": ["sleep", "600"]}, "grace": 0.1}
    up.call("PUT /daemons/{name}", {"definition": definition, "replicas": 2}, name=NAME)
    yield NAME
    up.call("DELETE /daemons/{name}", name=NAME)


def test_a_daemon_is_scaled_by_keyboard_stopped_and_started(
    up: Up, daemon: str, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    page = open_page("daemons")
    box = page.get_by_role("region", name=NAME)
    box.get_by_text("2 of 2 up").wait_for()
    assert [lamp.split(" on ")[0] for lamp in box.locator(".lamp .hidden").all_text_contents()] == ["1: up", "2: up"]
    box.get_by_role("button", name=NAME, exact=True).focus()
    page.keyboard.press("Enter")
    number = box.get_by_label("Replicas", exact=True)
    number.wait_for()
    assert page.url.endswith(f"daemons?name={NAME}")
    number.focus()
    page.keyboard.press("ArrowUp")
    up.call("POST /daemons/{name}/restart", name=NAME)  # what changes meanwhile leaves alone what is typed
    box.get_by_text("1 outdated").or_(box.get_by_text("1 restarting")).first.wait_for()
    assert number.input_value() == "3"
    page.keyboard.press("Enter")
    page.get_by_text(f"{NAME} is scaled from 2 to 3 replicas").wait_for()
    box.get_by_text("3 of 3 up").wait_for()
    for _ in both_themes(page):
        check_axe(page)
    picture(page, "daemons")
    box.get_by_role("button", name=f"Stop {NAME}").click()
    page.get_by_text(f"{NAME} stops: each replica has its grace.").wait_for()
    box.get_by_text("stopped", exact=True).wait_for()
    page.get_by_role("button", name="Undo").last.click()
    box.get_by_text("3 of 3 up").wait_for()
    page.reload()
    task = box.locator("tr[data-id]").first.get_attribute("data-id")
    box.get_by_role("link", name="Output of replica 1").click()
    page.wait_for_url(f"**/tasks/{task}")


def test_a_viewer_sees_why_and_the_table_fits_a_phone(
    daemon: str, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    page = open_page(f"daemons?name={NAME}", role="viewer", width=360, theme="dark")
    stop = page.get_by_role("button", name=f"Stop {NAME}")
    stop.focus()
    page.keyboard.press("Enter")
    page.get_by_text("Not possible: needs the role operator; yours is viewer.").wait_for()
    assert stop.get_attribute("aria-disabled") == "true"
    for _ in both_themes(page):
        check_axe(page)
    picture(page, "daemons-phone")
    page.get_by_role("button", name="Table").click()
    page.get_by_role("table", name="Replicas", exact=True).get_by_role("link", name=NAME).first.wait_for()
    assert "view=table" in page.url
    for _ in both_themes(page):
        check_axe(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
