"""Skips: plan times of a schedule that a person has taken out.

A skip is a range of instants. A single plan time is a range of one, so a skip holds whatever the schedule becomes:
an edit that moves its plan times leaves the range where it is.
Next: model/schedules/planning.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

_INSTANT = timedelta(microseconds=1)


class HasPlanTimes(Protocol):
    def after(self, instant: datetime, /) -> datetime | None: ...


class Skip(NamedTuple):
    """The plan times from `start` through `stop` get no task."""

    start: datetime
    stop: datetime
    by: str  # the actor
    note: str
    made_at: datetime

    def covers(self, at: datetime) -> bool:
        return self.start <= at <= self.stop

    @property
    def who(self) -> str:
        """Whose it is and why, to follow the words `skipped by`."""
        return f"{self.by}: {self.note}" if self.note else self.by


def covering(skips: Iterable[Skip], at: datetime) -> Skip | None:
    """The first skip that covers a plan time."""
    return next((skip for skip in skips if skip.covers(at)), None)


def unskipped(times: HasPlanTimes, skips: Sequence[Skip], after: datetime) -> Iterator[datetime]:
    """The plan times after an instant that no skip covers; a long skip is passed over in one step."""
    while (at := times.after(after)) is not None:
        skip = covering(skips, at) if skips else None
        if skip is None:
            yield at
        after = at if skip is None else skip.stop


def skipped(times: HasPlanTimes, skips: Sequence[Skip], after: datetime) -> Iterator[datetime]:
    """The plan times after an instant that are skipped."""
    last = max((skip.stop for skip in skips), default=after)
    while (at := times.after(after)) is not None and at <= last:
        if covering(skips, at) is not None:
            yield at
            after = at
        else:  # up to the next skip there is none
            begins = min((skip.start for skip in skips if skip.start > at), default=last + _INSTANT)
            after = max(at, begins - _INSTANT)


def without(skips: Sequence[Skip], start: datetime, stop: datetime) -> list[Skip]:
    """What is left of the skips once the instants from `start` through `stop` are taken back."""
    left = []
    for skip in skips:
        if skip.stop < start or skip.start > stop:
            left.append(skip)
            continue
        if skip.start < start:
            left.append(skip._replace(stop=start - _INSTANT))
        if skip.stop > stop:
            left.append(skip._replace(start=stop + _INSTANT))
    return left
