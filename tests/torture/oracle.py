"""The oracle of fires: every second of the run is asked, for each schedule, whether it is one of its plan times.

It shares nothing with the product: no cron library, no cursor, no window.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from tests.torture.timetable import Tick

Plan = tuple[str, str, float]  # schedule, scope, plan time in seconds since 1970


def expected(timetable: Iterable[Tick], since: datetime, until: datetime) -> set[Plan]:
    """All plan times after `since`, up to `until`."""
    seconds = list(_seconds(since, until))
    return {
        (tick.name, scope, at.timestamp())
        for tick in timetable
        for at in seconds
        if _is_plan_time(tick, at)
        for scope in tick.scopes or ("",)
    }


def _seconds(since: datetime, until: datetime) -> Iterable[datetime]:
    at = since.astimezone(UTC).replace(microsecond=0)
    while at <= until:
        if at > since:
            yield at
        at += timedelta(seconds=1)


def _is_plan_time(tick: Tick, at: datetime) -> bool:
    if tick.every:
        return int(at.timestamp()) % tick.every == 0
    # A day of the month and one of the week would be one or the other; the timetable restricts seconds only.
    second, *others = tick.cron.split()
    assert others == ["*"] * 5, f"the oracle knows cron expressions with seconds only, not {tick.cron}"
    return at.second in _values(second, 0, 59)


def _values(field: str, lowest: int, highest: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = ("0", "", str(highest)) if span == "*" else span.partition("-")
        found |= set(range(int(first), int(last or (highest if step else first)) + 1, int(step or 1)))
    assert all(lowest <= value <= highest for value in found)
    return found
