"""The timing wheel against a list that is searched from end to end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mainspring.agent.timing.wheel import Timer, Wheel

EPOCH = 1_790_000_000.0
# From within a tick to centuries ahead, and past: every level of the wheel.
_AHEAD = st.one_of(
    st.floats(-5, 5),
    st.floats(0, 0.01),
    st.floats(0, 300),
    st.floats(0, 70_000),
    st.floats(0, 5e9),
    st.sampled_from([0.0, 1 / 256, 1.0, 256.0, 65536.0, 2.0**24]),
)
_STEP = st.one_of(st.floats(0, 0.02), st.floats(0, 2), st.floats(0, 600), st.floats(0, 1e6), st.just(0.0))


def nothing(_: object) -> None: ...


class AgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = EPOCH
        self.wheel = Wheel(EPOCH)
        self.armed: list[Timer] = []
        self.over: list[Timer] = []

    @initialize(offset=st.floats(0, 1000), bundle=st.sampled_from([1, 10, 256]))
    def begin(self, offset: float, bundle: int) -> None:
        self.now = EPOCH + offset
        self.wheel = Wheel(self.now, bundle)

    @rule(ahead=_AHEAD)
    def arm(self, ahead: float) -> None:
        self.armed.append(self.wheel.arm(self.now + ahead, nothing))

    @rule(ahead=_AHEAD, count=st.integers(2, 80))
    def arm_many(self, ahead: float, count: int) -> None:
        for _ in range(count):
            self.arm(ahead)

    @rule(choice=st.integers(0, 10**6))
    def disarm(self, choice: int) -> None:
        if self.armed:
            timer = self.armed.pop(choice % len(self.armed))
            assert self.wheel.disarm(timer)
            self.over.append(timer)

    @rule()
    def disarm_all_but_one(self) -> None:
        while len(self.armed) > 1:
            self.disarm(0)

    @rule(choice=st.integers(0, 10**6))
    def disarm_again(self, choice: int) -> None:
        if self.over:
            assert not self.wheel.disarm(self.over[choice % len(self.over)])

    @rule(step=_STEP)
    def expire(self, step: float) -> None:
        self.now += step
        self._expire()

    @rule()
    def expire_when_told(self) -> None:
        soonest = self.wheel.soonest()
        if soonest is not None and soonest < EPOCH + 1e9:
            self.now = max(self.now, soonest)
            self._expire()

    @rule(back=st.floats(0, 5))
    def the_clock_is_set_back(self, back: float) -> None:
        self.now -= back
        self._expire()

    def _expire(self) -> None:
        due = self.wheel.expire(self.now)
        expected = [timer for timer in self.armed if timer.at <= self.now]
        assert {id(timer) for timer in due} == {id(timer) for timer in expected}
        assert [timer.at for timer in due] == sorted(timer.at for timer in expected)
        for timer in due:
            timer.call = None  # as Timers does
            self.over.append(timer)
        self.armed = [timer for timer in self.armed if timer.at > self.now]

    @invariant()
    def the_count_is_right(self) -> None:
        assert len(self.wheel) == len(self.armed)

    @invariant()
    def soonest_is_never_too_late(self) -> None:
        soonest = self.wheel.soonest()
        if self.armed:
            assert soonest is not None
            assert soonest <= min(timer.at for timer in self.armed)
        else:
            assert soonest is None


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=50))
def test_soonest_is_exact_while_nothing_is_disarmed(delays: list[float]) -> None:
    wheel = Wheel(EPOCH)
    for delay in delays:
        wheel.arm(EPOCH + delay, nothing)
    assert wheel.soonest() == min(EPOCH + delay for delay in delays)


def test_following_soonest_wakes_up_no_more_often_than_there_are_timers() -> None:
    wheel = Wheel(EPOCH)
    for number in range(100):
        wheel.arm(EPOCH + number * 37.5, nothing)
    wakes = 0
    while (soonest := wheel.soonest()) is not None:
        wakes += 1
        assert wheel.expire(soonest)
    assert wakes == 100


def test_a_timer_carries_its_call_and_argument() -> None:
    wheel = Wheel(EPOCH)
    called: list[str] = []
    wheel.arm(EPOCH, called.append, "argument")
    [timer] = wheel.expire(EPOCH)
    assert timer.call is not None
    timer.call(timer.argument)
    assert called == ["argument"]


def test_a_timer_that_was_handed_out_and_not_yet_called_can_still_be_disarmed() -> None:
    """One due timer's call may disarm another one that is due at the same moment."""
    wheel = Wheel(EPOCH)
    for _ in range(2):
        wheel.arm(EPOCH, nothing)
    later = wheel.arm(EPOCH + 10, nothing)
    first, second = wheel.expire(EPOCH)
    first.call = None
    wheel.disarm(second)
    assert second.call is None
    assert len(wheel) == 1
    assert wheel.disarm(later)
    assert len(wheel) == 0


