"""The states of a task and the moves between them, told once; what can be derived is derived.

    blocked → pending → assigned → running → succeeded | failed | timed_out | cancelled
                 ↑__________|__________|         skipped (never started) · lost (outcome unknown)
                  retry, recall, rescue

Each move is one guarded statement in `store/`: the states it leaves are in its WHERE.
Next: store/postgres/migrations/0001_schema.sql
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Move:
    sources: frozenset[TaskState]
    target: TaskState


def move(*sources: TaskState, to: TaskState) -> Move:
    return Move(frozenset(sources), to)


BLOCKED, PENDING, ASSIGNED, RUNNING = (
    TaskState.BLOCKED,
    TaskState.PENDING,
    TaskState.ASSIGNED,
    TaskState.RUNNING,
)

UNBLOCK = move(BLOCKED, to=PENDING)
ARM = move(PENDING, to=ASSIGNED)
START = move(ASSIGNED, to=RUNNING)
RECALL = move(ASSIGNED, to=PENDING)  # taken back before it started: costs no attempt
RETRY = move(ASSIGNED, RUNNING, to=PENDING)  # the attempt failed, another follows
RESCUE = move(ASSIGNED, RUNNING, to=PENDING)  # its agent is gone
SUCCEED = move(ASSIGNED, RUNNING, to=TaskState.SUCCEEDED)
FAIL = move(ASSIGNED, RUNNING, to=TaskState.FAILED)
TIME_OUT = move(ASSIGNED, RUNNING, to=TaskState.TIMED_OUT)
CANCEL = move(BLOCKED, PENDING, ASSIGNED, RUNNING, to=TaskState.CANCELLED)
SKIP = move(BLOCKED, PENDING, to=TaskState.SKIPPED)
LOSE = move(ASSIGNED, RUNNING, to=TaskState.LOST)

MOVES = (UNBLOCK, ARM, START, RECALL, RETRY, RESCUE, SUCCEED, FAIL, TIME_OUT, CANCEL, SKIP, LOSE)

TERMINAL = frozenset(TaskState) - {source for m in MOVES for source in m.sources}
ACTIVE = FAIL.sources  # an agent holds the task
LIVE = frozenset(TaskState) - TERMINAL
