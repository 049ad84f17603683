"""BatchesLoop: count what has changed in batches, end those that are over, cancel or retry their tasks as asked.

The statements that submit and end tasks leave changes behind (0001_schema.sql, Batches); here they are added up, one
update for each batch, however many flushes there were. Every server does so: whichever comes first has the batch.
Writes  store.batches.settling   (closed → ended, callbacks)
Next:   store/batches/settling.py
"""

from __future__ import annotations

import asyncio
import logging

from mainspring.loops import Signal
from mainspring.model.metrics.tallies import BatchTally
from mainspring.store.batches import settling
from mainspring.store.batches.settling import Command
from mainspring.store.postgres.database import Connection, Database
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

LOOK_EVERY = 1.0  # seconds, where no hint came
AT_MOST_EVERY = 0.1  # a busy batch changes with each flush, and need not be counted as often
RECOUNT_EVERY = 60.0
MOST = 200  # batches in one step
COMMANDS = 20


class BatchesLoop:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._looked_at = -AT_MOST_EVERY
        self._done_to: dict[Command, int] = {}  # the task that its steps have come to
        self.wake = asyncio.Event()
        self.tally = BatchTally()
        self.on_called: Signal[[]] = Signal()  # callbacks are pending, or retried tasks
        self.on_stopping: Signal[[]] = Signal()  # agents are asked to stop tasks

    async def step(self) -> int:
        """Settle batches that have changed and do one step of each command; returns how many have more to do."""
        await asyncio.sleep(self._looked_at + AT_MOST_EVERY - boottime())
        self._looked_at = boottime()
        async with self._database.acquire() as conn:
            if not await settling.any_there(conn):
                self._done_to = {}
                return 0
            found = await settling.changed(conn, MOST)
            for batch in found:
                await self._settle(conn, batch)
            if found:
                done = await settling.done_by_clients(conn, found)
                self.tally.ended += done.ended
                self.tally.callbacks += done.fired
            unfinished = await self._carry_out(conn)
        return unfinished + (len(found) == MOST)

    async def _settle(self, conn: Connection, batch: int) -> None:
        settled = await settling.settle(conn, batch)
        if settled is None:
            return
        self.tally.ended += settled.ended
        self.tally.callbacks += settled.fired
        if settled.fired:
            self.on_called.send()

    async def _carry_out(self, conn: Connection) -> int:
        commands = await settling.commands(conn, COMMANDS)
        unfinished = {}
        for command in commands:
            carry_out = settling.cancel_step if command.cancels else settling.retry_step
            step = await carry_out(conn, command, self._done_to.get(command, 0))
            if step.has_more:
                unfinished[command] = step.reached
            if step.tasks:
                (self.on_stopping if command.cancels else self.on_called).send()
        self._done_to = unfinished
        return len(unfinished)

    async def recount(self) -> int:
        """End what should have ended, whatever its count says; drop changes of batches that are gone."""
        async with self._database.acquire() as conn:
            await settling.forget_orphans(conn)
            for batch in await settling.recount(conn, MOST):
                log.warning("batch %d had no live task and had not ended; its count was wrong", batch)
        return 0
