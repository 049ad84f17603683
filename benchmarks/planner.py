"""Planner: 100,000 schedules of which 1,000 are due each second (`--rate`); the same with 1,000,000 idle ones; one
every second.

Lateness is from the plan time to the first line of the handler. The fires are compared with what arithmetic
expects: none missing, none extra. The planner alone is timed on the first seconds' worth of plan times.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from statistics import median
from typing import Any

import psutil
from tests.cluster import OWN_ALL, server_lease

import mainspring
from benchmarks.common import arguments, connection, empty_tables, lateness_of, make_app, run, say
from benchmarks.schedules import Population, idle, one_every_second
from mainspring import current_task
from mainspring.server.planning.planner import Planner
from mainspring.store.postgres.database import Connection, Database

WARM_UP = timedelta(seconds=6)  # from the first plan time: the planner alone has its turn, then the rest starts


class Stamps:
    """When each task's handler started; in arrays, so that noting it does not look like a leak."""

    def __init__(self, app: mainspring.App) -> None:
        self._tasks = array("q")
        self._at = array("d")

        @app.job(name="stamp", retries=0)
        async def stamp() -> None:
            self._at.append(time.time())
            self._tasks.append(current_task().id)

    def by_task(self) -> dict[int, float]:
        return dict(zip(self._tasks, self._at, strict=True))


async def planner(
    dsn: str, schedules: int, rate: int, idle_schedules: int, seconds: int, single_seconds: int
) -> dict[str, Any]:
    """All three; those of no schedules or no seconds are left out."""
    async with connection(dsn) as conn:
        await _forget(conn)
        figures = await _steady(dsn, conn, schedules, rate, seconds)
        say(f"without idle schedules: {figures}")
        await _forget(conn)
        if idle_schedules:
            figures |= await _beside_idle(dsn, conn, schedules, rate, idle_schedules, seconds, figures)
            await _forget(conn)
        if single_seconds:
            single = await _single(dsn, conn, single_seconds)
            figures |= {f"single_{name}": value for name, value in single.items()}
    return figures


async def _beside_idle(
    dsn: str, conn: Connection, schedules: int, rate: int, idle_schedules: int, seconds: int, plain: dict[str, Any]
) -> dict[str, Any]:
    """The same beside many that have nothing to do, and what that costs: 1 is nothing at all."""
    say(f"storing {idle_schedules:,} idle schedules")
    await idle(conn, idle_schedules)
    crowded = await _steady(dsn, conn, schedules, rate, seconds)
    compared = ("p50_ms", "p99_ms", "planner_us_per_fire", "cpu_us_per_fire")
    return {
        **{f"idle_{name}": value for name, value in crowded.items()},
        **{f"{name}_ratio": round(crowded[name] / plain[name], 3) for name in compared},
    }


async def _forget(conn: Connection) -> None:
    await conn.execute("truncate mainspring.schedule, mainspring.schedule_version, mainspring.fire cascade")
    await empty_tables(conn)


async def _steady(dsn: str, conn: Connection, schedules: int, rate: int, seconds: int) -> dict[str, Any]:
    """The fires of so many seconds, and what they cost."""
    app = make_app(dsn)
    stamps = Stamps(app)
    async with app:
        population = Population(schedules, rate, first=datetime.now(UTC) + timedelta(seconds=15))
        await population.store(conn)
        await conn.execute("vacuum analyze mainspring.schedule")
        await conn.execute("checkpoint")
        await _sleep_until(population.first)
        planner_us = await _planner_alone(dsn, conn)
        async with app.running():
            begin = population.first + WARM_UP
            end = begin + timedelta(seconds=seconds)
            await _sleep_until(begin)
            before = await _costs(conn)
            await _sleep_until(end)
            after = await _costs(conn)
            await asyncio.sleep(1.0)
    done, starts = await _fires(conn, stamps, begin, end)
    expected = population.expected(begin, end)
    cpu, database_cpu = after["cpu"] - before["cpu"], after["database_cpu"] - before["database_cpu"]
    return {
        **lateness_of(starts),
        "fires": len(done),
        "missing": len(expected - set(done)),
        "extra": len(done) - len(expected & set(done)),
        "planner_us_per_fire": round(planner_us, 1),
        "cpu_us_per_fire": round((cpu + database_cpu) / len(expected) * 1e6),
        "process_us_per_fire": round(cpu / len(expected) * 1e6, 1),
        "database_us_per_fire": round(database_cpu / len(expected) * 1e6, 1),
        "cpu_percent": round(cpu / seconds * 100, 1),
        "database_cpu_percent": round(database_cpu / seconds * 100, 1),
        "memory_mb": round(after["memory"], 1),
        "memory_growth_mb": round(after["memory"] - before["memory"], 1),
    }


