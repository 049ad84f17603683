"""Stats: the state of the whole in one answer: live tasks, the last hour, servers, agents, what waits, maintenance.

Reads   mainspring.figure, mainspring.queue_figure; never the history, and live tasks only while they are few
Next:   store/figures/queues.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from mainspring.model.figures.buckets import LATENESS, added
from mainspring.model.figures.counts import Counts
from mainspring.model.tasks.states import LIVE, PENDING, TaskState
from mainspring.model.tasks.waits import why
from mainspring.store.cluster import cluster_views, registry
from mainspring.store.cluster.cluster_views import Leader
from mainspring.store.figures import queues
from mainspring.store.figures.queues import Queue
from mainspring.store.figures.rollups import ALL_JOBS, SUMMED, as_counts
from mainspring.store.figures.series import spread
from mainspring.store.limits.waits import waiting_pools
from mainspring.store.maintenance import chore_log, vacuum
from mainspring.store.maintenance.chore_log import ChoreView
from mainspring.store.maintenance.vacuum import TableView
from mainspring.store.postgres.database import Connection

FEW = 400  # blocks of live tasks that are counted at once, in about 3 ms
FRESH = 30.0  # seconds within which the count of the leader is believed


class Live(msgspec.Struct, frozen=True):
    """The live tasks: counted now if they are few, else as the leader counted them last."""

    by_state: dict[str, int]
    due: int  # pending, and their time has come
    oldest_due: datetime | None  # the first instant among those
    is_estimated: bool  # from a sample
    counted_at: datetime


class LatenessView(msgspec.Struct, frozen=True):
    """Milliseconds, estimated from buckets but for the greatest."""

    p50: float
    p99: float
    max: float


class LastMinute(msgspec.Struct, frozen=True):
    """Since the beginning of the minute before this one: of one minute to two."""

    ended_per_second: float  # tasks
    lateness_ms: LatenessView | None  # of first attempts


class BlockedView(msgspec.Struct, frozen=True):
    """Event loops that blocking code stopped for more than a second."""

    times: int
    seconds: float


class AgentLoad(msgspec.Struct, frozen=True):
    name: str
    session: int
    slots: int
    holds: int


class WaitingView(msgspec.Struct, frozen=True):
    """Due tasks that no agent takes, and why."""

    jobs: list[str]
    tasks: int
    code: str
    reason: str


class Stats(msgspec.Struct, frozen=True):
    live: dict[str, int]  # tasks by state
    pending_tasks: int
    running_tasks: int
    completed_tasks: int  # that succeeded within the last hour
    due: int
    oldest_due: datetime | None
    is_estimated: bool  # whether the three above are
    counted_at: datetime
    arrivals: float | None  # tasks submitted per second, of late; None: not known yet, or not for all jobs
    last_hour: dict[str, int]  # tasks that ended, by state
    retried: int  # attempts of the last hour after which the task ran again
    timeouts: int  # attempts of the last hour that ran into their timeout
    queue_full_errors: int | None  # submissions ever refused by full queues; None: not known to this caller
    lateness_ms: LatenessView | None  # of first attempts of the last hour
    last_minute: LastMinute
    total_workers: int  # the same as agents_total
    agents_total: int
    agents_idle: int  # those that hold no task
    blocked: BlockedView
    servers: dict[str, int]  # by status
    leader: Leader | None
    agents: list[AgentLoad]
    waiting: list[WaitingView]
    maintenance: list[ChoreView]
    tables: list[TableView]


# Blocked loops: since the start of each process that was here within the hour. An agent that reconnects has another
# session with the same count; an agent inside a server's process shares its loop.
# In one statement: each costs as much to send and to read as to run.
_AROUND = f"""
    with agents as (
        select max(blocked) as times, max(blocked_seconds) as seconds, max(process) as process from mainspring.agent
         where lease_until > mainspring.now() - interval '1 hour' group by coalesce(instance, session::text)
    ), loops as (
        select times, seconds from agents
         union all
        select blocked, blocked_seconds from mainspring.server
         where lease_until > mainspring.now() - interval '1 hour'
           and not exists (select from agents where agents.process = server.process)
    )
    select coalesce(sum(times), 0)::integer as times, coalesce(round(sum(seconds)::numeric, 1), 0)::float8 as seconds,
           ({queues.ARRIVALS}) as arrivals,
           case when has_sequence_privilege('mainspring.queue_full', 'select, usage')
                then coalesce(pg_sequence_last_value('mainspring.queue_full'), 0) end as queue_full,
           mainspring.now() as now
      from loops
"""

# By whole minutes: up to one more than the span.
_LAST = f"""
    select outcome, again, {SUMMED} from mainspring.figure
     where job_id = any($1::integer[])
       and minute >= (select date_trunc('minute', mainspring.now() - $2::interval, 'UTC'))
     group by outcome, again order by outcome, again
