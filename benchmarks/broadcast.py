"""Broadcast: one task on several agents, each in a process of its own; how far apart their handlers start."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.broadcast_worker import make_broadcaster
from benchmarks.common import arguments, connection, probe_timer, run

AHEAD = timedelta(seconds=3)  # from the submission to the instant


@asynccontextmanager
async def agents(dsn: str, count: int) -> AsyncIterator[None]:
    """Worker processes with names of their own; they run until the block ends."""
    command = [sys.executable, "-m", "benchmarks.broadcast_worker", dsn]
    children = [
        await asyncio.create_subprocess_exec(*command, f"agent-{number}", stdin=asyncio.subprocess.PIPE)
        for number in range(count)
    ]
    try:
        await _all_there(dsn, count)
        yield
    finally:
        for child in children:
            assert child.stdin is not None
            child.stdin.close()  # tells it to stop
        for child in children:
            await asyncio.wait_for(child.wait(), 60)


async def _all_there(dsn: str, count: int) -> None:
    living = "select count(*) from mainspring.agent where ended_at is null and lease_until > mainspring.now()"
    async with connection(dsn) as conn, asyncio.timeout(60):
        while await conn.fetchval(living) < count:
            await asyncio.sleep(0.05)


async def broadcast(dsn: str, count: int, rounds: int) -> dict[str, Any]:
    async with agents(dsn, count), make_broadcaster(dsn) as app:
        instant = datetime.now(UTC) + AHEAD
        made = [
            await app["everywhere"].using(run_at=instant + timedelta(seconds=number)).enqueue()
            for number in range(rounds)
        ]
        results: list[dict[str, Any]] = [await task.result(timeout=60) for task in made]
        at_once: dict[str, Any] = await (await app["everywhere"].enqueue()).result(timeout=60)
    if any(result["succeeded"] != count for result in (*results, at_once)):
        raise RuntimeError(f"not every agent ran: {results}")
    spreads = [result["spread_ms"] for result in results]
    lateness = statistics.median(result["lateness_ms"] for result in results)
    began = instant.timestamp()
    return {
        "agents": count,
        "spread_ms": round(statistics.median(spreads), 3),
        "max_spread_ms": max(spreads),
        "lateness_ms": round(lateness, 3),
        "lateness_over_probe_ms": round(lateness - probe_timer(began, began + rounds)["timer_p50_ms"], 3),
        "at_once_spread_ms": at_once["spread_ms"],
    }


def main() -> None:
    args = arguments(__doc__ or "", agents=5, rounds=10, runs=3)
    run("broadcast", lambda dsn: broadcast(dsn, args.agents, args.rounds), args)


if __name__ == "__main__":
    main()
