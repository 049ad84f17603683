"""The cluster: servers, the leader, segments and their moves; figures: now, over time, by queue; PostgreSQL.

Next: store/cluster/cluster_views.py, store/figures/stats.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from mainspring.errors import JobNotFound, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.words.globs import covering, like
from mainspring.model.words.names import check_name
from mainspring.operations import pages
from mainspring.operations.definitions import schedules
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name, reach
from mainspring.store.cluster import cluster_views
from mainspring.store.cluster.cluster_views import MoveView, SegmentView, ServerDetail, ServerView
from mainspring.store.figures import queues as store_queues
from mainspring.store.figures import series
from mainspring.store.figures import stats as store_stats
from mainspring.store.figures.queues import Queues
from mainspring.store.figures.schedule_series import schedule_series
from mainspring.store.figures.series import JobFigures, Punctuality, Series
from mainspring.store.figures.stats import Stats
from mainspring.store.maintenance import activity
from mainspring.store.maintenance.activity import PostgresqlView
from mainspring.store.maintenance.retention import KEEP_MINUTES
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import jobs


async def servers(
    conn: Connection,
    actor: Actor,
    *,
    everything: bool = False,
    cursor: str | None = None,
    limit: int = pages.LIMIT,
) -> Page[ServerView]:
    """The servers that run and those that ended within the hour; or all that are known."""
    filters = {"list": "servers", "everything": everything}
    after = pages.position(cursor, filters, tuple[bool, str, datetime, UUID])
    found = await cluster_views.servers(conn, everything=everything, after=after, limit=pages.check_limit(limit) + 1)
    return pages.page(found, limit, filters, cluster_views.place)


async def server(conn: Connection, actor: Actor, name: str) -> ServerDetail:
    """One server, by its name or by the beginning of its id, with its segments and its last scan.

    It is a conflict if several servers match.
    """
    return await cluster_views.server(conn, check_name(name, field="server"))


async def segments(conn: Connection, actor: Actor) -> list[SegmentView]:
    """Every segment, with the server that owns it and its load, which is estimated where there is very much of it."""
    return await cluster_views.segments(conn)


async def moves(
    conn: Connection, actor: Actor, limit: int = pages.LIMIT, *, cursor: str | None = None
) -> Page[MoveView]:
    """The last moves of segments, the newest first."""
    filters = {"list": "moves"}
    before = pages.position(cursor, filters, pages.Number)
    found = await cluster_views.moves(conn, before=before, limit=pages.check_limit(limit) + 1)
    return pages.page(found, limit, filters, lambda move: move.id)


async def stats(conn: Connection, actor: Actor) -> Stats:
    """Live tasks, the last hour, agents, servers, what waits and why: in the same time whatever is stored."""
    return await store_stats.stats(conn, await reach.job_ids(conn, actor))


async def postgresql(conn: Connection, actor: Actor) -> PostgresqlView:
    """PostgreSQL: its connections by application, and the transactions that have been open longest."""
    return await activity.view(conn)


Step = Literal["1m", "5m", "1h", "1d"]
_STEPS: dict[Step, timedelta] = {
    "1m": timedelta(minutes=1),
    "5m": timedelta(minutes=5),
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
}
MOST_POINTS = 1500  # a day by the minute
_SLACK = timedelta(minutes=5)  # "the last two days" reaches back a little further by the time it is asked


async def figures(
    conn: Connection,
    actor: Actor,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    step: Step = "1m",
    job: str | None = None,
    schedule: str | None = None,
) -> Series:
    """Figures over time: tasks that ended, their lateness and durations, the depth of the queues.

    Without `end` up to now, without `start` 60 steps before that. Minutes are kept for two days, hours for 90. Days
    are those of UTC. They are kept by job: those of one `schedule` are read from its ledger, of at most 20,000 plan
    times, and a task counts there at its plan time.
    """
    if job is not None and schedule is not None:
        raise ValidationError("schedule: give a job or a schedule, not both", field="schedule")
    now: datetime = await conn.fetchval("select mainspring.now()")
    for name, at in (("from", start), ("to", end)):
        if at is not None and at.tzinfo is None:
            raise ValidationError(f"{name}: {at.isoformat()} has no offset; add one, such as Z", field=name)
    end = now if end is None else min(end, now + _STEPS[step])
    start = end - 60 * _STEPS[step] if start is None else start
    _check_range(start, end, step, now if schedule is None else None)
    if schedule is not None:
        found = await schedules.find(conn, actor, schedule)
        return await schedule_series(conn, found.id, start, end, _STEPS[step])
    jobs = await reach.job_ids(conn, actor) if job is None else [await _job(conn, actor, job)]
    return await series.series(conn, start, end, _STEPS[step], jobs)


Last = Literal["1h", "24h", "30d"]
_LASTS: dict[Last, timedelta] = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "30d": timedelta(days=30)}


async def punctuality(conn: Connection, actor: Actor, *, last: Last = "1h") -> Punctuality:
    """How late schedules fired in the last hour, day or month: a histogram, and what their SLOs say."""
    now: datetime = await conn.fetchval("select mainspring.now()")
    jobs = await reach.job_ids(conn, actor)
    return await series.punctuality(conn, now - _LASTS[last], now, jobs, by_minute=last == "1h")


MOST_JOBS = 100


async def job_figures(conn: Connection, actor: Actor, *, job: Sequence[str]) -> list[JobFigures]:
    """The last hour of up to 100 jobs: how their tasks ended, how often they ran again, and for how long they ran.

    Names take `*`; one without it that does not exist is an error. Of more than 100 jobs it tells the first by name.
    """
    if not 1 <= len(job) <= MOST_JOBS:
        raise ValidationError(f"job: {len(job)}; give 1 to {MOST_JOBS} names", field="job")
    patterns = like(job, field="job") or []
    exact = {name for name in job if "*" not in name}
    known = await jobs.known(conn, sorted(exact))
    if missing := [name for name in job if name in exact and not (name in known and actor.reaches(name))]:
        raise JobNotFound(f"no job named {missing[0]!r}; `mainspring job list` shows what there is", field="job")
    ids = await series.job_ids(conn, patterns, actor.reaches, most=MOST_JOBS)
    return await series.last_hour(conn, ids)


def _check_range(start: datetime, end: datetime, step: Step, now: datetime | None) -> None:
    """`now` is given where minutes are kept for a time only."""
    if start >= end:
        raise ValidationError("from: it must be before the end, and the end not after now", field="from")
    if (end - start) / _STEPS[step] > MOST_POINTS:
        raise ValidationError(
            f"step: more than {MOST_POINTS} points; take a longer step or a shorter time", field="step"
        )
    if now is not None and step in ("1m", "5m") and start < now - KEEP_MINUTES - _SLACK:
        raise ValidationError(
            f"step: minutes are kept for {KEEP_MINUTES.days} days; take 1h, or a later start", field="step"
        )


async def queues(conn: Connection, actor: Actor, *, cursor: str | None = None, limit: int = pages.LIMIT) -> Queues:
    """The jobs that have live tasks or have finished some of late, by name."""
    like = covering(actor.jobs)
    counted = await store_queues.last(conn)
    found = await by_name.page(
        lambda after, count: store_queues.by_job(conn, like=like, after=after, limit=count),
        lambda queue: queue.job,
        lambda queue: actor.reaches(queue.job),
        filters={"list": "queues"},
        cursor=cursor,
        limit=limit,
    )
    if counted is None:
        return Queues(found.items, None, False, found.next)
    return Queues(found.items, counted.counted_at, counted.is_estimated, found.next)


async def _job(conn: Connection, actor: Actor, name: str) -> int:
    found = await jobs.find(conn, check_name(name, field="job"))
    if not actor.reaches(name):
        raise JobNotFound(f"no job {name!r}", field="job")
    return found.id
