"""By name: pages of lists in the order of names or numbers, and the versions that a change may demand.

What SQL cannot filter (the jobs that an actor reaches, states that depend on the clock) is filtered here, so a page may
take several reads. It ends early after `PATIENCE` seconds, with a cursor behind what was read.
Next: operations/pages.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Any, TypeVar

from mainspring.errors import StaleVersion
from mainspring.operations import pages
from mainspring.operations.pages import Page
from mainspring.store.postgres.rows import Batch

PATIENCE = 0.3
AT_ONCE = 100  # rows of a read: decoding them holds the event loop for about a millisecond

T = TypeVar("T")


async def page(
    read: Callable[[Any, int], Awaitable[Batch[T]]],
    name: Callable[[T], object],
    accept: Callable[[T], bool],
    *,
    filters: Mapping[str, object],
    cursor: str | None,
    limit: int,
    kind: Any = str,
) -> Page[T]:
    """The items of the list that are accepted; `read` returns those behind a name, in its order.

    `kind` is the type of what `name` returns, where the order is another.
    """
    found: list[T] = []
    after = pages.position(cursor, filters, kind)
    until = monotonic() + PATIENCE
    pages.check_limit(limit)
    while True:
        batch = await read(after, min(limit + 1, AT_ONCE))
        found += filter(accept, batch.items)
        if len(found) > limit:
            return pages.page(found, limit, filters, name)
        if batch.last is None:
            return Page(found)
        after = batch.last
        if monotonic() >= until:
            return Page(found, pages.cursor(filters, after))


def check_version(what: str, name: str, present: int, wanted: int | None) -> None:
    """Refuse a change of another version than the caller has read."""
    if wanted is not None and wanted != present:
        raise StaleVersion(
            f"{what} {name!r} was changed meanwhile: it has version {present}, not {wanted}; read it again",
            field="version",
            version=present,
        )
