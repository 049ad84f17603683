"""Daemons: when a replica whose attempt has ended runs again, and on which agent."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.model.daemons.daemons import MOST, PATIENCE, Unplaced, next_life, place
from mainspring.model.messages import Ending
from mainspring.model.placement.placement import Requirements
from mainspring.model.schedules.schedules import Policies
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.waits import Known

POLICIES = Policies(restart_delay=1.0, max_restart_delay=60.0, stable=60.0)


def ending(code: str | None = None, *, lived: float = 1.0, **fields: Any) -> Ending:
    state = TaskState.SUCCEEDED if code is None else TaskState.FAILED
    return Ending(1, 2, 3, 1, state, 1000.0, 1000.0 + lived, code=code, **fields)


def test_the_wait_doubles_with_each_short_life_up_to_its_limit() -> None:
    delays = []
    failures = 0
    for _ in range(9):
        life = next_life(ending("exit_code"), failures, 0, POLICIES, random=1.0)
        failures = life.failures
        delays.append(life.delay)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_half_of_the_wait_is_spread() -> None:
    assert next_life(ending("exit_code"), 2, 0, POLICIES, random=0.0).delay == 2.0
    assert next_life(ending("exit_code"), 2, 0, POLICIES, random=0.5).delay == 3.0


def test_an_exit_without_a_fault_is_a_short_life_too() -> None:
    assert next_life(ending(), 0, 0, POLICIES, random=1.0) == (1.0, 1, 0)


def test_a_long_life_makes_up_for_all_before_it() -> None:
    assert next_life(ending("exit_code", lived=60.0), 7, 2, POLICIES, random=1.0) == (1.0, 1, 0)
    assert next_life(ending("exit_code", lived=59.9), 7, 2, POLICIES, random=1.0) == (60.0, 8, 2)


@pytest.mark.parametrize("code", ["shutdown", "restarted"])
def test_what_others_wanted_costs_nothing_and_is_at_once(code: str) -> None:
    assert next_life(ending(code), 7, 2, POLICIES, random=1.0) == (0.0, 7, 2)


def test_the_loss_of_its_agent_is_at_once_but_not_again_and_again() -> None:
    delays = []
    crashes = 0
    for _ in range(4):
        life = next_life(ending("lost"), 0, crashes, POLICIES, random=1.0)
        crashes = life.crashes
        delays.append(life.delay)
    assert delays == [0.0, 1.0, 2.0, 4.0]


def test_a_quarantined_task_of_a_daemon_is_a_lost_one() -> None:
    assert next_life(ending("quarantined"), 0, 5, POLICIES, random=1.0) == (16.0, 0, 6)


def test_the_loss_of_an_agent_before_the_start_counts_once() -> None:
    unstarted = Ending(1, 2, 3, 1, TaskState.LOST, 0.0, 1000.0, code="lost")
    assert next_life(unstarted, 0, 0, POLICIES, random=1.0) == (0.0, 0, 1)
    assert next_life(unstarted, 0, 1, POLICIES, random=1.0) == (0.0, 0, 1)


def test_a_handler_may_say_itself_when_it_wants_to_run_again() -> None:
    assert next_life(ending("snoozed", snooze=300.0), 1, 0, POLICIES, random=1.0) == (300.0, 1, 0)
    assert next_life(ending("retry_after", retry_after=7.0), 1, 0, POLICIES, random=1.0) == (7.0, 2, 0)


def test_nothing_that_is_counted_outgrows_its_column() -> None:
    assert next_life(ending("exit_code"), MOST, MOST, POLICIES, random=1.0) == (60.0, MOST, MOST)
    assert next_life(ending("lost"), MOST, MOST, POLICIES, random=1.0) == (60.0, MOST, MOST)
    assert MOST < 2**15


def waiting(task: int, *, schedule: int = 1, overdue: float = 0.0, **requirements: str) -> Unplaced:
    return Unplaced(task, schedule, Requirements(requirements), overdue)


ALL = [Known(session, "a", 9, {"zone": zone}, {}) for session, zone in ((10, "eu"), (20, "us"), (30, "eu"))]
ONE = [Known(10, "a", 9, {}, {})]


def test_replicas_go_to_different_sessions() -> None:
    placed = place([waiting(1), waiting(2), waiting(3)], {10: 5, 20: 5, 30: 5}, ALL, {})
    assert sorted(placed.values()) == [10, 20, 30]


def test_a_replica_goes_where_there_are_fewest_of_its_kind() -> None:
    assert place([waiting(1)], {10: 9, 20: 1}, ALL, {(1, 10): 1, (1, 30): 1, (2, 20): 7}) == {1: 20}


def test_where_there_is_one_session_it_takes_all() -> None:
    assert place([waiting(1), waiting(2)], {10: 5}, ONE, {}) == {1: 10, 2: 10}


def test_no_session_gets_more_than_it_has_room_for() -> None:
    assert place([waiting(1), waiting(2), waiting(3, overdue=9.0)], {10: 2}, ONE, {}) == {1: 10, 2: 10}


def test_only_sessions_with_its_labels_are_taken() -> None:
    assert place([waiting(1, zone="us")], {10: 5, 20: 5}, ALL, {(1, 20): 3}) == {1: 20}
    assert place([waiting(1, zone="asia", overdue=99.0)], {10: 5, 20: 5}, ALL, {}) == {}


def test_a_session_elsewhere_that_has_fewer_is_given_a_moment() -> None:
    assert place([waiting(1)], {10: 5}, ALL, {(1, 10): 1}) == {}
    assert place([waiting(1, overdue=PATIENCE)], {10: 5}, ALL, {(1, 10): 1}) == {1: 10}, "it may have no room"
    assert place([waiting(1, zone="us")], {20: 5}, ALL, {(1, 20): 1}) == {1: 20}, "those elsewhere do not fit"


def test_a_session_that_is_over_in_the_database_gets_nothing() -> None:
    assert place([waiting(1, overdue=9.0)], {40: 5}, ALL, {}) == {}
