"""Kinds about agents, servers, daemons and schedules: what is gone, wrong or down.

Next: operations/alerting/kinds.py
"""

from __future__ import annotations

from datetime import timedelta

from mainspring.model.alerts.findings import Finding, Found, Look
from mainspring.model.alerts.kinds import ClockSkew, Gone, Parameters
from mainspring.store.cluster import registry
from mainspring.store.figures import condition
from mainspring.store.postgres.connection import Connection

LAST_SESSIONS = 5_000  # of agents that are searched for those that were lost


async def no_agents(conn: Connection, look: Look[Parameters]) -> Found:
    if await registry.heard(conn):
        return Found([])
    since = await condition.last_agent_at(conn)
    return Found(
        [
            Finding(
                subject="cluster",
                message="no agent is connected: nothing can run; start one with `mainspring up`, `worker` or `agent`",
                since=min(since or look.until, look.until),
            )
        ]
    )


# The last session of each name. One that ended before its lease did was stopped.
_LOST = f"""
    with last as (
        select distinct on (a.name) a.name, a.lease_until, a.ended_at, a.successor, a.host
          from (select * from mainspring.agent order by session desc limit {LAST_SESSIONS}) a
         order by a.name, a.session desc
    )
    select name, lease_until, host from last
     where lease_until <= $1::timestamptz and lease_until > $1::timestamptz - $3::interval and successor is null
       and (ended_at is null or ended_at >= lease_until)
       and ($2::text[] is null or name like any($2))
     order by name
"""


async def agent_lost(conn: Connection, look: Look[Gone]) -> Found:
    rows = await conn.fetch(_LOST, look.until, look.names, timedelta(seconds=look.parameters.forget))
    return Found(
        [
            Finding(
                subject=f"agent:{name}",
                message=f"agent {name}{f' on {host}' if host else ''} was lost: it has not been heard since its lease "
                "ran out; what it held runs again elsewhere",
                since=lease_until,
                details={"host": host},
            )
            for name, lease_until, host in rows
        ]
    )


# The last session of each name: one that was started again may have two for as long as a lease.
_SKEWED = """
    select name, skew from (
        select distinct on (name) name, skew::float8 as skew from mainspring.agent
         where ended_at is null and successor is null and lease_until > $1 and ($2::text[] is null or name like any($2))
         order by name, session desc) last
     where abs(skew) > $3
"""


async def clock_skew(conn: Connection, look: Look[ClockSkew]) -> Found:
    rows = await conn.fetch(_SKEWED, look.until, look.names, look.parameters.limit)
    return Found(
        [
            Finding(
                subject=f"agent:{name}",
                message=f"the clock of agent {name} is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}; "
                "see that its host runs an NTP client",
                since=look.until,
                details={"skew": round(skew, 3)},
            )
            for name, skew in rows
        ]
    )


_DEAD = """
    select distinct on (s.name) s.name, s.host, s.ended_at from mainspring.server s
     where s.status = 'dead' and s.ended_at > $1::timestamptz - $3::interval
       and ($2::text[] is null or s.name like any($2))
       and not exists (select from mainspring.server o
                        where o.name = s.name and o.id <> s.id and o.started_at > s.ended_at - interval '1 minute'
                          and o.status in ('active', 'draining', 'stopped'))
     order by s.name, s.ended_at desc
"""


async def server_dead(conn: Connection, look: Look[Gone]) -> Found:
    rows = await conn.fetch(_DEAD, look.until, look.names, timedelta(seconds=look.parameters.forget))
    return Found(
        [
            Finding(
                subject=f"server:{name}",
                message=f"server {name}{f' on {host}' if host else ''} is dead: its lease ran out; others have taken "
                "over its segments",
                since=ended_at,
                details={"host": host},
            )
            for name, host, ended_at in rows
        ]
    )


_PROBLEMS = """
    select s.name, j.name as job, s.problem, s.updated_at
      from mainspring.schedule s join mainspring.job j on j.id = s.job_id
     where s.problem is not null and ($1::text[] is null or s.name like any($1))
     order by s.name limit 1000
"""


async def schedule_problem(conn: Connection, look: Look[Parameters]) -> Found:
    rows = await conn.fetch(_PROBLEMS, look.names)
    return Found(
        [
            Finding(
                subject=f"schedule:{name}",
                job=job,
                message=f"schedule {name} cannot be planned: {problem[:500]}",
                since=look.until,
            )
            for name, job, problem, _ in rows
        ]
    )
