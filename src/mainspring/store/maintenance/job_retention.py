"""Retention by job: finished tasks that are kept shorter or longer than the history of the cluster.

Days past the cluster's retention are dropped whole; what jobs keep longer stays behind (store/tasks/partitions.py).
Here rows are deleted one by one, for jobs with a retention of their own, and for all others where the cluster's is
below a day. Jobs that keep as long as each other are one group. A mark says up to when the tasks of a group have been
deleted, so a round reads only what has expired since the last one, through the index on `recorded_at`; a new member of
a group sends the mark back to the oldest day. Attempts and output go with their task.
Decision 49 has the figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, NamedTuple

from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import partitions

DAY = timedelta(days=1)
LEAST = timedelta(minutes=1)  # who waits for a result, a child or a repeated report, finds the task so long
SLICE = timedelta(hours=6)  # of the history that one statement reads; a day has a whole number of them
OFTEN = 20  # a group is looked at so often within its retention, at most
SELDOM = timedelta(hours=1)  # and at least
SECONDS = 2.0  # of one round

HISTORIES = {"succeeded": "task_history_succeeded", "failed": "task_history_failed"}  # by kind


class Kept(NamedTuple):
    """How long a job keeps its tasks; None: as long as the cluster."""

    job_id: int
    succeeded: timedelta | None
    failed: timedelta | None


_OF_JOBS = """
    select id, make_interval(secs => (definition->>'keep_succeeded')::float8),
           make_interval(secs => (definition->>'keep_failed')::float8)
      from mainspring.job where definition ?| array['keep_succeeded', 'keep_failed']
"""


async def of_jobs(conn: Connection) -> list[Kept]:
    """Jobs with a retention of their own."""
    return [Kept(*row) for row in await conn.fetch(_OF_JOBS)]


def longer(
    jobs: Sequence[Kept], *, keep_succeeded: timedelta, keep_failed: timedelta
) -> dict[str, dict[int, timedelta]]:
    """By partitioned table, the jobs that keep longer than the cluster, and how long: for `partitions.drop_old`."""
    found: dict[str, dict[int, timedelta]] = {}
    longest = max(keep_succeeded, keep_failed)
    for job in jobs:
        for kind, keep, cluster in (
            ("succeeded", job.succeeded, keep_succeeded),
            ("failed", job.failed, keep_failed),
        ):
            if keep is not None and keep > cluster:
                found.setdefault(HISTORIES[kind], {})[job.job_id] = keep
        own = max(keep for keep in (job.succeeded, job.failed) if keep is not None)
        if own > longest:
            for parent in ("attempt", "output"):
                found.setdefault(parent, {})[job.job_id] = own
    return found


class Group(NamedTuple):
    """Jobs that keep the tasks of one kind equally long."""

    kind: str
    keep: timedelta
    jobs: tuple[int, ...]  # in order
    others: bool = False  # all jobs but these


def groups(jobs: Sequence[Kept], *, keep_succeeded: timedelta, keep_failed: timedelta) -> Iterator[Group]:
    for kind, cluster in (("succeeded", keep_succeeded), ("failed", keep_failed)):
        own: Mapping[int, timedelta] = {job.job_id: keep for job in jobs if (keep := getattr(job, kind)) is not None}
        for keep in sorted(set(own.values())):
            yield Group(kind, keep, tuple(sorted(job for job, its in own.items() if its == keep)))
        if cluster < DAY:
            yield Group(kind, cluster, tuple(sorted(own)), others=True)


async def forget(
    conn: Connection, *, keep_succeeded: timedelta, keep_failed: timedelta, limit: int, seconds: float = SECONDS
) -> int:
    """Delete up to `limit` tasks that have expired by job; returns how many."""
    stop_at = monotonic() + seconds
    all_groups = list(groups(await of_jobs(conn), keep_succeeded=keep_succeeded, keep_failed=keep_failed))
    await conn.execute(_FORGET_MARKS, [g.kind for g in all_groups], [g.keep for g in all_groups])
    deleted = 0
    for group in all_groups:
        if deleted < limit and monotonic() < stop_at:
            deleted += await _forget(conn, group, limit - deleted, stop_at)
    return deleted


_FORGET_MARKS = """
    delete from mainspring.retention_mark m
     where not exists (select from unnest($1::text[], $2::interval[]) as given(kind, keep)
                        where given.kind = m.kind and given.keep = m.keep)
