"""Audit: who changed what, written in the transaction of the change. It is append-only.

A row has the old and the new value of each member that changed, with secrets hidden. The roles of PostgreSQL that
servers run as may insert and read rows; a function deletes those that retention lets go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from mainspring.model.access.actors import Actor
from mainspring.model.access.masking import masked
from mainspring.model.words.globs import as_like, several
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import clamped, fetched, views_in_turns

MOST_MEMBERS = 100  # of one change
MOST_BYTES = 4096  # of one value, as JSON
MOST_TEXT = 500  # characters of a subject or a reason
WINDOW = 5000  # rows that a search reads at a time
WINDOWS = 10  # and so often, for one page


class Difference(msgspec.Struct, frozen=True, gc=False):
    old: Any
    new: Any


class Entry(msgspec.Struct, frozen=True):
    """What one actor did, or was refused."""

    id: int
    at: datetime
    actor: str
    role: str
    action: str  # such as task.cancel
    subject: str | None  # such as task:17
    changes: dict[str, Difference] | None  # by member; None: the action says it all
    detail: dict[str, Any] | None
    refused: str | None  # why; None: it was done
    address: str | None
    request_id: str | None
    token: int | None  # that the actor came with
    unreadable: list[str] = []


_INSERT = """
    insert into mainspring.audit
           (actor, role, token_id, action, subject, changes, detail, refused, address, request_id)
    values ($1, $2, $3, $4, $5, $6::jsonb, $7::jsonb, $8, $9, $10)
"""


async def record(
    conn: Connection, actor: Actor, action: str, subject: str, detail: Mapping[str, object] | None = None
) -> None:
    """Note that it was done. The caller's transaction makes the change as well, so both are there or neither."""
    await _insert(conn, actor, action, subject, None, detail, None)


async def changed(conn: Connection, actor: Actor, action: str, subject: str, old: object, new: object) -> None:
    """Note a change from `old` to `new`, structs or mappings; None: there was, or is, nothing. Equal: no row."""
    changes = differences(old, new)
    if changes or (old is None) != (new is None):
        await _insert(conn, actor, action, subject, changes, None, None)


class Change(NamedTuple):
    """One of many changes, as `changed` takes it."""

    action: str
    subject: str
    old: object
    new: object


_INSERT_ALL = """
    insert into mainspring.audit (actor, role, token_id, action, subject, changes, address, request_id)
    select $1, $2, $3, g.action, g.subject, g.changes::jsonb, $7, $8
      from unnest($4::text[], $5::text[], $6::text[]) with ordinality as g(action, subject, changes, place)
     order by g.place
"""


Rest = Callable[[], Awaitable[None]]  # awaited between two changes: to compare one takes up to a tenth of a millisecond


async def all_changed(conn: Connection, actor: Actor, given: Sequence[Change], rest: Rest) -> None:
    """The same for many changes of one actor, in one statement."""
    rows = []
    for action, subject, old, new in given:
        changes = differences(old, new)
        if changes or (old is None) != (new is None):
            rows.append((action, _text(subject), msgspec.json.encode(changes).decode()))
        await rest()
    if not rows:
        return
    who = (_text(actor.name), str(actor.role), actor.token)
    columns = map(list, zip(*rows, strict=True))
    await conn.execute(_INSERT_ALL, *who, *columns, _text(actor.address), _text(actor.request_id))


async def refused(
    conn: Connection,
    actor: Actor,
    action: str,
    subject: str | None,
    reason: str,
    detail: Mapping[str, object] | None = None,
) -> None:
    """Note an attempt that was refused. Its caller limits how often, so that no client can fill the audit."""
    await _insert(conn, actor, action, subject, None, detail, reason)


async def _insert(
    conn: Connection,
    actor: Actor,
    action: str,
    subject: str | None,
    changes: Mapping[str, Difference] | None,
    detail: Mapping[str, object] | None,
    reason: str | None,
) -> None:
    await conn.execute(
        _INSERT,
        _text(actor.name),
        str(actor.role),
        actor.token,
        action,
        _text(subject),
        None if changes is None else msgspec.json.encode(changes).decode(),
        None if detail is None else msgspec.json.encode(masked(_as_json(detail))).decode(),
        _text(reason),
        _text(actor.address),
        _text(actor.request_id),
    )


