"""Jobs: list, show, create, delete; which agents can run one.

Next: store/tasks/jobs.py
"""

from __future__ import annotations

import msgspec

from mainspring.errors import JobInUse
from mainspring.model.access.actors import Actor
from mainspring.model.placement.placement import requirements_of
from mainspring.model.tasks.jobs import Definition
from mainspring.model.tasks.waits import Wait, able_names, why
from mainspring.model.words.names import check_name
from mainspring.store.cluster import registry
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import jobs


class JobView(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    version: int
    definition: Definition
    live: int | None = None  # tasks that have not ended; None where they were not counted


class AbleAgents(msgspec.Struct, frozen=True):
    """The agents that can run a job, and why none of them would take a task of it now."""

    names: list[str]
    wait: Wait | None


async def listing(conn: Connection, actor: Actor) -> list[JobView]:
    return [JobView(job.name, job.version, job.definition, live) for job, live in await jobs.listing(conn)]


async def show(conn: Connection, actor: Actor, name: str) -> JobView:
    job = await jobs.find(conn, check_name(name, field="job"))
    return JobView(job.name, job.version, job.definition)


async def able_agents(conn: Connection, actor: Actor, definition: Definition) -> AbleAgents:
    requirements, agents = requirements_of(definition), await registry.loaded(conn)
    return AbleAgents(able_names(requirements, agents), why(requirements, agents))


async def create(conn: Connection, actor: Actor, name: str, definition: Definition, *, replace: bool = False) -> bool:
    """Returns whether anything changed. Conflict if another job has this name, unless `replace` is given.

    Not one transaction: where limits are new, the store moves the waiting tasks behind them in parts, each committed.
    """
    return await jobs.create(conn, check_name(name, field="name"), definition, replace=replace)


async def delete(conn: Connection, actor: Actor, name: str) -> None:
    """Conflict if a schedule or a live task uses the job."""
    if not await jobs.delete(conn, check_name(name, field="job")):
        raise JobInUse(f"{name!r} has tasks that have not ended; wait for them, or cancel them", field="job")
