"""Pinned: throughput for a minute while another connection holds a snapshot open, against the same without it.

With a snapshot open nothing that dies in the table can be removed. Both halves submit while they drain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.common import arguments, connection, empty_tables, make_app, run, say, workers


@asynccontextmanager
async def _snapshot(dsn: str) -> AsyncIterator[None]:
    async with connection(dsn) as conn:
        await conn.execute("begin isolation level repeatable read")
        await conn.fetchval("select count(*) from mainspring.task")
        yield
        await conn.execute("rollback")


async def _rate(dsn: str, seconds: int, *, pin: bool) -> float:
    """Keep the queue full for so long; returns tasks recorded per second."""
    async with connection(dsn) as conn, make_app(dsn) as app:
        await empty_tables(conn)
        for _ in range(5):
            await app["noop"].enqueue_many([()] * 10_000)
        async with _snapshot(dsn) if pin else connection(dsn):
            with workers(dsn, 1):
                ends = time.monotonic() + seconds
                while time.monotonic() < ends:
                    waiting = await conn.fetchval("select last_value from mainspring.task_id") - await conn.fetchval(
                        "select count(*) from mainspring.task_history"
                    )
                    if waiting < 50_000:
                        await app["noop"].enqueue_many([()] * 10_000)
                    else:
                        await asyncio.sleep(0.05)
        return float(
            await conn.fetchval("""
                select count(*) / date_part('epoch', max(recorded_at) - min(started_at)) from mainspring.task_history
            """)
        )


async def pinned(dsn: str, seconds: int) -> dict[str, Any]:
    plain = await _rate(dsn, seconds, pin=False)
    say(f"without a snapshot: {plain:,.0f}/s")
    held = await _rate(dsn, seconds, pin=True)
    return {"tasks_per_s": round(held), "plain_per_s": round(plain), "ratio": round(held / plain, 3)}


def main() -> None:
    args = arguments(__doc__ or "", seconds=60, runs=1)
    run("pinned", lambda dsn: pinned(dsn, args.seconds), args)


if __name__ == "__main__":
    main()
