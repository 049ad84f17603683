"""Forecast: planned starts for each cell of time, their peaks, and herds of schedules that start at once.

By the schedules as they are now: what a task takes, overlaps and limits are not foreseen. A forecast is kept until a
schedule changes.
Next: model/forecasting/forecast.py
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.forecasting.forecast import Counts, Source
from mainspring.model.schedules.schedules import Policies, Schedule
from mainspring.model.tasks.payload import UNREADABLE
from mainspring.model.words.instants import check_instant
from mainspring.operations.parts.slices import Slices
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import planned
from mainspring.store.schedules.planned import AT_ONCE, Planned

By = Literal["none", "job", "label"]

DAY = timedelta(days=1)
LONGEST = timedelta(days=8)
MOST_CELLS = 2_000
MOST_SERIES = 50
MOST_KEPT = 8
BUDGET = 2.0  # seconds of computing
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


class Forecast(msgspec.Struct, frozen=True):
    start: datetime
    end: datetime
    cell: float  # seconds
    by: By
    starts: int  # in all cells
    cells: list[ForecastCell]
    series: list[ForecastSeries]  # the largest first; none by `none`
    herds: list[ForecastHerd]
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
    """How many tasks the schedules will start, cell by cell, and which of them start together."""
    state, now = await planned.state(conn)
    first = _floor(now if start is None else check_instant(start, field="from"), _check_cell(cell))
    last = first + DAY if end is None else check_instant(end, field="to")
    if not timedelta(0) < last - first <= LONGEST or (last - first) / cell > MOST_CELLS:
        raise ValidationError(
            f"to: give an instant up to {LONGEST.days} days after the start, and at most {MOST_CELLS:,} cells",
            field="to",
        )
    if by not in ("none", "job", "label"):
        raise ValidationError(f"by: {shown(by)}; use none, job or label", field="by")
    key = (state, first, last, cell, by, actor.jobs)
    if (kept := _kept.get(key)) is not None:
        _kept.move_to_end(key)
        return kept
    slices = Slices()
    cells = -(-(last - first) // cell)
    counts = Counts(first, first + cells * cell, cell, now)
    unknown: list[str] = []
    sources = await _sources(conn, actor, by, slices, unknown)
    complete = await _count(counts, sources, slices, unknown)
    found = await _result(counts, by, slices, unknown, complete=complete)
    _kept[key] = found
    if len(_kept) > MOST_KEPT:
        _kept.popitem(last=False)
    return found


def _check_cell(cell: timedelta) -> timedelta:
    if not isinstance(cell, timedelta) or cell.microseconds or not timedelta(seconds=1) <= cell <= DAY:
        raise ValidationError(f"cell: {shown(cell)}; give whole seconds up to a day, such as 15m", field="cell")
    return cell


def _floor(at: datetime, cell: timedelta) -> datetime:
    epoch = datetime(1970, 1, 1, tzinfo=at.tzinfo)
    return epoch + (at - epoch) // cell * cell


async def _sources(conn: Connection, actor: Actor, by: By, slices: Slices, unknown: list[str]) -> list[Source]:
    """The schedules that the actor sees, those with equal plan times together, those with the most starts first."""
    found: dict[Any, tuple[Schedule, list[str], dict[str, int], int | None]] = {}
    policies: dict[str, Policies] = {}
    reached: dict[str, bool] = {}
    after = 0
    while rows := await planned.planned(conn, after):
        after = rows[-1].id
        for row in rows:
            if row.job not in reached:
                reached[row.job] = actor.reaches(row.job)
            if reached[row.job]:
                _group(row, _series(row, by), found, policies, unknown)
            await slices.rest()
        if len(rows) < AT_ONCE:
            break
    sources = [Source(schedule, names, starts, left) for schedule, names, starts, left in found.values()]
    return sorted(sources, key=lambda source: -source.weight)


def _group(
    row: Planned,
    series: str,
    found: dict[Any, tuple[Schedule, list[str], dict[str, int], int | None]],
    policies: dict[str, Policies],
    unknown: list[str],
) -> None:
    try:
        if row.policies not in policies:
            policies[row.policies] = msgspec.json.decode(row.policies, type=Policies)
    except UNREADABLE:
        unknown.append(row.name)
        return
    own = policies[row.policies]
    left = None if own.max_runs is None else max(0, own.max_runs - row.runs)
    # H in a cron expression and jitter are spread by the name; runs that are left are those of one schedule.
    is_alone = own.jitter or left is not None or (row.kind == "cron" and "h" in row.expression.lower())
    key = (row.kind, row.expression, row.timezone, row.policies, row.name if is_alone else "")
    if key not in found:
        schedule = Schedule(row.name, row.job, row.kind, row.expression, row.timezone, own)  # type: ignore[arg-type]
        found[key] = (schedule, [], {}, left)
    _, names, starts, _ = found[key]
    if len(names) < 10:
        names.append(row.name)
    starts[series] = starts.get(series, 0) + max(1, len(own.scopes))


def _series(row: Planned, by: By) -> str:
    if by == "none":
        return ""
    if by == "job":
        return row.job
    labels: Mapping[str, str] = msgspec.json.decode(row.labels)
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


async def _count(counts: Counts, sources: list[Source], slices: Slices, unknown: list[str]) -> bool:
    """Whether there was time for all of them."""
    for source in sources:
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


async def _result(counts: Counts, by: By, slices: Slices, unknown: list[str], *, complete: bool) -> Forecast:
    totals = [0] * counts.cells
    for cells in counts.by_series.values():
        totals = [total + starts for total, starts in zip(totals, cells, strict=True)]
        await slices.rest()
    found = []
    for number, starts in enumerate(totals):
        peak, peak_at = counts.peak(number)
        at = counts.start + number * timedelta(seconds=counts.cell)
        found.append(ForecastCell(at, starts, peak, peak_at))
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
        starts=sum(totals),
        cells=found,
        series=[] if by == "none" else _largest(counts.by_series),
        herds=herds,
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
