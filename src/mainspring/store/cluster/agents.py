"""Agent sessions and their leases: one row per session, however many tasks it holds.

Next: store/tasks/rescue.py for what becomes of those that are gone
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from mainspring.model.messages import Armed
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.claims import ARMED_COLUMNS, as_armed

_NEW = """
    insert into mainspring.agent
        (name, slots, labels, process, lease_until, instance, token_id, host, version, offers, server, heard_at)
    values ($1, $2, $3, $4, mainspring.now() + make_interval(secs => $5), $6, $7, $8, $9, $10, $11, mainspring.now())
    returning session
"""


class Newcomer(NamedTuple):
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

    def values(self, lease: float) -> tuple[Any, ...]:
        labels, offers = (msgspec.json.encode(dict(given)).decode() for given in (self.labels, self.offers))
        described = (self.instance, self.token, self.host, self.version, offers, self.server)
        return (self.name, self.slots, labels, self.process, lease, *described)


async def begin(conn: Connection, agent: Newcomer, lease: float) -> int:
    """Open a session; returns its number."""
    return int(await conn.fetchval(_NEW, *agent.values(lease)))


# The session before ends here and now, if its lease is not over: what the agent still has of it, by task and token,
# is the new session's. What it has not got is left to the rescuer. One statement: whichever server the agent comes to,
# and however often, each attempt is of one session. It may not know the last one, if the welcome was lost.
_GO_ON = f"""
    with old as (
        update mainspring.agent set ended_at = mainspring.now(), successor = $12
         where instance = $6 and ended_at is null and lease_until > mainspring.now()
        returning session
    ), given as (
        select * from unnest($13::bigint[], $14::bigint[]) as given(id, token)
    ), taken as (
        update mainspring.task t set session = $12
          from given
         where t.id = any (array[given.id]) and t.token = given.token and t.state in (2, 3)
           and t.session in (select session from old)
        returning t.*
    ), noted as (
        insert into mainspring.claim (session, batch, tasks)
        select $12, nextval('mainspring.claim_batch'), array_agg(id) from taken having count(*) > 0
        returning batch
    ), new as (
        insert into mainspring.agent
            (session, name, slots, labels, process, lease_until, instance, token_id, host, version, offers, server,
             heard_at)
        values ($12, $1, $2, $3, $4, mainspring.now() + make_interval(secs => $5), $6, $7, $8, $9, $10, $11,
                mainspring.now())
    )
    select (select batch from noted) as batch, {ARMED_COLUMNS} from taken t
"""


class Taken(NamedTuple):
    """A session that goes on from another: its number, what it took over, and the batch that is noted for it."""

    session: int
    tasks: list[Armed]
    batch: int


async def go_on(conn: Connection, agent: Newcomer, lease: float, tasks: Sequence[int], tokens: Sequence[int]) -> Taken:
    """Open a session that takes over from the one before what the agent process still has of it."""
    session: int = await conn.fetchval("select nextval('mainspring.session')")
    rows = await conn.fetch(_GO_ON, *agent.values(lease), session, tasks, tokens)
    batch = rows[0]["batch"] if rows else 0
    return Taken(session, [as_armed(row) for row in rows], batch)


# One index probe per session, whatever the statistics say.
_RENEW = """
    with given as (
        select * from unnest($1::bigint[], $3::float8[], $4::integer[], $5::real[], $6::real[], $7::real[], $8::real[],
                             $9::real[], $10::real[], $11::real[])
                   as given(session, silent, running, cpu, memory, skew, round_trip, ack_time, reliability, lead)
    ), living as materialized (
        select given.*, found.place
          from given
         cross join lateral (
             select a.ctid as place from mainspring.agent a
              where a.session = given.session and a.ended_at is null and a.lease_until > mainspring.now()
                and not exists (select from mainspring.token k left join mainspring.token p on p.id = k.parent
                                 where k.id = a.token_id and (k.revoked_at is not null or p.revoked_at is not null))
              limit 1
                for update of a
         ) found
    )
    update mainspring.agent a
       set lease_until = mainspring.now() + make_interval(secs => $2),
           heard_at = mainspring.now() - make_interval(secs => living.silent), running = living.running,
           cpu = living.cpu, memory = living.memory, skew = living.skew, round_trip = living.round_trip,
           ack_time = living.ack_time, reliability = living.reliability, lead = living.lead
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


async def renew(conn: Connection, vitals: Sequence[Vital], lease: float) -> set[int]:
    """Renew leases; returns the sessions that live. An expired lease, or one with a revoked token, is not renewed."""
    sessions, *figures = (list(column) for column in zip(*vitals, strict=True))
    return {row["session"] for row in await conn.fetch(_RENEW, sessions, lease, *figures)}


async def leave(conn: Connection, sessions: Sequence[int]) -> None:
    """End sessions that hold nothing and have said goodbye, before their leases expire."""
    await conn.execute(
        """
        update mainspring.agent set ended_at = mainspring.now()
         where session = any($1::bigint[]) and ended_at is null
        """,
        sessions,
    )


async def end(conn: Connection, sessions: Sequence[int]) -> None:
    """Expire their leases now, so that their tasks are rescued."""
    await conn.execute(
        "update mainspring.agent set lease_until = mainspring.now() where session = any($1::bigint[])",
        sessions,
    )


async def any_lives(conn: Connection) -> bool:
    """Whether any agent has a lease."""
    lives: bool = await conn.fetchval(
        "select exists (select from mainspring.agent where ended_at is null and lease_until > mainspring.now())"
    )
    return lives


_CANCELLED = """
    select session, id, token, cancel_mode from mainspring.task
     where session = any($1::bigint[]) and cancel_at is not null and state in (2, 3)
"""


class Wanted(NamedTuple):
    """An attempt that somebody wants stopped: any way, only if it has not started (RECALL), at once (KILL), or to run
    again (RESTART)."""

    session: int
    task: int
    token: int
    mode: int | None


async def cancelled(conn: Connection, sessions: Sequence[int]) -> list[Wanted]:
    """What these sessions hold and somebody wants cancelled."""
    return [Wanted(*row) for row in await conn.fetch(_CANCELLED, sessions)]


_PAUSED = """
    select session, id, token from mainspring.task
     where session = any($1::bigint[]) and paused_at is not null and state = 3
"""


async def paused(conn: Connection, sessions: Sequence[int]) -> dict[int, dict[int, int]]:
    """What these sessions run and somebody wants to stand still: by session, the task of each token."""
    found: dict[int, dict[int, int]] = {}
    for row in await conn.fetch(_PAUSED, sessions):
        found.setdefault(row["session"], {})[row["token"]] = row["id"]
    return found
