"""Large values: encoded as msgspec does, freed in steps; the garbage collector rests meanwhile."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.operations.requests import large_values
from mainspring.operations.requests.large_json import at_once
from mainspring.operations.requests.large_values import SELDOM, LargeValue, count, encode_in_steps, take_apart

SCALARS = st.none() | st.booleans() | st.integers(1 - 2**53, 2**53 - 1) | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=60)
MANY: Any = {"rows": [{"id": number, "values": [1, [2], {}]} for number in range(5_000)], "n": [[]] * 3_000, "": 1}


def is_resting() -> bool:
    return gc.get_threshold()[0] == SELDOM


@pytest.fixture(autouse=True)
def _usual() -> Iterator[None]:
    assert not is_resting()
    yield
    assert not is_resting(), "it was not let go"


@given(VALUES, st.integers(1, 20))
def test_it_is_encoded_as_msgspec_encodes_it(value: Any, values: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(large_values, "VALUES", values)
        assert at_once(encode_in_steps(value)) == msgspec.json.encode(value)


def test_steps_are_many_and_small() -> None:
    sizes: list[int] = []

    def noted(part: Any) -> bytes:
        sizes.append(count(part))
        return msgspec.json.encode(part)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(large_values, "_encode", noted)
        assert at_once(encode_in_steps(MANY)) == msgspec.json.encode(MANY)
    assert max(sizes) <= 2 * large_values.VALUES + 2
    assert len(sizes) > 10


@given(VALUES)
def test_it_is_counted_with_all_that_it_holds(value: Any) -> None:
    def all_of(value: Any) -> int:
        members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        return 1 + sum(map(all_of, members))

    assert count(value) == all_of(value)


def test_what_is_taken_apart_is_empty_and_freed_in_steps() -> None:
    value = json.loads(json.dumps(MANY))
    rows = value["rows"]
    assert sum(1 for _ in take_apart(value)) > 10
    assert value == {}
    assert rows == []
    assert not list(take_apart("no container"))


async def test_the_collector_rests_until_all_are_released() -> None:
    usual = gc.get_threshold()
    first, second = LargeValue(), LargeValue()
    assert is_resting()
    first.value = held = json.loads(json.dumps(MANY))
    await first.release()
    assert held == {}
    assert is_resting()
    await first.release()  # once more changes nothing
    assert is_resting()
    await second.release()
    assert gc.get_threshold() == usual


def test_a_value_that_is_forgotten_keeps_the_collector_no_longer() -> None:
    forgotten = LargeValue()
    forgotten.value = [1]
    assert is_resting()
    del forgotten
    assert not is_resting()


def test_a_value_in_a_cycle_is_let_go_by_the_collector() -> None:
    """It still runs, and may be needed for that."""
    cycle: list[Any] = [LargeValue()]
    cycle.append(cycle)
    del cycle
    assert is_resting()
    gc.collect()
    assert not is_resting()


async def test_a_threshold_that_was_set_meanwhile_stays() -> None:
    usual = gc.get_threshold()
    value = LargeValue()
    gc.set_threshold(700, 5, 5)
    try:
        await value.release()
        assert gc.get_threshold() == (700, 5, 5)
    finally:
        gc.set_threshold(*usual)


async def test_a_collector_that_is_off_stays_off() -> None:
    usual = gc.get_threshold()
    gc.set_threshold(0, *usual[1:])
    try:
        await LargeValue().release()
        assert gc.get_threshold() == (0, *usual[1:])
    finally:
        gc.set_threshold(*usual)
