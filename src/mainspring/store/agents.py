"""Agent sessions and their leases: one row per session, however many tasks it holds.

Next: server/rescuer.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mainspring.store.database import Connection

_BEGIN = """
    insert into mainspring.agent (name, slots, labels, process, lease_until)
    values ($1, $2, $3, $4, mainspring.now() + make_interval(secs => $5))
    returning session
"""


async def begin(
    conn: Connection, name: str, slots: int, labels: dict[str, str], process: str | None, lease: float
) -> int:
    """Open a session; returns its number."""
    labels_json = msgspec.json.encode(labels).decode()
    return int(await conn.fetchval(_BEGIN, name, slots, labels_json, process, lease))


_RENEW = """
    update mainspring.agent
       set lease_until = mainspring.now() + make_interval(secs => $2)
     where session = any($1::bigint[]) and ended_at is null and lease_until > mainspring.now()
    returning session
"""


async def renew(conn: Connection, sessions: Sequence[int], lease: float) -> set[int]:
    """Renew leases; returns the sessions that still live. A lease that is over is never renewed."""
    return {row["session"] for row in await conn.fetch(_RENEW, sessions, lease)}


async def end(conn: Connection, sessions: Sequence[int]) -> None:
    """Their leases are over now: what they hold can be rescued."""
    await conn.execute(
        "update mainspring.agent set lease_until = mainspring.now() where session = any($1::bigint[])",
        sessions,
    )


class Held(NamedTuple):
    """A task that a gone session holds."""

    task: int
    token: int
    job_id: int
    attempt: int
    crashes: int
    running: bool
    cancelled: bool
    recalled: bool  # asked back, and never started
    started_at: float


_LIVING = """
    select session, process from mainspring.agent
     where ended_at is null and lease_until > mainspring.now() and process is not null
"""


async def neighbours(conn: Connection) -> list[tuple[int, str]]:
    """Sessions with a lease, and the processes that run them."""
    return [(row["session"], row["process"]) for row in await conn.fetch(_LIVING)]


async def any_lives(conn: Connection) -> bool:
    """Whether anybody is there to run tasks."""
    lives: bool = await conn.fetchval(
        "select exists (select from mainspring.agent where ended_at is null and lease_until > mainspring.now())"
    )
    return lives


# A server that does not know yet that a session is over may claim for it even after the burial.
_GONE = """
    (select session from mainspring.agent
      where ended_at is null and lease_until <= mainspring.now()
      order by lease_until limit 20)
     union all
    (select session from mainspring.agent
      where ended_at is not null and session in (select session from mainspring.claim) limit 20)
"""

_HELD = """
    select t.id, t.token, t.job_id, t.attempt, t.crashes, t.state = 3 as running,
           (t.cancel_at is not null and coalesce(t.cancel_mode, 0) not in (1, 3)) as cancelled,
           (t.cancel_at is not null and t.cancel_mode = 1 and t.state = 2) as recalled,
           coalesce(date_part('epoch', t.started_at), 0) as started_at
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = claimed.id
     where c.session = $1 and t.session = $1 and t.state in (2, 3)
     limit $2
"""


async def gone(conn: Connection) -> list[int]:
    """Sessions whose lease is over and whose tasks are not all rescued yet."""
    return [row["session"] for row in await conn.fetch(_GONE)]


async def held(conn: Connection, session: int, limit: int) -> list[Held]:
    """What a session holds, by what it has claimed."""
    return [Held(*row) for row in await conn.fetch(_HELD, session, limit)]


_BURY = """
    with buried as (
        update mainspring.agent set ended_at = coalesce(ended_at, mainspring.now())
         where session = $1 and lease_until <= mainspring.now() returning session
    )
    delete from mainspring.claim c using buried
     where c.session = buried.session
       and not exists (select from unnest(c.tasks) as claimed(id)
                         join mainspring.task t on t.id = any (array[claimed.id])
                        where t.session = c.session and t.state in (2, 3))
"""


async def bury(conn: Connection, session: int) -> None:
    """The session is over and holds nothing: nobody needs to look at it again."""
    await conn.execute(_BURY, session)


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
