"""Holds: nothing new of a job, or of any job, is dispatched until it is released; what runs goes on.

Next: store/cluster/holds.py
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from mainspring.errors import JobNotFound
from mainspring.model.access.actors import Actor
from mainspring.model.limits.holds import Hold
from mainspring.model.words.names import check_note, check_path_name
from mainspring.operations.parts import reach
from mainspring.store.access import audit
from mainspring.store.cluster import holds
from mainspring.store.postgres.connection import Connection
from mainspring.store.tasks import jobs


class HoldView(msgspec.Struct, frozen=True):
    job: str | None  # None: everything
    since: datetime
    by: str
    note: str | None
    skip: bool  # plan times are decided as paused meanwhile
    released_at: datetime | None  # None: it is in force
    spread_until: datetime | None  # after a release: until when what waited is let go


class HoldsView(msgspec.Struct, frozen=True):
    """All holds, and those that were released and of which tasks still wait."""

    everything: HoldView | None
    jobs: list[HoldView]


class HoldChange(msgspec.Struct, frozen=True):
    hold: HoldView | None  # None: there was nothing to release
    changed: bool
    armed: int  # tasks that agents had not started yet: a hold recalls them
    running: int  # tasks that run, and keep running
    waiting: int | None  # of a release: tasks that are let go


async def hold_job(
    conn: Connection, actor: Actor, name: str, *, note: str | None = None, skip: bool = False
) -> HoldChange:
    """Dispatch nothing new of a job until it is released. What runs goes on, and what agents have not started is
    recalled. Its plan times are decided as ever, and their tasks wait; with `skip` they are decided as paused.

    Nothing of the job is given to an agent from now on.
    """
    return await _hold(conn, actor, _reached(actor, name), note, skip)


async def hold(conn: Connection, actor: Actor, *, note: str | None = None, skip: bool = False) -> HoldChange:
    """The same for everything."""
    reach.check_all(actor, "a hold is one")
    return await _hold(conn, actor, None, note, skip)


async def release_job(
    conn: Connection, actor: Actor, name: str, *, note: str | None = None, at_once: bool = False
) -> HoldChange:
    """Let the tasks of a job go on: what waits is spread over a minute, unless it is to start at once.

    `note` says why, in the audit.
    """
    return await _release(conn, actor, _reached(actor, name), note, at_once)


async def release(conn: Connection, actor: Actor, *, note: str | None = None, at_once: bool = False) -> HoldChange:
    """Let everything go on. Jobs that are held themselves stay so."""
    reach.check_all(actor, "a hold is one")
    return await _release(conn, actor, None, note, at_once)


async def show(conn: Connection, actor: Actor) -> HoldsView:
    """What is held, by whom and why."""
    found = await holds.load(conn)
    names = await jobs.names(conn, list(found.jobs)) if found.jobs else {}
    shown = [view(one, name) for id, one in found.jobs.items() if actor.reaches(name := names.get(id, ""))]
    everything = None if found.everything is None else view(found.everything, None)
    return HoldsView(everything, sorted(shown, key=lambda one: one.job or ""))


def view(hold: Hold, job: str | None) -> HoldView:
    return HoldView(job, hold.held_at, hold.held_by, hold.note, hold.skips, hold.released_at, hold.spread_until)


def _reached(actor: Actor, name: str) -> str:
    if not actor.reaches(check_path_name(name, field="job")):
        raise _no_job(name)
    return name


def _no_job(name: str) -> JobNotFound:
    return JobNotFound(f"no job named {name!r}; `mainspring job list` shows what there is", field="job")


async def _lock(conn: Connection, name: str | None) -> int | None:
    id = await holds.lock(conn, name)
    if id is None and name is not None:
        raise _no_job(name)
    return id


async def _hold(conn: Connection, actor: Actor, name: str | None, note: str | None, skip: bool) -> HoldChange:
    if note is not None:
        check_note(note)
    async with conn.transaction():
        job = await _lock(conn, name)
        before = await holds.of_job(conn, job)
        await holds.hold(conn, job, by=actor.name, note=note, skips=skip)
        if name is not None:
            await jobs.mark_gates(conn, [name])
        after = await holds.of_job(conn, job)
        armed, running = await holds.with_agents(conn, job)
        await audit.changed(conn, actor, *_subject("hold", name), _audited(before), _audited(after))
    if name is not None:
        await jobs.mark_gates(conn, [name])  # once more: a submission may not have seen the hold before the commit
    changed = before is None or not before.is_in_force
    return HoldChange(None if after is None else view(after, name), changed, armed, running, None)


async def _release(conn: Connection, actor: Actor, name: str | None, note: str | None, at_once: bool) -> HoldChange:
    said = {} if note is None else {"release_note": check_note(note)}
    async with conn.transaction():
        job = await _lock(conn, name)
        before = await holds.of_job(conn, job)
        if before is None or not (before.is_in_force or at_once):
            return HoldChange(None if before is None else view(before, name), False, 0, 0, None)
        waiting = await holds.release(conn, job, at_once=at_once)
        after = await holds.of_job(conn, job)
        await audit.changed(conn, actor, *_subject("release", name), _audited(before), (_audited(after) or {}) | said)
    return HoldChange(None if after is None else view(after, name), before.is_in_force, 0, 0, waiting)


def _subject(verb: str, name: str | None) -> tuple[str, str]:
    return (f"cluster.{verb}", "everything") if name is None else (f"job.{verb}", f"job:{name}")


def _audited(hold: Hold | None) -> dict[str, object] | None:
    if hold is None:
        return None
    return {
        "held": hold.is_in_force,
        "note": hold.note,
        "skip": hold.skips,
        "spread_until": hold.spread_until,
    }
