"""AfterLoop: the leader looks up what the tasks of schedules with `after` wait for, and releases or skips them.

Reads   store.followed.after     tasks that wait for another schedule, and its latest plan time
Asks    model.schedules.after    what becomes of them
Writes  store.followed.after     (dependencies; blocked → pending, blocked → skipped)
Next:   server/planning/dependencies.py, for those that wait for tasks from now on
"""

from __future__ import annotations

from mainspring.loops import Signal
from mainspring.model.schedules.after import decide
from mainspring.model.tasks.claim_floors import Released
from mainspring.store.followed import after
from mainspring.store.postgres.database import Database

LOOK_EVERY = 1.0  # seconds; tasks are planned some seconds ahead
BATCH = 500


class AfterLoop:
    def __init__(self, database: Database) -> None:
        self._dedicated = database.dedicated("planning")
        self._read_to = 0  # the last task of a full batch: those that stay undecided must not hold up the rest
        self.on_released: Signal[[list[Released]]] = Signal()

    async def step(self) -> int:
        """Decide about the next tasks that wait; returns how many moved if there are more behind them."""
        async with self._dedicated as conn:
            if not await after.any_there(conn):
                self._read_to = 0
                return 0
            waiting = await after.waiting(conn, BATCH, behind=self._read_to)
            is_full = len(waiting) == BATCH
            verdicts = {one.task: decide(one) for one in waiting}
            skip = {task: verdict.skip for task, verdict in verdicts.items() if verdict.skip is not None}
            parents = {task: verdict.parents for task, verdict in verdicts.items() if verdict.parents}
            free = [task for task, verdict in verdicts.items() if verdict.parents == []]
            if skip:
                await after.skip(conn, skip)
            if parents:
                await after.depend(conn, parents)
            released = await after.release(conn, free) if free else []
            self._read_to = waiting[-1].task if is_full else 0
        if released:
            self.on_released.send(released)
        return len(skip) + len(parents) + len(free) if is_full else 0
