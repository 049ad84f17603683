"""Daemon views: daemons as people see them, with the state of each replica.

Reads   mainspring.schedule, mainspring.task
"""

from __future__ import annotations

from datetime import datetime
from itertools import groupby
from typing import Any

import msgspec

from mainspring.errors import InvalidTransition, ScheduleNotFound
from mainspring.model.tasks.states import PENDING, RUNNING, CancelMode
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import readable, views
from mainspring.store.schedules import schedules
from mainspring.store.schedules.schedules import Stored


class Replica(msgspec.Struct, frozen=True):
    """One replica; `since` is when its attempt started, or when the next one is due."""

    number: int
    task: int
    state: str  # running, starting, waiting (for its next attempt), restarting, stopping
    agent: str | None
    since: datetime
    restarts: int
    healthy: bool | None
    outdated: bool  # its job or schedule has changed since it started
    why: str | None = None  # it is not up, where that is known and was looked for


class Daemon(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    version: int  # of its schedule
    job: str
    enabled: bool
    wanted: int  # replicas; 0 while it is stopped
    up: int
    replicas: list[Replica]


_DAEMONS = """
    select s.name, s.version, j.name as job, s.enabled, s.expression::integer as replicas, t.id as task,
           t.scope::integer as number, t.state, agent.name as agent, coalesce(t.started_at, t.run_at) as since,
           coalesce(t.restarts, 0) as restarts, t.healthy, t.generation < s.generation as outdated, t.cancel_at,
           t.cancel_mode, j.definition ? 'health' as is_checked
      from mainspring.schedule s
      join mainspring.job j on j.id = s.job_id
      left join mainspring.task t on t.schedule_id = s.id and t.origin = 'daemon'
      left join mainspring.agent on agent.session = t.session
     where s.kind = 'daemon' and s.namespace = 'default' and ($1::text is null or s.name = $1)
       and s.id = any (array(
           select d.id from mainspring.schedule d
            where d.kind = 'daemon' and d.namespace = 'default' and ($2::text is null or d.name > $2)
            order by d.name limit $3))
     order by s.name, t.scope::integer
"""


async def listing(
    conn: Connection, name: str | None = None, *, after: str | None = None, limit: int = 1_000_000
) -> list[Daemon]:
    """All daemons by name, those behind a name, or one."""
    rows = await readable(conn, _DAEMONS, name, after, limit)
    return [_daemon(list(group)) for _, group in groupby(rows, key=lambda row: row["name"])]


def _daemon(rows: list[Any]) -> Daemon:
    first = rows[0]

    def is_up(replica: Replica) -> bool:
        """With a health check, it is up once that succeeds."""
        return bool(replica.healthy) if first["is_checked"] else True

    replicas = views(Replica, [{**row, "state": _state(row)} for row in rows if row["task"] is not None])
    return Daemon(
        name=first["name"],
        namespace="default",
        version=first["version"],
        job=first["job"],
        enabled=first["enabled"],
        wanted=first["replicas"] if first["enabled"] else 0,
        up=sum(replica.state == "running" and is_up(replica) for replica in replicas),
        replicas=replicas,
    )


def _state(row: Any) -> str:
    if row["state"] == PENDING:
        return "waiting"
    if row["cancel_at"] is not None:
        return "restarting" if row["cancel_mode"] == CancelMode.RESTART else "stopping"
    return "running" if row["state"] == RUNNING else "starting"


async def find(conn: Connection, name: str, *, lock: bool = False) -> Stored:
    """The schedule of a daemon; InvalidTransition if it is of another kind."""
    try:
        stored = await schedules.find(conn, name, lock=lock)
    except ScheduleNotFound:
        raise not_found(name) from None
    if stored.schedule.kind != "daemon":
        raise InvalidTransition(
            f"schedule {name!r} is no daemon but {stored.schedule.kind}; use `mainspring schedule` for it",
            field="daemon",
        )
    return stored


def not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no daemon named {name!r}; `mainspring daemon list` shows them", field="daemon")
