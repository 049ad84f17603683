"""Condition: the facts about servers, leader, segments, agents and maintenance that health is judged by.

A few statements over small tables; none reads tasks or the history.
Reads   mainspring.server, mainspring.leader, mainspring.segment, mainspring.agent, mainspring.chore
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from mainspring.store.cluster.cluster_views import STATUS
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views

NAMED = 5  # agents, in a message
LAST_SESSIONS = 200  # among which the last agent is looked for


class Condition(msgspec.Struct, frozen=True):
    now: datetime
    is_read_only: bool
    servers: int  # active ones
    last_server_at: datetime | None  # when the last other one ended, or its lease did
    lease: float | None  # seconds, of the active servers
    leads_until: datetime | None  # the end of the leader's lease
    unowned: int  # segments without a living owner
    unowned_since: datetime | None


_CONDITION = f"""
    with servers as materialized (
        select s.id, {STATUS} as status, s.lease_until, s.ended_at,
               extract(epoch from s.lease_until - s.heartbeat_at)::float8 as lease
          from mainspring.server s
    ), unowned as (
        select coalesce(s.ended_at, s.lease_until, g.since) as since
          from mainspring.segment g left join servers s on s.id = g.owner
         where s.id is null or s.status not in ('active', 'draining')
    )
    select (select mainspring.now()) as now, current_setting('transaction_read_only') = 'on' as is_read_only,
           count(*) filter (where status = 'active') as servers,
           max(coalesce(ended_at, lease_until)) filter (where status <> 'active') as last_server_at,
           max(lease) filter (where status = 'active') as lease,
           (select lease_until from mainspring.leader) as leads_until,
           (select count(*) from unowned) as unowned, (select min(since) from unowned) as unowned_since
      from servers
"""


async def read(conn: Connection) -> Condition:
    return views(Condition, [await conn.fetchrow(_CONDITION)])[0]


_FULL = """
    select j.name, j.max_queued as bound, b.full_since as since
      from mainspring.queue_bound b join mainspring.job j on j.id = b.job_id
     where b.live - b.held >= j.max_queued and b.counted_at > mainspring.now() - interval '1 minute'
     order by j.name limit 100
"""


class FullQueue(msgspec.Struct, frozen=True):
    name: str  # of its job
    bound: int
    since: datetime | None  # the first count that found it full


async def full_queues(conn: Connection) -> list[FullQueue]:
    """Jobs whose queue is full, as the leader counted it last."""
    return views(FullQueue, await conn.fetch(_FULL))


_LAST_AGENT = f"""
    select max(coalesce(ended_at, disconnected_at, lease_until)) from (
        select ended_at, disconnected_at, lease_until from mainspring.agent order by session desc limit {LAST_SESSIONS}
    ) last
"""


async def last_agent_at(conn: Connection) -> datetime | None:
    """Until when there was an agent, as far as is known; None: never."""
    found: datetime | None = await conn.fetchval(_LAST_AGENT)
    return found


class Skewed(msgspec.Struct, frozen=True):
    """An agent whose clock is wrong."""

    name: str
    skew: float  # seconds
    since: datetime | None  # the first renewal that told so, by the limit of its server


_SKEWED = f"""
    select name, skew::float8, skewed_since as since from mainspring.agent
     where ended_at is null and successor is null and lease_until > (select mainspring.now()) and abs(skew) > $1
     order by abs(skew) desc, name limit {NAMED}
"""


async def skewed(conn: Connection, limit: float) -> list[Skewed]:
    """The agents whose clocks are off by more than so many seconds, the worst first."""
    return views(Skewed, await conn.fetch(_SKEWED, limit))


class Failing(msgspec.Struct, frozen=True):
    """A chore whose last runs failed, or that has not run."""

    name: str
    since: datetime
    error: str | None  # None: it has not run


_FAILING = """
    select name, coalesce(failing_since, last_at) as since, last_error as error from mainspring.chore
     where failing_since < (select mainspring.now()) - make_interval(secs => $1)
        or last_at < (select mainspring.now()) - make_interval(secs => $1)
     order by 2, name
"""


async def failing(conn: Connection, longer_than: float) -> list[Failing]:
    """Chores that have failed, or have not run, for more than so many seconds."""
    return views(Failing, await conn.fetch(_FAILING, longer_than))