def _text(text: str | None) -> str | None:
    """What PostgreSQL can hold of a text from outside."""
    return None if text is None else text[:MOST_TEXT].replace("\0", "�").encode(errors="replace").decode()


# ── differences ─────────────────────────────────────────────────────────────────────────────────


def differences(old: object, new: object) -> dict[str, Difference]:
    """The members that differ, by path (`retry.retries`), masked. Two secrets that differ show as two masks."""
    raw = [_as_json(one) for one in (old, new)]
    found: dict[str, Difference] = {}
    for path, *both in _differing("", *raw, *map(masked, raw)):
        if len(found) == MOST_MEMBERS:
            found["…"] = Difference(None, f"more than {MOST_MEMBERS} members differ")
            break
        found[path] = Difference(*map(_cut, both))
    return found


def _differing(path: str, old: Any, new: Any, old_masked: Any, new_masked: Any) -> Iterator[tuple[str, Any, Any]]:
    if old == new:
        return
    nested = [isinstance(one, dict) for one in (old, new)]
    if all(nested) or (any(nested) and not path):  # what is created or deleted is listed by member
        sides = [one if isinstance(one, dict) else {} for one in (old, new, old_masked, new_masked)]
        for name in dict.fromkeys((*sides[0], *sides[1])):
            yield from _differing(f"{path}.{name}" if path else str(name), *(side.get(name) for side in sides))
    else:
        yield path, old_masked, new_masked


def _as_json(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def _cut(value: Any) -> Any:
    encoded = msgspec.json.encode(value)
    if len(encoded) <= MOST_BYTES:
        return value
    return f"{encoded[:MOST_BYTES].decode(errors='ignore')} … ({len(encoded):,} bytes)"


# ── reading ─────────────────────────────────────────────────────────────────────────────────────

_WINDOW = f"""
    with looked as materialized (
        select * from mainspring.audit where ($1::bigint is null or id < $1) order by id desc limit {WINDOW}
    )
    select l.id, l.at, l.actor, l.role, l.action, l.subject, l.changes, l.detail, l.refused, l.address, l.request_id,
           l.token_id as token, bound.last, bound.oldest, bound.newest, bound.count
      from (select min(id) as last, min(at) as oldest, max(at) as newest, count(*) from looked) bound
      left join (select * from looked
                  where ($2::text[] is null or actor like any ($2)) and ($3::text[] is null or action like any ($3))
                    and ($4::text[] is null or subject like any ($4)) and ($5::timestamptz is null or at >= $5)
                  order by id desc limit $6) l on true
     order by l.id desc
"""


class Found(NamedTuple):
    entries: list[Entry]
    before: int | None  # where the search continues: before this id; None: it saw everything
    searched_to: datetime | None  # if it stopped before the page was full


async def search(
    conn: Connection,
    *,
    actor: Sequence[str] = (),
    action: Sequence[str] = (),
    subject: Sequence[str] = (),
    since: datetime | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Found:
    """The newest first; several values of a filter mean any of them, `*` in one matches anything. It reads a bounded
    number of rows, whatever is stored."""
    filters = [[as_like(one) for one in several(given)] or None for given in (actor, action, subject)]
    entries: list[Entry] = []
    oldest: datetime | None = None
    for _ in range(WINDOWS):
        wanted = limit - len(entries)
        rows = await fetched(conn, _WINDOW, before, *filters, since, wanted)
        bound = rows[0]
        matching = [row for row in rows if row["id"] is not None]
        entries += await views_in_turns(Entry, matching, json=("changes", "detail"))
        if len(matching) == wanted:
            return Found(entries, matching[-1]["id"], None)
        if bound["count"] < WINDOW or (since is not None and clamped(bound["newest"]) < since):
            return Found(entries, None, None)
        before, oldest = bound["last"], clamped(bound["oldest"])
    return Found(entries, before, oldest)


async def forget(conn: Connection, keep: timedelta, limit: int) -> int:
    """Delete up to `limit` entries that are older than `keep`; returns how many."""
    deleted: int = await conn.fetchval("select mainspring.forget_audit($1, $2)", keep, limit)
    return deleted
