"""States of a task, the moves between them, and the ways to cancel one.

    blocked → pending → assigned → running → succeeded | failed | timed_out | cancelled
                 ↑__________|__________|         skipped (never started) · lost (outcome unknown)
                  retry, recall, rescue

Each move is one guarded statement in `store/`. The statement takes both ends from the move: `set {START.enters}` and
`where {START.leaves}`. tests/store/test_moves.py runs every statement against every state.
Next: model/tasks/pools.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class TaskState(IntEnum):
    """Stored as smallint; the numbers are part of the schema and never change."""

    BLOCKED = 0
    PENDING = 1
    ASSIGNED = 2
    RUNNING = 3
    SUCCEEDED = 10
    FAILED = 11
    TIMED_OUT = 12
    CANCELLED = 13
    SKIPPED = 14
    LOST = 15

    @property
    def label(self) -> str:
        """The name that people and JSON see."""
        return self.name.lower()

    @classmethod
    def from_label(cls, label: str) -> TaskState:
        return cls[label.upper()]


class CancelMode(IntEnum):
    """How a task that an agent holds is asked to stop: `task.cancel_mode`. NULL there: stop it, with its grace."""

    RECALL = 1  # only if it has not started
    KILL = 2  # without grace
    RESTART = 3  # then run it again, which costs no attempt


def among(values: Iterable[IntEnum]) -> str:
    """`(2, 3)`, for SQL."""
    return f"({', '.join(str(int(value)) for value in sorted(values))})"


RUNS_AGAIN = among((CancelMode.RECALL, CancelMode.RESTART))  # a task whose attempt ends under these modes stays live


@dataclass(frozen=True, slots=True)
class Move:
    sources: frozenset[TaskState]
    target: TaskState

    @property
    def leaves(self) -> str:
        """The guard, for a WHERE: `state in (2, 3)`."""
        return f"state in {among(self.sources)}" if len(self.sources) > 1 else f"state = {min(self.sources):d}"

    @property
    def enters(self) -> str:
        """For a SET: `state = 1`."""
        return f"state = {self.target:d}"


def move(*sources: TaskState, to: TaskState) -> Move:
    return Move(frozenset(sources), to)


# Where each task passes, by these names: to find a member of an enumeration by its class takes longer than to use it.
BLOCKED, PENDING, ASSIGNED, RUNNING, SUCCEEDED = (
    TaskState.BLOCKED,
    TaskState.PENDING,
    TaskState.ASSIGNED,
    TaskState.RUNNING,
    TaskState.SUCCEEDED,
)

UNBLOCK = move(BLOCKED, to=PENDING)
BLOCK_AGAIN = move(PENDING, to=BLOCKED)  # within the transaction that retries it with the tasks that it waits for
ARM = move(PENDING, to=ASSIGNED)
EXPAND = move(PENDING, to=RUNNING)  # a broadcast, whose runs are armed with it
START = move(ASSIGNED, to=RUNNING)
RECALL = move(ASSIGNED, to=PENDING)  # given back before it started: costs no attempt
RETRY = move(ASSIGNED, RUNNING, to=PENDING)  # the attempt failed, or its agent is gone: another attempt follows
SUCCEED = move(ASSIGNED, RUNNING, to=TaskState.SUCCEEDED)
FAIL = move(ASSIGNED, RUNNING, to=TaskState.FAILED)
TIME_OUT = move(ASSIGNED, RUNNING, to=TaskState.TIMED_OUT)
LOSE = move(ASSIGNED, RUNNING, to=TaskState.LOST)
CANCEL = move(BLOCKED, PENDING, ASSIGNED, RUNNING, to=TaskState.CANCELLED)
SKIP = move(BLOCKED, PENDING, to=TaskState.SKIPPED)
SKIP_ARMED = move(ASSIGNED, to=TaskState.SKIPPED)  # by hand, once its agent has given it back
FAIL_UNSENT = move(PENDING, to=TaskState.FAILED)  # a broadcast that found no agent at its instant
FAIL_BLOCKED = move(BLOCKED, to=TaskState.FAILED)  # a task that it waited for did not succeed
LOSE_UNSENT = move(PENDING, to=TaskState.LOST)  # a run of a broadcast whose agent is gone before the next attempt

MOVES = (
    *(UNBLOCK, BLOCK_AGAIN, ARM, EXPAND, START, RECALL, RETRY),
    *(SUCCEED, FAIL, TIME_OUT, LOSE, CANCEL, SKIP, SKIP_ARMED, FAIL_UNSENT, FAIL_BLOCKED, LOSE_UNSENT),
)

TERMINAL = frozenset(TaskState) - {source for m in MOVES for source in m.sources}
ACTIVE = FAIL.sources  # an agent holds the task
LIVE = frozenset(TaskState) - TERMINAL

IS_ACTIVE = f"state in {among(ACTIVE)}"  # for the WHERE of SQL
IS_WAITING = f"state in {among(LIVE - ACTIVE)}"  # no agent holds it
