"""Settings: the id of the installation, and what operators change at run time. Servers follow within seconds.

Next: server/cluster/catalogue.py
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from mainspring.model.placement.placement import DEFAULT_STRATEGY, STRATEGIES
from mainspring.store.postgres.database import Connection

_STRATEGY = "placement"

_PUT = """
    with put as (
        insert into mainspring.setting (name, value) values ($1, $2::jsonb)
        on conflict (name) do update
           set value = excluded.value, version = setting.version + 1, updated_at = mainspring.now()
        returning name
    )
    select pg_notify('mainspring', 'job') from put
"""


async def database_id(conn: Connection) -> UUID:
    """The id that the schema gives the database once, and that a dump carries along.

    Idempotency keys begin with it: two databases may have tasks with the same number.
    """
    found: UUID = await conn.fetchval("select id from mainspring.installation")
    return found


async def strategy(conn: Connection, default: str = DEFAULT_STRATEGY) -> str:
    """The placement strategy of the cluster; `default` if none is set, or one that this version does not know."""
    name = await stored_strategy(conn)
    return name if name in STRATEGIES else default


async def stored_strategy(conn: Connection) -> str | None:
    """The placement strategy that was set; None if none was."""
    value = await conn.fetchval("select value from mainspring.setting where name = $1", _STRATEGY)
    name = None if value is None else msgspec.json.decode(value)
    return name if isinstance(name, str) else None


async def put_strategy(conn: Connection, name: str) -> None:
    """Set the placement strategy, which the caller has checked."""
    await conn.execute(_PUT, _STRATEGY, msgspec.json.encode(name).decode())


async def version(conn: Connection) -> int:
    """Grows with each change of any setting; rows are never deleted."""
    changes: int = await conn.fetchval("select coalesce(sum(version), 0)::integer from mainspring.setting")
    return changes


async def lock(conn: Connection) -> None:
    """Until the end of the transaction nobody else changes a setting; they can be read."""
    await conn.execute("lock table mainspring.setting in share row exclusive mode")
