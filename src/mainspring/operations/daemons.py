"""Daemons: list, show, create, start, stop, scale, restart, delete. Servers do what is asked for here.

Next: store/daemons/daemons.py
"""

from __future__ import annotations

from collections.abc import Callable

from mainspring.errors import NameTaken
from mainspring.model.access.actors import Actor
from mainspring.model.access.masking import check_unmasked
from mainspring.model.schedules.edit_schedule import Edit, edited
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.jobs import Definition
from mainspring.model.words.names import check_name
from mainspring.store.access import audit
from mainspring.store.daemons import daemon_views, daemons
from mainspring.store.daemons.daemon_views import Daemon
from mainspring.store.limits.waits import waits as find_waits
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import schedules
from mainspring.store.schedules.schedules import Stored
from mainspring.store.tasks import jobs, tasks


async def listing(conn: Connection, actor: Actor) -> list[Daemon]:
    return await daemon_views.listing(conn)


async def show(conn: Connection, actor: Actor, name: str) -> Daemon:
    await _find(conn, name)
    [found] = await daemon_views.listing(conn, name)
    return found


async def why_not_up(conn: Connection, actor: Actor, daemon: Daemon) -> dict[int, str]:
    """Replica number → why it is not up, where that is known."""
    waits = await find_waits(conn, [replica.task for replica in daemon.replicas])
    reasons = {}
    for replica in daemon.replicas:
        if (wait := waits.get(replica.task)) is not None:
            reasons[replica.number] = f"waits: {wait.reason}"
        elif replica.state == "waiting":
            errors = [attempt.error for attempt in await tasks.attempts(conn, replica.task) if attempt.error]
            if errors:
                reasons[replica.number] = f"ended last with: {errors[-1].partition(chr(10))[0]}"
    return reasons


async def create(
    conn: Connection,
    actor: Actor,
    definition: Definition,
    schedule: Schedule,
    *,
    enabled: bool = True,
    replace: bool = False,
) -> None:
    """With `replace`, an existing daemon is changed: its replicas are renewed one after another."""
    check_unmasked(definition)
    async with conn.transaction():
        await jobs.create(conn, schedule.job, definition, replace=replace)
        if replace and await daemon_views.exists(conn, schedule.name):
            stored = await _find(conn, schedule.name, lock=True)
            await schedules.change_held(conn, stored, schedule, enabled=enabled)
        elif not await schedules.create(conn, schedule, enabled=enabled):
            raise NameTaken(f"there is a schedule named {schedule.name!r}; give the daemon another name", field="name")
        detail = {"definition": definition, "schedule": schedule, "enabled": enabled}
        await audit.record(conn, actor, "daemon.create", f"daemon:{schedule.name}", detail)


async def delete(conn: Connection, actor: Actor, name: str) -> None:
    """Stop its replicas and remove it. Its job stays."""
    async with conn.transaction():
        await _find(conn, name)
        await schedules.delete(conn, name)
        await audit.record(conn, actor, "daemon.delete", f"daemon:{name}")


async def start(conn: Connection, actor: Actor, name: str) -> bool:
    """Returns whether that changed anything."""
    return await _change(conn, actor, "daemon.start", name, lambda schedule: schedule, enabled=True)


async def stop(conn: Connection, actor: Actor, name: str) -> bool:
    """Returns whether that changed anything."""
    return await _change(conn, actor, "daemon.stop", name, lambda schedule: schedule, enabled=False)


async def scale(conn: Connection, actor: Actor, name: str, replicas: int) -> bool:
    """Returns whether that changed anything."""
    edit = Edit({"daemon": replicas})
    return await _change(conn, actor, "daemon.scale", name, lambda schedule: edited(schedule, edit))


async def restart(conn: Connection, actor: Actor, name: str) -> None:
    """Renew the replicas one after another."""
    async with conn.transaction():
        await daemons.renew(conn, (await _find(conn, name)).id)
        await audit.record(conn, actor, "daemon.restart", f"daemon:{name}")


async def _find(conn: Connection, name: str, *, lock: bool = False) -> Stored:
    return await daemon_views.find(conn, check_name(name, field="daemon"), lock=lock)


async def _change(
    conn: Connection,
    actor: Actor,
    action: str,
    name: str,
    edit: Callable[[Schedule], Schedule],
    *,
    enabled: bool | None = None,
) -> bool:
    async with conn.transaction():
        stored = await _find(conn, name, lock=True)
        changed = await schedules.change_held(conn, stored, edit(stored.schedule), enabled=enabled)
        await audit.changed(conn, actor, action, f"daemon:{name}", stored.defined, changed.stored.defined)
    return changed.recalled is not None
