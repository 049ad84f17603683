"""Idempotency keys of requests: which answer a caller got to a key, for a day.

Apart from `task_key`, which belongs to a job and its submitters.
"""

from __future__ import annotations

import msgspec

from mainspring.store.postgres.connection import Connection


class Record(msgspec.Struct, frozen=True):
    digest: bytes  # of the request
    status: int
    body: bytes
    headers: list[list[str]]


_LOCK = "select pg_try_advisory_xact_lock(hashtextextended('mainspring request ' || $1::text || ' ' || $2::text, 0))"


async def lock(conn: Connection, caller: str, key: str) -> bool:
    """Until the end of the transaction; False if another transaction has it."""
    taken: bool = await conn.fetchval(_LOCK, caller, key)
    return taken


_FIND = """
    select digest, status, body, headers from mainspring.request
     where caller = $1 and key = $2 and expires_at > mainspring.now()
"""


async def find(conn: Connection, caller: str, key: str) -> Record | None:
    row = await conn.fetchrow(_FIND, caller, key)
    if row is None:
        return None
    return Record(row["digest"], row["status"], row["body"], msgspec.json.decode(row["headers"], type=list[list[str]]))


_KEEP = """
    insert into mainspring.request (caller, key, digest, status, body, headers, expires_at)
    values ($1, $2, $3, $4, $5, $6::jsonb, mainspring.now() + interval '1 day')
    on conflict (caller, key) do update
       set digest = excluded.digest, status = excluded.status, body = excluded.body, headers = excluded.headers,
           expires_at = excluded.expires_at
"""


async def keep(conn: Connection, caller: str, key: str, record: Record) -> None:
    """In the transaction of the effect. An expired record is replaced."""
    headers = msgspec.json.encode(record.headers).decode()
    await conn.execute(_KEEP, caller, key, record.digest, record.status, record.body, headers)
