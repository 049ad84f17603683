"""Rows: what the driver returns → views and counts.

Anybody with SQL can write what Python cannot read: a time after the year 9999, a number of 400 digits, JSON of 3,000
levels. A listing survives such a row and names it: `readable` fetches it, `views` marks it or leaves it out.
Next: store/tasks/jobs.py
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from mainspring.model.tasks.payload import UNREADABLE
from mainspring.store.postgres.connection import Connection

log = logging.getLogger("mainspring")

T = TypeVar("T")

# In place of times that Python cannot hold, infinity among them; a day from its bounds, for other timezones.
FAR_PAST, FAR_FUTURE = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Batch(NamedTuple, Generic[T]):
    """Some rows of a list in the order of their names; those that cannot be read are left out."""

    items: list[T]
    last: str | None  # the name of the last row, to read on behind it; None: there are no more


async def readable(conn: Connection, query: str, *args: Any) -> list[dict[str, Any]]:
    """The rows of a query for people, whatever times are in them."""
    try:
        rows = await conn.fetch(query, *args)
    except OverflowError:  # the driver reads no row at all if one has such a time
        await conn.set_type_codec("timestamptz", schema="pg_catalog", encoder=_encode, decoder=_decode, format="tuple")
        try:
            rows = await conn.fetch(query, *args)
        finally:
            await conn.reset_type_codec("timestamptz", schema="pg_catalog")
    return [_clamped(row) for row in rows]


def _clamped(row: Any) -> dict[str, Any]:
    """The driver returns infinity as a time without a timezone."""
    columns = dict(row.items())
    for name, value in columns.items():  # many, for each row of a page: no call for each
        if type(value) is datetime and value.tzinfo is None:
            columns[name] = FAR_PAST if value < datetime(5000, 1, 1) else FAR_FUTURE
    return columns


def _encode(at: datetime) -> tuple[int]:
    return ((at - _EPOCH) // _MICROSECOND,)


def _decode(given: tuple[int]) -> datetime:
    past, future = (_encode(bound)[0] for bound in (FAR_PAST, FAR_FUTURE))
    return _EPOCH + timedelta(microseconds=min(future, max(past, given[0])))


def views(kind: type[T], rows: Iterable[Any], *, json: Collection[str] = ()) -> list[T]:
    """Each row as a struct, by the names of its columns; `json` names those that hold JSON. Other columns are ignored.

    Rows may be records of the driver or mappings made from them. JSON that cannot be read becomes None; `unreadable`,
    if the struct has that field, says which and why. A row that is no such struct is left out, with a warning.
    """
    found = []
    for row in rows:
        try:
            found.append(msgspec.convert(_decoded(row, json), kind))
        except msgspec.ValidationError as error:
            name, value = next(iter(dict(row).items()))
            log.warning("%s: the row with %s %.100s cannot be read (%.200s)", kind.__name__, name, value, error)
    return found


def _decoded(row: Any, json: Collection[str]) -> dict[str, Any]:
    columns = dict(row)
    unreadable = [
        f"{name}: no time that can be shown"
        for name, value in columns.items()
        if type(value) is datetime and is_far(value)
    ]
    for name in json:
        if columns[name] is not None:
            try:
                columns[name] = msgspec.json.decode(columns[name])
            except UNREADABLE as error:
                columns[name] = None
                unreadable.append(f"{name}: {str(error)[:200]}")
    return {**columns, "unreadable": unreadable} if unreadable else columns


def is_far(value: Any) -> bool:
    """Whether `readable` has put it in place of a time that Python cannot hold."""
    return type(value) is datetime and value in (FAR_PAST, FAR_FUTURE)


def affected(tag: str) -> int:
    """The row count of a command tag such as "UPDATE 3"."""
    return int(tag.rpartition(" ")[2])


def columns(kind: type[tuple[Any, ...]], items: Collection[Any]) -> list[list[Any]]:
    """Named tuples of one kind as arrays for `unnest`, one for each field."""
    return [[item[field] for item in items] for field in range(len(kind._fields))]  # type: ignore[attr-defined]
