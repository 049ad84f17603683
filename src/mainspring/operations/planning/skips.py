"""Skips: take plan times of a schedule out before they come, and take that back.

What is skipped is decided as `skipped`, and says by whom and why. It must not have come yet: a task whose plan time
has passed is skipped by itself, with `task skip`.
Next: store/schedules/skips.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import islice

import msgspec

from mainspring.errors import InvalidTransition, ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.planning import INSTANT
from mainspring.model.schedules.skips import Skip, covering, skipped, unskipped, without
from mainspring.model.schedules.story import in_zone, last_before
from mainspring.model.schedules.timing import Timing, timing
from mainspring.model.words.instants import check_instant
from mainspring.model.words.names import check_note
from mainspring.model.words.zones import by_its_clocks
from mainspring.operations.definitions import schedules
from mainspring.operations.planning.schedule_views import ScheduleView, view
from mainspring.store.access import audit
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import schedules as stored_schedules
from mainspring.store.schedules import skips as stored_skips
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.schedules.schedules import Stored

MOST = 200  # plan times in one call: computing them holds the event loop, and the schedule's row
MOST_SKIPS = 1000  # of one schedule that are not over
TOLD = 10  # plan times in the answer and in the audit


class SkipChange(msgspec.Struct, frozen=True):
    schedule: ScheduleView  # with the skips that it has now
    plan_times: list[datetime]  # that were skipped, or taken back: the first ones
    more: bool  # there are more than those
    recalled: Recalled  # what became of tasks that were planned ahead
    changed: bool  # False: it was so before


async def skip(
    conn: Connection,
    actor: Actor,
    name: str,
    *,
    next: int | None = None,
    at: Sequence[datetime] = (),
    until: datetime | None = None,
    note: str | None = None,
) -> SkipChange:
    """Skip plan times that have not come: the `next` so many, those `at` instants, or all `until` one, with it.

    The skip is of instants: it stays where it is when the schedule is edited. One with `until` also covers plan times
    that an edit brings. A task that was planned ahead is taken back, unless it starts first.
    """
    said = _check(next, at, until, note, wanted=True)
    async with conn.transaction():
        stored, present = await _hold(conn, actor, name)
        wanted = _wanted(stored, present, next, at, until)
        if len(present) + len(wanted) > MOST_SKIPS:
            raise ValidationError(f"at: {name!r} would have over {MOST_SKIPS} skips; use `until`", field="at")
        added = [Skip(start, stop, actor.name, said, stored.now) for start, stop in wanted]
        new = list(added)
        for one in present:
            new = without(new, one.start, one.stop)
        affected = list(islice(skipped(timing(stored.schedule), new, stored.now), TOLD + 1))
        recalled = await stored_skips.add(conn, stored, added) if added else Recalled(0, 0, 0)
        if added:
            await _audit(conn, actor, "schedule.skip", name, affected, until, said)
        return await _changed(conn, name, affected, recalled, changed=bool(added))


def _wanted(
    stored: Stored, present: Sequence[Skip], next: int | None, at: Sequence[datetime], until: datetime | None
) -> list[tuple[datetime, datetime]]:
    """The ranges to skip that are not skipped yet."""
    times = timing(stored.schedule)
    if until is not None:
        start, stop = stored.now + INSTANT, _check_to_come(until, stored, "until")
        return [] if any(one.start <= start and one.stop >= stop for one in present) else [(start, stop)]
    if next is not None:
        return [(one, one) for one in islice(unskipped(times, present, stored.now), next)]
    return [(one, one) for one in _plan_times(stored, times, at) if covering(present, one) is None]


async def unskip(
    conn: Connection,
    actor: Actor,
    name: str,
    *,
    next: int | None = None,
    at: Sequence[datetime] = (),
    until: datetime | None = None,
    note: str | None = None,
) -> SkipChange:
    """Take skips back, as long as their plan times have not passed: the `next` so many, those `at` instants, all
    `until` one, or without any of them all that there are."""
    said = _check(next, at, until, note, wanted=False)
    async with conn.transaction():
        stored, present = await _hold(conn, actor, name)
        left = present
        for start, stop in _taken_back(stored, present, next, at, until):
            left = without(left, start, stop)
        times = timing(stored.schedule)
        covered = islice(skipped(times, present, stored.now), MOST_SKIPS)
        affected = list(islice((one for one in covered if covering(left, one) is None), TOLD + 1))
        if left != present:
            await stored_skips.replace(conn, stored, left)
            await _audit(conn, actor, "schedule.unskip", name, affected, until, said)
        return await _changed(conn, name, affected, Recalled(0, 0, 0), changed=left != present)


def _taken_back(
    stored: Stored, present: Sequence[Skip], next: int | None, at: Sequence[datetime], until: datetime | None
) -> list[tuple[datetime, datetime]]:
    """The ranges to take back."""
    times, first = timing(stored.schedule), stored.now + INSTANT
    if next is not None:
        return [(one, one) for one in islice(skipped(times, present, stored.now), next)]
    for one in at:
        if covering(present, _check_to_come(one, stored, "at")) is None:
            told = f"schedule {stored.schedule.name!r}: {in_zone(one, times.zone)} is not skipped"
            raise InvalidTransition(f"{told}; nothing to take back", field="at")
    if at:
        return [(one, one) for one in at]
    return [(first, max((one.stop for one in present), default=first) if until is None else until)]


async def _hold(conn: Connection, actor: Actor, name: str) -> tuple[Stored, list[Skip]]:
    """The schedule, locked, and its skips that are not over."""
    stored = await schedules.find(conn, actor, name, lock=True)
    if stored.schedule.kind == "daemon":
        raise InvalidTransition(
            f"schedule {name!r} keeps replicas running; it has no plan times. `mainspring daemon stop` stops it",
            field="schedule",
        )
    return stored, await stored_skips.between(conn, stored.id, stored.now + INSTANT)


def _check(next: int | None, at: Sequence[datetime], until: datetime | None, note: str | None, *, wanted: bool) -> str:
    """Refuse what is wrong by itself; returns the note."""
    given = [one for one in (next, at or None, until) if one is not None]
    if len(given) > 1 or (wanted and not given):
        raise ValidationError("next, at, until: give one of them", field="next")
    if next is not None and (not isinstance(next, int) or isinstance(next, bool) or not 1 <= next <= MOST):
        raise ValidationError(f"next: {shown(next)}; give 1 to {MOST}, or use `until`", field="next")
    if len(at) > MOST:
        raise ValidationError(f"at: {len(at):,} plan times; at most {MOST}, or use `until`", field="at")
    for one in at:
        check_instant(one, field="at")
    if until is not None:
        check_instant(until, field="until")
    return "" if note is None else check_note(note)


def _check_to_come(at: datetime, stored: Stored, field: str) -> datetime:
    if at <= stored.now:
        zone = timing(stored.schedule).zone
        raise InvalidTransition(
            f"{in_zone(at, zone)} has passed; a task that waits is skipped by `mainspring task skip`", field=field
        )
    return at


def _plan_times(stored: Stored, times: Timing, given: Sequence[datetime]) -> list[datetime]:
    """These instants, each of which must be a plan time that has not come."""
    for at in given:
        _check_to_come(at, stored, "at")
        following = times.after(at - INSTANT)
        if following != at:
            around = [one for one in (last_before(times, at), following) if one is not None]
            told = " and ".join(in_zone(one, times.zone) for one in around) or "there are none"
            raise ValidationError(
                f"at: {in_zone(at, times.zone)} is no plan time of {stored.schedule.name!r}; around it: {told}",
                field="at",
            )
    return sorted({at.astimezone(stored.now.tzinfo) for at in given})


async def _audit(
    conn: Connection,
    actor: Actor,
    action: str,
    name: str,
    affected: Sequence[datetime],
    until: datetime | None,
    note: str,
) -> None:
    detail = {"plan_times": affected[:TOLD], "more": len(affected) > TOLD, "until": until, "note": note}
    given = {member: value for member, value in detail.items() if value}
    await audit.record(conn, actor, action, f"schedule:{name}", given)


async def _changed(
    conn: Connection, name: str, affected: Sequence[datetime], recalled: Recalled, *, changed: bool
) -> SkipChange:
    stored = await stored_schedules.find(conn, name)
    zone = timing(stored.schedule).zone
    told = [by_its_clocks(at, zone) for at in affected[:TOLD]]
    return SkipChange(view(stored), told, len(affected) > TOLD, recalled, changed)
