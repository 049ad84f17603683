"""Retry: after which failure another attempt follows, and when."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.tasks.retry import Backoff, Retry


@pytest.mark.parametrize(
    ("retry", "waits"),
    [
        (Retry(backoff="fixed", delay=2), [2, 2, 2, 2]),
        (Retry(backoff="linear", delay=2), [2, 4, 6, 8]),
        (Retry(backoff="linear", delay=2, max_delay=5), [2, 4, 5, 5]),
        (Retry(backoff="exponential", delay=2), [2, 4, 8, 16]),
        (Retry(backoff="exponential", delay=2, max_delay=9), [2, 4, 8, 9]),
        (Retry(backoff="fixed", delay=20, max_delay=9), [9, 9, 9, 9]),
        (Retry(delays=(1, 5, 2)), [1, 5, 2, 2]),
        (Retry(backoff="jitter", delays=(7200,), max_delay=9), [7200, 7200, 7200, 7200]),
    ],
)
def test_the_wait_follows_the_policy_whatever_the_chance(retry: Retry, waits: list[float]) -> None:
    for random in (0.0, 0.99):
        assert [retry.delay_after(attempt, random) for attempt in (1, 2, 3, 4)] == waits


def test_jitter_spreads_the_upper_half_of_an_exponential_wait() -> None:
    retry = Retry(backoff="jitter", delay=4, max_delay=10)
    assert [retry.delay_after(attempt, 0.0) for attempt in (1, 2, 3)] == [2, 4, 5]
    assert [retry.delay_after(attempt, 0.5) for attempt in (1, 2, 3)] == [3, 6, 7.5]


@given(
    st.sampled_from(get_args(Backoff)),
    st.floats(0, 1e8),
    st.floats(0, 1e8),
    st.integers(1, 1001),
    st.floats(0, 1, exclude_max=True),
)
def test_a_wait_is_never_negative_nor_beyond_the_longest(
    backoff: Backoff, delay: float, max_delay: float, attempt: int, random: float
) -> None:
    wait = Retry(backoff=backoff, delay=delay, max_delay=max_delay).delay_after(attempt, random)
    assert 0 <= wait <= max_delay
    assert wait >= min(delay, max_delay) / 2


@pytest.mark.parametrize("attempt", [0, -1, -(2**62), 2**62])
def test_an_attempt_with_an_absurd_number_waits_too(attempt: int) -> None:
    for retry in (Retry(delays=(1.0, 2.0)), Retry(backoff="linear"), Retry(backoff="exponential"), Retry()):
        assert 0.5 <= retry.delay_after(attempt, 0.0) <= retry.max_delay


def test_as_many_attempts_follow_as_there_are_retries() -> None:
    retry = Retry(retries=2)
    assert [retry.allows(attempt, ()) for attempt in (1, 2, 3)] == [True, True, False]
    assert not Retry(retries=0).allows(1, ())


@pytest.mark.parametrize(
    ("retry_on", "abort_on", "labels", "follows"),
    [
        ((), (), ("ValueError",), True),
        (("ValueError",), (), ("ValueError", "Exception"), True),
        (("Exception",), (), ("ValueError", "Exception"), True),
        (("KeyError",), (), ("ValueError", "Exception"), False),
        (("KeyError",), (), (), False),
        ((), ("ValueError",), ("ValueError", "Exception"), False),
        ((), ("KeyError",), ("ValueError", "Exception"), True),
        (("Exception",), ("ValueError",), ("ValueError", "Exception"), False),
        (("75",), (), ("exit_code", "75"), True),
        (("75",), (), ("exit_code", "1"), False),
        (("timeout",), (), ("timeout",), True),
    ],
)
def test_labels_decide_and_abort_on_wins(
    retry_on: tuple[str, ...], abort_on: tuple[str, ...], labels: tuple[str, ...], follows: bool
) -> None:
    assert Retry(retry_on=retry_on, abort_on=abort_on).allows(1, labels) is follows
