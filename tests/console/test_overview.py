"""The overview in the browser: its sentence, what is not well, what fails, waits and comes next."""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any

from tests.console import fill
from tests.console.conftest import Open, Up, picture


def test_the_sentence_and_every_number_lead_to_what_is_behind_them(
    up: Up, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    up.call("PUT /schedules/{name}", {"job": "hello", "every": "1h", "enabled": True}, name="s-soon")
    fill.figures(up, "hello")
    up.submit("fails", wait=20)
    until(lambda: "fails" in [one["job"] for one in up.call("GET /failing")["items"]])
    page = open_page("")
    sentence = page.locator(".sentence")
    said = r"(healthy|degraded|unhealthy): [\d,]+ schedules?, [\d,]+ running, next fire (in|now)"
    sentence.filter(has_text=re.compile(said)).wait_for()
    failing = page.get_by_role("region", name="Failing now")
    failing.get_by_role("link", name="RuntimeError: the shop does not answer").wait_for()
    assert failing.get_by_role("img", name=re.compile(r"last \d+ runs: .*failed")).count() >= 1
    page.get_by_role("region", name="On time").get_by_text("within 1 s").wait_for()
    page.locator(".chart svg").nth(3).wait_for()
    check_axe(page)
    picture(page, "overview")
    # the first heading is as far from what is above it as any other section
    above = page.locator(".sentence, .checks").last.bounding_box()  # checks are there only if one is not green
    first, card, below = (
        page.locator(what).first.bounding_box() for what in (".section", ".section .list", ".columns")
    )
    gap = below["y"] - (card["y"] + card["height"])
    assert gap > 16
    assert abs(first["y"] - (above["y"] + above["height"]) - gap) < 1
    page.get_by_role("group", name="Charts shown").get_by_role("button", name="as tables").click()
    page.get_by_role("region", name="Fires per minute, as a table").get_by_role("row").nth(5).wait_for()
    assert "as=table" in page.url
    page.get_by_role("group", name="On time over the last").get_by_role("button", name="30 d").click()
    assert "last=30d" in page.url
    page.reload()
    page.get_by_role("region", name="Slots, as a table").wait_for()
    check_axe(page)
    sentence.get_by_role("link", name=re.compile("running")).click()
    page.get_by_role("heading", name="Tasks").wait_for()
    assert page.url.endswith("tasks?filter=state:running")
    page.go_back()
    sentence.get_by_role("link", name=re.compile("schedule")).click()
    page.get_by_role("heading", name="Schedules").wait_for()


def test_what_is_not_well_says_what_to_do(up: Up, open_page: Open, check_axe: Callable[[Any], None]) -> None:
    definition = {"run": {"type": "command", "argv": ["true"]}, "requires": {"gpu": "s-none"}}
    up.call("PUT /jobs/{name}", definition, name="s-gpu")
    id = up.submit("s-gpu")
    try:
        page = open_page("", width=360, theme="dark")
        waiting = page.get_by_role("region", name="Waiting, and why")
        waiting.get_by_text("gpu=s-none").wait_for()
        checks = page.get_by_role("list", name="What is not well")
        checks.get_by_text("start an agent that can").wait_for()
        page.locator(".chart svg").nth(3).wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        check_axe(page)
        picture(page, "overview-360-dark")
        waiting.get_by_role("link", name="1 task").click()
        page.locator(f'tr[data-id="{id}"]').wait_for()
        up.call("POST /jobs/{name}/hold", {}, name="s-gpu")
        page.goto(".")
        checks.locator("code").get_by_text("mainspring job release s-gpu", exact=True).wait_for()
        assert "`" not in checks.inner_text(), "what is to be typed looks like it"
    finally:
        up.call("POST /jobs/{name}/release", {}, name="s-gpu")
        up.call("POST /tasks/{id}/cancel", {}, id=id)


def test_a_failing_job_is_acknowledged_and_that_is_undone(up: Up, open_page: Open) -> None:
    up.submit("fails", wait=20)
    until(lambda: "fails" in [one["job"] for one in up.call("GET /failing")["items"]])
    page = open_page("", role="operator")
    page.get_by_role("button", name="Acknowledge fails: mute").click()
    toast = page.get_by_role("status").get_by_text("Alerts about fails are muted for 4 hours")
    toast.wait_for()
    assert ["job:fails"] in [mute["subjects"] for mute in up.call("GET /mutes")["items"]]
    page.get_by_role("button", name="Undo").click()
    toast.wait_for(state="detached")
    assert ["job:fails"] not in [mute["subjects"] for mute in up.call("GET /mutes")["items"]]


def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Figures are written every few seconds: nothing tells when."""
    end = monotonic() + seconds
    while not holds():
        assert monotonic() < end
        sleep(0.2)
