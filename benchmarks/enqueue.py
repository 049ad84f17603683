"""Enqueue: bulk (five thousand in a statement, two at a time) and single (a commit each, one after another)."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.common import arguments, connection, empty_tables, fill, make_app, run


async def enqueue(dsn: str, tasks: int, singles: int) -> dict[str, Any]:
    async with connection(dsn) as conn, make_app(dsn) as app:
        await empty_tables(conn)
        began = time.perf_counter()
        await fill(app, tasks)
        bulk = tasks / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(singles):
            await app["noop"].enqueue()
        single = singles / (time.perf_counter() - began)
    return {"tasks_per_s": round(bulk), "single_per_s": round(single)}


def main() -> None:
    args = arguments(__doc__ or "", tasks=200_000, singles=5_000, runs=3)
    run("enqueue", lambda dsn: enqueue(dsn, args.tasks, args.singles), args)


if __name__ == "__main__":
    main()
