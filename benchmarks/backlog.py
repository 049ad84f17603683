"""Backlog: throughput with a million tasks far in the future in the table, against throughput without them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.common import (
    arguments,
    connection,
    drained,
    empty_tables,
    fill,
    make_app,
    run,
    say,
    workers,
)
from benchmarks.throughput import throughput


async def backlog(dsn: str, tasks: int, far: int) -> dict[str, Any]:
    plain = await throughput(dsn, tasks, 1)
    async with connection(dsn) as conn, make_app(dsn) as app:
        await empty_tables(conn)
        say(f"submitting {far:,} tasks for next year")
        job = app["noop"].using(run_at=datetime.now(UTC) + timedelta(days=365))
        for _ in range(0, far, 10_000):
            await job.enqueue_many([()] * 10_000)
        await fill(app, tasks)
        await conn.execute("checkpoint")
        with workers(dsn, 1):
            rate = await drained(conn, tasks)
    return {
        "tasks_per_s": round(rate),
        "plain_per_s": plain["tasks_per_s"],
        "ratio": round(rate / plain["tasks_per_s"], 3),
    }


def main() -> None:
    args = arguments(__doc__ or "", tasks=100_000, far=1_000_000, runs=3)
    run("backlog", lambda dsn: backlog(dsn, args.tasks, args.far), args)


if __name__ == "__main__":
    main()
