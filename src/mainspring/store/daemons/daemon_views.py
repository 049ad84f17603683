"""Daemons as people see them: what is wanted, and what each replica is doing.

Next: cli/daemon_client.py
"""

from __future__ import annotations

from datetime import datetime
from itertools import groupby
from typing import Any

import msgspec

from mainspring.errors import InvalidTransition
from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import schedules
from mainspring.store.schedules.schedules import Stored


class Replica(msgspec.Struct, frozen=True):
    """One replica; `since` is when its present life began, or when the next is to begin."""

    number: int
    task: int
    state: str  # running, starting, waiting (for its next life), restarting, stopping
    agent: str | None
    since: datetime
    restarts: int
    healthy: bool | None
    outdated: bool  # it runs what its job or its schedule was before


class Daemon(msgspec.Struct, frozen=True):
    name: str
    job: str
    enabled: bool
    wanted: int  # replicas; none while it is stopped
    up: int
    replicas: list[Replica]


_DAEMONS = """
    select s.name, j.name as job, s.enabled, s.expression::integer as replicas, t.id, t.scope::integer as number,
           t.state, agent.name as agent, coalesce(t.started_at, t.run_at) as since, coalesce(t.restarts, 0) as restarts,
           t.healthy, t.generation < s.generation as outdated, t.cancel_at, t.cancel_mode,
           j.definition ? 'health' as is_asked
      from mainspring.schedule s
      join mainspring.job j on j.id = s.job_id
      left join mainspring.task t on t.schedule_id = s.id and t.origin = 'daemon'
      left join mainspring.agent on agent.session = t.session
     where s.kind = 'daemon' and s.namespace = 'default' and ($1::text is null or s.name = $1)
     order by s.name, t.scope::integer
"""


async def listing(conn: Connection, name: str | None = None) -> list[Daemon]:
    """All daemons by name, or one."""
    rows = await conn.fetch(_DAEMONS, name)
    return [_daemon(list(group)) for _, group in groupby(rows, key=lambda row: row["name"])]


def _daemon(rows: list[Any]) -> Daemon:
    first = rows[0]

    def is_up(replica: Replica) -> bool:
        """With a health check, it is up once that says so."""
        return bool(replica.healthy) if first["is_asked"] else True

    replicas = [_replica(row) for row in rows if row["id"] is not None]
    return Daemon(
        name=first["name"],
        job=first["job"],
        enabled=first["enabled"],
        wanted=first["replicas"] if first["enabled"] else 0,
        up=sum(replica.state == "running" and is_up(replica) for replica in replicas),
        replicas=replicas,
    )


def _replica(row: Any) -> Replica:
    return Replica(
        number=row["number"],
        task=row["id"],
        state=_state(row),
        agent=row["agent"],
        since=row["since"],
        restarts=row["restarts"],
        healthy=row["healthy"],
        outdated=row["outdated"],
    )


def _state(row: Any) -> str:
    if row["state"] == TaskState.PENDING:
        return "waiting"
    if row["cancel_at"] is not None:
        return "restarting" if row["cancel_mode"] == 3 else "stopping"
    return "running" if row["state"] == TaskState.RUNNING else "starting"


async def exists(conn: Connection, name: str) -> bool:
    there: bool = await conn.fetchval(
        "select exists (select from mainspring.schedule where namespace = 'default' and name = $1)", name
    )
    return there


async def find(conn: Connection, name: str, *, lock: bool = False) -> Stored:
    """The schedule of a daemon; InvalidTransition if it is of another kind."""
    stored = await schedules.find(conn, name, lock=lock)
    if stored.schedule.kind != "daemon":
        raise InvalidTransition(
            f"schedule {name!r} is no daemon but {stored.schedule.kind}; use `mainspring schedule` for it",
            field="daemon",
        )
    return stored
