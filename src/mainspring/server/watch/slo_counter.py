"""SloCounter: the leader counts the good and bad events of schedules with an SLO, each plan time once.

From the ledger and the history, not by the recorder: a server that is killed loses nothing, an unplanned plan time
counts too, and schedules without an objective cost nothing.
Reads   store.watch.punctuality   what plan times came to
Writes  store.followed.slo           counts and cursor in one statement
Next:   store/followed/slo.py
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from datetime import datetime

from mainspring.errors import ValidationError
from mainspring.model.watch.punctuality import Verdict
from mainspring.store.followed import slo
from mainspring.store.followed.slo import Advance, Cursor, Events
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules
from mainspring.store.schedules.schedules import Stored
from mainspring.store.watch import punctuality
from mainspring.store.watch.punctuality import IDLE, Judged

log = logging.getLogger("mainspring")

COUNT_EVERY = 2.0  # seconds
SCHEDULES = 100  # of one step
PLAN_TIMES = 1000  # of one schedule in one step


class SloCounter:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.tally: Counter[tuple[str, bool]] = Counter()  # by schedule and whether the events were good

    async def step(self) -> int:
        """Count what can be judged; returns how many schedules moved, as there may be more."""
        async with self._database.acquire() as conn:
            cursors = await slo.due(conn, SCHEDULES)
            if not cursors:
                return 0
            stored = await schedules.by_id(conn, [cursor.schedule_id for cursor in cursors])
            advances: list[Advance] = []
            events: list[Events] = []
            for cursor in cursors:
                advance, counted = await self._count(conn, cursor, stored.get(cursor.schedule_id))
                advances.append(advance)
                events += counted
            moved = await slo.add(conn, advances, events)
        for one in events:
            if one.schedule_id in moved:
                name = stored[one.schedule_id].schedule.name
                self.tally[name, True] += one.good
                self.tally[name, False] += one.bad
        return len(moved)

    async def _count(self, conn: Connection, cursor: Cursor, stored: Stored | None) -> tuple[Advance, list[Events]]:
        id, after, now = cursor
        objective = None if stored is None else stored.schedule.policies.slo
        if stored is None or objective is None:  # a newer version has written it
            return Advance(id, after, after, now + IDLE), []
        try:
            progress = await punctuality.judge_from(conn, stored, after, objective.lateness, limit=PLAN_TIMES)
        except ValidationError as error:  # such as a timezone that is unknown on this host
            log.warning("the SLO of schedule %s cannot be counted: %s", stored.schedule.name, error)
            return Advance(id, after, after, now + IDLE), []
        return Advance(id, after, progress.until, progress.look_at), _by_minute(id, progress.judged)


def _by_minute(id: int, judged: list[Judged]) -> list[Events]:
    minutes: defaultdict[datetime, Counter[Verdict]] = defaultdict(Counter)
    for event in judged:
        if event.verdict is not Verdict.SKIPPED:
            minutes[event.due.replace(second=0, microsecond=0)][event.verdict] += 1
    return [
        Events(id, minute, count[Verdict.GOOD], count[Verdict.LATE] + count[Verdict.MISSED], count[Verdict.MISSED])
        for minute, count in minutes.items()
    ]
