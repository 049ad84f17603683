from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring.model.placement.segments import SEGMENTS, assign, ranges

NAMES = "abcdefghij"
owners = st.fixed_dictionaries({segment: st.sampled_from([*NAMES, None]) for segment in range(SEGMENTS)})
servers = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)


def shares(owners: dict[int, str | None], moves: dict[int, str], servers: list[str]) -> dict[str, int]:
    after = {**owners, **moves}
    return {server: sum(owner == server for owner in after.values()) for server in servers}


@settings(deadline=None)
@given(owners=owners, servers=servers)
def test_every_segment_has_an_owner_that_is_there_and_shares_differ_by_one_at_most(
    owners: dict[int, str | None], servers: list[str]
) -> None:
    after = shares(owners, assign(owners, servers), servers)
    assert sum(after.values()) == SEGMENTS
    assert max(after.values()) - min(after.values()) <= 1


@settings(deadline=None)
@given(owners=owners, servers=servers)
def test_no_more_segments_move_than_must(owners: dict[int, str | None], servers: list[str]) -> None:
    moves = assign(owners, servers)
    orphans = sum(owner not in servers for owner in owners.values())
    held = sorted((sum(owner == server for owner in owners.values()) for server in servers), reverse=True)
    smallest, larger = divmod(SEGMENTS, len(servers))
    surplus = sum(max(0, has - smallest - (rank < larger)) for rank, has in enumerate(held))
    assert len(moves) == orphans + surplus


@settings(deadline=None)
@given(owners=owners, servers=servers)
def test_what_was_assigned_stays(owners: dict[int, str | None], servers: list[str]) -> None:
    after = {**owners, **assign(owners, servers)}
    assert assign(after, servers) == {}


@settings(deadline=None)
@given(owners=owners, servers=servers)
def test_a_segment_moves_only_to_another_owner(owners: dict[int, str | None], servers: list[str]) -> None:
    moves = assign(owners, servers)
    assert all(owners[segment] != server and server in servers for segment, server in moves.items())


@pytest.mark.parametrize(("there", "moved"), [(1, 50), (2, 33), (3, 25), (9, 10)])
def test_a_newcomer_takes_its_share_and_the_others_exchange_nothing(there: int, moved: int) -> None:
    old = list(NAMES[:there])
    owners: dict[int, str | None] = dict.fromkeys(range(SEGMENTS))
    owners |= assign(owners, old)
    moves = assign(owners, [*old, "new"])
    assert set(moves.values()) == {"new"}
    assert len(moves) == moved


def test_without_servers_nothing_moves() -> None:
    assert assign({0: "a", 1: None}, []) == {}


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
