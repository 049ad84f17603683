"""What the commands about daemons ask for, and its implementation straight on the database.

Uses   store.daemon_views, store.daemons, store.schedules
Next:  cli/fleet/daemons.py
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from mainspring.errors import Conflict
from mainspring.model.schedules.edit_schedule import Edit, edited
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.jobs import Definition
from mainspring.model.words.names import check_name
from mainspring.store.daemons import daemon_views, daemons
from mainspring.store.daemons.daemon_views import Daemon
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import schedules
from mainspring.store.tasks import jobs


class Daemons(Protocol):
    """What the commands need to know and do about daemons."""

    async def listing(self) -> list[Daemon]: ...
    async def show(self, name: str) -> Daemon: ...
    async def create(self, definition: Definition, schedule: Schedule, *, enabled: bool, replace: bool) -> None:
        """With `replace`, one that is there is changed: its replicas are renewed one after another."""

    async def delete(self, name: str) -> None:
        """Its replicas are told to stop; its job stays until it can go."""

    async def enable(self, name: str, enabled: bool) -> bool:
        """Returns whether that changed anything."""

    async def scale(self, name: str, replicas: int) -> bool: ...
    async def restart(self, name: str) -> None: ...


class DatabaseDaemons:
    """On the database itself: a server does what is asked for here."""

    def __init__(self, conn: Callable[[], AbstractAsyncContextManager[Connection]]) -> None:
        self._conn = conn

    async def listing(self) -> list[Daemon]:
        async with self._conn() as conn:
            return await daemon_views.listing(conn)

    async def show(self, name: str) -> Daemon:
        check_name(name, field="daemon")
        async with self._conn() as conn:
            await daemon_views.find(conn, name)
            [found] = await daemon_views.listing(conn, name)
            return found

    async def create(self, definition: Definition, schedule: Schedule, *, enabled: bool, replace: bool) -> None:
        async with self._conn() as conn, conn.transaction():  # both, or nothing
            await jobs.create(conn, schedule.job, definition, replace=replace)
            if replace and await daemon_views.exists(conn, schedule.name):
                stored = await daemon_views.find(conn, schedule.name, lock=True)
                await schedules.change_held(conn, stored, schedule, enabled=enabled)
                return
            if not await schedules.create(conn, schedule, enabled=enabled):
                raise Conflict(
                    f"there is a schedule named {schedule.name!r}; give the daemon another name", field="name"
                )

    async def delete(self, name: str) -> None:
        check_name(name, field="daemon")
        async with self._conn() as conn:
            await daemon_views.find(conn, name)
            await schedules.delete(conn, name)

    async def enable(self, name: str, enabled: bool) -> bool:
        return await self._change(name, lambda schedule: schedule, enabled=enabled)

    async def scale(self, name: str, replicas: int) -> bool:
        return await self._change(name, lambda schedule: edited(schedule, Edit({"daemon": replicas})))

    async def _change(self, name: str, edit: Callable[[Schedule], Schedule], *, enabled: bool | None = None) -> bool:
        check_name(name, field="daemon")
        async with self._conn() as conn, conn.transaction():
            stored = await daemon_views.find(conn, name, lock=True)
            changed = await schedules.change_held(conn, stored, edit(stored.schedule), enabled=enabled)
        return changed.recalled is not None

    async def restart(self, name: str) -> None:
        check_name(name, field="daemon")
        async with self._conn() as conn:
            await daemons.renew(conn, (await daemon_views.find(conn, name)).id)
