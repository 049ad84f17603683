"""Limits: no-op handlers through max_running=50 and through twenty exclusive keys, and the same without a limit."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.common import arguments, connection, drained, empty_tables, make_app, run

KEYS = 20


async def limits(dsn: str, tasks: int) -> dict[str, Any]:
    """Tasks per second of each kind, alone, in one process."""
    app = make_app(dsn)

    @app.job(retries=0, max_running=50)
    async def fifty(number: int) -> None:
        return None

    @app.job(retries=0, concurrency_key="{number}")
    async def keyed(number: int) -> None:
        return None

    @app.job(retries=0)
    async def unlimited(number: int) -> None:
        return None

    rates = {}
    async with connection(dsn) as conn:
        for job in (unlimited, fifty, keyed):
            await empty_tables(conn)
            async with app:
                await job.enqueue_many([number % KEYS for number in range(tasks)])
            async with app.running():
                rates[job.name] = await drained(conn, tasks)
    return {
        "max_running_per_s": round(rates["fifty"]),
        "keys_per_s": round(rates["keyed"]),
        "unlimited_per_s": round(rates["unlimited"]),
        "max_running_ratio": round(rates["fifty"] / rates["unlimited"], 3),
        "keys_ratio": round(rates["keyed"] / rates["unlimited"], 3),
    }


def main() -> None:
    args: argparse.Namespace = arguments(__doc__ or "", tasks=5_000, runs=3)
    run("limits", lambda dsn: limits(dsn, args.tasks), args)


if __name__ == "__main__":
    main()
