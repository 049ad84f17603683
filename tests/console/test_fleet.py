"""The armed fleet in the browser: dials and what they ask of the server, draining, an agent that dies, squares."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.console.conftest import ROOT, Open, Up, both_themes, picture

NAME = "f-second"
JOB = "f-beats"
SCENE = "document.querySelector('canvas.dials').scene"


@contextmanager
def agent(up: Up, directory: Path, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A second agent, in a process of its own, connected."""
    token = directory / "token"
    token.write_text(up.call("POST /tokens", {"name": name, "role": "agent"})["token"])
    child = subprocess.Popen(
        [sys.executable, "-m", "mainspring", "agent", "--server", up.url.replace("http", "ws"),
         "--token-file", str(token), "--name", name, *options],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
             "MAINSPRING_DATA_DIRECTORY": str(directory)},
    )  # fmt: skip
    try:
        ends = time.monotonic() + 30
        while not any(one["name"] == name for one in up.call("GET /agents")["items"]):
            assert time.monotonic() < ends, "the agent does not connect"
            time.sleep(0.1)
        yield child
    finally:
        child.kill()
        child.wait(10)


@pytest.fixture(scope="module")
def second(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[bytes]]:
    """With `f=yes`, which the jobs here prefer, and 8 of an amount. Without an application: it runs commands only."""
    directory = tmp_path_factory.mktemp("agent")
    with agent(up, directory, NAME, "--slots", "8", "--label", "f=yes", "--offer", "f-memory=8") as child:
        run = {"type": "command", "argv": ["true"]}
        up.call("PUT /jobs/{name}", {"run": run, "placement": {"prefer": {"f": "yes"}}}, name=JOB)
        run = {"type": "command", "argv": ["sleep", "600"]}
        up.call("PUT /jobs/{name}", {"run": run, "requires": {"f": "yes"}}, name="f-sleeps")
        yield child


def submit(up: Up, job: str, seconds: float) -> int:
    at = datetime.now(UTC) + timedelta(seconds=seconds)
    return up.submit(job, run_at=at.isoformat())


