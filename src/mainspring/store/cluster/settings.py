"""Settings: the id of the installation, and what operators change at run time. Servers follow within seconds.

Next: server/cluster/catalogue.py
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from mainspring.model.settings import RunTimeSettings, in_force
from mainspring.store.postgres.database import Connection

# A row is never deleted: the sum of the versions is that of all settings. JSON's null: reset to the default.
_PUT = """
    with put as (
        insert into mainspring.setting (name, value, updated_by) values ($1, $2::jsonb, $3)
        on conflict (name) do update
           set value = excluded.value, version = setting.version + 1, updated_at = mainspring.now(),
               updated_by = excluded.updated_by
        returning name
    )
    select pg_notify('mainspring', 'job') from put
"""


_OF_SUBMISSIONS = ("max_queued", "default_expires")  # jobs have copies of these


class Stored(NamedTuple):
    """A setting that was changed at least once."""

    value: Any  # None: it was reset
    version: int  # counts its changes
    updated_at: datetime
    updated_by: str | None


async def database_id(conn: Connection) -> UUID:
    """The id that the schema gives the database once, and that a dump carries along.

    Idempotency keys begin with it: two databases may have tasks with the same number.
    """
    found: UUID = await conn.fetchval("select id from mainspring.installation")
    return found


async def stored(conn: Connection) -> dict[str, Stored]:
    """All that was ever set, by name; also what this version does not know."""
    rows = await conn.fetch("select name, value, version, updated_at, updated_by from mainspring.setting")
    return {name: Stored(msgspec.json.decode(value), *change) for name, value, *change in rows}


async def load(conn: Connection) -> RunTimeSettings:
    """The settings in force."""
    return in_force({name: one.value for name, one in (await stored(conn)).items()})


async def put(conn: Connection, name: str, value: object, *, by: str | None = None) -> None:
    """Set what the caller has checked; None resets it. All servers read it as soon as this is committed."""
    await conn.execute(_PUT, name, msgspec.json.encode(value).decode(), by)
    if name in _OF_SUBMISSIONS:
        await conn.execute("select mainspring.renew_checks()")


async def lock(conn: Connection) -> None:
    """Until the end of the transaction no other one changes a setting; they can be read."""
    await conn.execute("lock table mainspring.setting in share row exclusive mode")
