"""Registry: the agents that live, what they hold, and which of them drain.

Next: store/limits/waits.py
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from mainspring.errors import NotFound
from mainspring.model.tasks.states import IS_ACTIVE, RUNNING
from mainspring.model.tasks.waits import Known
from mainspring.store.postgres.database import Connection

_LIVES = "(a.ended_at is null and a.successor is null and a.lease_until > (select mainspring.now()))"

_LIVING = f"""
    select a.session, a.name, a.slots, a.labels, a.offers, d.name is not null as draining
      from mainspring.agent a left join mainspring.draining d on d.name = a.name
     where {_LIVES}
     order by a.session
"""


def _known(row: Any, due: int = 0, used: dict[str, float] | None = None) -> Known:
    labels = msgspec.json.decode(row["labels"], type=dict[str, str])
    offers = msgspec.json.decode(row["offers"], type=dict[str, float])
    return Known(row["session"], row["name"], row["slots"], labels, offers, row["draining"], due, used or {})


async def living(conn: Connection) -> list[Known]:
    """All agents with a lease, without what they hold."""
    return [_known(row) for row in await conn.fetch(_LIVING)]


async def drained(conn: Connection) -> frozenset[str]:
    """Names of agents that take nothing new, whether they are there or not."""
    return frozenset(row["name"] for row in await conn.fetch("select name from mainspring.draining"))


# A task that came back and was claimed again may be noted twice.
_HELD = f"""
    select t.session, j.definition->'placement'->'needs' as needs,
           count(distinct t.id) as held,
           count(distinct t.id) filter (where t.state = {RUNNING:d} or t.run_at <= mainspring.now()) as due,
           count(distinct t.id) filter (where t.state = {RUNNING:d}) as running
      from mainspring.claim c
     cross join lateral unnest(c.tasks) as claimed(id)
      join mainspring.task t on t.id = claimed.id and t.session = c.session and t.{IS_ACTIVE}
      left join mainspring.job j on j.id = t.job_id
     group by t.session, j.id
"""


class _Load:
    """What one session holds."""

    def __init__(self) -> None:
        self.due = 0
        self.running = 0
        self.held = 0
        self.used: dict[str, float] = {}

    def add(self, row: Any) -> None:
        self.due += row["due"]
        self.running += row["running"]
        self.held += row["held"]
        for name, amount in msgspec.json.decode(row["needs"] or "{}", type=dict[str, float]).items():
            self.used[name] = self.used.get(name, 0.0) + amount * row["held"]


async def _loads(conn: Connection) -> dict[int, _Load]:
    loads: dict[int, _Load] = {}
    for row in await conn.fetch(_HELD):
        loads.setdefault(row["session"], _Load()).add(row)
    return loads


async def loaded(conn: Connection) -> list[Known]:
    """All agents with a lease, with what they hold."""
    loads = await _loads(conn)
    nothing = _Load()
    return [
        _known(row, load.due, load.used)
        for row in await conn.fetch(_LIVING)
        for load in (loads.get(row["session"], nothing),)
    ]


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
    """The agents of this name take nothing new from now on; returns whether that is new."""
    changed = bool(await conn.fetch(_DRAIN, name))
    if not changed and not await conn.fetchval("select exists (select from mainspring.draining where name = $1)", name):
        raise _no_agent(name)
    return changed


async def undrain(conn: Connection, name: str) -> bool:
    """They take tasks again; returns whether they did not."""
    changed = bool(await conn.fetch(_UNDRAIN, name))
    if not changed and not await conn.fetchval("select exists (select from mainspring.agent where name = $1)", name):
        raise _no_agent(name)
    return changed


def _no_agent(name: str) -> NotFound:
    return NotFound(f"no agent named {name!r} has ever been here; `mainspring agents` shows who is", field="agent")


# ── for people ──────────────────────────────────────────────────────────────────────────────────


class AgentView(msgspec.Struct, frozen=True):
    """One session of an agent, as people see it. Shares are 0 to 1; times are seconds, or say so."""

    name: str
    session: int
    status: str  # active, draining, stopped, lost
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
    server: str | None  # that it is, or was, connected to
    server_id: UUID | None


# Those that live; and of each name the last one, if it was here within the hour.
_LISTING = f"""
    select a.*, {_LIVES} as lives, d.since as draining_since, s.name as server_name
      from mainspring.agent a
      left join mainspring.draining d on d.name = a.name
      left join mainspring.server s on s.id = a.server
     where ($1::text is null or a.name = $1)
       and ({_LIVES} or ($1::text is not null or a.lease_until > (select mainspring.now()) - interval '1 hour')
            and not exists (select from mainspring.agent b where b.name = a.name and b.session > a.session))
     order by a.name, a.session
"""

_FIGURES = ("cpu", "memory", "skew", "round_trip", "ack_time", "reliability", "lead")


async def listing(conn: Connection, name: str | None = None) -> list[AgentView]:
    """The agents that live and those that were lost within the hour; or all that is known of one name."""
    loads = await _loads(conn)
    nothing = _Load()
    views = []
    for row in await conn.fetch(_LISTING, name):
        load = loads.get(row["session"], nothing)
        status = _status(row)
        plain = (
            "name",
            "session",
            "slots",
            "draining_since",
            "connected_at",
            "heard_at",
            "lease_until",
            "host",
            "version",
        )
        views.append(
            AgentView(
                status=status,
                holds=load.held,
                running=load.running,
                used=load.used,
                labels=msgspec.json.decode(row["labels"]),
                offers=msgspec.json.decode(row["offers"]),
                server=row["server_name"],
                server_id=row["server"],
                **{field: row[field] for field in (*plain, *_FIGURES)},
            )
        )
    if name is not None and not views:
        raise _no_agent(name)
    return views


def _status(row: Any) -> str:
    if row["lives"]:
        return "active" if row["draining_since"] is None else "draining"
    left = row["ended_at"] is not None and row["ended_at"] < row["lease_until"]  # else the lease came first
    return "stopped" if left else "lost"