def test_armed_and_disarmed_ones_do_not_pile_up() -> None:
    wheel = Wheel(EPOCH)
    for number in range(10_000):
        wheel.disarm(wheel.arm(EPOCH - 1 + (number % 2) * 100, nothing))
    assert len(wheel) == 0
    assert len(wheel._heap) < 200
    assert wheel.soonest() is None


@pytest.mark.parametrize("count", [1, 1000])
def test_timers_of_one_instant_fire_together(count: int) -> None:
    wheel = Wheel(EPOCH)
    for _ in range(count):
        wheel.arm(EPOCH + 12.345, nothing)
    assert wheel.expire(EPOCH + 12.344) == []
    assert len(wheel.expire(EPOCH + 12.345)) == count


class Counting(Wheel):
    """Counts how many timers find a place; those of an `expire` are what the loop has to wait for."""

    placed = 0

    def _place(self, timer: Timer) -> None:
        self.placed += 1
        super()._place(timer)


@pytest.mark.parametrize("ahead", [3.0, 1_000.0, 100_000.0])
def test_a_crowded_slot_is_moved_in_bundles_before_its_time(ahead: float) -> None:
    wheel = Counting(EPOCH, bundle=50)
    instants = [EPOCH + ahead + number / 5_000 for number in range(5_000)]
    for instant in instants:
        wheel.arm(instant, nothing)
    now, fired, most = EPOCH, 0, 0
    while (soonest := wheel.soonest()) is not None:
        assert soonest <= instants[fired]
        now, wheel.placed = max(now, soonest), 0
        fired += len(wheel.expire(now))
        most = max(most, wheel.placed)
    assert fired == len(instants)
    assert most <= 5 * 50, "a bundle, and the rest of a bucket on each level"


def test_turns_ahead_of_time_are_asked_for_only_by_a_crowded_slot() -> None:
    wheel = Wheel(EPOCH, bundle=50)
    first = EPOCH + 10_000.9
    for _ in range(50):
        wheel.arm(first, nothing)
    assert wheel.soonest() == first
    wheel.arm(first, nothing)
    soonest = wheel.soonest()
    assert soonest is not None
    assert soonest < first
    turns = 0
    while wheel.soonest() != first:
        turns += 1
        assert wheel.expire(max(EPOCH, wheel.soonest() or 0.0)) == []
    assert turns < 10
    assert len(wheel.expire(first)) == 51


def test_a_timer_lets_go_of_its_argument_when_it_is_over() -> None:
    """The garbage collector does not track timers, so an argument that refers to its timer would leak."""
    wheel = Wheel(EPOCH)
    disarmed, cleared = wheel.arm(EPOCH + 1, nothing, object()), wheel.arm(EPOCH + 500, nothing, object())
    past = wheel.arm(EPOCH - 1, nothing, object())
    wheel.disarm(disarmed)
    wheel.clear()
    assert [timer.argument for timer in (disarmed, cleared, past)] == [None] * 3
    assert len(wheel) == 0
    assert wheel.soonest() is None
