"""Throughput: no-op async handlers, every start and finish durable; from the first start to the last commit.

`…_us_per_task` is processor time of the workers, from the moment when they are loaded, and of PostgreSQL: it depends
less on the machine. `load_ms` is that of loading a worker, which without compiled files is most of a short run.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.common import (
    arguments,
    connection,
    cpu_seconds,
    drained,
    empty_tables,
    fill,
    make_app,
    postmaster,
    run,
    workers,
)


async def throughput(dsn: str, tasks: int, processes: int) -> dict[str, Any]:
    """Submit all tasks, then start the workers and watch them drain the queue."""
    async with connection(dsn) as conn:
        await empty_tables(conn)
        async with make_app(dsn) as app:
            await fill(app, tasks)
        before = await _wal(conn)
        first = await postmaster(conn)
        database = cpu_seconds(first)
        with workers(dsn, processes) as children:
            loaded = sum(map(cpu_seconds, children))
            rate = await drained(conn, tasks)
            cpu = sum(map(cpu_seconds, children)) - loaded
            database = cpu_seconds(first) - database
            wal = (await _wal(conn) - before) / tasks
            dead = await conn.fetchval(
                "select n_dead_tup from pg_stat_user_tables where schemaname = 'mainspring' and relname = 'task'"
            )
    return {
        "tasks_per_s": round(rate),
        "load_ms": round(loaded / processes * 1e3),
        "process_us_per_task": round(cpu / tasks * 1e6, 2),
        "database_us_per_task": round(database / tasks * 1e6, 2),
        "wal_bytes_per_task": round(wal),
        "dead_tuples": dead,
    }


async def _wal(conn: Any) -> int:
    return int(await conn.fetchval("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"))


def main() -> None:
    args: argparse.Namespace = arguments(__doc__ or "", tasks=100_000, processes=1, runs=3)
    run("throughput", lambda dsn: throughput(dsn, args.tasks, args.processes), args)


if __name__ == "__main__":
    main()
