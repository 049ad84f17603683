"""Kinds about what tasks did: failed, expired, failing, late, too_long.

`failed` and `expired` read the rows of the history that were written since the last look; the others read figures, or
what agents hold. None reads more of the history than that.
Next: store/alerts/kinds/queues.py
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from mainspring.model.alerts.findings import EVENTS, Finding, Found, Look
from mainspring.model.alerts.kinds import Failing, Late, Parameters, TooLong
from mainspring.model.figures.buckets import LATENESS
from mainspring.model.tasks.pools import IS_NOT_DAEMON
from mainspring.model.tasks.states import TaskState, among
from mainspring.model.words.headlines import headline
from mainspring.store.cluster.registry import CLAIMED, IS_CLAIMED
from mainspring.store.figures import streaks
from mainspring.store.postgres.connection import Connection

_FAILED = among((TaskState.FAILED, TaskState.TIMED_OUT, TaskState.LOST))
_COUNTED_LATE = timedelta(seconds=10)  # that figures may be behind the history


# ── events of the history ───────────────────────────────────────────────────────────────────────


def _ended(condition: str) -> str:
    """The tasks that ended within a look, by job. A run of a broadcast is reported with the broadcast."""
    return f"""
        with found as (
            select h.id, h.job_id, h.state, h.error_code, left(h.error, 200) as error, h.finished_at, h.attempt,
                   row_number() over (partition by h.job_id order by h.finished_at, h.id) as number
              from mainspring.task_history h
             where h.recorded_at > $1 and h.recorded_at <= $2 and h.parent_id is null and {condition}
        )
        select j.name as job, count(*) as count, min(f.finished_at) as first, max(f.finished_at) as last,
               json_agg(json_build_object(
                   'task', f.id, 'state', f.state, 'error_code', f.error_code, 'error', f.error,
                   'finished_at', f.finished_at, 'attempt', f.attempt
               ) order by f.number) filter (where f.number <= {EVENTS})::text as events
          from found f join mainspring.job j on j.id = f.job_id
         where $3::text[] is null or j.name like any($3)
         group by j.name order by j.name
    """


_FAILURES = _ended(f"h.state in {_FAILED}")
_EXPIRED = _ended(f"h.state = {TaskState.SKIPPED:d} and h.error_code = 'expired'")


async def failed(conn: Connection, look: Look[Parameters]) -> Found:
    """Tasks that failed, timed out or were lost, for good."""
    rows = await conn.fetch(_FAILURES, look.since, look.until, look.names)
    return Found([_of_events(row, _why_failed) for row in rows])


def _why_failed(job: str, count: int, last: dict[str, Any]) -> str:
    reason = ": ".join(part for part in (last["error_code"], headline(last["error"] or "")) if part) or last["state"]
    if count == 1:
        return f"task {last['task']} of {job} {last['state'].replace('_', ' ')} ({reason})"
    return f"{count:,} tasks of {job} failed; task {last['task']}: {reason}"


# Nothing else ends without a start as seldom, so the figures tell whether it is worth to read the history.
_ANY_SKIPPED = f"""
    select exists (select from mainspring.figure
                    where job_id = 0 and minute >= date_trunc('minute', $1::timestamptz, 'UTC') - interval '1 minute'
                      and outcome = {TaskState.SKIPPED:d})
        or exists (select from mainspring.figure_note where outcome = {TaskState.SKIPPED:d})
