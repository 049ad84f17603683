"""Rescue: sessions with expired leases and their tasks; attempts past their deadline; orders to stop old attempts.

Rows are locked as they are found; rows that another transaction has locked, such as a recorder that ends them, are
skipped. The caller owns the transaction and moves the tasks within it.
Next: model/tasks/verdict.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from mainspring.model.tasks.pools import IS_DAEMON, IS_NOT_DAEMON
from mainspring.model.tasks.states import ASSIGNED, IS_ACTIVE, RUNNING, RUNS_AGAIN, CancelMode
from mainspring.store.postgres.database import Connection

# A session ends before its tasks are rescued: from then on no reconnect can continue it. A server that does not know
# this yet may still claim for it.
_GONE = """
    with recursive over as (
        update mainspring.agent set ended_at = mainspring.now()
         where ended_at is null and lease_until <= mainspring.now()
           and session in (select session from mainspring.agent
                            where ended_at is null and lease_until <= mainspring.now()
                            order by lease_until limit 20 for update skip locked)
        returning session
    ), claiming as (                            -- the sessions with claims, one probe of the index each
        (select c.session from mainspring.claim c order by c.session limit 1)
        union all
        select next.session from claiming cross join lateral (
            select c.session from mainspring.claim c where c.session > claiming.session order by c.session limit 1) next
    )
    (select session from over)
     union
    (select c.session from claiming c
      where c.session <> all ($1::bigint[])
        and not exists (select from mainspring.agent a where a.session = c.session and a.ended_at is null) limit 20)
"""


async def gone(conn: Connection, apart_from: Sequence[int] = ()) -> list[int]:
    """End sessions with expired leases; returns all that have claims and do not live, `apart_from` these.

    They are found by their claims: ended sessions are kept for as long as the history, claims are not. A session that
    is not known at all does not live either.
    """
    return [row["session"] for row in await conn.fetch(_GONE, apart_from)]


class Holder(NamedTuple):
    """An agent's session, for messages."""

    session: int
    name: str
    host: str | None
    server: str | None  # that it was connected to
    heard_at: datetime | None


_HOLDER = """
    select a.session, a.name, a.host, s.name as server, coalesce(a.heard_at, a.connected_at) as heard_at
      from mainspring.agent a left join mainspring.server s on s.id = a.server
     where a.session = any($1::bigint[])
"""


async def holders(conn: Connection, sessions: Sequence[int]) -> dict[int, Holder]:
    return {row["session"]: Holder(*row) for row in await conn.fetch(_HOLDER, sessions)}


class Held(NamedTuple):
    """A task to rescue from the session that holds it."""

    task: int
    token: int
    session: int
    job_id: int
    attempt: int
    crashes: int
    running: bool
    cancelled: bool
    recalled: bool  # under a recall, and not started
    started_at: float
    given_back: bool  # its agent has opened another session, without this attempt among what it holds
    daemon: bool  # a replica: it starts again in any case
    retries: int | None  # of the task itself, if it has any
    timeout: float | None  # likewise


# It was to be skipped (store/tasks/control.py), and its agent is gone: it may have started, so it is not skipped.
_IS_SKIPPED = f"(t.cancel_mode = {CancelMode.RECALL:d} and coalesce(t.options ? 'skip', false))"

_COLUMNS = f"""
    t.id, t.token, t.session, t.job_id, t.attempt, t.crashes, t.state = {RUNNING:d} as running,
    (t.cancel_at is not null and (coalesce(t.cancel_mode, 0) not in {RUNS_AGAIN} or {_IS_SKIPPED})) as cancelled,
    (t.cancel_at is not null and t.cancel_mode = {CancelMode.RECALL:d} and t.state = {ASSIGNED:d}
     and not {_IS_SKIPPED}) as recalled,
    coalesce(date_part('epoch', t.started_at), 0) as started_at,
    exists (select from mainspring.agent a where a.session = t.session and a.successor is not null) as given_back,
    t.{IS_DAEMON} as daemon, (t.options->>'retries')::integer as retries,
    (t.options->>'timeout')::float8 as timeout
"""

_HELD = f"""
    select {_COLUMNS}
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = any (array[claimed.id])
     where c.session = $1 and t.session = $1 and t.{IS_ACTIVE} and t.id <> all ($3::bigint[])
     limit $2
       for update of t skip locked
"""


async def held(conn: Connection, session: int, limit: int, apart_from: Sequence[int] = ()) -> list[Held]:
    """The tasks that a session holds, `apart_from` these; found by its claims."""
    return _each_once(await conn.fetch(_HELD, session, limit, apart_from))


_LOCK = f"""
    select t.id from mainspring.task t
     where t.id = $1 and t.token = $2 and t.session = $3 and t.{IS_ACTIVE}
       for update skip locked
"""


