"""The fleet: list, show, drain and undrain agents; what each of them holds.

Next: store/cluster/registry.py
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from mainspring.model.access.actors import Actor
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.names import check_path_name
from mainspring.operations.parts import reach
from mainspring.store.access import audit
from mainspring.store.cluster import registry
from mainspring.store.cluster.registry import AgentView
from mainspring.store.postgres.connection import Connection


async def listing(conn: Connection, actor: Actor) -> list[AgentView]:
    """The agents with a lease, and those that left or were lost within the hour."""
    return await registry.listing(conn)


async def show(conn: Connection, actor: Actor, name: str) -> list[AgentView]:
    """The sessions of one agent, the latest last."""
    return await registry.listing(conn, check_path_name(name, field="agent"))


MOST_ARMED = 500


class ArmedTask(msgspec.Struct, frozen=True):
    """A task that an agent holds: armed for its instant, or running."""

    id: int
    job: str
    run_at: datetime
    state: str
    started_at: datetime | None


async def armed(conn: Connection, actor: Actor, name: str) -> list[ArmedTask]:
    """What an agent holds, the soonest first; at most 500."""
    rows = await registry.armed(conn, check_path_name(name, field="agent"), MOST_ARMED)
    found = (ArmedTask(**{**row, "state": TaskState(row["state"]).label}) for row in rows)
    return [task for task in found if actor.reaches(task.job)]


class AgentChange(msgspec.Struct, frozen=True):
    name: str
    status: str  # draining, or active
    changed: bool


async def drain(conn: Connection, actor: Actor, name: str) -> AgentChange:
    """Give an agent no new tasks; what it runs goes on."""
    reach.check_all(actor, "an agent runs tasks")
    async with conn.transaction():
        if changed := await registry.drain(conn, check_path_name(name, field="agent")):
            await audit.record(conn, actor, "agent.drain", f"agent:{name}")
    return AgentChange(name, "draining", changed)


async def undrain(conn: Connection, actor: Actor, name: str) -> AgentChange:
    """Give an agent tasks again."""
    reach.check_all(actor, "an agent runs tasks")
    async with conn.transaction():
        if changed := await registry.undrain(conn, check_path_name(name, field="agent")):
            await audit.record(conn, actor, "agent.undrain", f"agent:{name}")
    return AgentChange(name, "active", changed)
