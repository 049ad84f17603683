"""Registry: the agents that live, what they hold, and which of them drain.

Next: store/limits/waits.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from mainspring.errors import AgentNotFound
from mainspring.model.tasks.states import ASSIGNED, IS_ACTIVE, RUNNING
from mainspring.model.tasks.waits import Known
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import readable, views

_LIVES = "(a.ended_at is null and a.successor is null and a.lease_until > (select mainspring.now()))"

# Its connection has closed, its server `s` is gone, or it has been silent for two thirds of its lease: a session that
# answers is renewed, and heard, several times within that.
_IS_DISCONNECTED = """
    (a.disconnected_at is not null or s.status not in ('active', 'draining')
     or s.lease_until <= (select mainspring.now())
     or (select mainspring.now()) - a.heard_at > (a.lease_until - a.heard_at) * 2 / 3)
"""

_LIVING = f"""
    select a.session, a.name, a.slots, a.labels, a.offers, d.name is not null as draining, a.lead, a.running,
           coalesce({_IS_DISCONNECTED}, false) as disconnected
      from mainspring.agent a left join mainspring.draining d on d.name = a.name
      left join mainspring.server s on s.id = a.server
     where {_LIVES}
     order by a.session
"""


async def living(conn: Connection) -> list[Known]:
    """All agents with a lease, without their load."""
    return views(Known, await conn.fetch(_LIVING), json=("labels", "offers"))


async def statuses(conn: Connection) -> list[tuple[Any, ...]]:
    """All agents with a lease, by name, and what changes about them seldom: not their load, not their heartbeats."""
    columns = ("name", "session", "slots", "labels", "offers", "draining", "disconnected")
    return [tuple(row[column] for column in columns) for row in await conn.fetch(_LIVING)]


async def drained(conn: Connection) -> frozenset[str]:
    """The names of draining agents, connected or not."""
    return frozenset(row["name"] for row in await conn.fetch("select name from mainspring.draining"))


# The tasks in all claims, some of which have ended: as many rows as attempts are under way, or few more. They are
# joined with mainspring.task by their number alone: if PostgreSQL joined by the session first, each task would meet
# every claim of its session.
CLAIMED = """
    claimed as materialized (
        select c.session, task.id from mainspring.claim c cross join lateral unnest(c.tasks) as task(id)
    )
"""
IS_CLAIMED = "t.id = claimed.id and t.session = any (array[claimed.session])"

# A task that was returned and claimed again may be in two claims.
_HELD = f"""
    with {CLAIMED}
    select t.session, j.definition->'placement'->'needs' as needs,
           count(distinct t.id) as held,
           count(distinct t.id) filter (where t.state = {RUNNING:d} or t.run_at <= mainspring.now()) as due,
           count(distinct t.id) filter (where t.state = {RUNNING:d}) as running
      from claimed join mainspring.task t on {IS_CLAIMED} and t.{IS_ACTIVE}
      left join mainspring.job j on j.id = t.job_id
     group by t.session, j.id
"""


async def _with_load(conn: Connection, rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Rows of sessions, each with what it holds."""
    if not (rows := list(rows)):
        return []
    loads: dict[int, dict[str, Any]] = {}
    for session, needs, *counts in await conn.fetch(_HELD):
        load = loads.setdefault(session, {"holds": 0, "due": 0, "running": 0, "used": Counter()})
        for name, count in zip(("holds", "due", "running"), counts, strict=True):
            load[name] += count
        for name, amount in msgspec.json.decode(needs or "{}").items():
            load["used"][name] += amount * counts[0]
    return [{**row, "holds": 0, "due": 0, "running": 0, "used": {}, **loads.get(row["session"], {})} for row in rows]


async def loaded(conn: Connection) -> list[Known]:
    """All agents with a lease and a connection, with their load."""
    rows = [row for row in await conn.fetch(_LIVING) if not row["disconnected"]]
    return views(Known, await _with_load(conn, rows), json=("labels", "offers"))


