"""Lateness: tasks at distinct instants over ten seconds; from the instant to the first line of the handler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.common import arguments, lateness_of, make_app, run
from benchmarks.timing import Starts


async def lateness(dsn: str, tasks: int, seconds: int) -> dict[str, Any]:
    app = make_app(dsn)
    starts = Starts(app)
    instants = {}
    async with app.running():
        first = datetime.now(UTC) + timedelta(seconds=3)
        for number in range(tasks):
            instant = first + timedelta(seconds=seconds) * number / tasks
            task = await starts.job.using(run_at=instant).enqueue()
            instants[task.id] = instant.timestamp()
        await starts.wait_for(tasks)
    return lateness_of((instant, starts.at[id]) for id, instant in instants.items())


def main() -> None:
    args = arguments(__doc__ or "", tasks=1_000, seconds=10, runs=3)
    run("lateness", lambda dsn: lateness(dsn, args.tasks, args.seconds), args)


if __name__ == "__main__":
    main()
