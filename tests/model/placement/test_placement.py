"""Placement: who can run a task, and who takes the next one."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.model.placement.placement import (
    STRATEGIES,
    Candidate,
    Requirements,
    arrange,
    copies,
    decode,
    encode,
    fits,
    requirements_of,
)
from mainspring.model.tasks.jobs import Definition, Placement, Python


def candidate(session: int, free: int = 10, **facts: object) -> Candidate:
    known = {"busy": 0, "slots": 10, "cpu": 0.0, "memory": 0.0, "labels": {}, "offers": {}, **facts}
    return Candidate(session=session, name=f"agent-{session}", free=free, **known)  # type: ignore[arg-type]


def places(strategy: str, candidates: list[Candidate], limit: int = 100, **asked: object) -> list[int]:
    labels = asked.pop("labels", {})
    return arrange(Requirements(labels, Placement(strategy, **asked)), "round_robin", candidates, limit)  # type: ignore[arg-type]


# ── who can ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("requirements", "labels", "fit"),
    [
        ({}, {}, True),
        ({}, {"zone": "a"}, True),
        ({"zone": "a"}, {"zone": "a", "gpu": "yes"}, True),
        ({"zone": "a"}, {"zone": "b"}, False),
        ({"zone": "a"}, {}, False),
        ({"zone": "a", "gpu": "yes"}, {"zone": "a"}, False),
    ],
)
def test_an_agent_fits_when_it_has_every_label(requirements: dict[str, str], labels: dict[str, str], fit: bool) -> None:
    assert fits(Requirements(requirements), labels, {}) is fit


@pytest.mark.parametrize(
    ("needs", "offers", "fit"),
    [
        ({"gpu": 1}, {"gpu": 1}, True),
        ({"gpu": 2}, {"gpu": 1}, False),
        ({"gpu": 1}, {}, False),
        ({"gpu": 1, "memory_gb": 8}, {"gpu": 2, "memory_gb": 4}, False),
        ({}, {"gpu": 1}, True),
    ],
)
def test_an_agent_fits_when_it_offers_every_amount(
    needs: dict[str, float], offers: dict[str, float], fit: bool
) -> None:
    assert fits(Requirements({}, Placement(needs=needs)), {}, offers) is fit


def test_the_scarcest_amount_says_how_many_tasks_there_is_room_for() -> None:
    assert copies({"gpu": 1, "memory_gb": 8}, {"gpu": 4, "memory_gb": 20}) == 2
    assert copies({"gpu": 1}, {"memory_gb": 20}) == 0
    assert copies({"gpu": 0.1}, {"gpu": 1.0 - 0.1 - 0.1 - 0.1}) == 7, "sums of fractions are not exact"
    assert copies({"gpu": 1}, {"gpu": -2.0}) == 0, "a definition that asks for more has taken them"


@pytest.mark.parametrize("free", [2.0, 0.0, -2.0])
def test_an_amount_that_is_nearly_nothing_does_not_stop_the_servers(free: float) -> None:
    """A pool that was made when such were let in is there for good."""
    assert copies({"gpu": 1e-320}, {"gpu": free}) >= 0


# ── a pool's row ────────────────────────────────────────────────────────────────────────────────


def test_labels_alone_are_stored_as_they_always_were() -> None:
    assert msgspec.json.decode(encode(Requirements({"app": "shop", "zone": "b"}))) == {"app": "shop", "zone": "b"}
    assert decode('{"app": "shop", "zone": "b"}') == Requirements({"app": "shop", "zone": "b"})
    assert decode("{}") == Requirements()


def test_requirements_come_back_from_a_pools_row() -> None:
    asked = Requirements({"app": "shop"}, Placement("capability", {"gpu": 1.0}, {"zone": "b"}, "customer", True))
    assert decode(encode(asked)) == asked
    assert all(name == "app" or name.startswith("@") for name in msgspec.json.decode(encode(asked)))


def test_the_tasks_of_a_chunk_share_a_slot_and_its_size_is_in_a_pools_row() -> None:
    definition = Definition(Python("load", chunk=100), requires={"app": "shop"})
    asked = requirements_of(definition)
    assert asked == Requirements({"app": "shop"}, chunk=100)
    assert msgspec.json.decode(encode(asked)) == {"app": "shop", "@chunk": 100}
    assert decode(encode(asked)) == asked
    assert [asked.slots_for(tasks) for tasks in (0, 1, 100, 101, 250)] == [0, 1, 1, 2, 3]
    assert [Requirements().slots_for(tasks) for tasks in (0, 1, 7)] == [0, 1, 7]


def test_a_chunk_of_one_is_as_a_job_without() -> None:
    assert requirements_of(Definition(Python("load", chunk=1))) == Requirements()


def test_what_a_later_version_added_to_a_pools_row_does_not_hurt() -> None:
    assert decode('{"zone": "b", "@moon": "full"}') == Requirements({"zone": "b"})


# ── who takes the next ──────────────────────────────────────────────────────────────────────────


def test_round_robin_goes_round_until_each_agent_is_full() -> None:
    agents = [candidate(1, 3), candidate(2, 1), candidate(3, 2)]
    assert places("round_robin", agents) == [1, 2, 3, 1, 3, 1]
    assert places("round_robin", agents, 4) == [1, 2, 3, 1]
    assert places("round_robin", [], 5) == []


def test_least_tasks_fills_up_who_holds_the_fewest() -> None:
    agents = [candidate(1, 5, busy=3), candidate(2, 5, busy=0), candidate(3, 2, busy=1)]
    assert places("least_tasks", agents, 6) == [2, 2, 3, 2, 3, 1]
    assert Counter(places("least_tasks", agents)) == {1: 5, 2: 5, 3: 2}


def test_resources_takes_who_has_most_left_of_what_is_scarcest_there() -> None:
    full_cpu = candidate(1, cpu=0.9, memory=0.1)
    full_memory = candidate(2, cpu=0.1, memory=0.8)
    idle = candidate(3, cpu=0.2, memory=0.3)
    crowded = candidate(4, 2, busy=8)
    assert places("resources", [full_cpu, full_memory, idle, crowded], 1) == [3]
    taken = Counter(places("resources", [full_cpu, full_memory, idle, crowded], 6))
    assert taken[3] >= 5
    assert places("resources", [full_cpu, candidate(5, 1)], 3) == [5, 1, 1]


def test_capability_keeps_special_agents_for_special_jobs() -> None:
    special = candidate(1, 5, labels={"zone": "a", "gpu": "a100"}, offers={"gpu": 8.0})
    plain = candidate(2, 2, labels={"zone": "a"})
    small = candidate(3, 1, labels={"zone": "a"}, offers={"gpu": 1.0})
    assert places("capability", [special, plain, small], 8, labels={"zone": "a"}) == [2, 2, 3, 1, 1, 1, 1, 1]
    assert places("capability", [special, small], 3, needs={"gpu": 1.0}) == [3, 1, 1], "the smallest that is enough"


def test_preferred_agents_come_first_and_others_when_those_are_full() -> None:
    agents = [candidate(1, 3), candidate(2, 2, labels={"zone": "b"}), candidate(3, 1, labels={"zone": "b"})]
    assert places("round_robin", agents, 5, prefer={"zone": "b"}) == [2, 3, 2, 1, 1]
    assert places("round_robin", agents[:2], 3, prefer={"zone": "b"}) == [2, 2, 1]


def test_who_has_more_of_the_preferred_labels_comes_before_who_has_one() -> None:
    agents = [
        candidate(1, 1, labels={"zone": "b"}),
        candidate(2, 1),
        candidate(3, 1, labels={"zone": "b", "disk": "ssd"}),
    ]
    assert places("round_robin", agents, 3, prefer={"zone": "b", "disk": "ssd"}) == [3, 1, 2]


def test_a_job_without_a_strategy_follows_that_of_the_whole() -> None:
    agents = [candidate(1, busy=9), candidate(2)]
    assert arrange(Requirements(), "least_tasks", agents, 1) == [2]
    assert arrange(Requirements({}, Placement("round_robin")), "least_tasks", agents, 1) == [1]
    assert arrange(Requirements({}, Placement("of a later version")), "round_robin", agents, 1) == [1]


@given(
    st.sampled_from(sorted(STRATEGIES)),
    st.dictionaries(
        st.integers(1, 9),
        st.tuples(st.integers(0, 20), st.integers(0, 20), st.floats(0, 1), st.sampled_from(["a", "b"])),
        max_size=6,
    ),
    st.integers(1, 60),
    st.booleans(),
)
def test_no_agent_gets_more_than_it_has_room_for(
    strategy: str, agents: dict[int, tuple[int, int, float, str]], limit: int, prefers: bool
) -> None:
    candidates = [
        candidate(session, free, busy=busy, cpu=cpu, labels={"zone": zone})
        for session, (free, busy, cpu, zone) in agents.items()
    ]
    limit = min(limit, sum(agent.free for agent in candidates))
    if not limit:
        return
    order = places(strategy, candidates, limit, prefer={"zone": "b"} if prefers else {})
    taken = Counter(order[turn % len(order)] for turn in range(limit))  # as the claim takes them
    assert sum(taken.values()) == limit
    assert all(taken[agent.session] <= agent.free for agent in candidates)
