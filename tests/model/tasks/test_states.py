"""States and moves."""

from __future__ import annotations

import pytest

from mainspring.model.tasks import states
from mainspring.model.tasks.states import ACTIVE, ARM, CANCEL, LIVE, MOVES, START, TERMINAL, TaskState


def test_every_state_is_live_or_terminal_and_none_is_both() -> None:
    assert frozenset(TaskState) == LIVE | TERMINAL
    assert not LIVE & TERMINAL


def test_the_terminal_states_are_the_six_that_the_history_holds() -> None:
    assert {state.label for state in TERMINAL} == {"succeeded", "failed", "timed_out", "cancelled", "skipped", "lost"}
    assert {int(state) for state in LIVE} == {0, 1, 2, 3}, "the check on task.state"
    assert min(TERMINAL) >= 10, "the check on task_history.state"


@pytest.mark.parametrize("state", sorted(LIVE))
def test_every_live_state_leads_to_an_end(state: TaskState) -> None:
    reached = {state}
    for _ in MOVES:
        reached |= {move.target for move in MOVES if move.sources & reached}
    assert reached & TERMINAL
    assert TaskState.CANCELLED in reached


@pytest.mark.parametrize("state", sorted(set(TaskState) - {TaskState.BLOCKED}))
def test_every_state_but_the_first_is_reached_by_some_move(state: TaskState) -> None:
    assert any(move.target is state for move in MOVES)


def test_only_an_agent_leads_to_success_and_only_an_armed_task_starts() -> None:
    assert {TaskState.ASSIGNED, TaskState.RUNNING} == ACTIVE
    assert ARM.sources == {TaskState.PENDING}
    assert START.sources == {TaskState.ASSIGNED}
    assert CANCEL.sources == LIVE


def test_all_moves_of_the_module_are_listed() -> None:
    assert {value for value in vars(states).values() if isinstance(value, states.Move)} == set(MOVES)


@pytest.mark.parametrize("state", TaskState)
def test_a_label_names_its_state(state: TaskState) -> None:
    assert TaskState.from_label(state.label) is state