"""


async def expired(conn: Connection, look: Look[Parameters]) -> Found:
    """Tasks that did not start before their deadline."""
    until = max(look.since, look.until - _COUNTED_LATE)
    if not await conn.fetchval(_ANY_SKIPPED, look.since):
        return Found([], until)
    rows = await conn.fetch(_EXPIRED, look.since, until, look.names)
    return Found([_of_events(row, _why_expired) for row in rows], until)


def _why_expired(job: str, count: int, last: dict[str, Any]) -> str:
    if count == 1:
        return f"task {last['task']} of {job} did not start before its deadline, and was skipped"
    return f"{count:,} tasks of {job} did not start before their deadlines, and were skipped"


def _of_events(row: Any, why: Any) -> Finding:
    events = msgspec.json.decode(row["events"])
    for event in events:
        event["state"] = TaskState(event["state"]).label
    return Finding(
        subject=f"job:{row['job']}",
        job=row["job"],
        message=why(row["job"], row["count"], events[-1]),
        since=row["first"],
        details={"last_at": row["last"].isoformat()},
        count=row["count"],
        events=events,
    )


# ── failing ─────────────────────────────────────────────────────────────────────────────────────


async def failing(conn: Connection, look: Look[Failing]) -> Found:
    """Jobs whose last tasks failed, so many in a row. One success ends it."""
    found = await streaks.since(conn, look.names, look.parameters.count, look.since, list(look.open))
    return Found([_streak(one.job, one.failures, one.since or look.until) for one in found])


def _streak(job: str, failures: int, since: datetime) -> Finding:
    return Finding(
        subject=f"job:{job}",
        job=job,
        message=f"the last {failures:,} tasks of {job} failed, none has succeeded since"
        if failures > 1
        else f"the last task of {job} failed",
        since=since,
        details={"failures": failures},
    )


# ── late ────────────────────────────────────────────────────────────────────────────────────────

_LATE = """
    select j.name, sum(late.count)::bigint as late, max(late.most) as most, min(late.minute) as since
      from (select f.job_id, f.minute, greatest(f.planned_max, f.due_max) as most,
                   coalesce((select sum(count) from unnest(f.planned[$3:]) as bucket(count)), 0)
                   + coalesce((select sum(count) from unnest(f.due[$3:]) as bucket(count)), 0) as count
              from mainspring.figure f
             where f.minute >= date_trunc('minute', $1::timestamptz, 'UTC') and f.job_id > 0
               and greatest(f.planned_max, f.due_max) > $4) late
      join mainspring.job j on j.id = late.job_id
     where $2::text[] is null or j.name like any($2)
     group by j.name having sum(late.count) >= $5
     order by j.name
"""


async def late(conn: Connection, look: Look[Late]) -> Found:
    """Jobs with late starts, as the figures have them: counted from the next bound of their buckets on."""
    after, window = look.parameters.after, timedelta(seconds=look.parameters.window)
    bound = sum(bound < after for bound in LATENESS)  # the buckets behind this bound are late
    first = min(bound, len(LATENESS) - 1) + 2  # SQL counts from 1
    rows = await conn.fetch(_LATE, look.until - window, look.names, first, after, look.parameters.count)
    return Found(
        [
            Finding(
                subject=f"job:{name}",
                job=name,
                message=f"{number:,} tasks of {name} started more than {after:g} s late within "
                f"{look.parameters.window / 60:g} min, the latest by {most:.1f} s",
                since=since,
                details={"late": number, "latest": round(most, 3)},
            )
            for name, number, most, since in rows
        ]
    )


# ── too long ────────────────────────────────────────────────────────────────────────────────────

_LONG = f"""
    with {CLAIMED}
    select j.name, count(distinct t.id) as tasks, min(t.started_at) as since,
           (array_agg(distinct t.id))[1:{EVENTS}] as ids
      from claimed join mainspring.task t on {IS_CLAIMED}
      join mainspring.job j on j.id = t.job_id
     where t.state = {TaskState.RUNNING:d} and t.{IS_NOT_DAEMON} and t.paused_at is null
       and t.started_at < $1::timestamptz - $3::interval - coalesce(t.paused_for, '0')
       and ($2::text[] is null or j.name like any($2))
     group by j.name order by j.name
"""


async def too_long(conn: Connection, look: Look[TooLong]) -> Found:
    """Jobs with an attempt that runs for longer than it should. The time that it was paused does not count."""
    after = look.parameters.after
    rows = await conn.fetch(_LONG, look.until, look.names, timedelta(seconds=after))
    return Found(
        [
            Finding(
                subject=f"job:{name}",
                job=name,
                message=f"{'a task' if tasks == 1 else f'{tasks:,} tasks'} of {name} run{'s' * (tasks == 1)} for more "
                f"than {after:g} s; task {ids[0]} since {since:%Y-%m-%d %H:%M:%S} UTC",
                since=since + timedelta(seconds=after),
                details={"tasks": ids},
            )
            for name, tasks, since, ids in rows
        ]
    )
