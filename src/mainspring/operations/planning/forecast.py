"""Forecast: planned starts for each cell of time, their peaks, and herds of schedules that start at once.

By the schedules as they are now: what a task takes, overlaps and limits are not foreseen. A forecast is kept until a
schedule changes.
Next: operations/planning/sources.py
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.forecasting.forecast import Counts, Source
from mainspring.model.words.instants import check_instant
from mainspring.operations.parts.slices import Slices
from mainspring.operations.planning import sources
from mainspring.operations.planning.sources import By
from mainspring.store.postgres.connection import Connection
from mainspring.store.watch import planned

DAY = timedelta(days=1)
LONGEST = timedelta(days=8)
MOST_CELLS = 2_000
MOST_SERIES = 50
MOST_SKIPS = 50
MOST_KEPT = 8
BUDGET = 4.0  # seconds of computing, in slices; 100,000 schedules take a third of it
OTHERS = "(others)"

_kept: OrderedDict[Any, Forecast] = OrderedDict()


class ForecastCell(msgspec.Struct, frozen=True):
    at: datetime
    starts: int
    peak: int  # starts in the busiest second
    peak_at: datetime | None


class ForecastSeries(msgspec.Struct, frozen=True):
    name: str  # of a job, or labels such as zone=eu
    starts: list[int]  # by cell


class ForecastHerd(msgspec.Struct, frozen=True):
    """A second in which 20 tasks or more are to start."""

    at: datetime
    starts: int
    schedules: list[str]  # some of those without jitter, which is the remedy


class ForecastSkip(msgspec.Struct, frozen=True):
    """Plan times that a person has skipped; they are not counted."""

    schedule: str
    start: datetime
    until: datetime  # it is skipped as well
    by: str  # the actor
    note: str


class Forecast(msgspec.Struct, frozen=True):
    start: datetime
    end: datetime
    cell: float  # seconds
    by: By
    starts: int  # in all cells
    cells: list[ForecastCell]
    series: list[ForecastSeries]  # the largest first; none by `none`
    herds: list[ForecastHerd]
    skips: list[ForecastSkip]  # by hand, the first 50 in this time
    unknown: list[str]  # some schedules whose plan times cannot be computed here
    complete: bool  # False: there was no time to count all schedules


async def forecast(
    conn: Connection,
    actor: Actor,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    cell: timedelta = timedelta(minutes=15),
    by: By = "none",
) -> Forecast:
    """How many tasks the schedules will start, cell by cell, and which of them start together.

    Cells are whole: the first is the one that `start` lies in, and what it has started before that is counted too.
    """
    state, now = await planned.state(conn)
    first = floor(now if start is None else check_instant(start, field="from"), check_cell(cell))
    last = first + DAY if end is None else check_instant(end, field="to")
    check_range(first, last, cell)
    if by not in ("none", "job", "label"):
        raise ValidationError(f"by: {shown(by)}; use none, job or label", field="by")
    key = (state, first, last, cell, by, actor.jobs)
    if (kept := _kept.get(key)) is not None:
        _kept.move_to_end(key)
        return kept
    slices = Slices()
    cells = -(-(last - first) // cell)
    counts = Counts(first, first + cells * cell, cell, now, has_series=by != "none")
    read = await sources.sources(conn, actor, state, by, slices)
    unknown = list(read.unknown)
    complete = await count(counts, read.sources, slices, unknown)
    skips = await _skips(counts, read.sources, slices)
    found = await _result(counts, by, slices, skips, unknown, complete=complete)
    _kept[key] = found
    if len(_kept) > MOST_KEPT:
        _kept.popitem(last=False)
    return found


def check_range(start: datetime, end: datetime, cell: timedelta) -> None:
    if not timedelta(0) < end - start <= LONGEST or (end - start) / cell > MOST_CELLS:
        raise ValidationError(
            f"to: give an instant up to {LONGEST.days} days after the start, and at most {MOST_CELLS:,} cells",
            field="to",
        )


def check_cell(cell: timedelta) -> timedelta:
    if not isinstance(cell, timedelta) or cell.microseconds or not timedelta(seconds=1) <= cell <= DAY:
        raise ValidationError(f"cell: {shown(cell)}; give whole seconds up to a day, such as 15m", field="cell")
    return cell


def floor(at: datetime, cell: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=at.tzinfo)
    return epoch + (at - epoch) // cell * cell


async def count(counts: Counts, given: Sequence[Source], slices: Slices, unknown: list[str]) -> bool:
    """Whether there was time for all of them."""
    for source in given:
        await slices.rest()
        if slices.used > BUDGET:
            return False
        try:
            for _ in counts.add(source):
                await slices.rest()
                if slices.used > BUDGET:
                    return False
        except ValidationError:  # a timezone that this host does not know
            unknown += source.names
    return True


async def _skips(counts: Counts, given: Sequence[Source], slices: Slices) -> list[ForecastSkip]:
    found = []
    for source in given:
        await slices.rest()
        found += [
            ForecastSkip(source.schedule.name, skip.start, skip.stop, skip.by, skip.note)
            for skip in source.skips
            if skip.start < counts.end and skip.stop >= counts.start
        ]
    return sorted(found, key=lambda skip: (skip.start, skip.schedule))[:MOST_SKIPS]


async def _result(
    counts: Counts, by: By, slices: Slices, skips: list[ForecastSkip], unknown: list[str], *, complete: bool
) -> Forecast:
    found = []
    for number in range(counts.cells):
        peak, peak_at = counts.peak(number)
        at = counts.start + number * timedelta(seconds=counts.cell)
        found.append(ForecastCell(at, counts.starts(number), peak, peak_at))
        await slices.rest()
    herds = []
    for herd in counts.herds():
        if herd is not None:
            herds.append(ForecastHerd(*herd))
        await slices.rest()
    return Forecast(
        start=counts.start,
        end=counts.end,
        cell=float(counts.cell),
        by=by,
        starts=sum(cell.starts for cell in found),
        cells=found,
        series=[] if by == "none" else _largest(counts.by_series),
        herds=herds,
        skips=skips,
        unknown=unknown[:10],
        complete=complete,
    )


def _largest(by_series: Mapping[str, list[int]]) -> list[ForecastSeries]:
    """The largest series, and the sum of the others."""
    ordered = sorted(by_series.items(), key=lambda item: (-sum(item[1]), item[0]))
    found = [ForecastSeries(name, cells) for name, cells in ordered[:MOST_SERIES]]
    if others := [cells for _, cells in ordered[MOST_SERIES:]]:
        found.append(ForecastSeries(OTHERS, [sum(column) for column in zip(*others, strict=True)]))
    return found