_ARMED = f"""
    with {CLAIMED}
    select distinct t.id, coalesce(j.name, '(deleted)') as job, t.run_at, t.state,
           case when t.state = {RUNNING:d} then t.started_at end as started_at
      from mainspring.agent a
      join claimed on claimed.session = a.session
      join mainspring.task t on {IS_CLAIMED} and t.{IS_ACTIVE}
      left join mainspring.job j on j.id = t.job_id
     where a.name = $1 and a.ended_at is null and ($2::integer[] is null or t.job_id = any ($2))
     order by t.run_at, t.id limit $3
"""


async def armed(conn: Connection, name: str, jobs: Sequence[int] | None, limit: int) -> list[Any]:
    """What the sessions of an agent hold of these jobs, or of all, the soonest first."""
    if not await conn.fetchval("select exists (select from mainspring.agent where name = $1)", name):
        raise _no_agent(name)
    return await conn.fetch(_ARMED, name, jobs, limit)


# Of each agent the soonest that are armed, and how many it has and runs; the nearest of every agent come before the
# second of any. Jobs outside `$2` are counted, and come last: the caller leaves them out.
_ALL_ARMED = f"""
    with {CLAIMED}, held as (
        select distinct a.name, t.id, t.job_id, t.run_at, t.state
          from mainspring.agent a
          join claimed on claimed.session = a.session
          join mainspring.task t on {IS_CLAIMED} and t.{IS_ACTIVE}
         where a.ended_at is null
    ), placed as (
        select name, id, job_id, run_at, state,
               count(*) filter (where state = {ASSIGNED:d}) over (partition by name) as armed,
               count(*) filter (where state = {RUNNING:d}) over (partition by name) as running,
               row_number() over (partition by name, state
                                  order by $2::integer[] is null or job_id = any ($2) desc, run_at, id) as place
          from held
    )
    select p.name, p.armed, p.running, p.id, coalesce(j.name, '(deleted)') as job, p.run_at,
           p.state = {ASSIGNED:d} as is_armed
      from placed p left join mainspring.job j on j.id = p.job_id
     where p.place <= case when p.state = {ASSIGNED:d} then $1 else 1 end
     order by p.place, p.run_at, p.id limit $3
"""


async def all_armed(conn: Connection, each: int, jobs: Sequence[int] | None, limit: int) -> list[dict[str, Any]]:
    """What all agents are armed with: a row for each task, and for an agent that only runs tasks one of those."""
    return await readable(conn, _ALL_ARMED, each, jobs, limit)


async def heard(conn: Connection) -> list[Known]:
    """The same with the load that their last heartbeats told: cheap, however much they hold."""
    rows = [row for row in await conn.fetch(_LIVING) if not row["disconnected"]]
    return views(Known, ({**row, "due": row["running"] or 0} for row in rows), json=("labels", "offers"))


# ── draining ────────────────────────────────────────────────────────────────────────────────────


_DRAIN = """
    with asked as (
        insert into mainspring.draining (name)
        select distinct name from mainspring.agent where name = $1
        on conflict (name) do nothing
        returning name
    )
    select pg_notify('mainspring', 'agent') from asked
"""
_UNDRAIN = """
    with freed as (delete from mainspring.draining where name = $1 returning name)
    select pg_notify('mainspring', 'agent') from freed
"""


async def drain(conn: Connection, name: str) -> bool:
    """Agents of this name take nothing new from now on; returns whether that is a change."""
    changed = bool(await conn.fetch(_DRAIN, name))
    if not changed and not await conn.fetchval("select exists (select from mainspring.draining where name = $1)", name):
        raise _no_agent(name)
    return changed


async def undrain(conn: Connection, name: str) -> bool:
    """Agents of this name take tasks again; returns whether that is a change."""
    changed = bool(await conn.fetch(_UNDRAIN, name))
    if not changed and not await conn.fetchval("select exists (select from mainspring.agent where name = $1)", name):
        raise _no_agent(name)
    return changed


def _no_agent(name: str) -> AgentNotFound:
    return AgentNotFound(f"no agent named {name!r} has ever been here; `mainspring agents` shows who is", field="agent")


# ── for people ──────────────────────────────────────────────────────────────────────────────────


