"""A server that owns all segments, for tests of single parts; and rows of a cluster, for tests of what people see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid4

from mainspring.server.cluster.lease import ServerLease
from mainspring.store.postgres.database import Connection

OWNER = UUID(int=1)  # to a real server it is stopped: that one takes over at once

DISOWN_ALL = "update mainspring.segment set owner = null; delete from mainspring.server"
OWN_ALL = f"""
    insert into mainspring.server (id, name, version, status) values ('{OWNER}', 'tests', '0', 'stopped')
    on conflict do nothing;
    update mainspring.segment set owner = '{OWNER}';
"""


def server_lease() -> ServerLease:
    """Of that server: it may always act."""
    return ServerLease(OWNER, trusted_until=float("inf"))


async def add_server(
    conn: Connection, name: str, *, status: str = "active", lease: str = "1 min", id: UUID | None = None, **columns: Any
) -> UUID:
    """A server whose lease ends so long from now."""
    columns = {"id": id or uuid4(), "name": name, "status": status, "version": "0.1.0", **columns}
    names = list(columns)
    values = ", ".join(f"${number}" for number in range(2, len(names) + 2))
    added: UUID = await conn.fetchval(
        f"""insert into mainspring.server (lease_until, {", ".join(names)})
            values (mainspring.now() + $1::text::interval, {values}) returning id""",
        lease,
        *columns.values(),
    )
    return added


async def own(conn: Connection, server: UUID | None, segments: Iterable[int]) -> None:
    await conn.execute(
        "update mainspring.segment set owner = $1, epoch = epoch + 1 where id = any($2::smallint[])",
        server,
        list(segments),
    )


async def lead(conn: Connection, server: UUID, *, term: int = 1, lease: str = "1 min") -> None:
    await conn.execute(
        """update mainspring.leader set owner = $1, term = $2, elected_at = mainspring.now(),
                  lease_until = mainspring.now() + $3::text::interval""",
        server,
        term,
        lease,
    )


async def note_move(
    conn: Connection, segments: Iterable[int], old: UUID | None, new: UUID | None, reason: str, *, term: int = 1
) -> None:
    await conn.execute(
        """insert into mainspring.segment_move (segments, old_owner, new_owner, reason, term)
           values ($1, $2, $3, $4, $5)""",
        list(segments),
        old,
        new,
        reason,
        term,
    )


async def shift_clock(conn: Connection, seconds: float) -> None:
    """Set the database's clock so far from the true time; it goes on from there."""
    await conn.execute(f"""
        create or replace function mainspring.now() returns timestamptz language sql volatile parallel safe
            as $$ select clock_timestamp() + interval '{seconds} seconds' $$
    """)
