"""Jobs: list, show, put, edit, delete.

Next: store/tasks/jobs.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mainspring.errors import JobInUse, JobNotFound, StaleVersion
from mainspring.model.access.actors import Actor
from mainspring.model.access.masking import check_unmasked, masked
from mainspring.model.limits.holds import Hold
from mainspring.model.placement.placement import requirements_of
from mainspring.model.tasks.jobs import Definition, Job
from mainspring.model.tasks.read_definition import read_definition
from mainspring.model.tasks.waits import Wait, able_names, why
from mainspring.model.words.globs import covering, like
from mainspring.model.words.merge_patch import merge_patch
from mainspring.model.words.names import check_path_name
from mainspring.operations import pages
from mainspring.operations.definitions.holds import HoldView
from mainspring.operations.definitions.holds import view as hold_view
from mainspring.operations.definitions.secrets import check_references
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name, revealing
from mainspring.operations.parts.by_name import check_version
from mainspring.operations.parts.slices import Slices
from mainspring.store.access import audit
from mainspring.store.cluster import holds, registry
from mainspring.store.figures.last_ended import LastEnded, last_ended
from mainspring.store.figures.stats import live_counts
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import jobs

EDIT_TRIES = 5  # of an edit that others overtake


class AbleAgents(msgspec.Struct, frozen=True):
    """The agents that can run a job, and why none of them would take a task of it now."""

    names: list[str]
    wait: Wait | None


class JobView(msgspec.Struct, frozen=True):
    name: str
    namespace: str
    version: int
    definition: Definition
    live: int | None = None  # tasks that have not ended; None after a change
    agents: AbleAgents | None = None  # None in lists, which have their number
    held: HoldView | None = None  # set also after a release, while what waited is let go
    last_ended: LastEnded | None = None  # None: nothing has ended within the time that figures are kept, 90 days
    able: int | None = None  # agents that can run it, now or once others have ended; None after a change
    app: str | None = None  # the application whose code defines it
    manifest: str | None = None  # the set of manifests that owns it
    live_is_estimated: bool = False  # `live` is from a sample of the tasks


class JobChange(msgspec.Struct, frozen=True):
    job: JobView
    changed: bool
    created: bool


async def listing(
    conn: Connection, actor: Actor, *, name: Sequence[str] = (), cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[JobView]:
    """Jobs by name, all or those that match a pattern with `*`. A name without it that does not exist is an error."""
    for one in name:
        if "*" not in one:
            await find(conn, actor, one)
    patterns = like(name, field="name") or covering(actor.jobs)
    found = await by_name.page(
        lambda after, count: jobs.listing(conn, like=patterns, after=after, limit=count),
        lambda job: job.name,
        lambda job: actor.reaches(job.name),
        filters={"list": "jobs", "name": list(name)},
        cursor=cursor,
        limit=limit,
    )
    live = await live_counts(conn, [job.id for job in found.items])
    held = (await holds.load(conn)).jobs
    last = await last_ended(conn, [job.id for job in found.items])
    agents = await registry.loaded(conn)
    able = dict[int, int]()  # by pool: its jobs require the same
    slices, shown = Slices(), list[JobView]()
    for job in found.items:
        if job.pool not in able:
            able[job.pool] = len(able_names(requirements_of(job.definition), agents))
        shown.append(_view(job, live=live, held=held.get(job.id), last=last.get(job.id), able=able[job.pool]))
        await slices.rest()  # masking a definition takes up to a tenth of a millisecond
    return Page(shown, found.next)


async def show(conn: Connection, actor: Actor, name: str, *, reveal: bool = False) -> JobView:
    """One job, with the agents that can run it.

    Secrets are masked, unless an admin wants to see them: that is audited.
    """
    job = await find(conn, actor, name)
    if reveal:
        await revealing.reveal(conn, actor, "job", f"job:{name}", {"version": job.version})
    live = await live_counts(conn, [job.id])
    requirements, agents = requirements_of(job.definition), await registry.loaded(conn)
    able = AbleAgents(able_names(requirements, agents), why(requirements, agents))
    held = await holds.of_job(conn, job.id)
    last = (await last_ended(conn, [job.id])).get(job.id)
    return _view(job, live=live, agents=able, held=held, last=last, able=len(able.names), reveal=reveal)


async def put(
    conn: Connection,
    actor: Actor,
    name: str,
    definition: Definition,
    *,
    replace: bool = True,
    version: int | None = None,
) -> JobChange:
    """Create a job, or give it this definition.

    With `version`, only the job that has this version is changed; without `replace`, none is.
    """
    check_reached(actor, check_path_name(name, field="name"))
    check_unmasked(definition)

    async def note(before: Mapping[str, Any]) -> None:
        action = "job.change" if name in before else "job.create"
        await audit.changed(conn, actor, action, f"job:{name}", before.get(name), definition)

    async with conn.transaction():
        await check_references(conn, definition)
        present = await jobs.version(conn, name, definition)
        if version is not None:
            check_version("job", name, (await jobs.find(conn, name)).version if present is None else present, version)
        changed = await jobs.create(conn, name, definition, replace=replace, note=note)
        job = await jobs.find(conn, name)
    if changed and definition.gate is not None:
        await jobs.mark_gates(conn, [name])  # once more: a submission may not have seen the limits before the commit
    return JobChange(_view(job), changed, created=changed and job.version == 1)


async def edit(
    conn: Connection, actor: Actor, name: str, change: dict[str, Any], *, version: int | None = None
) -> JobChange:
    """Apply a JSON merge patch (RFC 7396) to the definition of a job."""
    for tries_left in range(EDIT_TRIES, 0, -1):
        job = await find(conn, actor, name)
        check_version("job", name, job.version, version)
        definition = read_definition(merge_patch(msgspec.to_builtins(job.definition), change))
        try:
            return await put(conn, actor, name, definition, version=job.version)
        except StaleVersion:
            if version is not None or tries_left == 1:
                raise
    raise AssertionError("the last try returns or raises")


async def delete(conn: Connection, actor: Actor, name: str, *, version: int | None = None) -> None:
    """Remove a job. JobInUse if a schedule or a live task uses it; its details say how many."""
    check_reached(actor, check_path_name(name, field="job"))
    async with conn.transaction():
        job = await jobs.hold(conn, name)
        check_version("job", name, job.version, version)
        uses = await jobs.uses(conn, job)
        counts = {"schedules": uses.schedules, "tasks": uses.tasks}
        if uses.schedule is not None:
            raise JobInUse(f"{name!r} has a schedule, {uses.schedule!r}; delete that first", field="job", **counts)
        if not await jobs.delete(conn, name):
            message = f"{name!r} has tasks that have not ended; wait for them, or cancel them"
            raise JobInUse(message, field="job", **counts)
        await audit.changed(conn, actor, "job.delete", f"job:{name}", job.definition, None)


async def find(conn: Connection, actor: Actor, name: str) -> Job:
    """The job, if the actor reaches it; else it is not found."""
    check_reached(actor, check_path_name(name, field="job"))
    return await jobs.find(conn, name)


def check_reached(actor: Actor, name: str) -> None:
    """To an actor that does not reach it, a job does not exist."""
    if not actor.reaches(name):
        raise JobNotFound(f"no job named {name!r}; `mainspring job list` shows what there is", field="job")


def _view(
    job: Job,
    *,
    live: tuple[Counter[int], bool] | None = None,
    agents: AbleAgents | None = None,
    held: Hold | None = None,
    last: LastEnded | None = None,
    able: int | None = None,
    reveal: bool = False,
) -> JobView:
    """The one place where jobs become visible."""
    definition = job.definition if reveal else masked(job.definition)
    hold = None if held is None else hold_view(held, job.name)
    owners = (job.app or job.definition.requires.get("app"), job.manifest)
    count, is_estimated = (None, False) if live is None else (live[0][job.id], live[1])
    return JobView(
        job.name, job.namespace, job.version, definition, count, agents, hold, last, able, *owners, is_estimated
    )
