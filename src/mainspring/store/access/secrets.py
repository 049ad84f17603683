"""Secrets: encrypted values by name, and which jobs and channels refer to them.

Next: server/secrets/opened.py
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from mainspring.model.secrets.encryption import Sealed
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import Batch, readable


class SecretRow(msgspec.Struct, frozen=True):
    """All of a secret but its value."""

    name: str
    version: int
    key_id: str
    labels: dict[str, str]
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str


class Stored(NamedTuple):
    name: str
    version: int
    labels: dict[str, str]
    sealed: Sealed


_ROW = "name, version, key_id, labels::text as labels, created_at, created_by, updated_at, updated_by"
_LIST = f"select {_ROW} from mainspring.secret where $1::text is null or name > $1 order by name limit $2"
_FIND = f"select {_ROW} from mainspring.secret where name = $1"
_SEALED = "select name, version, labels::text, key_id, nonce, ciphertext from mainspring.secret"


async def listing(conn: Connection, *, after: str | None, limit: int) -> Batch[SecretRow]:
    rows = await readable(conn, _LIST, after, limit)
    return Batch([_row(row) for row in rows], rows[-1]["name"] if len(rows) == limit else None)


async def find(conn: Connection, name: str, *, lock: bool = False) -> SecretRow | None:
    rows = await readable(conn, f"{_FIND} for update" if lock else _FIND, name)
    return _row(rows[0]) if rows else None


async def sealed(conn: Connection, names: list[str]) -> list[Stored]:
    """Those of these names that there are."""
    return _stored(await conn.fetch(f"{_SEALED} where name = any($1)", names))


async def any_stored(conn: Connection) -> bool:
    return bool(await conn.fetchval("select exists (select from mainspring.secret)"))


async def lock_all(conn: Connection) -> list[Stored]:
    return _stored(await conn.fetch(f"{_SEALED} order by name for update"))


_PUT = """
    insert into mainspring.secret as s (name, version, key_id, nonce, ciphertext, labels, created_by, updated_by)
    values ($1, $2, $3, $4, $5, $6::jsonb, $7, $7)
    on conflict (name) do update
       set version = excluded.version, key_id = excluded.key_id, nonce = excluded.nonce,
           ciphertext = excluded.ciphertext, labels = excluded.labels, updated_at = mainspring.now(),
           updated_by = excluded.updated_by
     where s.version = excluded.version - 1      -- it was encrypted for this version
    returning 1
"""


async def put(conn: Connection, name: str, version: int, value: Sealed, labels: Mapping[str, str], by: str) -> bool:
    """Write this version, the next one of the secret; False if another has been written meanwhile."""
    encoded = msgspec.json.encode(labels).decode()
    return await conn.fetchval(_PUT, name, version, *value, encoded, by) is not None


async def delete(conn: Connection, name: str) -> None:
    await conn.execute("delete from mainspring.secret where name = $1", name)


_LABELS = "select name, labels::text from mainspring.secret where name = any($1)"


async def labels_of(conn: Connection, names: list[str], *, keep: bool = False) -> dict[str, dict[str, str]]:
    """The labels that an agent must have, for those of these secrets that there are. With `keep` none of them is
    deleted before the transaction ends: it may be about to write a reference."""
    rows = await conn.fetch(f"{_LABELS} order by name for key share" if keep else _LABELS, names)
    return {name: _labels(labels) for name, labels in rows}


# `run` has the references of a job in the values of its mappings: env and headers.
_JOBS = """
    select distinct reference #>> '{}' as secret, j.name
      from mainspring.job j
     cross join lateral jsonb_path_query(j.definition, '$.run.*.*."$secret"') reference
     where $1::text is null or reference = to_jsonb($1)
     order by 1, 2
"""
_CHANNELS = """
    select distinct reference as secret, c.name
      from mainspring.channel c cross join lateral unnest(array[c.url_from, c.secret_from]) reference
     where reference is not null and ($1::text is null or reference = $1)
     order by 1, 2
"""


async def users(conn: Connection, name: str | None = None) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """By secret, the jobs and the channels that refer to it; of all secrets, or of one."""
    return _grouped(await conn.fetch(_JOBS, name)), _grouped(await conn.fetch(_CHANNELS, name))


def _grouped(rows: list[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for secret, name in rows:
        found.setdefault(secret, []).append(name)
    return found


def _stored(rows: list[tuple[str, int, str, str, bytes, bytes]]) -> list[Stored]:
    return [
        Stored(name, version, _labels(labels), Sealed(key_id, nonce, ciphertext))
        for name, version, labels, key_id, nonce, ciphertext in rows
    ]


def _labels(text: str) -> dict[str, str]:
    return msgspec.json.decode(text, type=dict[str, str])


def _row(row: Mapping[str, object]) -> SecretRow:
    return msgspec.convert(dict(row) | {"labels": _labels(str(row["labels"]))}, SecretRow)
