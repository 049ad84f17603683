"""One task in the browser: from its error to its success, and run again with other arguments."""

from __future__ import annotations

from pathlib import Path

from tests.console.conftest import Open, Up
from tests.console.test_tasks import Axe, job, on_every_screen


def test_a_failed_task_is_retried_and_its_success_is_seen_live(
    up: Up, open_page: Open, check_axe: Axe, tmp_path: Path
) -> None:
    flag = tmp_path / "mended"
    name = job(up, "t-flaky", f"test -e {flag} && echo fine || {{ echo the shop is away >&2; exit 3; }}")
    id = up.submit(name, args={"shop": 7}, wait=20)
    page = open_page(f"tasks?filter=job:{name}")
    page.get_by_role("link", name=str(id)).click()
    page.get_by_role("group", name="Error").get_by_text("exit code 3: the shop is away").wait_for()
    page.get_by_label("Output", exact=True).get_by_text("the shop is away").wait_for()
    steps = page.locator(".waterfall tbody th").all_text_contents()
    assert [step for step in steps if step != "armed"] == ["created", "due", "fired", "ended", "recorded"]
    assert page.locator(".callout", has_text="late").is_visible()
    on_every_screen(page, check_axe, "task")
    flag.touch()
    page.evaluate("window.same = true")
    page.get_by_role("button", name="Retry", exact=True).click()
    page.get_by_text(f"Task {id} runs again.").wait_for()
    page.locator(".task-head").get_by_text("succeeded").wait_for()
    page.locator(".log-line", has_text="fine").wait_for()
    assert page.locator(".log-line.attempt").count() == 1
    assert page.locator(".attempts tbody tr", has_text="failed").count() >= 1
    assert page.evaluate("window.same"), "nobody reloaded the page"
    page.keyboard.press("r")
    page.get_by_text("Not possible: the task succeeded; run it again as a new one instead.").wait_for()


def test_a_task_runs_again_with_other_arguments_and_a_refresh_leaves_the_form_alone(
    up: Up, open_page: Open, check_axe: Axe
) -> None:
    id = up.submit("hello", args={"name": "venus"}, delay="1h")
    page = open_page(f"tasks/{id}")
    page.get_by_text('"venus"').wait_for()
    page.keyboard.press("e")
    box = page.get_by_label("Arguments, as JSON")
    assert "venus" in box.input_value()
    box.fill('{"name": "ma')
    page.get_by_text("JSON", exact=False).first.wait_for()
    assert box.get_attribute("aria-invalid") == "true"
    check_axe(page)
    for _ in range(2):
        with page.expect_response(lambda answer: answer.url.endswith(f"/tasks/{id}")):
            pass  # what waits is loaded again every second
    assert box.input_value() == '{"name": "ma'
    page.get_by_role("button", name="Submit").click(force=True)
    page.get_by_text("Not possible: the arguments are no JSON object.").wait_for()
    box.fill('{"name": "a\\u0000"}')
    page.strict.allow("422")
    page.keyboard.press("Control+Enter")
    page.get_by_role("dialog").get_by_role("alert").wait_for()  # in the API's words
    assert box.input_value() == '{"name": "a\\u0000"}'
    box.fill('{"name": "mars"}')
    page.keyboard.press("Control+Enter")
    page.get_by_text('"hello mars"').wait_for()
    assert not page.url.endswith(f"/{id}")
    page.go_back()
    page.get_by_text('"venus"').wait_for()


def test_what_runs_tells_its_progress_and_what_cannot_be_done_tells_why(up: Up, open_page: Open) -> None:
    id = up.submit("sleeps", args={"seconds": 40})
    page = open_page(f"tasks/{id}")
    page.get_by_text("of 40").wait_for()
    page.get_by_text("1 of 40").wait_for()
    page.get_by_text("More", exact=True).click()
    page.locator(".hint", has_text="only commands can be paused; this job runs Python or HTTP").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Cancel", exact=True).click()
    page.get_by_text(f"Task {id} is asked to stop.").wait_for()
    page.locator(".task-head").get_by_text("cancelled").wait_for()


def test_what_waits_says_for_what_and_a_task_that_is_not_there_is_said_so(up: Up, open_page: Open) -> None:
    name = job(up, "t-gpu", "exit 0", requires={"gpu": "a100"})
    first = up.submit(name)
    after = up.call("POST /tasks", {"job": "hello", "after": [first]})["id"]
    page = open_page(f"tasks/{first}")
    page.get_by_text("Waits: no agent has gpu=a100").wait_for()
    page.get_by_label("Related").get_by_role("link", name=str(after)).click()
    page.get_by_label("Related").get_by_role("link", name=str(first)).wait_for()
    up.call("POST /tasks/{id}/cancel", id=first)
    page.locator(".task-head").get_by_text("skipped").wait_for()
    page.strict.allow("404")
    page.goto("tasks/987654321")
    page.get_by_text("There is no task 987654321").wait_for()