"""
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)


async def stats(conn: Connection, jobs: Sequence[int] | None = None) -> Stats:
    """All of it; tasks only of these jobs, if they are given."""
    live = await live_tasks(conn, jobs)
    hour, minute = await _ended(conn, jobs, HOUR), await _ended(conn, jobs, MINUTE)
    agents = [agent for agent in await registry.listing(conn) if agent.status in ("active", "draining")]
    cluster = await cluster_views.summary(conn)
    times, seconds, arrivals, queue_full, now = await conn.fetchrow(_AROUND)
    ended = {state.label: counts.attempts for state, again, counts in hour if not again}
    return Stats(
        live=live.by_state,
        pending_tasks=live.by_state[TaskState.PENDING.label],
        running_tasks=live.by_state[TaskState.RUNNING.label],
        completed_tasks=ended.get(TaskState.SUCCEEDED.label, 0),
        due=live.due,
        oldest_due=live.oldest_due,
        is_estimated=live.is_estimated,
        counted_at=live.counted_at,
        arrivals=arrivals if jobs is None else None,
        last_hour=ended,
        retried=sum(counts.attempts for _, again, counts in hour if again),
        timeouts=sum(counts.attempts for state, _, counts in hour if state is TaskState.TIMED_OUT),
        queue_full_errors=queue_full if jobs is None else None,
        lateness_ms=_lateness([counts for _, _, counts in hour]),
        last_minute=_last_minute(minute, now),
        total_workers=len(agents),
        agents_total=len(agents),
        agents_idle=sum(agent.holds == 0 for agent in agents),
        blocked=BlockedView(times, seconds),
        servers=cluster.servers,
        leader=cluster.leader,
        agents=[AgentLoad(a.name, a.session, a.slots, a.holds) for a in agents],
        waiting=await _waiting(conn, jobs),
        maintenance=await chore_log.listing(conn),
        tables=await vacuum.tables(conn),
    )


Ended = list[tuple[TaskState, bool, Counts]]  # with whether the task ran again


async def _ended(conn: Connection, jobs: Sequence[int] | None, span: timedelta) -> Ended:
    rows = await conn.fetch(_LAST, [ALL_JOBS] if jobs is None else jobs, span)
    return [(TaskState(outcome), again, as_counts(counts)) for outcome, again, *counts in rows]


def _last_minute(ended: Ended, now: datetime) -> LastMinute:
    seconds = MINUTE.total_seconds() + now.second + now.microsecond / 1e6
    tasks = sum(counts.attempts for _, again, counts in ended if not again)
    return LastMinute(round(tasks / seconds, 3), _lateness([counts for _, _, counts in ended]))


Counted = tuple[Sequence[Queue], bool, datetime]
Read = Callable[[Connection, Sequence[int] | None], Awaitable[list[Queue]]]


async def live_tasks(conn: Connection, jobs: Sequence[int] | None = None) -> Live:
    """The live tasks of these jobs, or of all."""
    return _live(*await _counted(conn, jobs, queues.in_each_state))


async def live_queues(conn: Connection, jobs: Sequence[int] | None = None) -> Counted:
    """The same by job and state; whether that is an estimate; as of when."""
    return await _counted(conn, jobs, queues.counted)


async def live_counts(conn: Connection, jobs: Sequence[int]) -> tuple[Counter[int], bool]:
    """How many live tasks each of these jobs has; whether that is an estimate."""
    counts = Counter[int]()
    found, is_estimated, _ = await live_queues(conn, jobs)
    for queue in found:
        counts[queue.job] += queue.tasks
    return counts, is_estimated


async def _counted(conn: Connection, jobs: Sequence[int] | None, read: Read) -> Counted:
    """What the leader has counted, as `read` returns it. Few tasks are counted here, and more if no leader counts."""
    blocks, now = await queues.blocks_now(conn)
    last = await queues.last(conn) if blocks > FEW else None
    if last is not None and last.age < FRESH:
        return await read(conn, jobs), last.is_estimated, last.counted_at
    count = await queues.count(conn, FEW / max(FEW, blocks))
    if jobs is None:
        return count.queues, count.is_estimated, now
    wanted = set(jobs)
    return [queue for queue in count.queues if queue.job in wanted], count.is_estimated, now


def _live(found: Sequence[Queue], is_estimated: bool, counted_at: datetime) -> Live:
    due = [queue for queue in found if queue.state is PENDING and queue.due]
    return Live(
        by_state={state.label: 0 for state in sorted(LIVE)}
        | {state.label: tasks for state, tasks in queues.live(found).items()},
        due=sum(queue.due for queue in due),
        oldest_due=min((queue.oldest for queue in due), default=None),
        is_estimated=is_estimated,
        counted_at=counted_at,
    )


def _lateness(hour: Sequence[Counts]) -> LatenessView | None:
    most = max((max(counts.planned_max, counts.due_max) for counts in hour), default=0.0)
    histograms = [histogram for counts in hour for histogram in (counts.planned, counts.due)]
    found = spread(LATENESS, added(histograms, LATENESS), most, 1000.0)
    return None if found is None else LatenessView(*(round(ms, 3) for ms in (found.p50, found.p99, found.max)))


async def _waiting(conn: Connection, jobs: Sequence[int] | None) -> list[WaitingView]:
    pools = await waiting_pools(conn, jobs=jobs)
    there = await registry.loaded(conn) if pools else []
    return [
        WaitingView(waiting.jobs, waiting.tasks, wait.code, wait.reason)
        for waiting in pools
        if (wait := why(waiting.requirements, there)) is not None
    ]
