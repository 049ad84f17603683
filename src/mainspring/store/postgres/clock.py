"""The database's time.

Next: wire/clock.py
"""

from __future__ import annotations

from mainspring.store.postgres.database import Connection


async def now(conn: Connection) -> float:
    """Seconds since 1970 by the database."""
    return float(await conn.fetchval("select extract(epoch from mainspring.now())::float8"))
