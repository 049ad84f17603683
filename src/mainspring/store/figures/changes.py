"""Changes: what has changed since the last look, for those who listen.

A look remembers the snapshot that it saw. The next one finds the rows that are visible now and were not then: whatever
commits late is found once and none twice, by whichever server and clock it was written. The time or the id of a row
only bounds how far back is searched.
Reads   mainspring.task, mainspring.task_history, mainspring.attempt, mainspring.claim, mainspring.schedule
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from mainspring.model.tasks.states import ASSIGNED, TaskState
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import readable, views
from mainspring.store.views.task_views import labelled

IDS = 100  # of each job and state, the newest
EARLY = timedelta(seconds=2)  # by which the time in a row may be before that of its transaction's id
MOST_NEW = 20_000  # ids of new tasks that are searched
MOST_STARTED = 2_000  # ids of claimed tasks that are searched
MOST_RETRIED = 500
LEAD = timedelta(seconds=15)  # between a claim and the start of its tasks, at most


class Snapshot(NamedTuple):
    """What a look has seen: all transactions before `following`, but those that were `open`.

    A savepoint has a transaction id too, behind that of its transaction, and is not among the open ones. So of what is
    behind the first open one only that was seen which is in `seen`.
    """

    following: int
    open: tuple[int, ...]
    seen: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str, seen: Sequence[str] | None = None) -> Snapshot:
        """PostgreSQL's text: xmin:xmax:open,open."""
        _, following, open = text.split(":")
        return cls(int(following), tuple(int(one) for one in open.split(",") if one), tuple(seen or ()))

    @property
    def parameters(self) -> tuple[str, list[str]]:
        """The first that was open, or is to come, and those behind it that were seen; without the epoch, as in rows."""
        return str(min((*self.open, self.following)) % 2**32), list(self.seen)


def _is_new(row: str, first: str, seen: str) -> str:
    """SQL: whether the row was not visible in a snapshot. Transaction ids have no order but their age."""
    return f"(age({row}.xmin) <= age({first}::text::xid) and {row}.xmin <> all({seen}::text[]::xid[]))"


# What is as new, or would be mistaken for new by the next look.
_OPEN_SINCE = "(select age(pg_snapshot_xmin(pg_current_snapshot())::xid))"
_LONGEST_AGE = f"(select greatest(age($5::text::xid), {_OPEN_SINCE}))"


class Look(NamedTuple):
    """Where a look at the tasks was taken."""

    at: datetime
    snapshot: Snapshot
    task: int  # the last id that was drawn
    batch: int  # the last claim


class Group(NamedTuple):
    """Tasks of one job that came into one state."""

    job: str
    state: TaskState
    total: int
    ids: list[int]  # the newest, IDS at most


_NOW = """
    select mainspring.now() as at, pg_current_snapshot()::text as snapshot,
           (select last_value - (not is_called)::integer from mainspring.task_id) as task,
           (select last_value - (not is_called)::integer from mainspring.claim_batch) as batch
"""

# `since`: the clock may have been set back meanwhile. Of claims only the newest are searched, because an agent may hold
# thousands; of tasks that start and end between two looks the end is found.
_TASKS = f"""
    with bounds as materialized (
        select least($1::timestamptz, mainspring.now()) - $2::interval as since
    ), claimed as (
        select claim.id
          from mainspring.agent a
         cross join lateral (
             select c.tasks from mainspring.claim c
              where c.session = a.session and c.batch > $4 order by c.batch desc limit 50) held
         cross join lateral unnest(held.tasks) as claim(id)
         where a.ended_at is null
         limit {MOST_STARTED}
    ), retried as (
        select a.task_id as id from mainspring.attempt a
         where a.recorded_at > (select since from bounds) order by a.recorded_at desc limit {MOST_RETRIED}
    ), moved as (
        select t.id, t.job_id, t.state, t.xmin as by, {_is_new("t", "$5", "$6")} as is_new
          from (select id from claimed union select id from retried) found
          join mainspring.task t on t.id = found.id and t.id <= $3 and t.state <> {ASSIGNED:d}
    ), found as materialized (
        select t.id, t.job_id, t.state, t.xmin as by, {_is_new("t", "$5", "$6")} as is_new
          from mainspring.task t where t.id > $3 and age(t.xmin) <= {_LONGEST_AGE}
        union all
        select * from moved
        union all
        select h.id, h.job_id, h.state, h.xmin, {_is_new("h", "$5", "$6")}
          from mainspring.task_history h
         where h.recorded_at > (select since from bounds) and age(h.xmin) <= {_LONGEST_AGE}
    ), grouped as (
        select job_id, state, count(*) as total, (array_agg(id order by id desc))[1:{IDS}] as ids
          from found where is_new group by job_id, state
    )
    select at.*, (select array_agg(distinct by::text) from found where age(by) <= {_OPEN_SINCE}) as seen,
           (select json_agg(json_build_array(coalesce(j.name, '(deleted)'), g.state, g.total, g.ids))
              from grouped g left join mainspring.job j on j.id = g.job_id)::text as groups
      from ({_NOW}) at
"""

_Groups = msgspec.json.Decoder(list[tuple[str, TaskState, int, list[int]]])


async def look(conn: Connection) -> Look:
    """Where changes are counted from."""
    return _look(await conn.fetchrow(_NOW), None)


def _look(row: Any, seen: Sequence[str] | None) -> Look:
    return Look(row["at"], Snapshot.read(row["snapshot"], seen), row["task"], row["batch"])


