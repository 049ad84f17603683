"""Rescue: sessions whose lease is over and what they hold; attempts past their deadline; orders to stop old attempts.

Rows are locked as they are found, and those that somebody else has at that moment, such as a recorder that ends them,
are passed over. The caller owns the transaction, and moves what it has locked within it.
Next: server/recovery/rescuer.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from mainspring.store.postgres.database import Connection

# A session ends before its tasks are touched: from then on no reconnect goes on with it. A server that does not know
# yet that it is over may claim for it even later.
_GONE = """
    with over as (
        update mainspring.agent set ended_at = mainspring.now()
         where ended_at is null and lease_until <= mainspring.now()
           and session in (select session from mainspring.agent
                            where ended_at is null and lease_until <= mainspring.now()
                            order by lease_until limit 20 for update skip locked)
        returning session
    )
    (select session from over)
     union
    (select session from mainspring.agent
      where ended_at is not null and session in (select session from mainspring.claim)
        and session <> all ($1::bigint[]) limit 20)
"""


async def gone(conn: Connection, apart_from: Sequence[int] = ()) -> list[int]:
    """End the sessions whose lease is over; returns all whose tasks are not all rescued yet, `apart_from` these."""
    return [row["session"] for row in await conn.fetch(_GONE, apart_from)]


class Holder(NamedTuple):
    """An agent's session, as people are told of it."""

    session: int
    name: str
    host: str | None
    server: str | None  # where it was connected
    heard_at: datetime | None


_HOLDER = """
    select a.session, a.name, a.host, s.name as server, coalesce(a.heard_at, a.connected_at) as heard_at
      from mainspring.agent a left join mainspring.server s on s.id = a.server
     where a.session = any($1::bigint[])
"""


async def holders(conn: Connection, sessions: Sequence[int]) -> dict[int, Holder]:
    """Who these sessions are."""
    return {row["session"]: Holder(*row) for row in await conn.fetch(_HOLDER, sessions)}


class Held(NamedTuple):
    """A task that is to be rescued from the session that holds it."""

    task: int
    token: int
    session: int
    job_id: int
    attempt: int
    crashes: int
    running: bool
    cancelled: bool
    recalled: bool  # asked back, and never started
    started_at: float
    scheduled: bool  # it stands for a plan time
    handed_on: bool  # its agent lives on in another session, and does not have it
    daemon: bool  # it is started again whatever becomes of it


_COLUMNS = """
    t.id, t.token, t.session, t.job_id, t.attempt, t.crashes, t.state = 3 as running,
    (t.cancel_at is not null and coalesce(t.cancel_mode, 0) not in (1, 3)) as cancelled,
    (t.cancel_at is not null and t.cancel_mode = 1 and t.state = 2) as recalled,
    coalesce(date_part('epoch', t.started_at), 0) as started_at, t.schedule_id is not null as scheduled,
    exists (select from mainspring.agent a where a.session = t.session and a.successor is not null) as handed_on,
    t.pool = 0 as daemon
"""

_HELD = f"""
    select {_COLUMNS}
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = any (array[claimed.id])
     where c.session = $1 and t.session = $1 and t.state in (2, 3) and t.id <> all ($3::bigint[])
     limit $2
       for update of t skip locked
"""


async def held(conn: Connection, session: int, limit: int, apart_from: Sequence[int] = ()) -> list[Held]:
    """What a session holds, by what it has claimed, `apart_from` these tasks. One may be found twice."""
    return _each_once(await conn.fetch(_HELD, session, limit, apart_from))


_LOCK = """
    select t.id from mainspring.task t
     where t.id = $1 and t.token = $2 and t.session = $3 and t.state in (2, 3)
       for update skip locked
"""


async def lock(conn: Connection, held: Held) -> bool:
    """Whether the attempt is still its session's, and nobody else's until the transaction ends."""
    return await conn.fetchval(_LOCK, held.task, held.token, held.session) is not None


_ASKED_BACK = """
    select t.id, t.token, t.job_id
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = any (array[claimed.id])
     where c.session = $1 and t.session = $1 and t.state = 2 and t.cancel_mode = 1 and t.cancel_at is not null
     limit $2
"""


async def asked_back(conn: Connection, session: int, limit: int) -> list[tuple[int, int, int]]:
    """What a session holds unstarted and somebody wants back, as (task, token, job). Not locked: see recalls.py."""
    return [tuple(row) for row in await conn.fetch(_ASKED_BACK, session, limit)]