"""
_MARK = "select upto, jobs from mainspring.retention_mark where kind = $1 and keep = $2 and others = $3"
_SET_MARK = """
    insert into mainspring.retention_mark (kind, keep, others, jobs, upto) values ($1, $2, $3, $4, $5)
    on conflict (kind, keep, others) do update set jobs = excluded.jobs, upto = excluded.upto
"""


async def _forget(conn: Connection, group: Group, limit: int, stop_at: float) -> int:
    now: datetime = await conn.fetchval("select mainspring.now()")
    until = now - max(group.keep, LEAST)
    mark = await _mark(conn, group)
    if mark is not None and until - mark < min(group.keep / OFTEN, SELDOM):
        return 0
    deleted = 0
    for start, end in _slices(await partitions.days(conn, HISTORIES[group.kind]), mark, until):
        async with conn.transaction():
            deleted += await _delete(conn, group, start, end, limit - deleted)
            reached = end if deleted < limit else start
            await conn.execute(_SET_MARK, group.kind, group.keep, group.others, list(group.jobs), reached)
        if deleted >= limit or monotonic() >= stop_at:
            break
    return deleted


def _slices(days: Sequence[datetime], mark: datetime | None, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """From the mark on, within the days that there are; the last one ends with `until`, even if it is empty."""
    reached = mark
    for day in days:
        start = day if reached is None else max(day, reached)
        while start < min(until, day + DAY):
            end = min(until, day + ((start - day) // SLICE + 1) * SLICE)
            yield start, end
            start = reached = end
    if reached is None or reached < until:
        yield until, until


async def _mark(conn: Connection, group: Group) -> datetime | None:
    """Up to when the tasks of all its jobs have been deleted; None: begin with the oldest."""
    row = await conn.fetchrow(_MARK, group.kind, group.keep, group.others)
    if row is None:
        return None
    before, now = set(row["jobs"]), set(group.jobs)
    is_larger = before - now if group.others else now - before
    upto: datetime = row["upto"]
    return None if is_larger else upto


# What others still need stays until its day is dropped: a parent whose children have not been settled, a run of a
# broadcast that has not ended, a task whose result is to come.
_EXPIRED = """
    select h.id, h.created_at from mainspring.{parent} h
     where h.recorded_at >= '{start}' and h.recorded_at < '{end}' and h.job_id {which} ('{{{jobs}}}'::integer[])
       and h.result_due is not true
       and not exists (select from mainspring.dependency d where d.parent = h.id)
       and (h.parent_id is null or not exists (select from mainspring.task p where p.id = h.parent_id))
     limit {limit} for update of h skip locked
"""
_DELETE = """
    delete from mainspring.{table}
     where {id} = any ($1::bigint[]) and recorded_at >= '{start}' and recorded_at < '{end}'
"""


async def _delete(conn: Connection, group: Group, start: datetime, end: datetime, limit: int) -> int:
    """The bounds are in the text: PostgreSQL finds the partitions when it plans (see `partitions.go_through_all`)."""
    parent, times = HISTORIES[group.kind], {"start": start.isoformat(), "end": end.isoformat()}
    which = {"which": "<> all" if group.others else "= any", "jobs": ",".join(map(str, group.jobs))}
    await conn.execute("set local enable_partition_pruning = on; set local enable_bitmapscan = on")
    rows: list[Any] = await conn.fetch(_EXPIRED.format(parent=parent, limit=limit, **times, **which))
    if not rows:
        return 0
    await conn.execute("set local enable_bitmapscan = off")  # by the index on the id, whatever the statistics say
    ids = [row["id"] for row in rows]
    await conn.execute(_DELETE.format(table=parent, id="id", **times), ids)
    lives = {"start": min(row["created_at"] for row in rows).isoformat(), "end": (end + DAY).isoformat()}
    for table in ("attempt", "output"):
        await conn.execute(_DELETE.format(table=table, id="task_id", **lives), ids)
    return len(rows)
