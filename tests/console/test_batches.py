"""A batch in the browser: seen as it goes, what failed is retried, its callback runs; what runs after what is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.console.conftest import Open, Up


def test_a_batch_is_followed_to_its_callback(up: Up, open_page: Open, check_axe: Any, tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    up.call("PUT /jobs/{name}", {"run": {"type": "command", "argv": ["test", "-e", str(allowed)]}}, name="r-needs-file")
    batch = up.call("POST /batches", {"name": "r-import", "on_success": {"job": "hello", "args": {"name": "r"}}})["id"]
    page = open_page("batches")
    page.locator(f'tr[data-id="{batch}"]').get_by_role("link").click()
    page.get_by_role("heading", name="r-import", level=1).wait_for()
    page.get_by_text("0 of 0 members ended").wait_for()
    for _ in range(2):
        up.submit("r-needs-file", batch=batch)
    up.submit("hello", batch=batch)
    page.get_by_text("3 of 3 members ended (100 %)").wait_for()  # live: nobody reloads
    group = page.locator(".failures li")
    group.get_by_text("2 tasks").wait_for()
    page.get_by_role("button", name="Close").click()
    page.get_by_text(f"Batch {batch} is ended.").wait_for()
    page.locator(".remark").get_by_text("failed").wait_for()
    check_axe(page)
    allowed.touch()
    page.get_by_role("button", name="Retry failed").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry 2 tasks").click()
    page.get_by_text(f"2 tasks of batch {batch} are being retried.").wait_for()
    page.locator(".remark").get_by_text("succeeded").wait_for()
    called = page.locator(".callbacks").get_by_role("link", name="task")
    called.wait_for()
    id = called.inner_text().removeprefix("task ")
    assert up.call("GET /tasks/{id}", id=id, wait=10)["state"] == "succeeded"
    assert page.get_by_role("button", name="Retry failed").get_attribute("aria-disabled") == "true"


def test_a_flow_is_drawn_in_layers_and_told_as_a_list(up: Up, open_page: Open, check_axe: Any) -> None:
    batch = up.call("POST /batches", {"name": "r-flow"})["id"]
    steps: list[dict[str, Any]] = [
        {"job": "hello", "batch": batch},
        {"job": "fails", "batch": batch, "steps": [0]},
        {"job": "hello", "batch": batch, "steps": [0, 1]},
    ]
    first, second, third = up.call("POST /tasks/flow", {"steps": steps})["ids"]
    up.submit("hello", batch=batch)
    up.call("POST /batches/{id}/close", id=batch)
    page = open_page(f"batches/{batch}", width=360)
    nodes = page.locator(".flow-node")
    page.locator(f'.flow-node[data-task="{third}"]', has_text="skipped").wait_for()
    assert nodes.count() == 3
    page.get_by_text("3 tasks in 3 layers; 1 other depends on none").wait_for()
    tops = [
        float(page.locator(f'.flow-node[data-task="{id}"] rect').get_attribute("y")) for id in (first, second, third)
    ]
    assert tops == sorted(set(tops))  # each below what it runs after
    page.get_by_role("button", name="As a list").click()
    page.get_by_text(f"after {first}, {second}").wait_for()
    check_axe(page)
    page.goto(f"tasks/{second}")  # the page of a task has the flow around it
    page.locator(f'.flow-node.own[data-task="{second}"]').wait_for()
    assert nodes.count() == 3


def test_a_batch_is_cancelled(up: Up, open_page: Open) -> None:
    batch = up.call("POST /batches", {"name": "r-cancel"})["id"]
    for _ in range(2):
        up.submit("hello", batch=batch, delay="1h")
    page = open_page(f"batches/{batch}")
    page.get_by_text("0 of 2 members ended").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_text("2 live members are cancelled").wait_for()
    page.get_by_role("dialog").get_by_role("button", name="Cancel it").click()
    page.locator(".remark").get_by_text("cancelled", exact=True).wait_for()
