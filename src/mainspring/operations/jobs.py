"""Jobs: list, show, create, delete; which agents can run one.

Next: store/tasks/jobs.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from mainspring.errors import Forbidden, JobInUse
from mainspring.model.access.actors import Actor, Role
from mainspring.model.access.masking import check_unmasked, masked
from mainspring.model.placement.placement import requirements_of
from mainspring.model.tasks.jobs import Definition
from mainspring.model.tasks.waits import Wait, able_names, why
from mainspring.model.words.names import check_name
from mainspring.store.access import audit
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
    """With secrets masked."""
    return [JobView(job.name, job.version, masked(job.definition), live) for job, live in await jobs.listing(conn)]


async def show(conn: Connection, actor: Actor, name: str, *, reveal: bool = False) -> JobView:
    """With secrets masked, unless an admin wants to see them: that is audited."""
    check_name(name, field="job")
    if not reveal:
        job = await jobs.find(conn, name)
        return JobView(job.name, job.version, masked(job.definition))
    if actor.role is not Role.ADMIN:
        raise Forbidden(f"{actor.name} is {actor.role}; to reveal the secrets of a job takes the role admin")
    async with conn.transaction():
        job = await jobs.find(conn, name)
        await audit.record(conn, actor, "job.reveal", f"job:{name}", {"version": job.version})
    return JobView(job.name, job.version, job.definition)


async def able_agents(conn: Connection, actor: Actor, definition: Definition) -> AbleAgents:
    requirements, agents = requirements_of(definition), await registry.loaded(conn)
    return AbleAgents(able_names(requirements, agents), why(requirements, agents))


async def create(conn: Connection, actor: Actor, name: str, definition: Definition, *, replace: bool = False) -> bool:
    """Returns whether anything changed. Conflict if another job has this name, unless `replace` is given.

    Not one transaction: where limits are new, the store moves the waiting tasks behind them in parts, each committed.
    The audit's row is written in the transaction that changes the definition.
    """
    check_name(name, field="name")
    check_unmasked(definition)

    async def note(before: Mapping[str, Any]) -> None:
        action = "job.change" if name in before else "job.create"
        await audit.changed(conn, actor, action, f"job:{name}", before.get(name), definition)

    return await jobs.create(conn, name, definition, replace=replace, note=note)


async def delete(conn: Connection, actor: Actor, name: str) -> None:
    """Conflict if a schedule or a live task uses the job."""
    async with conn.transaction():
        job = await jobs.find(conn, check_name(name, field="job"))
        if not await jobs.delete(conn, name):
            raise JobInUse(f"{name!r} has tasks that have not ended; wait for them, or cancel them", field="job")
        await audit.changed(conn, actor, "job.delete", f"job:{name}", job.definition, None)
