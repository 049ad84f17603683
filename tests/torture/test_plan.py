"""The plan of faults is a function of its seed, and heals all that it breaks."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.torture.plan import DRIFT, GROUPS, Fault, Sizes, make_plan

SIZES = Sizes(servers=3, agents=3, workers=1)


def test_a_seed_decides_the_whole_plan() -> None:
    assert make_plan(7, 180.0, SIZES) == make_plan(7, 180.0, SIZES)
    assert make_plan(7, 180.0, SIZES) != make_plan(8, 180.0, SIZES)


@pytest.mark.parametrize("seed", range(20))
def test_all_faults_are_over_in_time_and_no_target_has_two_at_once(seed: int) -> None:
    plan = make_plan(seed, 180.0, SIZES)
    assert [fault.at for fault in plan] == sorted(fault.at for fault in plan)
    assert all(fault.at + fault.lasts <= 180.0 for fault in plan)
    for target in {fault.target for fault in plan}:
        own = [fault for fault in plan if fault.target == target]
        assert all(one.at + one.lasts < other.at for one, other in pairwise(own))


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_makes_faults_of_its_kind_only(group: str) -> None:
    kinds = {
        "kill": {"kill", "guardian"},
        "restart": {"restart"},
        "stop": {"stop"},
        "partition": {"partition", "slow", "cut"},
        "late": {"late"},
        "clock": {"clock"},
        "postgres": {"postgres", "backend"},
        "failover": {"failover"},
    }
    assert {fault.kind for fault in make_plan(1, 600.0, SIZES, [group])} == kinds[group]


def test_a_group_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="kill, restart, stop"):
        make_plan(1, 60.0, SIZES, ["meteor"])


def test_every_target_is_one_that_a_cluster_has() -> None:
    known = {*SIZES.processes, *SIZES.lines, "postgres", "database", "leader"}
    known |= {f"{agent}/servers" for agent in SIZES.names("agent")}
    assert {fault.target for seed in range(20) for fault in make_plan(seed, 180.0, SIZES)} <= known


@pytest.mark.parametrize("seed", range(20))
def test_the_databases_clock_never_drifts_far(seed: int) -> None:
    drift = 0.0
    for fault in make_plan(seed, 1800.0, SIZES, ["clock"]):
        drift += fault.amount if fault.target == "database" else 0.0
        assert abs(drift) <= DRIFT


def test_a_fault_can_be_read() -> None:
    told = str(Fault(3.0, 1.5, "slow", "agent-1/servers", "up", 0.25))
    assert told == "   3.00 s  for  1.50 s  slow      agent-1/servers up 0.25 s"
