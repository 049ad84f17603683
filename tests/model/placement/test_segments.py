"""Segments: shares follow slots, few move, and none moves back and forth."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.placement.segments import (
    BASE,
    SEGMENTS,
    SETTLE,
    Capacity,
    assign,
    ranges,
)

NAMES = "abcdefghij"
owners = st.fixed_dictionaries({segment: st.sampled_from([*NAMES, None]) for segment in range(SEGMENTS)})
servers = st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1000), min_size=1)
NONE: dict[int, str | None] = dict.fromkeys(range(SEGMENTS))

Owners = Mapping[int, str | None]
Slots = Mapping[str, float]


def shares(owners: Owners, servers: Slots) -> dict[str, int]:
    return {server: sum(owner == server for owner in owners.values()) for server in servers}


def after(owners: Owners, slots: Slots) -> dict[int, str | None]:
    moves = assign(owners, slots)
    return {**owners, **moves}


def exact(slots: Slots) -> dict[str, float]:
    base = BASE * sum(slots.values()) / len(slots) or 1.0
    total = sum(slots.values()) + base * len(slots)
    return {server: SEGMENTS * (own + base) / total for server, own in slots.items()}


@given(owners=owners, slots=servers)
def test_every_segment_has_an_owner_that_is_there_and_shares_follow_slots(owners: Owners, slots: Slots) -> None:
    found = shares(after(owners, slots), slots)
    assert sum(found.values()) == SEGMENTS
    for server, share in exact(slots).items():
        assert abs(found[server] - share) < 1 + 1e-6, "rounded"


@given(owners=owners, slots=servers)
def test_no_more_segments_move_than_must(owners: Owners, slots: Slots) -> None:
    moves = assign(owners, slots)
    orphans = {segment for segment, owner in owners.items() if owner not in slots}
    assert orphans <= moves.keys()
    before, later = shares(owners, slots), shares({**owners, **moves}, slots)
    for server in slots:
        gave_up = sum(owners[segment] == server for segment in moves)
        assert gave_up == max(0, before[server] - later[server]), "who gives some up gets none"


@given(owners=owners, slots=servers)
def test_what_was_assigned_stays(owners: Owners, slots: Slots) -> None:
    assert assign(after(owners, slots), slots) == {}


@given(owners=owners, slots=servers)
def test_a_segment_moves_only_to_another_owner(owners: Owners, slots: Slots) -> None:
    moves = assign(owners, slots)
    assert all(owners[segment] != server and server in slots for segment, server in moves.items())


@pytest.mark.parametrize("slots", [0.0, 8.0])
@pytest.mark.parametrize(("there", "moved"), [(1, 50), (2, 33), (3, 25), (9, 10)])
def test_a_newcomer_takes_its_share_and_the_others_exchange_nothing(there: int, moved: int, slots: float) -> None:
    old = dict.fromkeys(NAMES[:there], slots)
    moves = assign(after(NONE, old), {**old, "new": slots})
    assert set(moves.values()) == {"new"}
    assert len(moves) == moved


@pytest.mark.parametrize(
    ("slots", "wanted"),
    [
        ({"a": 10.0, "b": 30.0}, {"a": 27, "b": 73}),
        ({"a": 100.0, "b": 0.0}, {"a": 95, "b": 5}),
        ({"a": 1.0, "b": 1.0, "c": 1000.0}, {"a": 3, "b": 3, "c": 94}),
        ({"a": 0.0, "b": 0.0}, {"a": 50, "b": 50}),
    ],
)
def test_shares_follow_slots_and_a_server_without_agents_has_a_small_one(slots: Slots, wanted: dict[str, int]) -> None:
    assert shares(after(NONE, slots), slots) == wanted


def test_a_small_change_moves_nothing_until_it_lasts() -> None:
    slots = {"a": 100.0, "b": 100.0, "c": 100.0}
    owners = after(NONE, slots)
    assert assign(owners, {**slots, "a": 110.0}, exact=False) == {}
    assert assign(owners, {**slots, "a": 110.0}) != {}
    assert assign(owners, {**slots, "a": 130.0}, exact=False) != {}


def moves_of(slots: Callable[[int], Mapping[str, int]], seconds: int, owners: Owners) -> tuple[list[int], Owners]:
    """How many segments a leader moves, each second, and where they end."""
    capacity: Capacity[str] = Capacity()
    moved = []
    for now in range(seconds):
        counted = capacity.observe(slots(now), float(now))
        moves = assign(owners, counted, exact=capacity.is_steady)
        owners = {**owners, **moves}
        moved.append(len(moves))
    return moved, owners


@pytest.mark.parametrize("period", [2, 8, 20])
def test_agents_that_come_and_go_move_no_segments(period: int) -> None:
    moved, _ = moves_of(lambda now: {"a": 100, "b": 100 * (now // (period // 2) % 2)}, 600, NONE)
    assert sum(moved[int(2 * SETTLE) :]) == 0


def test_agents_that_are_away_for_seconds_move_no_segments() -> None:
    moved, _ = moves_of(lambda now: {"a": 100, "b": 0 if 300 <= now < 303 else 100}, 400, NONE)
    assert sum(moved[1:]) == 0


def test_agents_that_stay_get_their_share_and_no_segment_moves_twice() -> None:
    """A server joins, its agents after some seconds; later those of the other one are twice as many."""

    def slots(now: int) -> dict[str, int]:
        return {"a": 100 if now < 300 else 200} | ({"b": 0 if now < 13 else 100} if now >= 10 else {})

    moved, owners = moves_of(slots, 300, after(NONE, {"a": 100.0}))
    assert shares(owners, slots(299)) == {"a": 50, "b": 50}
    assert sum(moved) == 50
    assert sum(moved[:14]) >= 48, "nearly all as soon as its agents are there"
    moved, owners = moves_of(lambda now: slots(now + 299), 300, owners)
    assert shares(owners, slots(300)) == {"a": 65, "b": 35}
    assert sum(moved) == 15


def test_without_servers_nothing_moves() -> None:
    assert assign({0: "a", 1: None}, {}) == {}


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ([], ""),
        ([7], "7"),
        ([67, *range(34)], "0-33, 67"),
        ([3, 1, 2, 2, 5], "1-3, 5"),
        (range(100), "0-99"),
        ([0, 2, 4], "0, 2, 4"),
    ],
)
def test_segments_in_a_row_are_shown_as_a_range(numbers: list[int], shown: str) -> None:
    assert ranges(numbers) == shown
