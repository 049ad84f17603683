"""Settings of the whole cluster that can be changed while it runs.

Next: model/settings.py
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from mainspring.errors import StaleVersion
from mainspring.model.access.actors import Actor
from mainspring.model.access.masking import check_unmasked, masked, restored
from mainspring.model.settings import SETTINGS, RunTimeSettings, check_change, in_force
from mainspring.operations.parts import reach, revealing
from mainspring.store.access import audit
from mainspring.store.cluster import settings
from mainspring.store.cluster.settings import Stored
from mainspring.store.postgres.connection import Connection


class SettingView(msgspec.Struct, frozen=True):
    name: str
    value: Any  # in force
    default: Any
    is_set: bool
    meaning: str
    version: int  # counts its changes
    updated_at: datetime | None  # None: it was never changed
    updated_by: str | None = None


class SettingsView(RunTimeSettings, frozen=True, kw_only=True):
    """The values in force, by name, and all about each of them."""

    version: int  # counts the changes of all
    details: list[SettingView]


async def show(conn: Connection, actor: Actor, *, reveal: bool = False) -> SettingsView:
    """The settings in force. Secrets are masked, unless an admin wants to see them: that is audited."""
    if reveal:
        reach.check_all(actor, "settings are those")
        await revealing.reveal(conn, actor, "setting", "settings")
    return _view(await settings.stored(conn), reveal=reveal)


async def edit(conn: Connection, actor: Actor, change: dict[str, Any], *, version: int | None = None) -> SettingsView:
    """Change settings that are read at run time: a value by name, or null for the default; what is not given stays.

    Every server follows within seconds.
    """
    reach.check_all(actor, "settings are those")
    async with conn.transaction():
        await settings.lock(conn)
        stored = await settings.stored(conn)
        before = _view(stored)
        if version is not None and version != before.version:
            raise StaleVersion(
                f"settings: changed since they were read; they are at version {before.version} now",
                version=before.version,
            )
        change = restored(change, {name: one.value for name, one in stored.items()})
        check_unmasked(change)
        for name, value in check_change(change).items():
            if value == (old := stored[name].value if name in stored else None):
                continue
            await settings.put(conn, name, value, by=actor.name)
            await audit.changed(conn, actor, "setting.change", f"setting:{name}", {name: old}, {name: value})
        return _view(await settings.stored(conn))


def _view(stored: Mapping[str, Stored], *, reveal: bool = False) -> SettingsView:
    values = in_force({name: one.value for name, one in stored.items()})
    if not reveal:
        values = masked(values)
    details = []
    for name, setting in SETTINGS.items():
        one = stored.get(name)
        details.append(
            SettingView(
                name,
                getattr(values, name),
                setting.default,
                is_set=one is not None and one.value is not None,
                meaning=setting.meaning,
                version=0 if one is None else one.version,
                updated_at=None if one is None else one.updated_at,
                updated_by=None if one is None else one.updated_by,
            )
        )
    version = sum(one.version for one in stored.values())
    return SettingsView(**msgspec.structs.asdict(values), version=version, details=details)
