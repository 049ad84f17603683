"""Fired: how many tasks the schedules have started, cell by cell. The past of the forecast.

By the ledger of plan times, if that can be counted in time; else by the figures, which are kept by the hour. What is
long over is kept: it does not change.
Next: store/schedules/fires.py, store/figures/series.py
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Any, Literal

import asyncpg
import msgspec

from mainspring.model.access.actors import Actor
from mainspring.model.words.instants import check_instant
from mainspring.operations.parts import reach
from mainspring.operations.planning import forecast
from mainspring.store.figures import series
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import fires

HOUR = timedelta(hours=1)
WITHIN = 1.0  # seconds to count the ledger
SETTLED = timedelta(hours=2)  # after its end a cell does not change any more: catching up is over
MOST_KEPT = 16

_kept: OrderedDict[Any, Fired] = OrderedDict()


class FiredCell(msgspec.Struct, frozen=True):
    at: datetime
    starts: int
    skipped: int | None  # plan times without a task; None: the figures do not have them
    peak: int | None  # starts in the busiest second
    peak_at: datetime | None


class Fired(msgspec.Struct, frozen=True):
    start: datetime
    end: datetime
    cell: float  # seconds; an hour by the figures
    source: Literal["ledger", "figures"]
    starts: int
    cells: list[FiredCell]  # those with any


async def fired(
    conn: Connection,
    actor: Actor,
    start: datetime,
    end: datetime,
    *,
    cell: timedelta = timedelta(minutes=15),
) -> Fired:
    """How many tasks the schedules have started, by the plan times that were decided.

    Where there are too many plan times to count, by the figures: by the hour in which their first attempt ended.
    """
    first = forecast.floor(check_instant(start, field="from"), forecast.check_cell(cell))
    forecast.check_range(first, check_instant(end, field="to"), cell)
    now: datetime = await conn.fetchval("select mainspring.now()")
    last = min(end, now)
    database = await conn.fetchval("select oid from pg_database where datname = current_database()")
    key = (database, first, last, cell, actor.jobs)
    if (kept := _kept.get(key)) is not None:
        _kept.move_to_end(key)
        return kept
    found = await _count(conn, actor, first, max(first, last), cell)
    if last < now - SETTLED:
        _kept[key] = found
        if len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return found


async def _count(conn: Connection, actor: Actor, start: datetime, end: datetime, cell: timedelta) -> Fired:
    jobs = await reach.job_ids(conn, actor)
    try:
        rows = await fires.started(conn, start, end, cell, jobs, within=WITHIN)
        cells = [FiredCell(*row) for row in rows]
        return Fired(start, end, cell.total_seconds(), "ledger", sum(one.starts for one in cells), cells)
    except (TimeoutError, asyncpg.QueryCanceledError):
        width = max(cell, HOUR)
    counted = await series.planned_starts(conn, start, end, width, jobs)
    cells = [FiredCell(at, starts, None, None, None) for at, starts in counted]
    return Fired(start, end, width.total_seconds(), "figures", sum(one.starts for one in cells), cells)
