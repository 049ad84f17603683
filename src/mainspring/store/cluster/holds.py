"""Holds: rows of mainspring.hold, and the conditions that keep statements from dispatching what is held.

A claim is exact from the commit of a hold on: each statement that gives tasks to agents reads the table. Under a hold
of one job its new tasks go to a gate, and those that wait are moved there (store/limits/gating.py), so that claims of
other jobs do not walk over them. The gate lets nothing pass until the hold is released, and then so many a second that
what waited is spread (store/limits/release.py). When the gate is empty, `settle` lets new tasks past it again.
What a claim that was under way took is recalled from the agents: server/dispatch/holds.py
Next: store/limits/gating.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainspring.model.limits.holds import SPREAD, Hold, Holds, as_holds
from mainspring.model.messages import AttemptId
from mainspring.model.tasks.states import ASSIGNED, PENDING
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views

MOST_COUNTED = 1_000_000  # waiting tasks, for the pace of a release

# ── for statements that dispatch ────────────────────────────────────────────────────────────────

# A CTE: the jobs that are held, 0 among them if everything is; and minus those whose tasks are let go bit by bit. The
# table is nearly always empty: then a row of a task costs one look at a boolean.
ON_HOLD = """
    on_hold as materialized (
        select jobs, cardinality(jobs) = 0 as is_empty
          from (select array(select case when released_at is null then coalesce(job_id, 0) else -job_id end
                               from mainspring.hold) as jobs offset 0) held      -- read once
    )
"""
_JOBS = "(select jobs from on_hold)::integer[]"


def most(limit: str) -> str:
    """The limit of a statement: none while everything is held."""
    return f"case when 0 = any ({_JOBS}) then 0 else {limit} end"


def is_not_held(task: str = "") -> str:
    """A condition on the row of a task: its job is not held; if it was released, the task has passed its gate."""
    return (
        f"((select is_empty from on_hold) or coalesce({task}job_id <> all ({_JOBS}), true)"
        f" and ({task}gate is not null or coalesce(-{task}job_id <> all ({_JOBS}), true)))"
    )


def any_hold_of(job: str) -> str:
    """A condition: this job, or everything, is held. For statements that look at few rows."""
    return (
        f"exists (select from mainspring.hold h where h.released_at is null and (h.job_id = {job} or h.job_id is null))"
    )


# ── reading ─────────────────────────────────────────────────────────────────────────────────────

_LOAD = """
    select job_id as job, held_at, held_by, note, skips, released_at, spread_until, waiting
      from mainspring.hold order by job_id
"""


async def load(conn: Connection) -> Holds:
    return as_holds(views(Hold, await conn.fetch(_LOAD)))


async def of_job(conn: Connection, job: int | None) -> Hold | None:
    """The hold of a job, or of everything."""
    holds = await load(conn)
    return holds.everything if job is None else holds.jobs.get(job)


# ── hold and release ────────────────────────────────────────────────────────────────────────────

# The job's row is locked before the hold's, here and by `settle`.
_LOCK = """
    select j.id from mainspring.job j where j.namespace = 'default' and j.name = $1 for update
"""
_LOCK_ALL = "select pg_advisory_xact_lock(hashtextextended('mainspring.hold', 0))"

_PUT = """
    insert into mainspring.hold as h (job_id, held_at, held_by, note, skips)
    values ($1, (select mainspring.now()), $2, $3, $4)
    on conflict (coalesce(job_id, 0)) do update
       set held_at = case when h.released_at is null then h.held_at else excluded.held_at end,
           held_by = excluded.held_by, note = excluded.note, skips = excluded.skips,
           released_at = null, spread_until = null, waiting = null
"""
_SHUT = """
    update mainspring.job j
       set held = (select mainspring.now()),
           pool = case when p.target is null then mainspring.gate(j.namespace, j.name, j.pool, true) else j.pool end
      from mainspring.pool p
     where j.id = $1 and p.id = j.pool and j.held is null
