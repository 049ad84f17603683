"""Backfill: tasks for plan times of the past that have none, so many at a time.

The caller repeats `step` until nothing is left. A backfill that was stopped, or runs twice, makes no task twice.
Next: store/schedules/backfill.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from mainspring.model.access.actors import Actor
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.names import check_name
from mainspring.store.access import audit
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import backfill, schedules
from mainspring.store.schedules.backfill import FireKey, check_range
from mainspring.store.schedules.schedules import Stored
from mainspring.store.tasks import tasks

__all__ = ["Backfill", "BackfillPlan", "check_range", "plan"]


class BackfillPlan(msgspec.Struct, frozen=True):
    schedule: str
    total: int  # plan times × scopes in the range
    already: int  # of them, those with a task
    to_run: int
    first: datetime | None  # plan time to run, by the clocks of the schedule
    last: datetime | None


async def plan(
    conn: Connection, actor: Actor, name: str, start: datetime, end: datetime, scopes: Sequence[str] = ()
) -> Backfill:
    """A backfill of the plan times from `start` up to and including `end`, for all scopes or those given."""
    checked = [check_name(scope, field="scope") for scope in scopes]
    stored = await schedules.find(conn, check_name(name, field="schedule"))
    slots = backfill.plan_backfill(stored.schedule, start, end, stored.now, checked)
    return Backfill(stored, len(slots), await backfill.still_open(conn, stored, slots))


class Backfill:
    """A backfill under way: what is left to submit, what runs, and the outcome so far."""

    def __init__(self, stored: Stored, total: int, to_run: list[FireKey]) -> None:
        zone = timing(stored.schedule).zone
        first, last = (to_run[end][0].astimezone(zone) if to_run else None for end in (0, -1))
        self.plan = BackfillPlan(stored.schedule.name, total, total - len(to_run), len(to_run), first, last)
        self.job = stored.schedule.job
        self.submitted = 0
        self.failed: dict[int, str] = {}  # task → its state, of those that did not succeed
        self.in_flight: set[int] = set()
        self._stored = stored
        self._left = to_run

    @property
    def done(self) -> int:
        return self.plan.total - len(self._left) - len(self.in_flight)

    @property
    def is_complete(self) -> bool:
        return not self._left and not self.in_flight

    async def step(self, conn: Connection, actor: Actor, max_parallel: int) -> bool:
        """Submit what `max_parallel` leaves room for, and collect what has ended; whether anything moved."""
        submitted = ended = 0
        if self._left:
            async with conn.transaction():
                filled = await backfill.fill(conn, self._stored, self._left, max_parallel)
                if filled.tasks and not self.submitted:  # its tasks are not audited one by one
                    name = f"schedule:{self.plan.schedule}"
                    await audit.record(conn, actor, "schedule.backfill", name, msgspec.structs.asdict(self.plan))
            submitted, self._left = filled.tried, self._left[filled.tried :]
            self.submitted += len(filled.tasks)
            self.in_flight.update(filled.tasks)
        if self.in_flight:
            outcomes = await tasks.ended(conn, list(self.in_flight))
            ended = len(outcomes)
            self.in_flight -= outcomes.keys()
            states = {id: one.state for id, one in outcomes.items()}
            self.failed |= {id: state.label for id, state in states.items() if state is not TaskState.SUCCEEDED}
        return bool(submitted or ended)
