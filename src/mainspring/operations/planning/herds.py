"""Herds: which schedules start in one cell of the forecast, second by second; and what spreading them would do.

Nothing is saved: the schedules are counted as they are, and as they would be.
Next: model/forecasting/spreading.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.forecasting.forecast import Counts, Source
from mainspring.model.forecasting.spreading import SpreadBy, with_hash
from mainspring.model.schedules.expressions.cron_grammar import Resolver
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.instants import check_instant
from mainspring.operations.parts.slices import Slices
from mainspring.operations.planning import forecast, sources
from mainspring.operations.planning.sources import Reader
from mainspring.store.postgres.connection import Connection
from mainspring.store.watch import planned

MOST_SECONDS = 50  # of a cell that are shown
MOST_SPREAD = 20_000  # schedules
EXAMPLES = 10
AROUND = timedelta(hours=1)  # what is counted before and after a herd: H moves a start within its hour
LONGEST_JITTER = 6 * 3600.0
JITTER = 300.0

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)


class CellSecond(msgspec.Struct, frozen=True):
    at: datetime
    starts: int
    schedules: list[str]  # some of them


class CellStarts(msgspec.Struct, frozen=True):
    start: datetime
    end: datetime
    starts: int
    peak: int  # starts in the busiest second
    seconds: list[CellSecond]  # those with the most starts, in order
    more: int  # seconds with starts that are not among them
    complete: bool  # False: there was no time to count all schedules


class SpreadExample(msgspec.Struct, frozen=True):
    name: str
    before: str  # the expression
    after: str  # the same with jitter, if that is what spreads it


class SpreadPreview(msgspec.Struct, frozen=True):
    """Starts by the minute around a herd, as they are and as they would be."""

    at: datetime
    by: SpreadBy
    jitter: float | None  # seconds
    schedules: int  # that start in this second, without jitter
    changed: int  # those of them that this would move
    examples: list[SpreadExample]
    start: datetime
    end: datetime
    cell: float  # seconds
    before: list[int]  # by cell
    after: list[int]
    peak_before: int  # starts in the busiest second of all
    peak_after: int
    peak_after_at: datetime | None
    complete: bool  # False: there were too many, or no time to count them all


async def cell(conn: Connection, actor: Actor, at: datetime, *, cell: timedelta = timedelta(minutes=15)) -> CellStarts:
    """The seconds of one cell of the forecast, and some schedules that start in each."""
    start = forecast.floor(check_instant(at, field="at"), forecast.check_cell(cell))
    slices, names = Slices(), sources.NAMES
    state, now = await planned.state(conn)
    read = await sources.sources(conn, actor, state, "none", slices)
    counts = Counts(start, start + cell, cell, now, has_series=False, names=names)
    complete = await forecast.count(counts, read.sources, slices, [])
    busy = [number for number, starts in enumerate(counts.by_second) if starts]
    shown = sorted(sorted(busy, key=lambda number: -counts.by_second[number])[:MOST_SECONDS])
    return CellStarts(
        start,
        start + cell,
        counts.starts(0),
        counts.peak(0)[0],
        [
            CellSecond(start + number * _SECOND, counts.by_second[number], sorted(counts.names[number]))
            for number in shown
        ],
        len(busy) - len(shown),
        complete,
    )


async def spread(
    conn: Connection, actor: Actor, at: datetime, *, by: SpreadBy = "minute", jitter: Duration = JITTER
) -> SpreadPreview:
    """What it would do to have all schedules that start in a second start at others; nothing is saved.

    `minute` puts H for the minutes of their expressions, `second` for their seconds too, `jitter` delays each task by
    up to so long. Intervals have no H: only jitter moves them.
    """
    if by not in ("minute", "second", "jitter"):
        raise ValidationError(f"by: {shown(by)}; use minute, second or jitter", field="by")
    longest = seconds(jitter, field="jitter", at_least=1.0)
    if longest > LONGEST_JITTER:
        raise ValidationError(f"jitter: {shown(jitter)}; give at most {LONGEST_JITTER / 3600:g} hours", field="jitter")
    second = forecast.floor(check_instant(at, field="at"), _SECOND)
    slices = Slices()
    state, now = await planned.state(conn)
    read = await sources.sources(conn, actor, state, "none", slices)
    start = forecast.floor(second - AROUND, _MINUTE)
    end = forecast.floor(second + AROUND + timedelta(seconds=longest if by == "jitter" else 0), _MINUTE)
    before, old, new = (Counts(start, end, _MINUTE, now, has_series=False) for _ in range(3))
    complete = await forecast.count(before, read.sources, slices, [])
    herd = await _herd(conn, actor, before, read.sources, second, slices)
    moved = _moved(herd, by, longest)
    for counts, given in ((old, [one.source for one in moved]), (new, [one.spread for one in moved])):
        complete = await forecast.count(counts, given, slices, []) and complete
    for number in range(new.length):
        new.by_second[number] += before.by_second[number] - old.by_second[number]
    peak_at = new.by_second.index(max(new.by_second))
    members = sum(len(one.names) for one in herd)
    return SpreadPreview(
        at=second,
        by=by,
        jitter=longest if by == "jitter" else None,
        schedules=members,
        changed=sum(len(one.names) for one in moved),
        examples=_examples(moved),
        start=start,
        end=end,
        cell=_MINUTE.total_seconds(),
        before=[before.starts(number) for number in range(before.cells)],
        after=[new.starts(number) for number in range(new.cells)],
        peak_before=max(before.by_second),
        peak_after=new.by_second[peak_at],
        peak_after_at=start + peak_at * _SECOND if new.by_second[peak_at] else None,
        complete=complete and members < MOST_SPREAD,
    )


async def _herd(
    conn: Connection, actor: Actor, counts: Counts, all: Sequence[Source], second: datetime, slices: Slices
) -> list[Source]:
    """The sources without jitter that start in a second, with all their names."""
    number = (second - counts.start) // _SECOND
    expressions: set[str] = set()
    for source in all:
        if not source.schedule.policies.jitter and counts.is_starting(source, number):
            expressions.update(source.expressions)
        await slices.rest()
    if not expressions:
        return []
    reader = Reader(actor, "none", names=MOST_SPREAD, apart=True)
    await sources.read(conn, reader, slices, names=MOST_SPREAD, expressions=sorted(expressions))
    found: list[Source] = []
    left = MOST_SPREAD
    for source in reader.sources().sources:
        if left and not source.schedule.policies.jitter and counts.is_starting(source, number):
            found.append(source._replace(names=sorted(source.names)[:left]))
            left -= len(found[-1].names)
        await slices.rest()
    return found


class _Moved(NamedTuple):
    """Schedules of a herd that are equal, as they are and as they would be."""

    names: Sequence[str]
    source: Source
    spread: Source
    words: str


def _moved(herd: list[Source], by: SpreadBy, jitter: float) -> list[_Moved]:
    found: list[_Moved] = []
    for source in herd:
        schedule, scopes = source.schedule, max(1, len(source.schedule.policies.scopes))
        if by == "jitter":
            policies = msgspec.structs.replace(schedule.policies, jitter=jitter)
            later = source._replace(schedule=msgspec.structs.replace(schedule, policies=policies))
            now = source._replace(starts={"": len(source.names) * scopes})
            found.append(_Moved(source.names, now, later, f"{schedule.expression}, jitter {jitter:g} s"))
            continue
        expression = with_hash(schedule.expression, by) if schedule.kind == "cron" else None
        if expression is None:
            continue
        resolver, by_text = Resolver(expression), dict[str, list[str]]()
        for name in source.names:
            by_text.setdefault(resolver.text(name), []).append(name)
        for text, names in by_text.items():
            now = source._replace(names=names, starts={"": len(names) * scopes})
            own = msgspec.structs.replace(schedule, name=names[0], expression=expression)
            found.append(_Moved(names, now, now._replace(schedule=own, text=text), expression))
    return found


def _examples(moved: list[_Moved]) -> list[SpreadExample]:
    first = ((name, one) for one in moved for name in one.names)
    return [SpreadExample(name, one.source.schedule.expression, one.words) for name, one in islice(first, EXAMPLES)]
