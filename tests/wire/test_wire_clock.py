"""The clock that follows another."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.wire.clock import AHEAD, DRIFT, Clock, boottime

EPOCH = 1_790_000_000.0
ROUNDING = 1e-6  # seconds since 1970 have that many digits


def test_the_first_measurement_counts_whatever_the_machine_thought() -> None:
    clock = Clock()
    clock.measured(100.0, 100.0002, EPOCH + 100.0001)
    assert clock.offset == pytest.approx(EPOCH, abs=ROUNDING)


def test_a_slow_round_trip_neither_advances_the_clock_nor_sets_it_back() -> None:
    clock = Clock()
    clock.measured(0.0, 0.0004, EPOCH + 0.0002)
    for number in range(1, 100):
        clock.measured(number, number + 1.0, EPOCH + number + 0.5)
    assert clock.offset == pytest.approx(EPOCH, abs=2 * AHEAD + 100 * DRIFT)
    assert clock.offset <= EPOCH + AHEAD


def test_it_keeps_to_the_lower_bound_where_the_bounds_are_wide() -> None:
    clock = Clock()
    clock.measured(0.0, 1.0, EPOCH + 0.5)
    assert clock.offset == pytest.approx(EPOCH - 0.5 + AHEAD, abs=ROUNDING), "the way back may have taken the second"


def test_the_error_of_a_server_is_part_of_the_bounds() -> None:
    clock = Clock()
    clock.measured(0.0, 0.0, EPOCH, error=0.2)
    assert clock.offset == pytest.approx(EPOCH - 0.2 + AHEAD, abs=ROUNDING)


def test_a_reading_contains_the_time_of_the_followed_clock() -> None:
    followed, middle = Clock(offset=EPOCH), Clock()
    for _ in range(3):
        sent = boottime()
        theirs = followed.now()
        middle.measured(sent, boottime(), theirs)
    last = Clock()
    sent = boottime()
    now, error = middle.reading()
    last.measured(sent, boottime(), now, error)
    assert last.offset <= EPOCH + AHEAD
    now, error = last.reading()
    assert abs(now - followed.now()) <= error + 0.001


# A line of which either way is slow, at any time; the agent reconnects, which changes nothing; the clocks drift.
Delays = list[tuple[float, float]]


def _trips(delays: Delays, rate: float) -> Iterator[tuple[float, float, float, float]]:
    """Sent, received, what the followed clock showed, and its offset on arrival."""
    sent = 0.0
    for up, down in delays:
        read, received = sent + up, sent + up + down
        yield sent, received, EPOCH + read * (1 + rate), EPOCH + received * rate
        sent = received + 0.75


QUICK, UP, DOWN = (0.0002, 0.0002), (1.0, 0.0002), (0.0002, 1.0)


@pytest.mark.parametrize("rate", [0.0, 0.9 * DRIFT, -0.9 * DRIFT])
@pytest.mark.parametrize(
    "delays",
    [
        [UP] * 50,
        [DOWN] * 50,
        [QUICK] * 3 + [UP] * 50,
        [QUICK] * 3 + [DOWN] * 50,
        [UP] * 5 + [QUICK] + [DOWN] * 50,
        [UP, QUICK] * 20 + [DOWN, UP] * 20,
        [UP, DOWN] * 30,
    ],
)
def test_a_line_that_is_slow_one_way_never_advances_the_clock(delays: Delays, rate: float) -> None:
    clock = Clock()
    for sent, received, theirs, offset in _trips(delays, rate):
        clock.measured(sent, received, theirs)
        assert clock.offset <= offset + AHEAD + ROUNDING


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 2)), min_size=1, max_size=60), st.floats(-DRIFT, DRIFT))
def test_whatever_each_way_takes_it_is_never_ahead(delays: Delays, rate: float) -> None:
    clock = Clock()
    best = float("inf")
    for sent, received, theirs, offset in _trips(delays, rate):
        clock.measured(sent, received, theirs)
        assert clock.offset <= offset + AHEAD + ROUNDING
        best = min(best, received - sent)
        late = best + 2 * DRIFT * received  # at most the quickest round trip, and what the clocks drifted
        assert clock.offset >= offset - late - ROUNDING


def test_one_quick_round_trip_makes_it_exact_for_minutes() -> None:
    chance = random.Random(7)
    delays = [QUICK, *((chance.uniform(0, 1), chance.uniform(0, 1)) for _ in range(100))]
    clock = Clock()
    for sent, received, theirs, offset in _trips(delays, 0.0):
        clock.measured(sent, received, theirs)
        assert offset - 0.0004 - DRIFT * received - ROUNDING <= clock.offset <= offset + AHEAD + ROUNDING


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 0.2, -0.2])
def test_a_followed_clock_that_was_set_is_followed_at_once(jump: float) -> None:
    clock = Clock()
    for number in range(8):
        clock.measured(number, number + 0.001, EPOCH + number)
    clock.measured(9.0, 9.1, EPOCH + jump + 9.05)
    assert clock.offset == pytest.approx(EPOCH + jump, abs=0.05 + ROUNDING)
    assert clock.offset <= EPOCH + jump + AHEAD


def test_an_answer_on_its_way_while_the_clock_was_found_set_does_not_set_it_back() -> None:
    clock = Clock()
    clock.measured(0.0, 0.001, EPOCH)
    clock.measured(2.0, 2.001, EPOCH + 3602)
    clock.measured(1.0, 2.002, EPOCH + 1)
    assert clock.offset == pytest.approx(EPOCH + 3600, abs=0.001)


@pytest.mark.parametrize(("jump", "is_steady"), [(0.5, True), (2.0, False), (3600.0, False), (-3600.0, True)])
def test_it_knows_when_the_followed_clock_was_set_forward(jump: float, is_steady: bool) -> None:
    clock = Clock(offset=0.0)
    clock.measured(0.0, 0.001, EPOCH)
    assert clock.steady_for == float("inf"), "the first look finds out what time it is"
    clock.measured(1.0, 1.001, EPOCH + 1 + jump)
    assert (clock.steady_for > 60) is is_steady
    assert clock.steady_since == (0.0 if is_steady else EPOCH + 1 + jump)


@pytest.mark.parametrize(
    ("sent", "theirs", "error"),
    [(2.0, EPOCH, 0.0), (0.5, float("nan"), 0.0), (0.5, float("inf"), 0.0), (0.5, EPOCH, float("nan"))],
)
def test_an_answer_that_cannot_be_is_ignored(sent: float, theirs: float, error: float) -> None:
    clock = Clock()
    clock.measured(0.0, 0.001, EPOCH)
    before = clock.offset
    clock.measured(sent, 1.0, theirs, error)
    assert clock.offset == before


def test_its_user_learns_of_a_change() -> None:
    clock = Clock(offset=EPOCH)
    changes: list[float] = []
    clock.on_change = lambda: changes.append(clock.offset)
    clock.measured(0.0, 0.0, EPOCH)
    assert changes == [], "nothing new"
    clock.measured(1.0, 1.0, EPOCH + 11)
    assert changes == [EPOCH + 10]


def test_it_goes_with_the_boot_time_clock() -> None:
    clock = Clock()
    clock.offset = EPOCH
    before = boottime()
    now = clock.now()
    assert before <= now - EPOCH + 1e-6
    assert now - EPOCH <= boottime() + 1e-6
