"""Console: what an open console costs, in a real browser (Debian's Chromium) against `mainspring up`.

heap      Overview at `--rate` tasks a second for `--heap-minutes`: the JavaScript heap after a forced garbage
          collection, at first once a page is warm, then twenty times or each minute; `grown_mb` is the last reading
          less the first, `grown_mb_per_hour` the slope of the line through all
requests  what one open page asks for in ten seconds
lateness  tasks at their instants beside `--consoles` open consoles, each asking what that page asks; beside none
first     from the address to the first row: 100,000 schedules, and `--finished` stored tasks
timeline  planned versus fired with 50 rows of 2,000 marks, on a screen of 900 px and with all rows on one: the longest
          time for which it is drawn at once (`at_once`), all of them (`drawn`), until every row is there (`whole`),
          and panned
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import schedules
from benchmarks.api import ACTOR, Found, Request, Served, _late, _served, client, listening, make_tokens
from benchmarks.common import (
    Part,
    arguments,
    connection,
    run_parts,
    say,
)
from benchmarks.network import APP, process
from benchmarks.stored import make_days, store
from mainspring import operations
from mainspring.model.access.actors import Role
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.tasks.define_job import command, define
from mainspring.operations import access
from mainspring.operations.definitions import jobs

SCHEDULES = 100_000
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
]
WATCHED = 10.0  # seconds in which requests are counted


@asynccontextmanager
async def opened(served: Served, path: str) -> AsyncIterator[Any]:
    """A page of the console, logged in."""
    from playwright.async_api import async_playwright

    async with connection(served.dsn) as conn:
        code = (await access.create_login(conn, ACTOR, role=Role.ADMIN)).code
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = await browser.new_page(
            base_url=f"http://127.0.0.1:{served.port}/", viewport={"width": 1440, "height": 900}
        )
        await page.goto(f"login?next={path or '.'}#{code}")
        await page.locator("main#content h1").wait_for()
        try:
            yield page
        finally:
            await browser.close()


async def _heap(page: Any) -> float:
    """Megabytes that are in use after everything that nobody holds has gone."""
    session = await page.context.new_cdp_session(page)
    await session.send("HeapProfiler.collectGarbage")
    used: float = (await session.send("Runtime.getHeapUsage"))["usedSize"] / 2**20
    await session.detach()
    return used


_SUBMIT = "select cardinality(mainspring.enqueue_many('stamp', array_fill('{}'::jsonb, array[$1::integer])))"
WARM = 0.25  # of the time, at most a minute: what is loaded and compiled once is no growth
TICK = 0.01  # seconds between two statements


async def _submitting(dsn: str, rate: int, counted: list[int]) -> None:
    """Submit until cancelled. benchmarks/load.py keeps each task, which no hour at 5,000 a second leaves room for."""
    began = time.perf_counter()
    async with connection(dsn) as conn:
        while True:
            if (wanted := int((time.perf_counter() - began) * rate) - counted[0]) > 0:
                counted[0] += await conn.fetchval(_SUBMIT, wanted)
            await asyncio.sleep(TICK)


def _slope(readings: list[tuple[float, float]]) -> float:
    """Of the line through points by least squares, y per x."""
    x, y = (sum(values) / len(readings) for values in zip(*readings, strict=True))
    spread = sum((at - x) ** 2 for at, _ in readings)
    return sum((at - x) * (value - y) for at, value in readings) / spread if spread else 0.0


async def heap(dsn: str, args: argparse.Namespace) -> Found:
    seconds = args.heap_minutes * 60.0
    counted = [0]
    readings: list[tuple[float, float]] = []
    with process("up", APP, "--dsn", dsn, "--slots", "1000") as running:
        async with opened(_served(dsn, running, []), "") as page:
            began = time.perf_counter()
            submitting = asyncio.create_task(_submitting(dsn, args.rate, counted))
            await asyncio.sleep(min(60.0, seconds * WARM))
            while not submitting.done():
                readings.append((round((at := time.perf_counter()) - began, 1), round(await _heap(page), 3)))
                say(f"heap after {readings[-1][0]:.0f} s: {readings[-1][1]:.2f} MB, {counted[0]:,} tasks")
                if at - began >= seconds:
                    break
                await asyncio.wait([submitting], timeout=min(60.0, seconds / 20, began + seconds - at))
            took = time.perf_counter() - began
            submitting.cancel()
            with suppress(asyncio.CancelledError):
                await submitting
    return {
        "grown_mb": round(readings[-1][1] - readings[0][1], 2),
        "grown_mb_per_hour": round(_slope(readings) * 3600, 2),
        "first_mb": readings[0][1],
        "last_mb": readings[-1][1],
        "most_mb": max(value for _, value in readings),
        "seconds": round(took, 1),
        "tasks_per_s": round(counted[0] / took),
        "readings": readings,
    }


async def _asked(dsn: str) -> list[str]:
    """The addresses that an open Overview asks for while it is watched."""
    asked: list[str] = []
    with process("up", APP, "--dsn", dsn) as running:
        async with opened(_served(dsn, running, []), "") as page:
            await page.wait_for_timeout(3000)
            page.on("request", lambda request: asked.append(request.url))
            await page.wait_for_timeout(WATCHED * 1000)
    return [urlsplit(url)._replace(scheme="", netloc="").geturl() for url in asked if "/api/" in url]


async def requests(dsn: str, args: argparse.Namespace) -> Found:
    return {"per_s": round(len(await _asked(dsn)) / WATCHED, 2)}


async def lateness(dsn: str, args: argparse.Namespace) -> Found:
    asked = [url.removeprefix("/api/v1") for url in await _asked(dsn) if "/events" not in url]
    made = await make_tokens(dsn, 2)
    found: Found = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "stamps")
        with process("up", APP, "--dsn", dsn, stamps=path) as running:
            served = _served(dsn, running, made)
            found |= {f"quiet_{name}": value for name, value in (await _late(dsn, path, args)).items()}
            wanted: list[Request] = [("GET", url, None) for url in asked] or [("GET", "/stats", None)]
            rate = max(1, round(args.consoles * len(asked) / WATCHED))
            async with listening(served, args.consoles):
                asking = asyncio.create_task(
                    client(
                        "load", served, requests=wanted, connections=args.consoles, seconds=args.seconds + 6, rate=rate
                    )
                )
                found |= await _late(dsn, path, args)
                await asking
    found["p99_to_quiet"] = round(found["p99_ms"] / found["quiet_p99_ms"], 2)
    return found | {"requests_per_s": rate}


async def first(dsn: str, args: argparse.Namespace) -> Found:
    async with connection(dsn) as conn:
        await schedules.idle(conn, SCHEDULES)
        await make_days(conn)
        await store(conn, args.finished, 0)
    found: Found = {}
    with process("up", APP, "--dsn", dsn) as running:
        async with opened(_served(dsn, running, []), "settings") as page:
            for path in ("schedules", "tasks", "calendar"):
                began = time.perf_counter()
                await page.goto(path)
                await page.locator("tbody tr[data-id], canvas").first.wait_for()
                found[f"{path}_s"] = round(time.perf_counter() - began, 3)
    return found


ROWS, MARKS = 50, 2_000
TALL = 3_000  # px: all rows are on screen
FRAMES = 60  # that a pan takes
# How long it is drawn at once, in all, and until every row that is on screen is there.
FIRST = """() => {
    const drawn = [];
    let began = 0;
    const look = () => {
        const canvas = document.querySelector(".p-rows canvas");
        if (!canvas?.scene?.rows.length) return void requestAnimationFrame(look);
        began ||= performance.now() - canvas.drawnIn;
        drawn.push(canvas.drawnIn);
        if (!canvas.isWhole) return void requestAnimationFrame(look);
        window.first = {
            at_once: Math.max(...drawn), drawn: drawn.reduce((sum, ms) => sum + ms), whole: performance.now() - began };
    };
    requestAnimationFrame(look);
}"""
# One move of the pointer in each frame, as a hand makes them.
PAN = """(frames) => new Promise((done) => {
    const canvas = document.querySelector(".p-rows canvas");
    const box = canvas.getBoundingClientRect();
    const tell = (kind, x) => canvas.dispatchEvent(new PointerEvent(kind, {
        clientX: x, clientY: box.top + 10, pointerId: 1, bubbles: true, isPrimary: true }));
    canvas.parentElement.setPointerCapture = () => {};
    tell("pointerdown", 900);
    const took = [];
    const began = performance.now();
    let number = 0;
    const step = () => {
        if (number) took.push(canvas.drawnIn);
        if (number === frames) {
            tell("pointerup", 900 - number * 4);
            done({ ms: performance.now() - began, drawn: took });
            return;
        }
        number += 1;
        tell("pointermove", 900 - number * 4);
        requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
})"""


def _marks(now: float) -> list[dict[str, Any]]:
    """An hour and a half around now; one of a hundred fails, one of fifty is skipped."""
    marks = []
    for number in range(MARKS):
        at = now - 3600 + number * 4500 / MARKS
        skipped, ended = number % 50 == 7, at + 1.5 < now
        run = None if skipped or at > now else at + 0.0004 * (1 + number % 90)
        marks.append(
            {
                "plan_time": _iso(at),
                "scope": "",
                "origin": "plan",
                "decision": "overlap" if skipped else "planned",
                "skipped_by": None,
                "task_id": None if skipped else number + 1,
                "state": None if skipped else "failed" if number % 100 == 3 else "succeeded" if ended else "running",
                "started_at": None if run is None else _iso(run),
                "lateness_ms": None if run is None else round((run - at) * 1000, 3),
                "finished_at": _iso(run + 1.2) if run is not None and ended else None,
                "note": None,
            }
        )
    return marks


def _iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")  # as the API does


async def timeline(dsn: str, args: argparse.Namespace) -> Found:
    names = [f"report-{number:02}" for number in range(ROWS)]
    async with connection(dsn) as conn:
        await jobs.put(conn, ACTOR, "hello", define(command(["true"]), {}))
        for name in names:
            spec = ScheduleSpec(job="hello", every="1h", enabled=False)
            await operations.schedules.put(conn, ACTOR, name, spec)
    rest: Found = {"bins": [], "bin_seconds": None, "skips": [], "timezone": "UTC", "slo": 0.02, "missed": [],
            "missed_to": None, "coming": [], "coming_to": None, "changes": []}  # fmt: skip
    marks = _marks(time.time())
    answer = json.dumps({"start": "", "end": "", "lines": [{"schedule": n, "marks": marks, **rest} for n in names]})
    with process("up", APP, "--dsn", dsn) as running:
        async with opened(_served(dsn, running, []), "settings") as page:
            # the API tells fewer marks at once than the picture must be able to draw
            await page.route("**/api/v1/timeline?*", lambda route: route.fulfill(body=answer))
            await page.add_init_script(f"({FIRST})()")
            found: Found = {}
            for name, height in (("screen", 900), ("all", TALL)):
                await page.set_viewport_size({"width": 1440, "height": height})
                await page.goto("timeline")
                await page.locator(".p-names li").nth(ROWS - 1).wait_for(state="attached", timeout=60_000)
                await page.wait_for_function("() => window.first", timeout=60_000)
                first = await page.evaluate("window.first")
                panned = await page.evaluate(PAN, FRAMES)
                drawn = sorted(panned["drawn"])
                found |= {
                    **{f"{name}_first_{what}_ms": round(ms, 1) for what, ms in first.items()},
                    f"{name}_pan_frames_per_s": round(FRAMES * 1000 / panned["ms"], 1),
                    f"{name}_pan_drawn_ms": round(drawn[len(drawn) // 2], 1),
                    f"{name}_pan_drawn_max_ms": round(drawn[-1], 1),
                }
    return found


PARTS: dict[str, Part] = {
    "heap": heap,
    "requests": requests,
    "lateness": lateness,
    "first": first,
    "timeline": timeline,
}


def main() -> None:
    args = arguments(
        __doc__ or "",
        parts=list(PARTS),
        rate=5_000,
        seconds=60,
        heap_minutes=1,
        consoles=20,
        instants=1_000,
        finished=1_000_000,
        runs=1,
    )
    run_parts("console", PARTS, args)


if __name__ == "__main__":
    main()
