"""Schedule series: the figures of one schedule over time, from its ledger and the tasks of its plan times.

Figures are kept by job, so this is the one series that reads the history: by the primary key of the ledger, then each
task by its id. Its cost is that of the plan times in the range, of which there are at most `MOST`.
Reads   mainspring.fire, mainspring.task_history
Next:   store/figures/series.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from mainspring.errors import ValidationError
from mainspring.model.tasks.states import TaskState
from mainspring.store.figures.series import AT_ONCE, Point, Series, Spread, steps
from mainspring.store.postgres.database import Connection

MOST = 20_000  # plan times of a range

_CROWDED = """
    select exists (
        select from mainspring.fire where schedule_id = $1 and plan_time >= $2 and plan_time < $3
        offset $4 limit 1
    )
"""

# As a rule a task ends within days of its plan time: the rest of the history is looked through for the others only.
# What ran again has the start of its last attempt, and so no lateness.
_STEPS = """
    with run as (
        select date_bin($4::interval, f.plan_time, 'epoch') as at, h.state, h.attempt, h.started_at,
               date_part('epoch', h.finished_at - h.started_at) as duration,
               case when h.attempt = 1 and h.started_at is not null
                    then greatest(0, 1000 * date_part('epoch', h.started_at - h.run_at)) end as lateness
          from mainspring.fire f
         cross join lateral (
             select state, attempt, run_at, started_at, finished_at from mainspring.task_history
              where id = f.task_id and recorded_at > f.decided_at - interval '1 day'
                and recorded_at <= greatest(f.decided_at, f.plan_time) + interval '2 days'
              union all
             select state, attempt, run_at, started_at, finished_at from mainspring.task_history
              where id = f.task_id and recorded_at > greatest(f.decided_at, f.plan_time) + interval '2 days'
              limit 1
         ) h
         where f.schedule_id = $1 and f.plan_time >= $2 and f.plan_time < $3 and f.task_id is not null
    )
    select at, state, count(*), sum(greatest(attempt - 1, 0)), count(started_at),
           percentile_cont(array[0.5, 0.9, 0.99, 1]) within group (order by lateness),
           percentile_cont(array[0.5, 0.9, 0.99, 1]) within group (order by duration)
      from run group by grouping sets ((at), (at, state)) order by state
"""


async def schedule_series(conn: Connection, id: int, start: datetime, end: datetime, step: timedelta) -> Series:
    """The steps from `start`, which is rounded down, to before `end`. A task counts at its plan time.

    ValidationError if the range has too many plan times. Begins a transaction.
    """
    times = steps(start, end, step)
    first = times[0]
    if await conn.fetchval(_CROWDED, id, first, end, MOST):
        raise ValidationError(
            f"from: this schedule has more than {MOST:,} plan times between {first.isoformat()} and "
            f"{end.isoformat()}; take a shorter time",
            field="from",
        )
    async with conn.transaction():
        # It only reads: the crash that store/tasks/partitions.py avoids cannot happen.
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")
        rows = await conn.fetch(_STEPS, id, first, end, step)
    ended: dict[datetime, dict[str, int]] = {}
    totals: dict[datetime, list[Any]] = {}
    for at, state, count, *total in rows:
        if state is None:
            totals[at] = total
        else:
            ended.setdefault(at, {})[TaskState(state).label] = count
    points = list[Point]()
    for at in times:
        retried, fired, lateness, duration = totals.get(at, (0, 0, None, None))
        points.append(
            Point(
                at=at,
                ended=ended.get(at, {}),
                retried=retried,
                fired=fired,
                planned_lateness_ms=_spread(lateness),
                due_lateness_ms=None,
                duration=_spread(duration),
                queue=None,
            )
        )
        if len(points) % AT_ONCE == 0:
            await asyncio.sleep(0)
    return Series(first, end, step.total_seconds(), points)


def _spread(shares: Sequence[float | None] | None) -> Spread | None:
    if shares is None or shares[0] is None:
        return None
    return Spread(*(round(share or 0.0, 6) for share in shares))
