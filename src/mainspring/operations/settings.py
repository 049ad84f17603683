"""Settings of the whole cluster that can be changed while it runs.

Next: store/cluster/settings.py
"""

from __future__ import annotations

import msgspec

from mainspring.errors import StaleVersion
from mainspring.model.access.actors import Actor
from mainspring.model.placement.define_placement import check_strategy
from mainspring.operations.parts import reach
from mainspring.store.access import audit
from mainspring.store.cluster import settings
from mainspring.store.postgres.connection import Connection


class SettingsView(msgspec.Struct, frozen=True):
    placement: str | None  # the strategy of jobs that name none; null: that of each server's own settings
    version: int  # counts the changes


async def show(conn: Connection, actor: Actor) -> SettingsView:
    """The settings in force."""
    return SettingsView(await settings.stored_strategy(conn), await settings.version(conn))


async def edit(
    conn: Connection, actor: Actor, *, placement: str | None = None, version: int | None = None
) -> SettingsView:
    """Change settings that are read at run time; what is not given stays."""
    reach.check_all(actor, "settings are those")
    if placement is not None:
        check_strategy(placement, field="placement")
    async with conn.transaction():
        await settings.lock(conn)
        present = await settings.version(conn)
        if version is not None and version != present:
            raise StaleVersion(
                f"settings: changed since they were read; they are at version {present} now", version=present
            )
        before = await show(conn, actor)
        if placement is not None and placement != before.placement:
            await settings.put_strategy(conn, placement)
        after = await show(conn, actor)
        old, new = ({"placement": one.placement} for one in (before, after))
        await audit.changed(conn, actor, "setting.change", "setting:placement", old, new)
        return after
