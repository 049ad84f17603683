"""Pinger: the leader tells the ping_url of schedules of the starts and ends of their tasks.

Each schedule has its own request under way, and none waits for another's address. One that fails is tried again after a
growing wait; what has become old meanwhile is dropped.
Reads   store.followed.pings   the tasks and what became of them
Writes  store.followed.pings   what was sent
Next:   server/watch/fetcher.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from itertools import groupby
from operator import attrgetter

from mainspring.errors import StoreUnavailable
from mainspring.model.watch.pings import address, events, is_over
from mainspring.server.watch.fetcher import Fetcher
from mainspring.store.followed import pings
from mainspring.store.followed.pings import Followed
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

LOOK_EVERY = 2.0  # seconds
TASKS = 500  # of one step
AT_ONCE = 20  # schedules
FIRST_WAIT = 5.0  # seconds after a failure; each wait is twice the one before
LONGEST_WAIT = 600.0


class Pinger:
    def __init__(self, database: Database, fetcher: Fetcher) -> None:
        self._database = database
        self._fetcher = fetcher
        self._sending: dict[int, asyncio.Task[None]] = {}  # by schedule
        self._failures: Counter[int] = Counter()  # in a row, by schedule
        self._resumes_at: dict[int, float] = {}  # boot time, by schedule with failures
        self.tally: Counter[tuple[str, str]] = Counter()  # by event and result

    async def step(self) -> int:
        async with self._database.acquire() as conn:
            if not await pings.any_followed(conn):
                return 0
            await pings.read_ledger(conn)
            due = await pings.due(conn, TASKS)
            waits = {one.task: max(LOOK_EVERY, one.due_in or 0.0) for one in due if not self._news(one)}
            over = [one.task for one in due if is_over(one.state) and not self._news(one)]
            if over:
                await pings.told(conn, over)
            # Those with news too: what is being told is not read again in every step.
            waits |= {one.task: LOOK_EVERY for one in due if self._news(one)}
            if waits:
                await pings.later(conn, waits)
        told = sorted((one for one in due if self._news(one)), key=attrgetter("schedule"))
        for schedule, tasks in groupby(told, key=attrgetter("schedule")):
            is_free = schedule not in self._sending and boottime() >= self._resumes_at.get(schedule, 0.0)
            if is_free and len(self._sending) < AT_ONCE:
                sending = self._sending[schedule] = asyncio.create_task(self._tell(schedule, list(tasks)))
                sending.add_done_callback(lambda _, id=schedule: self._told(id))  # type: ignore[misc]
        return 0

    def _told(self, schedule: int) -> None:
        sending = self._sending.pop(schedule)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            log.error("pings of schedule %d were not sent: %r; trying again", schedule, error)

    def _news(self, one: Followed) -> bool:
        return bool(events(one.state, has_started=one.has_started, start_told=one.start_told))

    async def _tell(self, schedule: int, tasks: list[Followed]) -> None:
        """Tell of the tasks of one schedule in order; stops at the first failure."""
        try:
            for one in tasks:
                for event in events(one.state, has_started=one.has_started, start_told=one.start_told):
                    error = await self._fetcher.fetch(address(one.url, event), {"Mainspring-Task": str(one.task)})
                    self.tally[event, "ok" if error is None else "failed"] += 1
                    if error is not None:
                        self._failed(schedule, one, error)
                        return
                    if event == "start" and not is_over(one.state):
                        async with self._database.acquire() as conn:
                            await pings.start_told(conn, one.task)
                if is_over(one.state):
                    async with self._database.acquire() as conn:
                        await pings.told(conn, [one.task])
        except StoreUnavailable as error:  # sent but not noted: it is sent again
            log.info("pings of a schedule: %s; trying again", error)
            return
        self._failures.pop(schedule, None)
        self._resumes_at.pop(schedule, None)

    def _failed(self, schedule: int, one: Followed, error: str) -> None:
        self._failures[schedule] += 1
        wait = min(FIRST_WAIT * 2 ** min(self._failures[schedule] - 1, 20), LONGEST_WAIT)
        self._resumes_at[schedule] = boottime() + wait
        level = logging.WARNING if self._failures[schedule] == 1 else logging.INFO
        log.log(level, "the ping_url of schedule %s did not take a ping: %s; again in %.0f s", one.name, error, wait)

    async def close(self) -> None:
        """The next leader sends what this one has not sent."""
        for sending in list(self._sending.values()):
            sending.cancel()
        await asyncio.gather(*self._sending.values(), return_exceptions=True)
