"""Tasks in the browser: the list, its filter, what is new, and actions on one, some and all that match."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

from tests.console.conftest import Open, Up, picture

Axe = Callable[[Any], None]


def on_every_screen(page: Any, check_axe: Axe, name: str) -> None:
    """axe and a picture in both themes, on a desk and on a phone, where the page does not scroll sideways."""
    for width, height in ((1440, 900), (360, 780)):
        for theme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=theme)
            check_axe(page)
            picture(page, f"{name}-{width}-{theme}")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{width} px scroll sideways"
    page.set_viewport_size({"width": 1440, "height": 900})


def job(up: Up, name: str, script: str, **more: Any) -> str:
    """A job that runs a line of shell."""
    up.call("PUT /jobs/{name}", {"run": {"type": "command", "argv": ["sh", "-c", script]}, **more}, name=name)
    return name


def row(page: Any, id: int) -> Any:
    return page.locator(f'tr[data-id="{id}"]')


def test_a_failed_task_is_found_by_its_filter(up: Up, open_page: Open, check_axe: Axe) -> None:
    id = up.submit("fails", wait=20)
    page = open_page("tasks?filter=job:fails")
    row(page, id).get_by_text("failed").wait_for()
    on_every_screen(page, check_axe, "tasks")
    page.keyboard.press("/")
    page.keyboard.type(" state:fa")
    page.get_by_role("option", name="state:failed").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**filter=job%3Afails+state%3Afailed")
    expect(page.get_by_role("button", name="failed", exact=True)).to_have_attribute("aria-pressed", "true")
    page.keyboard.type("colour:red")
    page.get_by_text("there is no filter “colour”").wait_for()
    page.reload()
    expect(page.get_by_label("Filter tasks")).to_have_value(re.compile("job:fails state:failed"))
    page.get_by_role("button", name="Copy as a command").click()
    page.get_by_text("mainspring task list --job fails --state failed").wait_for()


def test_nothing_moves_when_tasks_come_and_change(up: Up, open_page: Open) -> None:
    name = job(up, "t-moves", "exit 0")
    waits = up.submit(name, delay="1h")
    for _ in range(30):
        up.submit(name, delay="1h")
    page = open_page(f"tasks?filter=job:{name}", height=600)
    row(page, waits).wait_for()
    page.mouse.wheel(0, 500)
    row(page, waits).get_by_role("checkbox").check()
    page.get_by_label("Filter tasks").fill(f"job:{name} ")
    order = "() => [...document.querySelectorAll('tr[data-id]')].map((row) => row.dataset.id)"
    before, place = page.evaluate(order), row(page, waits).bounding_box()
    new = up.submit(name, wait=20)
    up.call("POST /tasks/{id}/cancel", id=waits)
    row(page, waits).get_by_text("cancelled").wait_for()  # in its place
    page.get_by_role("button", name="1 new · show").wait_for()
    assert (page.evaluate(order), row(page, waits).bounding_box()) == (before, place)
    assert row(page, waits).get_by_role("checkbox").is_checked()
    assert page.get_by_label("Filter tasks").input_value() == f"job:{name} "
    page.get_by_role("button", name="1 new · show").click()
    row(page, new).get_by_text("succeeded").wait_for()
    assert page.evaluate(order)[0] == str(new)


def test_a_double_click_is_one_request_with_one_key(up: Up, open_page: Open) -> None:
    name = job(up, "t-once", "exit 1")
    id = up.submit(name, wait=20)
    page = open_page(f"tasks?filter=job:{name}")
    row(page, id).get_by_role("checkbox").check()
    sent: list[Any] = []

    def note(request: Any) -> None:
        if request.method == "POST":
            sent.append(request)

    page.on("request", note)
    page.get_by_role("button", name="Retry", exact=True).dblclick()
    page.get_by_text(f"Task {id} is pending.").wait_for()
    row(page, id).get_by_text("failed").wait_for()
    assert [re.sub(r".*/api/v1", "", request.url) for request in sent] == [f"/tasks/{id}/retry"]
    assert re.fullmatch(r"[0-9a-f]{32}", sent[0].headers["idempotency-key"])
    page.get_by_role("button", name="Retry", exact=True).click()  # another click is another wish
    page.get_by_text(f"Task {id} is pending.").nth(1).wait_for()
    assert len({request.headers["idempotency-key"] for request in sent}) == 2


def test_a_lost_answer_is_asked_for_again_under_the_same_key(up: Up, open_page: Open) -> None:
    id = up.submit(job(up, "t-lost", "exit 1"), wait=20)
    page = open_page(f"tasks/{id}")
    keys: list[str] = []

    def lose(route: Any) -> None:
        keys.append(route.request.headers["idempotency-key"])
        if len(keys) == 1:
            route.fetch()  # it was carried out, and nobody heard of it
            route.abort()
        else:
            route.continue_()

    page.strict.allow("net::ERR_FAILED")
    page.route("**/retry", lose)
    page.get_by_role("button", name="Retry", exact=True).click()
    page.get_by_text(f"Task {id} runs again.").wait_for()
    assert len(keys) == 2
    assert len(set(keys)) == 1
    done = [one for one in up.call("GET /audit", subject=f"task:{id}")["items"] if one["action"] == "task.retry"]
    assert len(done) == 1


def test_tasks_are_chosen_and_retried_by_keyboard(up: Up, open_page: Open) -> None:
    name = job(up, "t-keys", "exit 1")
    ids = [up.submit(name, wait=20) for _ in range(3)]
    page = open_page(f"tasks?filter=job:{name}")
    row(page, ids[2]).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.get_by_text("2 selected tasks").wait_for()
    page.keyboard.press("k")
    page.keyboard.press("r")
    page.get_by_text(f"Task {ids[2]} is pending.").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/tasks/{ids[1]}")


def test_all_that_match_are_counted_and_the_number_is_typed(up: Up, open_page: Open) -> None:
    name = job(up, "t-all", "exit 0")
    up.call("POST /tasks/flow", {"steps": [{"job": name, "delay": "1h"} for _ in range(101)]})
    up.submit(name, wait=20)
    page = open_page(f"tasks?filter=job:{name}")
    page.get_by_text("With all 102 that match").wait_for()
    page.get_by_role("button", name="Priority").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("101 of the tasks that match the filter wait.").wait_for()
    dialog.get_by_role("button", name="critical").click()
    dialog.get_by_role("button", name="Change", exact=True).click(force=True)
    page.get_by_text("Not possible: type 101 first.").wait_for()
    dialog.get_by_label("Type 101 to confirm").fill("101")
    page.keyboard.press("Enter")
    page.get_by_text("101 tasks changed.").wait_for()
    assert up.call("GET /tasks/count", job=name, priority="critical")["count"] == 101
    page.get_by_role("button", name="Cancel …").click()
    dialog.get_by_label("Type 101 to confirm").fill("101")
    dialog.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_text("101 tasks cancelled.").wait_for()
    page.locator("tbody tr").nth(1).get_by_text("cancelled").wait_for()  # seen without a reload


def test_every_action_is_in_sight_on_a_phone(up: Up, open_page: Open) -> None:
    up.submit(job(up, "t-phone", "exit 1"), wait=20)
    page = open_page("tasks?filter=job:t-phone", width=360)
    bar = page.get_by_role("group", name="Act on tasks")
    bar.get_by_role("button", name="Kill …").wait_for()
    boxes = [one.bounding_box() for one in bar.get_by_role("button").all()]
    assert len(boxes) >= 5
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 360 and box["height"] >= 24 for box in boxes)


def test_who_may_not_sees_greyed_controls_with_the_reason(up: Up, open_page: Open) -> None:
    id = up.submit("fails", wait=20)
    page = open_page(f"tasks?filter={id}", role="viewer")
    row(page, id).wait_for()
    cancel = page.get_by_role("button", name="Cancel …")
    assert cancel.get_attribute("aria-disabled") == "true"
    assert cancel.get_attribute("title") == "needs the role operator; yours is viewer"
    page.keyboard.press("j")
    page.keyboard.press("r")
    page.get_by_text("Not possible: needs the role operator; yours is viewer.").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/tasks/{id}")
    retry = page.get_by_role("button", name="Retry", exact=True)
    assert retry.get_attribute("aria-disabled") == "true"
    assert "operator" in str(retry.get_attribute("title"))
