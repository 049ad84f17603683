"""Pages: parts of a list, each with a cursor that continues behind its last item.

A cursor holds the position of that item in the order of the list (keyset), so a page costs the same however deep it
lies, and rows that come or go meanwhile shift nothing. It belongs to the list and the filters that gave it out: with
others it would leave out what it should show. It is no secret and grants nothing: what a caller may see is decided
anew for each page, and its digest only tells a mistake from a cursor.

    position = pages.position(cursor, filters, str)                       # None: from the start
    found = await store.listing(conn, after=position, limit=pages.check_limit(limit) + 1)
    return pages.page(found, limit, filters, lambda job: job.name)

Next: operations/work/tasks.py
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Annotated, Generic, TypeVar

import msgspec

from mainspring.errors import BadCursor, ValidationError, shown
from mainspring.model.words.numbers import MAX_INTEGER

LIMIT = 50  # items of a page, unless the caller wants another number
MAX_LIMIT = 500
MAX_CURSOR = 4096  # characters

_DIGEST = 9  # bytes

Number = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]  # a position in the order of ids

T = TypeVar("T")
P = TypeVar("P")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list. It may be short, even empty, and have a next one: the search ran out of time."""

    items: list[T]
    next: str | None = None  # the cursor of the next page; None: this is the last
    searched_to: datetime | None = None  # how far back the search got, where it ran out of time


def check_limit(limit: int, *, most: int = MAX_LIMIT) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= most:
        raise ValidationError(f"limit: {shown(limit)} is not a number of items; give 1 to {most}", field="limit")
    return limit


def page(found: Sequence[T], limit: int, filters: Mapping[str, object], position: Callable[[T], object]) -> Page[T]:
    """The page of a list of which one more than `limit` was read, to see whether there is a next page."""
    items = list(found[:limit])
    return Page(items, cursor(filters, position(items[-1])) if len(found) > limit else None)


def cursor(filters: Mapping[str, object], position: object) -> str:
    """The cursor that continues behind `position`: a number, text, an instant, or a sequence of them.

    `filters` are those of the list, and the name of the list itself under a name such as `list`.
    """
    packed = msgspec.msgpack.encode(position)
    return urlsafe_b64encode(_digest(filters, packed) + packed).rstrip(b"=").decode()


def position(cursor: str | None, filters: Mapping[str, object], kind: type[P]) -> P | None:
    """The position that `cursor()` was given; BadCursor for any other text, and for one of another list."""
    if cursor is None:
        return None
    try:
        if not isinstance(cursor, str) or len(cursor) > MAX_CURSOR:
            raise ValueError("too long")
        data = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        digest, packed = data[:_DIGEST], data[_DIGEST:]
        if digest != _digest(filters, packed) or urlsafe_b64encode(data).rstrip(b"=").decode() != cursor:
            raise ValueError("of another list")
        found = msgspec.msgpack.decode(packed, type=kind)
        if _holds_nul(found):
            raise ValueError("no text that PostgreSQL can hold")
        return found
    except (ValueError, msgspec.MsgspecError):  # ValueError: binascii.Error and UnicodeError among them
        raise BadCursor(
            f"cursor: {shown(cursor)} is not the `next` of a page of this list with these filters; leave the cursor "
            "out to start anew",
            field="cursor",
        ) from None


def _holds_nul(position: object) -> bool:
    """Anybody can make a cursor."""
    if isinstance(position, str):
        return "\0" in position
    return isinstance(position, (list, tuple)) and any(map(_holds_nul, position))


def _digest(filters: Mapping[str, object], packed: bytes) -> bytes:
    """Filters that are not given are left out: a later version may have more of them."""
    given = {name: value for name, value in filters.items() if value not in (None, (), [], {}, "")}
    return blake2b(msgspec.json.encode(given, order="deterministic") + b"\0" + packed, digest_size=_DIGEST).digest()