async def lock(conn: Connection, held: Held) -> bool:
    """Lock the task until the transaction ends; False if the session no longer holds the attempt."""
    return await conn.fetchval(_LOCK, held.task, held.token, held.session) is not None


_RECALLED = f"""
    select t.id, t.token, t.job_id
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = any (array[claimed.id])
     where c.session = $1 and t.session = $1 and t.state = {ASSIGNED:d} and t.cancel_mode = {CancelMode.RECALL:d}
       and t.cancel_at is not null and not {_IS_SKIPPED}
     limit $2
"""


async def recalled(conn: Connection, session: int, limit: int) -> list[tuple[int, int, int]]:
    """The unstarted tasks of a session that are under a recall, as (task, token, job). Not locked, because
    `store.schedules.revoke.confirm` locks their schedules first."""
    return [tuple(row) for row in await conn.fetch(_RECALLED, session, limit)]


_FORGET = f"""
    delete from mainspring.claim c
     where c.session = $1 and not exists (select from mainspring.agent a where a.session = $1 and a.ended_at is null)
       and not exists (select from unnest(c.tasks) as claimed(id)
                         join mainspring.task t on t.id = any (array[claimed.id])
                        where t.session = c.session and t.{IS_ACTIVE})
"""


async def forget(conn: Connection, session: int) -> None:
    """Delete the claims of a session that does not live and holds nothing."""
    await conn.execute(_FORGET, session)


_LIVING = """
    select session from mainspring.agent
     where ended_at is null and lease_until > mainspring.now() and session > $1
     order by session limit $2
"""


async def living(conn: Connection, after: int, limit: int) -> list[int]:
    """The next live sessions after `after`."""
    return [row["session"] for row in await conn.fetch(_LIVING, after, limit)]


# An attempt runs by the definition that it was armed with. If it started before its job changed, or so soon after that
# it may have been armed before, its timeout is not known here: it is left to its agent.
_OVERDUE = f"""
    with given as (select * from unnest($2::integer[], $3::integer[], $4::float8[], $5::float8[])
                                as given(job_id, version, timeout, rest))
    select {_COLUMNS}
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = any (array[claimed.id])
      join given on given.job_id = t.job_id
      join mainspring.job j on j.id = any (array[t.job_id]) and j.version = given.version
     where c.session = any ($1::bigint[]) and t.session = c.session and t.state = {RUNNING:d}
       and t.{IS_NOT_DAEMON}                                     -- a daemon has no deadline
       and t.paused_at is null                                  -- a pause stops the time to its deadline
       and t.started_at + coalesce(t.paused_for, interval '0') + make_interval(
               secs => coalesce((t.options->>'timeout')::float8, given.timeout) + given.rest) < mainspring.now()
       and (j.version = 1 or t.started_at > j.updated_at + make_interval(secs => $6))
       and t.started_at >= to_timestamp($7)
     limit $8
       for update of t skip locked
"""


class Deadline(NamedTuple):
    """How long an attempt of a job may be running at most, in seconds."""

    job: int
    version: int
    timeout: float  # of an attempt that has none of its own
    rest: float  # beyond its timeout


async def overdue(
    conn: Connection,
    sessions: Sequence[int],
    deadlines: Sequence[Deadline],
    *,
    settled: float,
    since: float = 0.0,
    limit: int,
) -> list[Held]:
    """The attempts of these sessions past their deadline, whose job had not changed for `settled` seconds at the start.

    Only those that started `since` then: how long an attempt runs that began before a clock jump is not known here.
    """
    jobs, versions, timeouts, rests = zip(*deadlines, strict=True)
    return _each_once(await conn.fetch(_OVERDUE, sessions, jobs, versions, timeouts, rests, settled, since, limit))


def _each_once(rows: Sequence[Any]) -> list[Held]:
    """A task that a session gave back and claimed again is in two of its claims."""
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
    """An attempt that a session must stop: its task no longer belongs to it."""

    session: int
    task: int
    token: int


async def order_stops(conn: Connection, orders: Sequence[Order]) -> None:
    """Have the servers of these sessions stop the attempts; in the transaction that takes the tasks away."""
    if orders:
        await conn.execute(_ORDER, *(list(column) for column in zip(*orders, strict=True)))


async def stop_orders(conn: Connection, sessions: Sequence[int]) -> list[Order]:
    """The attempts that these sessions must stop."""
    rows = await conn.fetch(
        "select session, task_id, token from mainspring.stop_order where session = any($1::bigint[])", sessions
    )
    return [Order(*row) for row in rows]


_SENT = """
    delete from mainspring.stop_order o using unnest($1::bigint[], $2::bigint[]) as sent(session, token)
     where o.session = sent.session and o.token = sent.token
"""


async def stops_sent(conn: Connection, orders: Sequence[Order]) -> None:
    """Delete orders that were sent. Never before: sending one twice is harmless, losing one is not."""
    await conn.execute(_SENT, [order.session for order in orders], [order.token for order in orders])
