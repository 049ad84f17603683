"""Backfill: tasks for plan times of the past that have none, so many at a time.

One call is one bounded step; the caller repeats it with the cursor that it returned. Nothing is kept between steps: a
plan time that has a task is passed over, so a backfill that was stopped, repeated or runs twice makes no task twice.
Next: store/schedules/backfill.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.planning import INSTANT
from mainspring.model.schedules.timing import timing
from mainspring.model.words.instants import check_instant
from mainspring.model.words.names import check_name
from mainspring.model.words.zones import by_its_clocks
from mainspring.operations import pages
from mainspring.operations.definitions import schedules
from mainspring.operations.parts.slices import Slices
from mainspring.store.access import audit
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import backfill
from mainspring.store.schedules.backfill import MOST, FireKey, check_range, too_many
from mainspring.store.schedules.schedules import Stored
from mainspring.store.tasks import tasks

__all__ = ["BackfillStep", "EndedTask", "check_range", "step"]

MAX_PARALLEL = 1000
CHUNK = 1000  # fires that are compared with the ledger at once


class EndedTask(msgspec.Struct, frozen=True):
    id: int
    state: str


class BackfillStep(msgspec.Struct, frozen=True):
    """The counts are of the whole range, and only in the first step: with a cursor they are None."""

    schedule: str
    job: str
    total: int | None  # plan times × scopes in the range
    already: int | None  # of them, those with a task
    to_run: int | None
    skipped: int | None  # of those to run, those that a person had skipped
    first: datetime | None  # plan time to run, by the clocks of the schedule
    last: datetime | None
    submitted: list[int]  # tasks
    ended: list[EndedTask]  # of those that the caller awaits
    live: int  # tasks of the schedule's backfills that have not ended
    next: str | None  # the cursor of the next step; None: all have a task
    complete: bool  # all have a task, and no backfilled task of the schedule is live


class _Open(NamedTuple):
    """Fires without a task: those that this step may submit, and the counts of the whole range in the first step."""

    fires: list[FireKey]
    is_all: bool  # there are no more behind them
    total: int = 0
    to_run: int = 0
    skipped: int = 0
    last: datetime | None = None


async def step(
    conn: Connection,
    actor: Actor,
    name: str,
    start: datetime,
    end: datetime,
    *,
    max_parallel: int = 1,
    scopes: Sequence[str] = (),
    dry_run: bool = False,
    awaiting: Sequence[int] = (),
    cursor: str | None = None,
) -> BackfillStep:
    """Submit as many of the plan times from `from` through `to` as `max_parallel` leaves room for.

    With `dry_run` they are only counted. `awaiting` names tasks of earlier steps, to be told when they have ended.
    """
    for field, at in (("from", start), ("to", end)):
        check_instant(at, field=field)
    if not isinstance(max_parallel, int) or not 1 <= max_parallel <= MAX_PARALLEL or len(awaiting) > MAX_PARALLEL:
        raise ValidationError(f"max_parallel: {shown(max_parallel)}; give 1 to {MAX_PARALLEL}", field="max_parallel")
    stored = await schedules.find(conn, actor, name)
    checked = [check_name(scope, field="scopes") for scope in scopes]
    wanted = backfill.check_backfill(stored.schedule, start, end, stored.now, checked)
    filters = {"list": "backfill", "schedule": stored.id, "start": start, "end": end, "scopes": checked}
    after = pages.position(cursor, filters, datetime)
    if after is None:
        found = await _count(conn, stored, start, end, wanted, keep=max_parallel)
    else:
        found = await _search(conn, stored, after, end, wanted, keep=max_parallel)
    async with conn.transaction():
        filled = await backfill.fill(conn, stored, found.fires, 0 if dry_run else max_parallel)
        if filled.tasks:  # each step: the tasks are not audited one by one
            detail = {"from": start, "to": end, "scopes": checked, "submitted": len(filled.tasks)}
            await audit.record(conn, actor, "schedule.backfill", f"schedule:{name}", detail)
    ended = {} if not awaiting else await tasks.ended(conn, list(awaiting))
    is_last = found.is_all and filled.tried == len(found.fires)
    zone, first = timing(stored.schedule).zone, found.fires[0][0] if found.fires else None
    counted = after is None
    return BackfillStep(
        schedule=name,
        job=stored.schedule.job,
        total=found.total if counted else None,
        already=found.total - found.to_run if counted else None,
        to_run=found.to_run if counted else None,
        skipped=found.skipped if counted else None,
        first=by_its_clocks(first, zone) if counted and first is not None else None,
        last=by_its_clocks(found.last, zone) if found.last is not None else None,
        submitted=filled.tasks,
        ended=[EndedTask(id, one.state.label) for id, one in sorted(ended.items())],
        live=filled.live,
        next=None if is_last else pages.cursor(filters, _position(found, filled.tried, start, after)),
        complete=is_last and filled.live == 0,
    )


def _position(found: _Open, tried: int, start: datetime, after: datetime | None) -> datetime:
    """Before the first plan time that may be without a task: all of its scopes are looked at again."""
    if tried < len(found.fires):
        return found.fires[tried][0] - INSTANT
    return found.fires[-1][0] - INSTANT if found.fires else after or start - INSTANT


async def _search(
    conn: Connection, stored: Stored, after: datetime, end: datetime, scopes: tuple[str, ...], *, keep: int
) -> _Open:
    """The first fires behind an instant that have no task."""
    times, fires = timing(stored.schedule), list[FireKey]()
    slices, is_all = Slices(), False
    while len(fires) <= keep and not is_all:
        chunk = times.between(after, end, _chunk(scopes))
        is_all = not chunk
        if chunk:
            after = chunk[-1]
            keys = [(at, scope) for at in chunk for scope in scopes]
            fires += (await backfill.still_open(conn, stored, keys)).fires
        await slices.rest()
    return _Open(fires, is_all)


async def _count(
    conn: Connection, stored: Stored, start: datetime, end: datetime, scopes: tuple[str, ...], *, keep: int
) -> _Open:
    """The same from the start, with the counts of the whole range; ValidationError if there are too many."""
    times, slices = timing(stored.schedule), Slices()
    fires: list[FireKey] = []
    count = to_run = skipped = 0
    last: datetime | None = None
    after, most = start - INSTANT, MOST // len(scopes)
    while chunk := times.between(after, end, _chunk(scopes)):
        if count + len(chunk) > most:
            raise too_many(end, len(scopes), [after, *chunk][most - count])
        after, count = chunk[-1], count + len(chunk)
        found = await backfill.still_open(conn, stored, [(at, scope) for at in chunk for scope in scopes])
        to_run += len(found.fires)
        skipped += found.skipped
        last = found.fires[-1][0] if found.fires else last
        fires += found.fires[: max(0, keep + 1 - len(fires))]
        await slices.rest()
    return _Open(fires, len(fires) == to_run, count * len(scopes), to_run, skipped, last)


def _chunk(scopes: tuple[str, ...]) -> int:
    """Plan times that are computed and looked up at once: some milliseconds at most."""
    return max(1, min(100, CHUNK // len(scopes)))
