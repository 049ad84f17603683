"""Settings of the whole, changed at run time: servers read them with their jobs, and follow within seconds.

Next: server/cluster/catalogue.py
"""

from __future__ import annotations

import msgspec

from mainspring.model.placement.strategies import DEFAULT_STRATEGY, STRATEGIES
from mainspring.store.postgres.database import Connection

_STRATEGY = "placement"

_PUT = """
    with put as (
        insert into mainspring.setting (name, value) values ($1, $2::jsonb)
        on conflict (name) do update set value = excluded.value, updated_at = mainspring.now()
        returning name
    )
    select pg_notify('mainspring', 'job') from put
"""


async def strategy(conn: Connection) -> str:
    """The strategy of placement; the default if none is set, or one that this version does not know."""
    value = await conn.fetchval("select value from mainspring.setting where name = $1", _STRATEGY)
    name = DEFAULT_STRATEGY if value is None else msgspec.json.decode(value)
    return name if isinstance(name, str) and name in STRATEGIES else DEFAULT_STRATEGY


async def put_strategy(conn: Connection, name: str) -> None:
    """Set the strategy of placement, which the caller has checked."""
    await conn.execute(_PUT, _STRATEGY, msgspec.json.encode(name).decode())