async def changed_tasks(
    conn: Connection, since: Look, *, back_to: datetime, first: int, batch: int
) -> tuple[Look, list[Group]]:
    """Tasks that were created, that started, were retried or ended since that look.

    Searched are new tasks behind the id `first`, starts of tasks that were claimed behind `batch`, and what was
    recorded after `back_to`.
    """
    first = max(first, since.task - MOST_NEW)
    row = await conn.fetchrow(_TASKS, back_to, EARLY, first, batch, *since.snapshot.parameters)
    found = [Group(*group) for group in _Groups.decode(row["groups"])] if row["groups"] else []
    return _look(row, row["seen"]), found


class ChangedTask(msgspec.Struct, frozen=True):
    """A task as the streams tell of it."""

    id: int
    job: str
    state: str
    priority: int
    attempt: int
    run_at: datetime
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    lateness_ms: float | None
    paused_at: datetime | None
    error_code: str | None
    exit_code: int | None
    result_due: bool
    agent: str | None
    schedule: str | None
    scope: str | None
    parent: int | None
    progress: Any = None


# A mark of a row, another one after every change. A row of the history changes when its result comes late.
_LIVE_VERSION, _ENDED_VERSION = "'live.' || t.xmin::text", "'ended.' || t.xmin::text"

_COLUMNS = """
    t.id, t.job_id, t.state, t.priority, t.attempt, t.run_at, t.created_at, t.schedule_id, nullif(t.scope, '') as scope,
    t.parent_id as parent, t.target, t.session, case when $2 then t.progress end as progress
"""
_SHOWN = f"""
    select found.*, coalesce(j.name, '(deleted)') as job, s.name as schedule, coalesce(a.name, found.target) as agent
      from (select {_COLUMNS}, case when t.session is not null then t.started_at end as started_at,
                   null::timestamptz as finished_at, t.paused_at, null::text as error_code, null::integer as exit_code,
                   false as result_due, {_LIVE_VERSION} as version
              from mainspring.task t where t.id = any($1::bigint[])
            union all
            select {_COLUMNS}, t.started_at, t.finished_at, null, t.error_code, t.exit_code,
                   coalesce(t.result_due, false), {_ENDED_VERSION}
              from mainspring.task_history t where t.id = any($1::bigint[])) found
      left join mainspring.job j on j.id = found.job_id
      left join mainspring.schedule s on s.id = found.schedule_id
      left join mainspring.agent a using (session)
"""


async def shown(conn: Connection, ids: Sequence[int], *, progress: bool = False) -> dict[int, tuple[str, ChangedTask]]:
    """These tasks as they are now, each with its version; those that retention has dropped are left out."""
    rows = await readable(conn, _SHOWN, list(ids), progress)
    found = {row["id"]: row["version"] for row in rows}
    tasks = views(ChangedTask, map(labelled, rows), json=("progress",))
    return {task.id: (found[task.id], task) for task in tasks}


_VERSIONS = f"""
    select t.id, {_LIVE_VERSION} from mainspring.task t where t.id = any($1::bigint[])
    union all
    select t.id, {_ENDED_VERSION} from mainspring.task_history t where t.id = any($1::bigint[])
"""


async def versions(conn: Connection, ids: Sequence[int]) -> dict[int, str]:
    """The version of each task that there is."""
    return dict(await conn.fetch(_VERSIONS, list(ids)))


# Planning writes a schedule's row too, but leaves its updated_at.
_SCHEDULES = f"""
    select mainspring.now() as at, pg_current_snapshot()::text as snapshot,
           (select count(*) from mainspring.schedule) as count,
           (select count(*) from mainspring.schedule where id > $5) as created,
           coalesce((select max(id) from mainspring.schedule), 0) as last,
           (select array_agg(distinct s.xmin::text) from mainspring.schedule s
             where s.updated_at > (select least($1::timestamptz, mainspring.now()) - $2::interval)
               and age(s.xmin) <= {_OPEN_SINCE}) as seen,
           (select json_agg(json_build_array(s.name, j.name))
              from mainspring.schedule s join mainspring.job j on j.id = s.job_id
             where s.updated_at > (select least($1::timestamptz, mainspring.now()) - $2::interval)
               and {_is_new("s", "$3", "$4")})::text as changed
"""
_Schedules = msgspec.json.Decoder(list[tuple[str, str]])


class ScheduleLook(NamedTuple):
    """Where a look at the schedules was taken."""

    at: datetime
    snapshot: Snapshot
    total: int
    last: int  # the highest id


class ChangedSchedules(NamedTuple):
    names: list[tuple[str, str]]  # with those of their jobs
    gone: int  # that were deleted


async def changed_schedules(conn: Connection, since: ScheduleLook | None) -> tuple[ScheduleLook, ChangedSchedules]:
    """Schedules that were created, changed, enabled, disabled or deleted since. None: where to count from."""
    at, snapshot, count, last = since or (None, Snapshot(0, ()), 0, 0)
    row = await conn.fetchrow(_SCHEDULES, at, EARLY, *snapshot.parameters, last)
    look = ScheduleLook(row["at"], Snapshot.read(row["snapshot"], row["seen"]), row["count"], row["last"])
    if since is None:
        return look, ChangedSchedules([], 0)
    found = _Schedules.decode(row["changed"]) if row["changed"] else []
    return look, ChangedSchedules(found, max(0, count + row["created"] - look.total))
