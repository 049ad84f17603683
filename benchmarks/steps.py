"""Steps: the longest steps of the event loop while tasks fire at their instants and a queue is worked off.

A step is what runs between two turns of the loop: while it lasts, nothing fires. Each is timed on the clock of this
machine and in CPU time of its thread; the second is ours alone, the first has what the machine does meanwhile. It runs
on asyncio's own loop, whose steps can be watched; on uvloop the same steps are somewhat shorter.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from benchmarks.common import (
    arguments,
    connection,
    drained,
    empty_tables,
    fresh_database,
    lateness_of,
    make_app,
    report,
    say,
)
from benchmarks.timing import Starts
from mainspring.cli.runtime import settle_memory
from mainspring.store.postgres.database import Connection

LONGEST = 10  # callbacks that are named
SHORT = 0.3  # milliseconds of steps that are only counted
LONG = 2.0  # milliseconds that no step should last; in the names of the figures
TICK = 0.01  # seconds between two instants at which tasks fire
WARM_UP = 3.0  # seconds from the start of the worker to the first instant
QUEUE_AFTER = 2.0  # seconds from the first instant to the queue

_FIRES = """
    select count(mainspring.enqueue_many('stamp', array_fill('{}'::jsonb, array[$1::integer]),
                                         run_at => $2::timestamptz + n * $3::interval))
      from generate_series(0, $4::integer - 1) as n
"""
_QUEUE = "select cardinality(mainspring.enqueue_many('noop', array_fill('{}'::jsonb, array[$1::integer])))"


class Step(NamedTuple):
    cpu: float  # milliseconds
    wall: float
    collecting: float  # of it, garbage collections


class Steps:
    """The steps of the running loop. Those that are not short are kept by their callback."""

    def __init__(self) -> None:
        self.count = 0
        self.kept: dict[str, list[Step]] = {}
        self._collecting = 0.0
        self._collection_began = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        run = asyncio.Handle._run
        clock, cpu_clock = time.perf_counter, time.thread_time

        def timed(handle: Any) -> None:
            self._collecting = 0.0
            began, cpu = clock(), cpu_clock()
            run(handle)
            self.count += 1
            step = Step((cpu_clock() - cpu) * 1000, (clock() - began) * 1000, self._collecting)
            if max(step) > SHORT:
                self.kept.setdefault(_name(handle), []).append(step)

        asyncio.Handle._run = timed  # type: ignore[assignment, method-assign]
        gc.callbacks.append(self._collected)
        try:
            yield
        finally:
            gc.callbacks.remove(self._collected)
            asyncio.Handle._run = run  # type: ignore[method-assign]

    def _collected(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._collection_began = time.perf_counter()
        else:
            self._collecting += (time.perf_counter() - self._collection_began) * 1000

    @property
    def all_kept(self) -> list[Step]:
        return [step for its in self.kept.values() for step in its]

    def longest(self) -> list[dict[str, Any]]:
        """The callbacks with the longest steps, by CPU time."""
        by_longest = sorted(self.kept.items(), key=lambda item: max(item[1]), reverse=True)
        return [
            {
                "ms": round(max(its).cpu, 3),
                "wall_ms": round(max(step.wall for step in its), 3),
                "collecting_ms": round(max(step.collecting for step in its), 3),
                "times": len(its),
                "over_2_ms": sum(step.cpu > LONG for step in its),
                "callback": callback,
            }
            for callback, its in by_longest[:LONGEST]
        ]


def _name(handle: Any) -> str:
    """Its callback. A step of a task is named by its coroutine and what that awaits now, after the step."""
    task = getattr(handle._callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(handle._callback, "__qualname__", repr(handle._callback)))
    names = []
    awaited: Any = task.get_coro()
    while awaited is not None and hasattr(awaited, "__qualname__"):
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        names.append(f"{awaited.__qualname__}:{frame.f_lineno}" if frame else awaited.__qualname__)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    ours = [name for name in names if not name.startswith("Connection.")]  # of asyncpg
    return " > ".join(ours)


async def steps(dsn: str, rate: int, seconds: int, queue: int) -> dict[str, Any]:
    app = make_app(dsn)
    starts = Starts(app)
    found = Steps()
    async with connection(dsn) as conn:
        await empty_tables(conn)
        async with app:
            pass  # its jobs are known now
        first = await conn.fetchval("select mainspring.now() + $1::interval", timedelta(seconds=WARM_UP))
        at_once = max(1, round(rate * TICK))
        await conn.fetchval(_FIRES, at_once, first, timedelta(seconds=TICK), round(seconds / TICK))
        async with app.running():
            settle_memory()
            await _sleep_until(conn, first)
            with found.watched():
                await asyncio.sleep(QUEUE_AFTER)
                if queue:
                    await conn.fetchval(_QUEUE, queue)
                await _sleep_until(conn, first + timedelta(seconds=seconds))
            await drained(conn, round(seconds / TICK) * at_once + queue)
        rows = await conn.fetch(_STAMPED)
    lateness = lateness_of((row["at"], starts.at[row["id"]]) for row in rows)
    return {
        "longest_ms": round(max(found.all_kept).cpu, 3),
        "over_2_ms": sum(step.cpu > LONG for step in found.all_kept),
        "over_2_ms_on_the_wall": sum(step.wall > LONG for step in found.all_kept),
        "steps": found.count,
        **lateness,
        "longest": found.longest(),
    }


_STAMPED = """
    select h.id, date_part('epoch', h.run_at) as at
      from mainspring.task_history h join mainspring.job j on j.id = h.job_id where j.name = 'stamp'
"""


async def _sleep_until(conn: Connection, instant: datetime) -> None:
    left: timedelta = await conn.fetchval("select $1 - mainspring.now()", instant)
    await asyncio.sleep(max(0.0, left.total_seconds()))


def main() -> None:
    args = arguments(__doc__ or "", rate=1_000, seconds=10, queue=50_000)
    with fresh_database() as dsn:
        result = asyncio.run(steps(dsn, args.rate, args.seconds, args.queue))
    for step in result["longest"]:
        say(f"{step['ms']:8.3f} ms, {step['over_2_ms']} of {step['times']} over 2 ms: {step['callback']}")
    say(json.dumps({name: value for name, value in result.items() if name != "longest"}))
    report("steps", result, as_json=args.json)


if __name__ == "__main__":
    main()