def test_a_dot_meets_twelve_at_the_recorded_fire(
    up: Up, second: object, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    page = open_page("agents")
    card = page.get_by_role("article", name=NAME)
    card.get_by_text("of 8 slots").wait_for()
    id = submit(up, JOB, 4)
    # frames in which the dot was drawn: the time of the scene, the clock of the page, and what was left
    page.evaluate(
        """(id) => {
          window.seen = [];
          const look = () => {
            const { at, dials } = document.querySelector('canvas.dials').scene;
            const mark = dials.flatMap(({ marks }) => marks).find((one) => one.id === id);
            if (mark?.kind === "dot") seen.push({ at, left: mark.left, x: mark.x, y: mark.y, page: Date.now() });
            if (mark?.kind === "flash") window.flashed = at;
            requestAnimationFrame(look);
          };
          look();
        }""",
        id,
    )
    card.get_by_role("link", name=JOB).wait_for()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    begun = time.monotonic()
    page.wait_for_function("() => window.flashed !== undefined")
    picture(page, "fleet")
    started = datetime.fromisoformat(up.call("GET /tasks/{id}", id=id, wait=20)["started_at"]).timestamp() * 1000
    seen = page.evaluate("seen")
    assert len(seen) > 3, "it moved"
    meets = {round(one["at"] + one["left"] * 1000) for one in seen}
    assert len(meets) == 1, "every frame computes the same instant"
    late = up.call("GET /tasks/{id}", id=id)["lateness_ms"]
    assert abs(meets.pop() - (started - late)) < 100
    assert page.evaluate("flashed") >= started - late
    # the scene's time is the database's: one machine, so one clock
    assert min(abs(one["at"] - one["page"]) for one in seen) < 100
    # a trace of the recorded start follows, from the stream
    page.wait_for_function(
        f"id => {SCENE}.dials.some(d => d.marks.some(m => m.kind === 'trace' && m.id === id))", arg=id
    )
    page.wait_for_timeout(max(0.0, 3 - (time.monotonic() - begun)) * 1000)  # requests are counted over a time
    assert len(asked) <= time.monotonic() - begun + 1, asked
    assert {url.split("/api/v1/")[1].split("?")[0] for url in asked} <= {"armed", "agents"}
    for _ in both_themes(page):
        check_axe(page)


def test_an_agent_is_drained_while_its_dots_move_elsewhere(up: Up, second: object, open_page: Open) -> None:
    page = open_page("agents")
    card = page.get_by_role("article", name=NAME)
    card.get_by_role("button", name=f"Drain {NAME}").click()
    page.get_by_text(f"{NAME} drains: it is given no new tasks").wait_for()
    card.get_by_text("draining").wait_for()
    until_looks(page, NAME, "draining")
    id = submit(up, JOB, 3)
    page.wait_for_function(f"id => {SCENE}.dials.some(d => d.marks.some(m => m.kind === 'dot' && m.id === id))", arg=id)
    [holder] = page.evaluate(
        f"id => {SCENE}.dials.filter(d => d.marks.some(m => m.id === id)).map(d => d.name)", id
    ) or [None]  # fmt: skip
    assert holder not in (None, NAME)
    page.get_by_role("button", name="Undo").click()
    card.get_by_text("active").wait_for()
    until_looks(page, NAME, "live")


def until_looks(page: Any, name: str, look: str) -> None:
    """The picture is drawn after the words."""
    page.wait_for_function(
        f"([name, look]) => {SCENE}.dials.find(d => d.name === name).look === look", arg=[name, look]
    )


def test_a_viewer_sees_why_and_other_views_have_addresses(
    up: Up, second: object, open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    page = open_page("agents?sort=load", role="viewer", width=360, theme="dark", reduced_motion="reduce")
    card = page.get_by_role("article", name=NAME)
    drain = card.get_by_role("button", name=f"Drain {NAME}")
    assert drain.get_attribute("aria-disabled") == "true"
    assert drain.get_attribute("title") == "needs the role operator; yours is viewer"
    # numbers count down, no dot moves: the picture is drawn once a second
    submit(up, JOB, 5)
    card.get_by_text(re.compile(r"^[12] s$")).wait_for()
    for _ in both_themes(page):
        check_axe(page)
    picture(page, "fleet-phone")
    for _ in both_themes(page):  # the picture has the colours of the theme at once, not a second later
        ink = "getComputedStyle(document.querySelector('canvas.dials')).getPropertyValue('--text').trim()"
        assert page.evaluate(f"{SCENE}.ink === {ink}")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Table").click()
    row = page.locator(f'tr[data-id="{NAME}"]')
    row.get_by_text("0 of 8").wait_for()
    assert "view=table" in page.url
    assert "sort=load" in page.url
    page.reload()
    row.wait_for()
    page.get_by_role("button", name="Squares").click()
    page.get_by_role("link", name=f"{NAME}: active").focus()
    for _ in both_themes(page):
        check_axe(page)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name=NAME).wait_for()
    for _ in both_themes(page):
        check_axe(page)
    picture(page, "agent-phone")


def test_an_agent_that_dies_turns_grey_with_the_countdown_of_its_lease(
    up: Up, second: subprocess.Popen[bytes], open_page: Open, check_axe: Callable[[Any], None]
) -> None:
    id = up.submit("f-sleeps")
    page = open_page(f"agents/{NAME}")
    page.locator(f'tr[data-id="{id}"]').get_by_text("running").wait_for()
    for _ in both_themes(page):
        check_axe(page)
    picture(page, "agent")
    page.goto("agents")
    card = page.get_by_role("article", name=NAME)
    card.get_by_text("active").wait_for()
    task = open_page(f"tasks/{id}")
    task.locator(".task-head").get_by_text("running").wait_for()
    second.send_signal(signal.SIGKILL)
    task.get_by_text(f"{NAME} has no connection to a server").wait_for()  # who follows its output is told, too
    card.get_by_text("its lease ends in").wait_for()
    card.get_by_text("disconnected").wait_for()
    page.wait_for_function(f"name => {SCENE}.dials.find(d => d.name === name).look === 'lost'", arg=NAME)
    first, then = (page.evaluate(f"name => {SCENE}.dials.find(d => d.name === name).lease", NAME) for _ in range(2))
    assert first >= then > 0
    picture(page, "fleet-lost")
    up.call("POST /tasks/{id}/cancel", {"kill": True}, id=id)


MANY = """
    insert into mainspring.agent (session, name, slots, lease_until, heard_at, server, skew, lead)
    select 1000000 + n, 'f-many-' || n, 4, mainspring.now() + interval '1 hour', mainspring.now(),
           (select id from mainspring.server where status = 'active' limit 1), case n when 77 then 1.5 else 0 end, 5
      from generate_series(1, 500) n
"""


def test_hundreds_of_agents_are_squares_with_one_request_a_second(up: Up, open_page: Open) -> None:
    with psycopg.connect(up.dsn, autocommit=True) as conn:
        conn.execute(MANY)
        try:
            page = open_page("agents?sort=skew", theme="dark")
            squares = page.locator("a.square")
            squares.nth(500).wait_for()
            assert (squares.first.get_attribute("aria-label") or "").startswith("f-many-77: active")
            assert page.locator("canvas").count() == 1
            page.wait_for_function(f"() => {SCENE}.dials.length > 300")
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            page.wait_for_timeout(3000)
            of_agents = [url for url in asked if "/alerts" not in url]  # the badge of the frame asks when one fires
            assert len(of_agents) <= 5, asked  # of more than 500 agents there are two parts
            picture(page, "fleet-many")
        finally:
            conn.execute("delete from mainspring.agent where session > 1000000")
