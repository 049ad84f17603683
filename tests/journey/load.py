"""Load for a network: tasks that are submitted all the time, and a schedule that fires each second.

In the end the jobs' own ledger is compared with the database and with an oracle, which knows each second.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from mainspring import Task
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import schedules
from tests.conftest import eventually
from tests.journey import invariants
from tests.journey.network import Network, Process

SCHEDULE = "each-second"
PERIOD = timedelta(seconds=1)
SUBMIT, SUBMIT_EVERY = 3, 0.2  # tasks at a time, and seconds


class Load:
    """What was submitted, and between which instants the schedule was there."""

    def __init__(self, network: Network, conn: Connection, began_at: datetime, wait: float) -> None:
        self._network = network
        self._conn = conn
        self._began_at = began_at
        self._ended_at: datetime | None = None
        self._is_over = asyncio.Event()
        self._submitting = asyncio.create_task(self._submit(wait))
        self.tasks: list[Task[Any]] = []

    async def _submit(self, wait: float) -> None:
        """Until the end, which comes between two submissions: one that is cut off may have been accepted."""
        while not self._is_over.is_set():
            self.tasks += await self._network.app["work"].enqueue_many([(wait,)] * SUBMIT)
            with suppress(TimeoutError):
                async with asyncio.timeout(SUBMIT_EVERY):
                    await self._is_over.wait()

    async def end(self) -> None:
        """No more submissions, no more plan times."""
        self._is_over.set()
        await self._submitting
        self._ended_at = await _now(self._conn)
        await schedules.change(self._conn, SCHEDULE, lambda schedule: schedule, enabled=False)

    async def until_fired(self, fires: int) -> None:
        """The schedule has fired so often after now, and none of its tasks from before is left."""
        now = await _now(self._conn)

        async def fired() -> bool:
            later = "select count(*) from mainspring.task_history where plan_time > $1"
            left = "select exists (select from mainspring.task where plan_time <= $1)"
            return await self._conn.fetchval(later, now) >= fires and not await self._conn.fetchval(left, now)

        await eventually(fired, timeout=60)

    async def check(self, *, killed: Process | None = None) -> None:
        """All is over: each submission and each second ran once, at the first attempt, and nothing else did.

        What a process had begun that was killed may have run again.
        """
        await self._until_all_is_over()
        fires = await self._conn.fetch("select plan_time, task_id, reason from mainspring.fire order by plan_time")
        planned = [fire["plan_time"] for fire in fires]
        expected = self._seconds(planned[-1])
        assert planned == expected, (self._began_at, set(expected) - set(planned), set(planned) - set(expected))
        assert {fire["reason"] for fire in fires} == {None}, "none was skipped"
        accepted = [*(task.id for task in self.tasks), *(fire["task_id"] for fire in fires)]
        lines = self._network.ledger()
        await invariants.check_no_process_left(lines, (agent.pid for agent in self._network.agents))
        await invariants.check_ends(self._conn, lines, [*accepted, *await self._withdrawn()])
        await invariants.check_agreement(self._conn, lines)
        begun = {line.task for line in lines if killed is not None and line.pid == killed.pid}
        effects = Counter(line.task for line in lines if line.event == "effect")
        assert {task: effects[task] for task in accepted if task not in begun and effects[task] != 1} == {}
        again = """
            select id, state, attempt, crashes from mainspring.task_history
             where id = any($1) and id <> all($2) and ((state, attempt) <> (10, 1) or crashes > $3)
        """
        crashes = 0 if killed is None else 1  # of what it had been armed with, and not begun
        found = await self._conn.fetch(again, accepted, list(begun), crashes)
        assert [tuple(row) for row in found] == [], "".join(process.notes for process in self._network.processes)

        early = "select id from mainspring.task_history where started_at < plan_time - interval '50 ms'"
        assert await self._conn.fetch(early) == [], "none began before its time"

    async def _withdrawn(self) -> list[int]:
        """Armed or planned ahead when the schedule ended, and taken back."""
        withdrawn = "select id from mainspring.task_history where plan_time >= $1 and started_at is null"
        return [row["id"] for row in await self._conn.fetch(withdrawn, self._ended_at)]

    async def _until_all_is_over(self) -> None:
        async def none_left() -> bool:
            return not await self._conn.fetchval("select exists (select from mainspring.task)")

        await eventually(none_left, timeout=60)

    def _seconds(self, last: datetime) -> list[datetime]:
        """The oracle: each whole second since the schedule was there, up to its last one."""
        assert self._ended_at is not None
        assert self._ended_at - 10 * PERIOD < last <= self._ended_at + PERIOD, (last, self._ended_at)
        first = self._began_at.replace(microsecond=0) + PERIOD
        return [first + number * PERIOD for number in range((last - first) // PERIOD + 1)]


async def _now(conn: Connection) -> datetime:
    now: datetime = await conn.fetchval("select mainspring.now()")
    return now


@asynccontextmanager
async def under_load(network: Network, conn: Connection, wait: float = 0.3) -> AsyncIterator[Load]:
    """As long as the block lasts; each task takes `wait` seconds."""
    every_second = define_schedule(SCHEDULE, "work", {"cron": "* * * * * *"}, args={"wait": wait})
    assert await schedules.create(conn, every_second, enabled=True)
    # Not a reading of ours before it: a whole second may pass between the two.
    began_at = (await schedules.find(conn, SCHEDULE)).since
    load = Load(network, conn, began_at, wait)
    try:
        yield load
    finally:
        await load.end()
