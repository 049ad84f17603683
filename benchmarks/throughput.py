"""Throughput: no-op async handlers, every start and finish durable; from the first start to the last commit."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.common import arguments, connection, drained, empty_tables, fill, make_app, run, workers


async def throughput(dsn: str, tasks: int, processes: int) -> dict[str, Any]:
    """Submit all tasks, then start the workers and watch them drain the queue."""
    async with connection(dsn) as conn:
        await empty_tables(conn)
        async with make_app(dsn) as app:
            await fill(app, tasks)
        before = await _wal(conn)
        with workers(dsn, processes):
            rate = await drained(conn, tasks)
            wal = (await _wal(conn) - before) / tasks
            dead = await conn.fetchval(
                "select n_dead_tup from pg_stat_user_tables where schemaname = 'mainspring' and relname = 'task'"
            )
    return {"tasks_per_s": round(rate), "wal_bytes_per_task": round(wal), "dead_tuples": dead}


async def _wal(conn: Any) -> int:
    return int(await conn.fetchval("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"))


def main() -> None:
    args: argparse.Namespace = arguments(__doc__ or "", tasks=100_000, processes=1, runs=3)
    run("throughput", lambda dsn: throughput(dsn, args.tasks, args.processes), args)


if __name__ == "__main__":
    main()
