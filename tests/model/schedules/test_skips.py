"""Skips: which plan times they cover, and what is left of them when some are taken back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.schedules.planning import INSTANT, Decision, Reason, Version, decide
from mainspring.model.schedules.schedules import Policies
from mainspring.model.schedules.skips import Skip, covering, skipped, unskipped, without
from mainspring.model.schedules.timing import timing

NOON = datetime(2031, 3, 29, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def skip(start: float, stop: float | None = None, note: str = "") -> Skip:
    return Skip(at(start), at(start if stop is None else stop), "os:alice@host", note, NOON)


EVERY_MINUTE = timing(define_schedule("tick", "job", {"every": "1m"}))


def test_a_skip_says_whose_it_is_and_why() -> None:
    assert skip(1).who == "os:alice@host"
    assert skip(1, note="release").who == "os:alice@host: release"


def test_a_skip_covers_its_instants_and_both_ends() -> None:
    one = skip(2, 4)
    assert [minute for minute in range(7) if one.covers(at(minute))] == [2, 3, 4]
    assert covering([skip(9), one], at(3)) is one
    assert covering([skip(9), one], at(5)) is None


def test_plan_times_are_skipped_or_not() -> None:
    skips = [skip(2, 4), skip(6)]
    assert list(islice(unskipped(EVERY_MINUTE, skips, at(0)), 4)) == [at(1), at(5), at(7), at(8)]
    assert list(skipped(EVERY_MINUTE, skips, at(0))) == [at(2), at(3), at(4), at(6)]
    assert list(skipped(EVERY_MINUTE, skips, at(3))) == [at(4), at(6)]
    assert list(skipped(EVERY_MINUTE, [], at(0))) == []


def test_a_long_skip_is_passed_over_in_one_step() -> None:
    class Counted:
        calls = 0

        def after(self, instant: datetime) -> datetime | None:
            self.calls += 1
            return EVERY_MINUTE.after(instant)

    times = Counted()
    assert next(unskipped(times, [skip(1, 1_000_000)], NOON)) == at(1_000_001)
    assert times.calls == 2


def test_what_is_taken_back_is_cut_out() -> None:
    left = without([skip(2, 4), skip(6)], at(3), at(3))
    assert [(one.start, one.stop) for one in left] == [
        (at(2), at(3) - INSTANT),
        (at(3) + INSTANT, at(4)),
        (at(6), at(6)),
    ]
    assert without([skip(2, 4), skip(6)], at(0), at(10)) == []
    assert without([skip(6)], at(7), at(8)) == [skip(6)]


_RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=6)


@given(_RANGES, st.integers(0, 30), st.integers(0, 10))
def test_taking_back_leaves_exactly_the_rest(ranges: list[tuple[int, int]], start: int, length: int) -> None:
    skips = [skip(first, first + more) for first, more in ranges]
    left = without(skips, at(start), at(start + length))
    for minute in range(45):
        was = covering(skips, at(minute)) is not None
        is_now = covering(left, at(minute)) is not None
        assert is_now == (was and not start <= minute <= start + length)
    expected = [at(minute) for minute in range(1, 45) if covering(skips, at(minute)) is not None]
    assert list(skipped(EVERY_MINUTE, skips, NOON)) == expected
    assert [one for one in islice(unskipped(EVERY_MINUTE, skips, NOON), 60) if one < at(45)] == [
        at(minute) for minute in range(1, 45) if at(minute) not in expected
    ]


# ── what planners make of them ──────────────────────────────────────────────────────────────────


def decided(
    now: float, *skips: Skip, cursor: float = 1, enabled: bool = True, runs: int = 0, **policies: object
) -> Decision:
    version = Version(EVERY_MINUTE, Policies(**policies), enabled, at(-1))  # type: ignore[arg-type]
    return decide([version], at(cursor), at(now), skips=skips, runs=runs)


def reasons(decision: Decision) -> list[tuple[float, Reason | None]]:
    return [((one.plan_time - NOON).total_seconds() / 60, one.reason) for one in decision.plan_times]


def test_a_skipped_plan_time_is_decided_without_a_task() -> None:
    assert reasons(decided(0.95, skip(1))) == [(1, "skipped")]
    assert reasons(decided(0.95, skip(2))) == [(1, None)]


def test_what_is_skipped_uses_up_no_run() -> None:
    assert decided(0.95, skip(1), max_runs=1).cursor == at(2)
    assert reasons(decided(1.95, skip(1), cursor=2, max_runs=1)) == [(2, None)]


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_catch_up_runs_the_last_plan_time_that_is_not_skipped(catch_up: str) -> None:
    found = reasons(decided(5.5, skip(4, 5), catch_up=catch_up, window=0.0))
    earlier: Reason = "coalesced" if catch_up == "latest" else "misfire"
    assert found == [(1, earlier), (2, earlier), (3, None), (4, "skipped"), (5, "skipped")]


def test_what_a_pause_covers_stays_paused() -> None:
    assert reasons(decided(3.5, skip(2), enabled=False)) == [(1, "paused"), (2, "paused"), (3, "paused")]


def test_an_outage_behind_a_skip_is_still_an_outage() -> None:
    found = reasons(decided(3.5, skip(1), catch_up="skip"))
    assert found == [(1, "skipped"), (2, "misfire"), (3, "misfire")]
