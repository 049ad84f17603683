"""Output in the browser: followed across a killed server, searched, and of any length. On a server of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.console.conftest import ROOT, Open, Up, in_database, opener, running
from tests.console.test_tasks import Axe, job, row

MANY = 200_000


@pytest.fixture(scope="module")
def own(server_dsn: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A server that may be killed, with a long history."""
    with running(server_dsn, template, tmp_path_factory.mktemp("output"), "tests.console.app:app") as up:
        yield up


@pytest.fixture
def open_own(browser: Any, own: Up) -> Iterator[Open]:
    with opener(browser, own) as open:
        yield open


@contextmanager
def agent(up: Up, name: str) -> Iterator[None]:
    """An agent that outlives the server."""
    token = up.cli("token", "create", name, "--role", "agent").strip().splitlines()[-1]
    command = [sys.executable, "-m", "mainspring", "agent", "--server", up.url.replace("http", "ws"), "--name", name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MAINSPRING_TOKEN": token}
    process = subprocess.Popen([*command, "--label", f"who={name}"], env=environment, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def test_colours_streams_links_and_search(own: Up, open_own: Open, check_axe: Axe) -> None:
    script = r"""
        printf '\033[31mred\033[0m and <b>not bold</b> at https://example.org/a?b=1.\n'
        echo oops >&2
        for i in 1 2 3; do echo "needle $i javascript://no"; done
    """
    id = own.submit(job(own, "t-colours", script), wait=20)
    page = open_own(f"tasks/{id}")
    page.locator(".log .fg-1", has_text="red").wait_for()
    assert page.locator(".log b").count() == 0
    assert page.get_by_text("<b>not bold</b>").count() == 1
    [link] = page.locator(".log a").all()
    assert link.get_attribute("href") == "https://example.org/a?b=1"
    assert "noopener" in str(link.get_attribute("rel"))
    assert page.locator(".log-line.stderr", has_text="oops").locator(".tag").inner_text() == "err"
    search = page.get_by_label("Search the output")
    search.fill("NEEDLE")
    page.locator(".found", has_text="3").wait_for()
    search.press("Enter")
    page.get_by_text("1 of 3").wait_for()
    search.press("Shift+Enter")
    page.get_by_text("3 of 3").wait_for()
    assert page.locator("mark.current").count() == 1
    assert "find=NEEDLE" in page.url
    page.get_by_role("checkbox", name="times").check()
    page.locator(".log-gutter time").first.wait_for()
    check_axe(page)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert "needle 3" in download.value.path().read_text()


def test_output_is_followed_across_a_killed_server_without_gap_or_repetition(own: Up, open_own: Open) -> None:
    with agent(own, "survivor"):
        name = job(
            own, "t-follow", "for i in $(seq 1 150); do echo line $i; sleep 0.04; done", requires={"who": "survivor"}
        )
        id = own.submit(name)
        page = open_own(f"tasks/{id}")
        page.strict.allow("ERR_", "Failed to load resource")
        page.get_by_text("line 10", exact=True).wait_for()
        page.locator(".following", has_text="following").wait_for()
        own.kill()
        page.locator(".following", has_text="not live since").wait_for()
        own.start()
        page.locator(".following:empty").wait_for(state="attached", timeout=60_000)  # the task has ended
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy", exact=True).click()
        page.get_by_text("Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()").splitlines()
        items = own.call("GET /tasks/{id}/output", id=id)["items"]
        recorded = "".join(item["text"] for item in items).splitlines()
        assert copied == recorded
        assert "line 12" in recorded, "it ran on while the server was away"


def test_long_output_is_a_window_and_a_scrolled_reader_is_not_moved(own: Up, open_own: Open) -> None:
    id = own.submit(job(own, "t-long", "exit 0"), wait=20)
    token = own.call("GET /tasks/{id}", id=id)["attempts"][0]["token"]
    # 20 MB: what an agent keeps of a command is less, what a daemon writes is more
    piece = "string_agg('line ' || lpad((n * 600 + i)::text, 8, '0') || repeat(' x', 45), e'\\n') || e'\\n'"
    in_database(own.dsn, f"""
        insert into mainspring.output
        select {id}, {token}, n + 1, 1, now(), now(),
               convert_to((select {piece} from generate_series(0, 599) i), 'UTF8')
          from generate_series(0, 329) n
    """)  # fmt: skip
    page = open_own(f"tasks/{id}")
    page.locator(".log-line", has_text="line 00197999").wait_for()
    assert page.locator(".log-line").count() < 300
    page.get_by_text("Earlier output is not loaded").wait_for()
    log = page.locator(".log")
    log.evaluate("log => { log.scrollTop = 0 }")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # it is drawn
    seen = page.locator(".log-line").first.inner_text()
    place = page.locator(".log-line", has_text=seen).bounding_box()["y"]
    size = page.locator(".output .aside .number")

    def load_earlier() -> None:
        page.get_by_role("button", name="load earlier").click()
        page.locator('.log-note button[aria-busy="false"]').wait_for()

    load_earlier()
    y = page.locator(".log-line", has_text=seen).bounding_box()["y"]
    assert abs(y - place) < 2, "it moved under the reader"
    later = page.get_by_role("button", name="Load later")
    repeat(page, load_earlier, until=later.is_visible)  # the newest falls out of the window
    assert float(size.inner_text().split()[0]) <= 5.1
    page.get_by_role("button", name="to the end").click()
    page.locator(".log-line", has_text="line 00197999").wait_for()
    page.get_by_label("Search the output").fill("00197998")
    page.locator(".found", has_text="1").wait_for()


def test_a_long_history_is_scrolled(own: Up, open_own: Open) -> None:
    own.submit(job(own, "t-many", "exit 0"), wait=20)
    in_database(own.dsn, f"""
        insert into mainspring.task_history (id, run_at, created_at, started_at, finished_at, recorded_at, token,
                                             job_id, pool, state, priority, attempt, crashes, args)
        select nextval('mainspring.task_id'), now(), now(), now(), now(), now(), null, j.id, 0, 10, 5, 1, 0, '{{}}'
          from mainspring.job j, generate_series(1, {MANY}) where j.name = 't-many'
    """)  # fmt: skip
    page = open_own("tasks?filter=job:t-many")
    page.get_by_text("10,000+ match").wait_for()
    first = int(str(page.locator("tr[data-id]").first.get_attribute("data-id")))
    repeat(page, lambda: page.keyboard.press("End"), until=lambda: loaded(page) >= 400)
    far = "(far) => [...document.querySelectorAll('tr[data-id]')].some((row) => Number(row.dataset.id) < far)"
    page.wait_for_function(far, arg=first - 290)
    assert page.locator("tr[data-id]").count() < 130, "what is not seen is not drawn"
    # the last End may still scroll
    repeat(page, lambda: page.keyboard.press("Home"), until=row(page, first).is_visible)


def loaded(page: Any) -> int:
    return int(page.locator("table").get_attribute("aria-rowcount"))


def repeat(page: Any, act: Callable[[], None], *, until: Callable[[], bool]) -> None:
    """One act may bring more than one page."""
    for _ in range(200):
        if until():
            return
        act()
        page.wait_for_timeout(100)
    raise AssertionError("it did not come to that")