"""
_NOTIFY = "select pg_notify('mainspring', 'job')"


async def lock(conn: Connection, name: str | None) -> int | None:
    """Until the end of the transaction no other one holds or releases this job, or everything. Returns its id."""
    if name is None:
        await conn.execute(_LOCK_ALL)
        return None
    id: int | None = await conn.fetchval(_LOCK, name)
    return id


async def hold(conn: Connection, job: int | None, *, by: str, note: str | None, skips: bool) -> None:
    """Hold a job or everything. The caller has the lock; from the commit on no claim takes a task of it.

    For a job, `store.tasks.jobs.mark_gates` in the same transaction and after it: its waiting tasks move to the gate.
    """
    await conn.execute(_PUT, job, by, note, skips)
    if job is not None:
        await conn.execute(_SHUT, job)
    await conn.execute(_NOTIFY)


# While tasks are still moved to the gate, those of the job that wait before it count too.
_WAITING_OF_JOB = f"""
    select count(*) from (
        select from mainspring.job j join mainspring.pool gate on gate.id = j.pool
          join mainspring.task t
            on t.pool in (gate.id, case when gate.gating_since is not null then gate.target end)
           and t.job_id = j.id and t.state = {PENDING:d} and t.run_at <= (select mainspring.now())
         where j.id = $1
         limit {MOST_COUNTED}) due
"""
_WAITING = f"""
    select count(*) from (
        select from mainspring.pool p join mainspring.task t
            on t.pool = p.id and t.state = {PENDING:d} and t.run_at <= (select mainspring.now())
         where p.target is null
         limit {MOST_COUNTED}) due
"""
# Released at once, it is spread until the instant of its release: what reads the row sees that nothing is spread.
_RELEASE = """
    update mainspring.hold
       set released_at = coalesce(released_at, clock.now),
           spread_until = coalesce(released_at, clock.now) + make_interval(secs => $2), waiting = $3
      from (select mainspring.now() as now) clock
     where coalesce(job_id, 0) = coalesce($1::integer, 0)
"""


async def release(conn: Connection, job: int | None, *, at_once: bool) -> int:
    """Let go what waits, within a minute or at once; returns how many tasks that are. The caller has the lock."""
    waiting: int = await conn.fetchval(*((_WAITING,) if job is None else (_WAITING_OF_JOB, job)))
    await conn.execute(_RELEASE, job, 0.0 if at_once or not waiting else SPREAD, waiting)
    await conn.execute(_NOTIFY)
    return waiting


# ── what follows, by the leader ─────────────────────────────────────────────────────────────────

# A released hold ends once what waited has gone: then new tasks of a job without limits pass its gate by. A planner's
# statement that began before the release has two seconds to end. A task that reaches the gate later passes it.
_SETTLE = f"""
    with over as materialized (
        select h.job_id from mainspring.hold h
         where greatest(h.spread_until, h.released_at + interval '2 seconds') <= (select mainspring.now())
    ), empty as materialized (
        select j.id, case when j.definition ? 'gate' then j.pool else gate.target end as pool
          from over join mainspring.job j on j.id = over.job_id
          join mainspring.pool gate on gate.id = j.pool
         where not exists (select from mainspring.task t
                            where t.pool = gate.id and t.state = {PENDING:d}
                              and t.run_at <= (select mainspring.now()))
         order by j.id
           for update of j skip locked
    ), ended as (
        delete from mainspring.hold h
         where h.released_at is not null
           and (h.job_id in (select id from empty)
                or h.job_id is null and exists (select from over where job_id is null))
        returning h.job_id
    ), opened as (
        update mainspring.job j set held = null, pool = coalesce(empty.pool, j.pool)
          from empty join ended on ended.job_id = empty.id
         where j.id = empty.id
        returning j.id
    )
    select (select count(*) from opened) as opened, count(pg_notify('mainspring', 'job')) as ended from ended