async def _planner_alone(dsn: str, conn: Connection) -> float:
    """Plan all that is due now, while nothing else runs; returns microseconds for each fire."""
    due: int = await conn.fetchval("select count(*) from mainspring.schedule where look_at <= mainspring.now()")
    await conn.execute(OWN_ALL)
    database = Database(dsn)
    alone = Planner(database, server_lease(), None, {})
    try:
        began = time.perf_counter()
        planned = 0
        while planned < due:
            planned += await alone.step()
        return (time.perf_counter() - began) / planned * 1e6
    finally:
        await database.close()


async def _single(dsn: str, conn: Connection, seconds: int) -> dict[str, Any]:
    """One schedule, every second: its lateness, and how much more of it there is at the end than at the start."""
    app = make_app(dsn)
    stamps = Stamps(app)
    async with app.running():
        first = (datetime.now(UTC) + timedelta(seconds=3)).replace(microsecond=0)
        await one_every_second(conn, first)
        end = first + timedelta(seconds=seconds)
        await _sleep_until(end + timedelta(seconds=0.5))
    done, starts = await _fires(conn, stamps, first, end)
    lateness = [(started - planned) * 1000 for planned, started in starts]
    times = [at for _, at in done]
    steps = {later - earlier for earlier, later in pairwise(times)}
    return {
        **lateness_of(starts),
        "fires": len(done),
        "missing": seconds - len(set(done)),
        "exact": int(steps == {1_000_000}),
        "drift_ms": round(median(lateness[-10:]) - median(lateness[:10]), 3),
    }


async def _sleep_until(instant: datetime) -> None:
    await asyncio.sleep((instant - datetime.now(UTC)).total_seconds())


_FIRES = """
    select h.id, s.name, (date_part('epoch', h.plan_time) * 1000000)::bigint as at
      from mainspring.task_history h join mainspring.schedule s on s.id = h.schedule_id
     where h.plan_time >= $1 and h.plan_time < $2 and h.state = 10
     order by h.plan_time
"""


async def _fires(
    conn: Connection, stamps: Stamps, begin: datetime, end: datetime
) -> tuple[list[tuple[str, int]], list[tuple[float, float]]]:
    """What ran of that time, as (schedule, microseconds since 1970), and when each was planned and started."""
    started = stamps.by_task()
    rows = await conn.fetch(_FIRES, begin, end)
    done = [(row["name"], row["at"]) for row in rows]
    return done, [(row["at"] / 1e6, started[row["id"]]) for row in rows]


async def _costs(conn: Connection) -> dict[str, float]:
    """Seconds of CPU so far, of this process and of PostgreSQL, and our memory in MB."""
    ours = psutil.Process()
    times = ours.cpu_times()
    postmaster = psutil.Process(await conn.fetchval("select pg_backend_pid()")).parent()
    assert postmaster is not None
    database = sum(postmaster.cpu_times()[:4])  # with its children that have ended
    for child in postmaster.children():
        database += sum(child.cpu_times()[:2])
    return {"cpu": times.user + times.system, "database_cpu": database, "memory": ours.memory_info().rss / 2**20}


def main() -> None:
    args = arguments(
        __doc__ or "", schedules=100_000, rate=1_000, idle=1_000_000, seconds=30, single_seconds=60, runs=3
    )
    run(
        "planner",
        lambda dsn: planner(dsn, args.schedules, args.rate, args.idle, args.seconds, args.single_seconds),
        args,
    )


if __name__ == "__main__":
    main()
