"""The id of the database, which its schema makes once and a dump carries along.

Idempotency keys begin with it: tasks of two databases may have the same number.
Reads, writes  mainspring.installation
Next:          store/cluster/settings.py
"""

from __future__ import annotations

from uuid import UUID

from mainspring.store.postgres.database import Connection


async def database_id(conn: Connection) -> UUID:
    """The id of the database behind `conn`; the same for all who ask, until `renew_database_id`."""
    found: UUID = await conn.fetchval("select id from mainspring.installation")
    return found


async def renew_database_id(conn: Connection) -> UUID:
    """Give the database a new id, and return it. For a copy that goes its own way while the original lives on."""
    renewed: UUID = await conn.fetchval("update mainspring.installation set id = gen_random_uuid() returning id")
    return renewed
