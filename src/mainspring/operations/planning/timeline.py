"""Timeline: plan times of some schedules between two instants, with what was decided and what came of it.

Beside what the ledger has, it has what the ledger lacks: plan times that were missed, those to come, and clock changes.
Next: store/schedules/fires.py, store/schedules/missed.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.forecasting.preview import transition
from mainspring.model.schedules.planning import GRACE, INSTANT
from mainspring.model.schedules.skips import covering
from mainspring.model.schedules.story import Origin
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.names import check_name
from mainspring.model.words.zones import Change, changes_between, zone_or_utc
from mainspring.operations.parts.slices import Slices
from mainspring.operations.planning.schedule_views import SkipView, skip_view
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import fires, schedules
from mainspring.store.schedules.missed import Missing, expected_times
from mainspring.store.schedules.schedules import Stored

MOST_SCHEDULES = 50
MOST_MARKS = 2000  # of one schedule; beyond that they are binned
MOST_IN_ALL = 5000  # marks of an answer: more would hold the event loop
MOST_COMPARED = 4000  # expected plan times of one schedule that are compared with the ledger
MOST_COMPARED_IN_ALL = 20_000
MOST_COMING = 200  # of one schedule
MOST_COMING_IN_ALL = 2500
BINS = 500
LONGEST = timedelta(days=366)
NEAR = timedelta(hours=3)  # of a clock change


class Mark(msgspec.Struct, frozen=True):
    """A decided plan time."""

    plan_time: datetime
    scope: str
    origin: Origin
    decision: str  # planned, or why there is no task
    skipped_by: str | None  # the actor, and why, where the decision is `skipped`
    task_id: int | None
    state: str | None  # of the task; None as well when retention dropped it
    started_at: datetime | None
    lateness_ms: float | None
    finished_at: datetime | None
    note: str | None = None  # about a clock change


class Bin(msgspec.Struct, frozen=True):
    """Plan times of one stretch of time, counted."""

    start: datetime
    plan_times: int
    tasks: int  # the others have none: skipped


class Coming(msgspec.Struct, frozen=True):
    """A plan time that is not decided yet."""

    plan_time: datetime
    note: str | None  # about a clock change
    skipped_by: str | None  # the actor, and why, where a person has skipped it


class ClockChange(msgspec.Struct, frozen=True):
    """The clocks of the schedule's timezone are set."""

    at: datetime  # the first instant of the new offset
    seconds: float  # by which they go forward; negative: back
    said: str


class Line(msgspec.Struct, frozen=True):
    """One schedule: its marks in order, or bins where there are too many."""

    schedule: str
    marks: list[Mark]  # runs that began before the range and lasted into it come first
    bins: list[Bin]
    bin_seconds: float | None
    skips: list[SkipView]  # by hand, of plan times in this range that may be still to come
    timezone: str
    slo: float | None  # seconds of lateness that its objective allows
    missed: list[Missing]  # plan times that should have been decided by now, and are not in the ledger
    missed_to: datetime | None  # later ones were not looked for, there are too many; null: all were
    coming: list[Coming]
    coming_to: datetime | None  # the same of those to come
    changes: list[ClockChange]


class Timeline(msgspec.Struct, frozen=True):
    start: datetime
    end: datetime
    lines: list[Line]


async def show(
    conn: Connection,
    actor: Actor,
    *,
    schedule: Sequence[str],
    start: datetime,
    end: datetime,
    keep: timedelta | None = None,
) -> Timeline:
    """What was planned of these schedules from `from` up to `to`, what came of it, what was missed and what comes.

    `keep` is how long fires are kept: before that, a dropped one looks like a missed one.
    """
    names = list(dict.fromkeys(check_name(name, field="schedule") for name in schedule))
    _check(names, start, end)
    found = {one.schedule.name: one for one in await schedules.listing(conn, names=names)}
    for name in names:
        if name not in found or not actor.reaches(found[name].schedule.job):
            raise schedules.not_found(name)
    ids = {found[name].id: name for name in names}
    counted = await fires.counts(conn, list(ids), start, end, MOST_MARKS + 1)
    crowded = _crowded(counted)
    marks: dict[int, list[Mark]] = {}
    slices = Slices()
    for row in await fires.marks(conn, [id for id in ids if id not in crowded], start, end, MOST_MARKS):
        marks.setdefault(row["schedule_id"], []).append(_mark(row))
        await slices.rest()
    width = max((end - start) / BINS, timedelta(seconds=1))
    bins: dict[int, list[Bin]] = {}
    for row in await fires.bins(conn, crowded, start, end, width) if crowded else ():
        bins.setdefault(row["schedule_id"], []).append(Bin(row["at"], row["plan_times"], row["tasks"]))
    wanted, lines = _Wanted(start, end, keep, slices), []
    for id, name in ids.items():
        known = sorted(marks.get(id, []), key=lambda mark: (mark.plan_time, mark.scope))
        expected = await _expect(conn, found[name], wanted, None if id in crowded else known)
        lines.append(
            Line(
                name,
                _noted(found[name], known, expected.changes),
                bins.get(id, []),
                width.total_seconds() if id in crowded else None,
                _skips(found[name], start, end),
                found[name].schedule.timezone,
                _allowed(found[name]),
                expected.missed,
                expected.missed_to,
                expected.coming,
                expected.coming_to,
                expected.changes,
            )
        )
    return Timeline(start, end, lines)


def _allowed(stored: Stored) -> float | None:
    objective = stored.schedule.policies.slo
    return None if objective is None else objective.lateness


class _Wanted:
    """The range of an answer, and how much more it may compute."""

    def __init__(self, start: datetime, end: datetime, keep: timedelta | None, slices: Slices) -> None:
        self.start, self.end, self.keep, self.slices = start, end, keep, slices
        self.compared = self.coming = 0


