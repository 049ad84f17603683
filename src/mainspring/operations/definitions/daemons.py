"""Daemons: list, show, put, start, stop, scale, restart, delete. Servers do what is asked for here.

Next: store/daemons/daemons.py
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace as with_fields

from mainspring.errors import NameTaken
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.define_schedule import OF_DAEMONS, define_schedule
from mainspring.model.schedules.edit_schedule import Edit, edited
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.jobs import Definition
from mainspring.model.words.names import check_path_name
from mainspring.operations import pages
from mainspring.operations.definitions import jobs
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name
from mainspring.operations.parts.by_name import check_version
from mainspring.store.access import audit
from mainspring.store.daemons import daemon_views, daemons
from mainspring.store.daemons.daemon_views import Daemon, Replica
from mainspring.store.limits.waits import waits as find_waits
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import Batch
from mainspring.store.schedules import schedules
from mainspring.store.schedules.schedules import Stored
from mainspring.store.tasks import jobs as stored_jobs
from mainspring.store.tasks import tasks

LOOKED_AT = 20  # attempts of a replica, for the error of the last that had one


class DaemonChange(msgspec.Struct, frozen=True):
    daemon: Daemon
    changed: bool
    created: bool = False


async def listing(
    conn: Connection, actor: Actor, *, cursor: str | None = None, limit: int = pages.LIMIT
) -> Page[Daemon]:
    """All daemons by name, each with its replicas."""

    async def read(after: str | None, count: int) -> Batch[Daemon]:
        found = await daemon_views.listing(conn, after=after, limit=count)
        return Batch(found, found[-1].name if len(found) == count else None)

    return await by_name.page(
        read,
        lambda daemon: daemon.name,
        lambda daemon: actor.reaches(daemon.job),
        filters={"list": "daemons"},
        cursor=cursor,
        limit=limit,
    )


async def show(conn: Connection, actor: Actor, name: str) -> Daemon:
    """One daemon; of a replica that is not up it says why, where that is known."""
    found = await _view(conn, actor, name)
    waits = await find_waits(conn, [replica.task for replica in found.replicas])
    replicas = []
    for replica in found.replicas:
        wait = waits.get(replica.task)
        why = f"waits: {wait.reason}" if wait is not None else await _last_error(conn, replica)
        replicas.append(with_fields(replica, why=why))
    return with_fields(found, replicas=replicas)


async def _last_error(conn: Connection, replica: Replica) -> str | None:
    if replica.state != "waiting":
        return None
    tried = await tasks.attempts(conn, replica.task, limit=LOOKED_AT)
    errors = [attempt.error for attempt in tried if attempt.error]
    return f"ended last with: {errors[-1].partition(chr(10))[0]}" if errors else None


async def put(
    conn: Connection,
    actor: Actor,
    name: str,
    definition: Definition,
    *,
    replicas: int = 1,
    restart_delay: float | str | None = None,
    max_restart_delay: float | str | None = None,
    stable: float | str | None = None,
    ready: float | str | None = None,
    enabled: bool | None = None,
    replace: bool = True,
    version: int | None = None,
) -> DaemonChange:
    """Define a job of this name, and keep replicas of it running. A new daemon is started unless `enabled` is false.

    An existing one is changed, its replicas renewed one after another; not without `replace`, and with `version` only
    the one whose schedule has this version.
    """
    given = dict(zip(OF_DAEMONS, (restart_delay, max_restart_delay, stable, ready), strict=True))
    when: Any = {"replicas": replicas, **{option: value for option, value in given.items() if value is not None}}
    schedule = define_schedule(name, name, when, description=definition.description)
    async with conn.transaction():
        is_same = not replace and await _is_defined(conn, name, definition)
        job = await jobs.put(conn, actor, name, definition, replace=replace or is_same)
        if await schedules.listing(conn, names=[name]) and (replace or version is not None):
            stored = await _find(conn, actor, name, lock=True)
            check_version("daemon", name, stored.version, version)
            done = await schedules.change_held(conn, stored, schedule, enabled=enabled)
            await audit.changed(conn, actor, "daemon.change", f"daemon:{name}", stored.defined, done.stored.defined)
            return DaemonChange(await _view(conn, actor, name), job.changed or done.recalled is not None)
        if version is not None:
            raise daemon_views.not_found(name)
        if not await schedules.create(conn, schedule, enabled=enabled is not False):
            raise NameTaken(f"there is a schedule named {name!r}; give the daemon another name", field="name")
        made = await schedules.find(conn, name)
        await audit.changed(conn, actor, "daemon.create", f"daemon:{name}", None, made.defined)
        return DaemonChange(await _view(conn, actor, name), changed=True, created=True)


async def _is_defined(conn: Connection, name: str, definition: Definition) -> bool:
    """Whether there is this very job. A daemon that was deleted leaves its job behind, and may be made again."""
    await stored_jobs.version(conn, name, definition)  # locks it
    job = (await stored_jobs.named(conn, [name])).get(name)
    return job is not None and job.definition == definition


async def delete(conn: Connection, actor: Actor, name: str, *, version: int | None = None) -> None:
    """Stop its replicas and remove it. Its job stays."""
    async with conn.transaction():
        stored = await _find(conn, actor, name, lock=True)
        check_version("daemon", name, stored.version, version)
        await schedules.delete(conn, name)
        await audit.changed(conn, actor, "daemon.delete", f"daemon:{name}", stored.defined, None)


async def start(conn: Connection, actor: Actor, name: str) -> DaemonChange:
    """Let the replicas of a daemon run."""
    return await _change(conn, actor, "daemon.start", name, enabled=True)


async def stop(conn: Connection, actor: Actor, name: str) -> DaemonChange:
    """Stop all replicas, each with its grace."""
    return await _change(conn, actor, "daemon.stop", name, enabled=False)


async def scale(conn: Connection, actor: Actor, name: str, replicas: int) -> DaemonChange:
    """Keep another number of replicas; those that stay are not touched."""
    return await _change(conn, actor, "daemon.scale", name, Edit({"daemon": replicas}))


async def restart(conn: Connection, actor: Actor, name: str) -> DaemonChange:
    """Renew the replicas one after another."""
    async with conn.transaction():
        await daemons.renew(conn, (await _find(conn, actor, name)).id)
        await audit.record(conn, actor, "daemon.restart", f"daemon:{name}")
        return DaemonChange(await _view(conn, actor, name), changed=True)


async def _find(conn: Connection, actor: Actor, name: str, *, lock: bool = False) -> Stored:
    stored = await daemon_views.find(conn, check_path_name(name, field="daemon"), lock=lock)
    if not actor.reaches(stored.schedule.job):
        raise daemon_views.not_found(name)
    return stored


async def _view(conn: Connection, actor: Actor, name: str) -> Daemon:
    await _find(conn, actor, name)
    [found] = await daemon_views.listing(conn, name)
    return found


async def _change(
    conn: Connection, actor: Actor, action: str, name: str, edit: Edit | None = None, *, enabled: bool | None = None
) -> DaemonChange:
    async with conn.transaction():
        stored = await _find(conn, actor, name, lock=True)
        schedule: Schedule = stored.schedule if edit is None else edited(stored.schedule, edit)
        done = await schedules.change_held(conn, stored, schedule, enabled=enabled)
        await audit.changed(conn, actor, action, f"daemon:{name}", stored.defined, done.stored.defined)
        return DaemonChange(await _view(conn, actor, name), done.recalled is not None)