class AgentView(msgspec.Struct, frozen=True):
    """One session of an agent. Shares are 0 to 1; durations are seconds."""

    name: str
    session: int
    status: str  # active, draining, disconnected (its lease still runs), stopped, lost
    draining_since: datetime | None
    slots: int
    holds: int
    running: int
    labels: dict[str, str]
    offers: dict[str, float]
    used: dict[str, float]
    cpu: float | None
    memory: float | None
    skew: float | None
    round_trip: float | None
    ack_time: float | None
    reliability: float | None
    lead: float | None
    connected_at: datetime
    heard_at: datetime | None
    lease_until: datetime
    host: str | None
    version: str | None
    server: str | None  # it is, or was, connected to
    server_id: UUID | None


# Those that live; and of each name the last one, if it was here within the hour. A session that ended after its lease
# is lost: the lease expired first.
_LISTING = f"""
    select a.name, a.session, d.since as draining_since, a.slots, a.labels, a.offers, a.cpu, a.memory, a.skew,
           a.round_trip, a.ack_time, a.reliability, a.lead, a.connected_at, a.heard_at, a.lease_until, a.host,
           a.version, s.name as server, a.server as server_id,
           case when {_LIVES} then case when {_IS_DISCONNECTED} then 'disconnected'
                                        when d.name is null then 'active' else 'draining' end
                when a.ended_at < a.lease_until then 'stopped' else 'lost' end as status
      from mainspring.agent a
      left join mainspring.draining d on d.name = a.name
      left join mainspring.server s on s.id = a.server
     where ($1::text is null or a.name = $1)
       and ({_LIVES} or ($1::text is not null or a.lease_until > (select mainspring.now()) - interval '1 hour')
            and not exists (select from mainspring.agent b where b.name = a.name and b.session > a.session))
       and ($2::text is null or (a.name, a.session) > ($2, $3::bigint))
     order by a.name, a.session limit $4
"""


async def listing(
    conn: Connection, name: str | None = None, *, after: tuple[str, int] | None = None, limit: int | None = None
) -> list[AgentView]:
    """The agents that live and those that were lost within the hour; or all that is known of one name.

    By name and session, from behind one of them.
    """
    rows = await readable(conn, _LISTING, name, *(after or (None, None)), limit)
    if name is not None and not rows:
        raise _no_agent(name)
    return views(AgentView, await _with_load(conn, rows), json=("labels", "offers"))


class AgentSession(msgspec.Struct, frozen=True):
    """One session of an agent, with the figures of its last heartbeat."""

    session: int
    status: str  # active, draining, disconnected, resumed (by `successor`), stopped, lost (its lease expired)
    connected_at: datetime
    heard_at: datetime | None
    ended_at: datetime | None  # when it was over: the end of its lease, if that expired
    successor: int | None  # the session that took over what it held
    slots: int
    skew: float | None
    round_trip: float | None
    ack_time: float | None
    reliability: float | None
    lead: float | None
    blocked: int  # how often its event loop was blocked for more than a second
    host: str | None
    version: str | None
    server: str | None


_SESSIONS = f"""
    select a.session, a.connected_at, a.heard_at, a.successor, a.slots, a.skew, a.round_trip, a.ack_time, a.reliability,
           a.lead, a.blocked, a.host, a.version, s.name as server,
           case when not {_LIVES} then least(a.ended_at, a.lease_until) end as ended_at,
           case when {_LIVES} then case when {_IS_DISCONNECTED} then 'disconnected'
                                        when d.name is null then 'active' else 'draining' end
                when a.successor is not null then 'resumed'
                when a.ended_at < a.lease_until then 'stopped' else 'lost' end as status
      from mainspring.agent a
      left join mainspring.draining d on d.name = a.name
      left join mainspring.server s on s.id = a.server
     where a.name = $1 and ($2::bigint is null or a.session < $2)
     order by a.session desc limit $3
"""


async def sessions(conn: Connection, name: str, *, before: int | None, limit: int) -> list[AgentSession]:
    """All sessions of an agent that retention has kept, the newest first."""
    rows = await readable(conn, _SESSIONS, name, before, limit)
    if not rows and before is None:
        raise _no_agent(name)
    return views(AgentSession, rows)
