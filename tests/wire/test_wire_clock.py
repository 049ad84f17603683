"""The clock that follows another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.wire.clock import Clock, boottime

EPOCH = 1_790_000_000.0


def test_the_first_measurement_counts_whatever_the_machine_thought() -> None:
    clock = Clock()
    assert clock.measured(100.0, 100.2, EPOCH + 100.1)
    assert clock.offset == pytest.approx(EPOCH)
    assert clock.round_trip == pytest.approx(0.2)


def test_the_quickest_of_the_last_eight_round_trips_wins() -> None:
    clock = Clock()
    clock.measured(0.0, 0.001, EPOCH + 0.0005)
    assert not clock.measured(1.0, 1.04, EPOCH + 1.03), "slower: tells nothing new"
    assert clock.offset == pytest.approx(EPOCH)
    for number in range(2, 10):
        clock.measured(number, number + 0.04, EPOCH + number + 0.03)
    assert clock.offset == pytest.approx(EPOCH + 0.01), "the quick one is forgotten"


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 0.2])
def test_a_followed_clock_that_was_set_is_followed_at_once(jump: float) -> None:
    clock = Clock()
    for number in range(8):
        clock.measured(number, number + 0.001, EPOCH + number)
    assert clock.measured(9.0, 9.1, EPOCH + jump + 9.05)
    assert clock.offset == pytest.approx(EPOCH + jump)


@pytest.mark.parametrize(("jump", "is_steady"), [(0.5, True), (2.0, False), (3600.0, False), (-3600.0, True)])
def test_it_knows_when_the_followed_clock_was_set_forward(jump: float, is_steady: bool) -> None:
    clock = Clock(offset=0.0)
    clock.measured(0.0, 0.001, EPOCH)
    assert clock.steady_for == float("inf"), "the first look finds out what time it is"
    clock.measured(1.0, 1.001, EPOCH + 1 + jump)
    assert (clock.steady_for > 60) is is_steady
    assert clock.steady_since == (0.0 if is_steady else EPOCH + 1 + jump)


def test_a_copied_clock_forgets_what_it_measured_before() -> None:
    clock = Clock()
    start = boottime()
    clock.measured(start, start + 0.001, EPOCH + start)
    clock.copy(Clock(offset=EPOCH + 3600))
    assert not clock.measured(start, start + 0.002, EPOCH + start), "sent before the copy"
    later = boottime()
    clock.measured(later, later + 0.01, EPOCH + 3600 + later + 0.005)
    assert clock.offset == pytest.approx(EPOCH + 3600), "not the quicker round trip of before"


@given(st.lists(st.tuples(st.floats(0, 0.02), st.floats(0, 1)), min_size=1, max_size=30))
def test_the_error_is_at_most_half_of_the_best_round_trip(trips: list[tuple[float, float]]) -> None:
    clock = Clock()
    for number, (round_trip, share) in enumerate(trips):
        sent = float(number)
        clock.measured(sent, sent + round_trip, EPOCH + sent + round_trip * share)
    assert abs(clock.offset - EPOCH) <= clock.round_trip / 2 + 1e-6


def test_it_goes_with_the_boot_time_clock() -> None:
    clock = Clock()
    clock.offset = EPOCH
    before = boottime()
    now = clock.now()
    assert before <= now - EPOCH + 1e-6
    assert now - EPOCH <= boottime() + 1e-6