"""


async def settle(conn: Connection) -> int:
    """End released holds of which nothing waits any more; returns how many."""
    ended: int = (await conn.fetchrow(_SETTLE))["ended"]
    return ended


_PLANNED_AHEAD = """
    select distinct s.id from mainspring.hold h
      join mainspring.schedule s on s.job_id = h.job_id or h.job_id is null
     cross join lateral (
         select from mainspring.task t
          where t.schedule_id = s.id and t.plan_time > (select mainspring.now()) and t.origin = 'plan'
            and t.attempt = 0 and t.cancel_at is null
          limit 1) planned
     where h.skips and h.released_at is null
     order by s.id limit $1
"""


async def planned_ahead(conn: Connection, limit: int) -> list[int]:
    """Schedules under a hold that skips, with tasks of plan times that are still to come."""
    return [row["id"] for row in await conn.fetch(_PLANNED_AHEAD, limit)]


# Plan times are decided some seconds ahead. Those after the release were not to be skipped: they are undecided again,
# unless another hold skips them, or they were decided since (later than a planner that had not seen the release could).
# The lock on the schedules waits for such planners.
_UNDECIDE = """
    with held as materialized (
        select s.id from mainspring.hold h join mainspring.schedule s on s.job_id = h.job_id or h.job_id is null
         where h.skips and h.released_at is not null
         order by s.id
           for update of s
    ), undecided as (
        delete from mainspring.fire f using held, mainspring.hold h
         where f.schedule_id = held.id and f.plan_time > h.released_at and f.reason = 'paused' and f.origin = 'plan'
           and f.task_id is null and h.skips and h.released_at is not null
           and f.decided_at < h.released_at + interval '30 seconds'
           and not exists (
               select from mainspring.hold other join mainspring.schedule s on s.id = held.id
                where other.skips and other.released_at is null
                  and (other.job_id is null or other.job_id = s.job_id))
           and (h.job_id is null or h.job_id = (select s.job_id from mainspring.schedule s where s.id = held.id))
        returning f.schedule_id, f.plan_time
    ), rewound as (
        update mainspring.schedule s
           set next_plan_at = least(s.next_plan_at, back.first),
               look_at = case when s.enabled then (select mainspring.now()) end
          from (select schedule_id, min(plan_time) as first from undecided group by schedule_id) back
         where s.id = back.schedule_id
        returning s.id
    )
    select count(*) as moved, (select max(pg_notify('mainspring', 'schedule')::text) from rewound) from rewound
"""


async def undecide(conn: Connection) -> int:
    """Let planners decide anew on plan times after a release that were decided as paused; returns of how many
    schedules."""
    moved: int = await conn.fetchval(_UNDECIDE)
    return moved


# ── what agents hold ────────────────────────────────────────────────────────────────────────────

_UNSTARTED = f"""
    select c.session, t.id as task, t.token
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = any (array[claimed.id])
     where c.session = any ($1::bigint[]) and t.session = c.session and t.state = {ASSIGNED:d}
       and t.job_id = any ($2::integer[])
"""


class Unstarted(NamedTuple):
    session: int
    attempt: AttemptId


async def unstarted(conn: Connection, sessions: Sequence[int], jobs: Sequence[int]) -> list[Unstarted]:
    """What these sessions hold of these jobs and have not started, as far as is recorded."""
    rows = await conn.fetch(_UNSTARTED, sessions, jobs)
    return [Unstarted(row["session"], AttemptId(row["task"], row["token"])) for row in rows]


_WITH_AGENTS = f"""
    select count(*) filter (where t.state = {ASSIGNED:d}) as armed,
           count(*) filter (where t.state > {ASSIGNED:d}) as running
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = any (array[claimed.id])
     where t.session = c.session and ($1::integer is null or t.job_id = $1)
"""


async def with_agents(conn: Connection, job: int | None) -> tuple[int, int]:
    """How many tasks of a job, or of all, agents hold: unstarted ones, and running ones."""
    row = await conn.fetchrow(_WITH_AGENTS, job)
    return row["armed"], row["running"]
