"""Herd: tasks that are all due at one instant; from the instant to the first line of each handler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.common import arguments, lateness_of, make_app, run
from benchmarks.timing import Starts


async def herd(dsn: str, tasks: int) -> dict[str, Any]:
    app = make_app(dsn)
    starts = Starts(app)
    async with app.running():
        instant = datetime.now(UTC) + timedelta(seconds=4)
        await starts.job.using(run_at=instant).enqueue_many([()] * tasks)
        await starts.wait_for(tasks)
    return lateness_of((instant.timestamp(), at) for at in starts.at.values())


def main() -> None:
    args = arguments(__doc__ or "", tasks=5_000, runs=3)
    run("herd", lambda dsn: herd(dsn, args.tasks), args)


if __name__ == "__main__":
    main()
