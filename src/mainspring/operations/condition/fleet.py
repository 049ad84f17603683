"""The fleet: list, show, drain and undrain agents; what each of them holds, and all of them at once; their sessions.

Next: store/cluster/registry.py
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.names import check_path_name
from mainspring.operations import pages
from mainspring.operations.pages import Page
from mainspring.operations.parts import reach
from mainspring.store.access import audit
from mainspring.store.cluster import registry
from mainspring.store.cluster.registry import AgentSession, AgentView
from mainspring.store.postgres.connection import Connection


async def listing(
    conn: Connection, actor: Actor, *, cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[AgentView]:
    """The agents with a lease, and those that left or were lost within the hour, by name."""
    filters = {"list": "agents"}
    after = pages.position(cursor, filters, tuple[str, pages.Number])
    found = await registry.listing(conn, after=after, limit=pages.check_limit(limit) + 1)
    return pages.page(found, limit, filters, lambda agent: (agent.name, agent.session))


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
    check_path_name(name, field="agent")
    rows = await registry.armed(conn, name, await reach.job_ids(conn, actor), MOST_ARMED)
    return [ArmedTask(**{**row, "state": TaskState(row["state"]).label}) for row in rows]


EACH = 20
MOST_EACH = 100
MOST_IN_ALL = 4000


class ArmedSoon(msgspec.Struct, frozen=True):
    """A task that waits in an agent for its instant."""

    id: int
    job: str
    run_at: datetime


class ArmedAgent(msgspec.Struct, frozen=True):
    name: str
    armed: int  # tasks that it holds and has not started
    running: int
    tasks: list[ArmedSoon]  # of those that are armed the soonest


class ArmedFleet(msgspec.Struct, frozen=True):
    counted_at: datetime  # by the database's clock
    agents: list[ArmedAgent]  # those that hold anything, by name


async def armed_fleet(conn: Connection, actor: Actor, *, each: int = EACH) -> ArmedFleet:
    """What all agents are armed with, the soonest first; of each agent at most `each`, in all at most 4,000."""
    if not 1 <= each <= MOST_EACH:
        raise ValidationError(f"each: {shown(each)} is not a number of tasks; give 1 to {MOST_EACH}", field="each")
    rows = await registry.all_armed(conn, each, await reach.job_ids(conn, actor), MOST_IN_ALL)
    agents = {row["name"]: ArmedAgent(row["name"], row["armed"], row["running"], []) for row in rows}
    for row in rows:
        if row["is_armed"] and actor.reaches(row["job"]):
            agents[row["name"]].tasks.append(ArmedSoon(row["id"], row["job"], row["run_at"]))
    return ArmedFleet(await conn.fetchval("select mainspring.now()"), [agents[name] for name in sorted(agents)])


async def sessions(
    conn: Connection, actor: Actor, name: str, *, cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[AgentSession]:
    """The sessions of one agent that are kept, the newest first, and how each of them ended."""
    filters = {"list": "agent sessions", "name": check_path_name(name, field="agent")}
    before = pages.position(cursor, filters, pages.Number)
    found = await registry.sessions(conn, name, before=before, limit=pages.check_limit(limit) + 1)
    return pages.page(found, limit, filters, lambda one: one.session)


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
