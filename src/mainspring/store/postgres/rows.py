"""Rows: what the driver returns → views and counts.

Anybody with SQL can write what Python cannot read: a time after the year 9999, a number of 400 digits, JSON of 3,000
levels. A listing survives such a row and names it: `readable` fetches it, `views` marks it or leaves it out.
Next: store/tasks/jobs.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from mainspring.model.tasks.payload import UNREADABLE
from mainspring.store.postgres.connection import Connection

log = logging.getLogger("mainspring")

T = TypeVar("T")

# In place of times that Python cannot hold, infinity among them; a day from its bounds, for other timezones.
FAR_PAST, FAR_FUTURE = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)

AT_ONCE = 100  # rows that become views within a millisecond
NO_TIME = "no time that can be shown"
LONG = 512  # characters of JSON from which it is kept as text, where that is wanted: to decode 1 MB takes 10 ms

_as_text: ContextVar[bool] = ContextVar("mainspring long JSON as text", default=False)
_DIGITS = bytes(byte if byte not in b"123456789" else ord("0") for byte in range(256))
_LONG_NUMBER = b"0" * 300  # may be more than Python reads
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Batch(NamedTuple, Generic[T]):
    """Some rows of a list in the order of their names or numbers; those that cannot be read are left out."""

    items: list[T]
    last: Any  # the name or the number of the last row, to read on behind it; None: there are no more


async def readable(conn: Connection, query: str, *args: Any) -> list[dict[str, Any]]:
    """The rows of a query for people, whatever times are in them."""
    return [_clamped(row) for row in await fetched(conn, query, *args)]


async def fetched(conn: Connection, query: str, *args: Any) -> list[Any]:
    """The rows as the driver returns them: infinity is a time without a timezone."""
    try:
        return await conn.fetch(query, *args)
    except OverflowError:  # the driver reads no row at all if one has such a time
        async with conn.transaction():  # on one connection
            await conn.set_type_codec(
                "timestamptz", schema="pg_catalog", encoder=_encode, decoder=_decode, format="tuple"
            )
            try:
                return await conn.fetch(query, *args)
            finally:
                await conn.reset_type_codec("timestamptz", schema="pg_catalog")


def _clamped(row: Any) -> dict[str, Any]:
    columns = dict(row.items())
    for name, value in columns.items():  # many, for each row of a page: no call for each
        if type(value) is datetime and value.tzinfo is None:
            columns[name] = clamped(value)
    return columns


def clamped(at: datetime) -> datetime:
    """A time of `fetched`, or one that Python can compare in its place."""
    return at if at.tzinfo is not None else FAR_PAST if at < datetime(5000, 1, 1) else FAR_FUTURE


@contextmanager
def long_json_as_text() -> Iterator[None]:
    """For a caller that writes views as JSON again: long values in them stay what they are, `msgspec.Raw`."""
    before = _as_text.set(True)
    try:
        yield
    finally:
        _as_text.reset(before)


def decoded(text: str) -> Any:
    """The value of JSON that may be of any kind; one of UNREADABLE is raised if it cannot be read."""
    if len(text) < LONG or not _as_text.get():
        return msgspec.json.decode(text)
    data = text.encode()
    if _LONG_NUMBER in data.translate(_DIGITS):
        return msgspec.json.decode(data)
    return msgspec.json.decode(data, type=msgspec.Raw)  # reads it all, and makes nothing of it


def _encode(at: datetime) -> tuple[int]:
    return ((at - _EPOCH) // _MICROSECOND,)


def _decode(given: tuple[int]) -> datetime:
    """Times that Python cannot hold without a timezone, as the driver returns infinity."""
    past, future = (_encode(bound)[0] for bound in (FAR_PAST, FAR_FUTURE))
    if not past < given[0] < future:
        return datetime.min if given[0] <= past else datetime.max
    return _EPOCH + timedelta(microseconds=given[0])


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


async def views_in_turns(kind: type[T], rows: Sequence[Any], *, json: Collection[str] = ()) -> list[T]:
    """The same of rows of `fetched`, which may be many: others on this event loop have their turn between them."""
    found: list[T] = []
    for start in range(0, len(rows), AT_ONCE):
        found += views(kind, map(_clamped, rows[start : start + AT_ONCE]), json=json)
        await asyncio.sleep(0)
    return found


def _decoded(row: Any, json: Collection[str]) -> dict[str, Any]:
    columns = dict(row)
    unreadable = [f"{name}: {NO_TIME}" for name, value in columns.items() if type(value) is datetime and is_far(value)]
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
    return value is FAR_PAST or value is FAR_FUTURE


def affected(tag: str) -> int:
    """The row count of a command tag such as "UPDATE 3"."""
    return int(tag.rpartition(" ")[2])


def columns(kind: type[tuple[Any, ...]], items: Collection[Any]) -> list[list[Any]]:
    """Named tuples of one kind as arrays for `unnest`, one for each field."""
    return [[item[field] for item in items] for field in range(len(kind._fields))]  # type: ignore[attr-defined]
