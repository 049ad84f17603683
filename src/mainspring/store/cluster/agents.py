"""Agent sessions and their leases: one row per session, however many tasks it holds.

Next: store/tasks/session_tasks.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from mainspring.errors import SessionSuperseded
from mainspring.model.words.skew import DEFAULT_LIMIT
from mainspring.store.postgres.database import Connection


class AgentInfo(NamedTuple):
    """An agent that opens a session."""

    name: str
    slots: int
    labels: dict[str, str]
    process: str | None = None  # its process, for servers on the same machine that see it die
    instance: str | None = None
    token: int | None = None
    host: str = ""
    version: str = ""
    offers: Mapping[str, float] = MappingProxyType({})
    server: UUID | None = None  # it is connected to
    connection: int = 1  # the agent process's own count of its connections

    def values(self, lease: float) -> tuple[Any, ...]:
        labels, offers = (msgspec.json.encode(dict(given)).decode() for given in (self.labels, self.offers))
        described = (self.instance, self.token, self.host, self.version, offers, self.server, self.connection)
        return (self.name, self.slots, labels, self.process, lease, *described)


# One statement, so that it is carried out whole or not at all, however late. The function's own statements see what was
# committed before it took its lock: see 0001_schema.sql, 10.
_OPEN = """
    with number as materialized (
        select nextval('mainspring.session') as session
    ), fence as materialized (
        select number.session, mainspring.supersede($6, $12, number.session, $13, $14, $15) as batch from number
    )
    insert into mainspring.agent
        (session, name, slots, labels, process, lease_until, instance, token_id, host, version, offers, server,
         connection, heard_at)
    select session, $1, $2, $3, $4, mainspring.now() + make_interval(secs => $5), $6, $7, $8, $9, $10, $11, $12,
           mainspring.now()
      from fence where batch is not null
    returning session, (select batch from fence)
"""


async def begin(conn: Connection, agent: AgentInfo, lease: float) -> int:
    """Open a session; returns its number. Raises SessionSuperseded if the agent process has connected again since."""
    session, _ = await _open(conn, agent, lease)
    return session


async def resume(
    conn: Connection, agent: AgentInfo, lease: float, tasks: Sequence[int], tokens: Sequence[int]
) -> tuple[int, int]:
    """Open a session that takes over these attempts from the earlier sessions of the agent process, and ends those.

    Returns its number and the batch that notes the attempts, 0 if there are none. Raises SessionSuperseded.
    """
    return await _open(conn, agent, lease, True, tasks, tokens)


async def _open(
    conn: Connection,
    agent: AgentInfo,
    lease: float,
    resumes: bool = False,
    tasks: Sequence[int] = (),
    tokens: Sequence[int] = (),
) -> tuple[int, int]:
    row = await conn.fetchrow(_OPEN, *agent.values(lease), resumes, tasks, tokens)
    if row is None:
        raise SessionSuperseded(f"agent {agent.name} has connected again since it said this hello")
    return row["session"], row["batch"]


# Of a session `a`: whether its lease may be renewed.
_MAY_RENEW = """
    a.ended_at is null and a.lease_until > mainspring.now()
    and not exists (select from mainspring.token k left join mainspring.token p on p.id = k.parent
                     where k.id = a.token_id
                       and (k.revoked_at is not null or p.revoked_at is not null
                            or k.expires_at <= mainspring.now()))
"""

# One index probe per session, whatever the statistics say.
_RENEW = f"""
    with given as (
        select * from unnest($1::bigint[], $3::float8[], $4::integer[], $5::real[], $6::real[], $7::real[], $8::real[],
                             $9::real[], $10::real[], $11::real[], $12::integer[], $13::real[])
                   as given(session, silent, running, cpu, memory, skew, round_trip, ack_time, reliability, lead,
                            blocked, blocked_seconds)
    ), living as materialized (
        select given.*, found.place
          from given
         cross join lateral (
             select a.ctid as place from mainspring.agent a
              where a.session = given.session and {_MAY_RENEW}
              limit 1
                for update of a
         ) found
    )
    update mainspring.agent a
       set lease_until = mainspring.now() + make_interval(secs => $2),
           heard_at = mainspring.now() - make_interval(secs => living.silent), running = living.running,
           cpu = living.cpu, memory = living.memory, skew = living.skew, round_trip = living.round_trip,
           ack_time = living.ack_time, reliability = living.reliability, lead = living.lead,
           blocked = living.blocked, blocked_seconds = living.blocked_seconds,
           skewed_since = case when abs(living.skew) > $14 then coalesce(a.skewed_since, mainspring.now()) end
      from living
     where a.ctid = living.place                    -- a locked row keeps its place
    returning a.session
"""


class Vital(NamedTuple):
    """What a renewal writes about an agent."""

    session: int
    silent: float = 0.0  # seconds since its last heartbeat
    running: int = 0
    cpu: float = 0.0
    memory: float = 0.0
    skew: float = 0.0
    round_trip: float = 0.0
    ack_time: float = 0.0
    reliability: float = 1.0
    lead: float = 0.0
    blocked: int = 0
    blocked_seconds: float = 0.0


async def renew(conn: Connection, vitals: Sequence[Vital], lease: float, skew_limit: float = DEFAULT_LIMIT) -> set[int]:
    """Renew leases; returns the sessions that live. An expired lease, or one whose token has expired or was
    revoked, is not renewed."""
    sessions, *figures = (list(column) for column in zip(*vitals, strict=True))
    return {row["session"] for row in await conn.fetch(_RENEW, sessions, lease, *figures, skew_limit)}


_KEEP = f"""
    update mainspring.agent a
       set lease_until = mainspring.now() + make_interval(secs => $3), heard_at = mainspring.now()
     where a.session = $1 and a.instance = $2 and {_MAY_RENEW}
    returning a.session
"""


async def keep(conn: Connection, session: int, instance: str, lease: float) -> bool:
    """Renew the lease of a process whose event loop is blocked. False: the session is over, or another process's."""
    return await conn.fetchval(_KEEP, session, instance, lease) is not None


# A session may have ended before a renewal wrote anything. Of a name with many of those, only some are read.
_LINE = """
    select ack_time, reliability
      from (select session, ack_time, reliability from mainspring.agent
             where name = $1 and session < $2 order by session desc limit 20) last
     where ack_time > 0
     order by session desc
     limit 1
"""


async def last_line(conn: Connection, name: str, session: int) -> tuple[float, float] | None:
    """Acknowledgement time and reliability of the agents of this name before `session`, as far as they are known."""
    row = await conn.fetchrow(_LINE, name, session)
    return None if row is None else (row["ack_time"], row["reliability"])


async def leave(conn: Connection, sessions: Sequence[int]) -> None:
    """End sessions that hold nothing and have said goodbye, before their leases expire."""
    await conn.execute(
        """
        update mainspring.agent set ended_at = mainspring.now()
         where session = any($1::bigint[]) and ended_at is null
        """,
        sessions,
    )


async def disconnect(conn: Connection, session: int) -> None:
    """Note that a session which holds tasks has lost its connection. The agent may reconnect within its lease."""
    await conn.execute(
        "update mainspring.agent set disconnected_at = mainspring.now() where session = $1 and ended_at is null",
        session,
    )


async def end(conn: Connection, sessions: Sequence[int]) -> None:
    """Expire their leases now, so that their tasks are rescued."""
    await conn.execute(
        "update mainspring.agent set lease_until = mainspring.now() where session = any($1::bigint[])",
        sessions,
    )