class _Expectation(NamedTuple):
    """What the ledger does not have."""

    missed: list[Missing]
    missed_to: datetime | None
    coming: list[Coming]
    coming_to: datetime | None
    changes: list[ClockChange]


async def _expect(conn: Connection, stored: Stored, wanted: _Wanted, known: Sequence[Mark] | None) -> _Expectation:
    """`known` are the marks of the range; None: there are too many to be compared."""
    try:
        times = timing(stored.schedule)
    except ValidationError:  # a timezone that this host does not know
        return _Expectation([], wanted.start, [], wanted.start, [])
    changes = [_change(one) for one in changes_between(times.zone, wanted.start, wanted.end)]
    scopes: dict[datetime, set[str]] = {}
    for mark in known or ():
        if mark.origin != "manual":
            scopes.setdefault(mark.plan_time, set()).add(mark.scope)
    since, until = max(wanted.start, stored.created_at), min(wanted.end - INSTANT, stored.now)
    if wanted.keep is not None:
        since = max(since, stored.now - wanted.keep)
    missed, missed_to = list[Missing](), wanted.start if known is None and since < until else None
    if known is not None and since < until:
        missed, missed_to = await _missed(conn, stored, since, until, scopes, wanted)
    coming, coming_to = await _coming(conn, stored, scopes, wanted)
    return _Expectation(missed, missed_to, _noted(stored, coming, changes), coming_to, changes)


async def _missed(
    conn: Connection,
    stored: Stored,
    since: datetime,
    until: datetime,
    scopes: Mapping[datetime, set[str]],
    wanted: _Wanted,
) -> tuple[list[Missing], datetime | None]:
    found: list[Missing] = []
    most = min(MOST_COMPARED, MOST_COMPARED_IN_ALL - wanted.compared)
    for count, one in enumerate(await expected_times(conn, stored, since, until)):
        if count >= most:
            return found, one.plan_time
        wanted.compared += 1
        found += [Missing(one.plan_time, scope) for scope in one.gaps(scopes.get(one.plan_time, ()))]
        await wanted.slices.rest()
    return found, None


async def _coming(
    conn: Connection, stored: Stored, scopes: Mapping[datetime, set[str]], wanted: _Wanted
) -> tuple[list[Coming], datetime | None]:
    """Those that are not decided, and not due for so long that they count as missed."""
    since = max(wanted.start, stored.now - GRACE, stored.created_at)
    if not stored.enabled or since >= wanted.end:
        return [], None
    found: list[Coming] = []
    left = None if stored.schedule.policies.max_runs is None else stored.schedule.policies.max_runs - stored.runs
    for one in await expected_times(conn, stored, since, wanted.end - INSTANT):
        if one.plan_time in scopes or one.is_due:
            continue
        if left is not None and len(found) >= left:
            break
        if len(found) >= MOST_COMING or wanted.coming >= MOST_COMING_IN_ALL:
            return found, one.plan_time
        wanted.coming += 1
        skip = covering(stored.skips, one.plan_time)
        found.append(Coming(one.plan_time, None, None if skip is None else skip.who))
        await wanted.slices.rest()
    return found, None


def _change(change: Change) -> ClockChange:
    way = "forward" if change.is_gap else "back"
    from_, to = (change.start, change.end) if change.is_gap else (change.end, change.start)
    return ClockChange(
        change.at,
        (change.after - change.before).total_seconds(),
        f"clocks go {way}: {from_:%H:%M} becomes {to:%H:%M}",
    )


M = TypeVar("M", Mark, Coming)


def _noted(stored: Stored, marks: Sequence[M], changes: Sequence[ClockChange]) -> list[M]:
    """With notes where a clock change is near: finding out whether it matters takes longer than all else of a mark."""
    if not changes:
        return list(marks)
    times = timing(stored.schedule)
    near = [(change.at - NEAR, change.at + NEAR) for change in changes]
    return [
        replace(mark, note=transition(times, mark.plan_time))
        if any(early <= mark.plan_time <= late for early, late in near)
        else mark
        for mark in marks
    ]


def _skips(stored: Stored, start: datetime, end: datetime) -> list[SkipView]:
    zone = zone_or_utc(stored.schedule.timezone)
    return [skip_view(skip, zone) for skip in stored.skips if skip.start < end and skip.stop >= start]


def _crowded(counted: dict[int, int]) -> list[int]:
    """The schedules that are binned: those with too many plan times, and the fullest until the rest fits."""
    left, crowded = sum(counted.values()), []
    for id, count in sorted(counted.items(), key=lambda one: -one[1]):
        if count > MOST_MARKS or left > MOST_IN_ALL:
            crowded.append(id)
            left -= count
    return crowded


def _check(names: Sequence[str], start: datetime, end: datetime) -> None:
    if not 1 <= len(names) <= MOST_SCHEDULES:
        raise ValidationError(f"schedule: {len(names)} of them; name 1 to {MOST_SCHEDULES}", field="schedule")
    if not timedelta(0) < end - start <= LONGEST:
        raise ValidationError("to: give an instant after `from`, and at most a year after it", field="to")


def _mark(row: Any) -> Mark:
    started, due = row["started_at"], row["run_at"]
    return Mark(
        plan_time=row["plan_time"],
        scope=row["scope"],
        origin=row["origin"],
        decision="planned" if row["reason"] is None else row["reason"],
        skipped_by=row["skipped_by"],
        task_id=row["task_id"],
        state=None if row["state"] is None else TaskState(row["state"]).label,
        started_at=started,
        lateness_ms=None if started is None else round((started - due).total_seconds() * 1000, 3),
        finished_at=row["finished_at"],
    )