_BURY = """
    delete from mainspring.claim c
     where c.session = $1 and exists (select from mainspring.agent a where a.session = $1 and a.ended_at is not null)
       and not exists (select from unnest(c.tasks) as claimed(id)
                         join mainspring.task t on t.id = any (array[claimed.id])
                        where t.session = c.session and t.state in (2, 3))
"""


async def bury(conn: Connection, session: int) -> None:
    """The session is over and holds nothing: nobody needs to look at it again."""
    await conn.execute(_BURY, session)


_LIVING = """
    select session from mainspring.agent
     where ended_at is null and lease_until > mainspring.now() and session > $1
     order by session limit $2
"""


async def living(conn: Connection, after: int, limit: int) -> list[int]:
    """The next sessions behind `after` that live."""
    return [row["session"] for row in await conn.fetch(_LIVING, after, limit)]


# An attempt runs by the definition that it was armed with. What started before its job was changed, or so soon after
# that it may have been armed before, has a timeout that nobody here knows: it is left to its agent.
_OVERDUE = f"""
    with given as (select * from unnest($2::integer[], $3::integer[], $4::float8[]) as given(job_id, version, most))
    select {_COLUMNS}
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = any (array[claimed.id])
      join given on given.job_id = t.job_id
      join mainspring.job j on j.id = any (array[t.job_id]) and j.version = given.version
     where c.session = any ($1::bigint[]) and t.session = c.session and t.state = 3
       and t.pool <> 0                                          -- a daemon has no deadline
       and t.paused_at is null                                  -- one that stands still does not come nearer to its own
       and t.started_at + coalesce(t.paused_for, interval '0') + make_interval(secs => given.most) < mainspring.now()
       and (j.version = 1 or t.started_at > j.updated_at + make_interval(secs => $5))
       and t.started_at >= to_timestamp($6)
     limit $7
       for update of t skip locked
"""


class Deadline(NamedTuple):
    """How long an attempt of a job may be running at most, in seconds."""

    job: int
    version: int
    most: float


async def overdue(
    conn: Connection,
    sessions: Sequence[int],
    deadlines: Sequence[Deadline],
    *,
    settled: float,
    since: float = 0.0,
    limit: int,
) -> list[Held]:
    """What these sessions run past its deadline, if its job had not changed for `settled` seconds when it started.

    Only what started `since` then: of what began before the clock was set forward nobody here knows how long it runs.
    """
    jobs, versions, most = zip(*deadlines, strict=True)
    return _each_once(await conn.fetch(_OVERDUE, sessions, jobs, versions, most, settled, since, limit))


def _each_once(rows: Sequence[Any]) -> list[Held]:
    """A task that was given back and claimed again by the same session is in two of its claims."""
    return list({row["id"]: Held(*row) for row in rows}.values())


# ── orders to stop ──────────────────────────────────────────────────────────────────────────────

_ORDER = """
    with given as (
        insert into mainspring.stop_order (session, task_id, token)
        select * from unnest($1::bigint[], $2::bigint[], $3::bigint[])
        on conflict do nothing
        returning session
    )
    select pg_notify('mainspring', 'cancel') from given limit 1
"""


class Order(NamedTuple):
    """An attempt that a session is to stop: its task is no longer its own."""

    session: int
    task: int
    token: int


async def order_stops(conn: Connection, orders: Sequence[Order]) -> None:
    """Let whoever serves these sessions tell them, in the transaction that takes the tasks away."""
    if orders:
        await conn.execute(_ORDER, *(list(column) for column in zip(*orders, strict=True)))


async def stop_orders(conn: Connection, sessions: Sequence[int]) -> list[Order]:
    """What these sessions are to stop."""
    rows = await conn.fetch(
        "select session, task_id, token from mainspring.stop_order where session = any($1::bigint[])", sessions
    )
    return [Order(*row) for row in rows]


_TOLD = """
    delete from mainspring.stop_order o using unnest($1::bigint[], $2::bigint[]) as told(session, token)
     where o.session = told.session and o.token = told.token
"""


async def told(conn: Connection, orders: Sequence[Order]) -> None:
    """These have been passed on. Not before: told twice is harmless, and never is not."""
    await conn.execute(_TOLD, [order.session for order in orders], [order.token for order in orders])
