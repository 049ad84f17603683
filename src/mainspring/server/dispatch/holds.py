"""HoldsLoop: recall what agents have of a job that is held now; let go what waits when the hold was released.

No claim takes a task of a held job: each statement sees to that itself. A claim that was under way when the hold was
made may have taken some, and tasks were armed ahead of their time. Every server recalls those from its agents, at no
cost to them; what has started keeps running.
Reads   server.cluster.catalogue   the holds
Writes  store.cluster.holds          (released holds end), store.schedules.revoke (plan times that are to be skipped)
Sends   Recall
Next:   store/cluster/holds.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime

from mainspring.model.messages import AttemptId, Recall
from mainspring.server.agents.gateway import Gateway
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.cluster import holds
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import revoke
from mainspring.wire.clock import boottime

LOOK_EVERY = 1.0  # seconds
LOOK_FOR = 10.0  # seconds after a change in which claims that were under way are looked for
SCHEDULES = 1000  # in one step


class HoldsLoop:
    def __init__(self, database: Database, catalogue: Catalogue, gateway: Gateway) -> None:
        self._dedicated = database.dedicated("background")
        self._slow_dedicated = database.dedicated("slow")
        self._catalogue = catalogue
        self._gateway = gateway
        self._asked: dict[int, set[int]] = {}  # by session, the tokens that were recalled
        self._until = 0.0  # boot time
        self.wake = asyncio.Event()
        self.leader_wake = asyncio.Event()
        gateway.on_joined.connect(self.look)

    def look(self) -> None:
        """The holds have changed, or an agent has joined with what it held."""
        self._until = boottime() + LOOK_FOR
        self.wake.set()
        self.leader_wake.set()

    async def recall(self) -> int:
        """Recall what agents here have of held jobs and have not started."""
        held = self._catalogue.holds
        jobs = held.held_jobs
        if not (held.stops_all or jobs):
            self._asked.clear()
            return 0
        sessions = self._gateway.sessions
        if not sessions or boottime() > self._until:
            return 0
        if held.stops_all:
            found = [
                holds.Unstarted(session.id, AttemptId(task, token))
                for session in sessions.values()
                for task, token in session.held.items()
            ]
        else:
            async with self._dedicated as conn:
                found = await holds.unstarted(conn, list(sessions), jobs)
        self._ask(found)
        return 0

    def _ask(self, found: Iterable[holds.Unstarted]) -> None:
        """Once for each attempt and session: the connection delivers it. What has started stays."""
        wanted: dict[int, list[AttemptId]] = {}
        sessions = self._gateway.sessions
        for id, attempt in found:
            session = sessions.get(id)
            if session is None or session.held.get(attempt.task) != attempt.token:
                continue  # it ended meanwhile, or is not dispatched yet: then it is not going to be
            if attempt.token not in self._asked.setdefault(id, set()):
                self._asked[id].add(attempt.token)
                wanted.setdefault(id, []).append(attempt)
        for id, attempts in wanted.items():
            sessions[id].link.post([Recall(attempts)])
        self._asked = {id: tokens for id, tokens in self._asked.items() if id in sessions}

    async def follow_up(self) -> int:
        """Take back plan times that are to be skipped; end holds of which nothing waits any more. For the leader."""
        held = self._catalogue.holds
        every = [*held.jobs.values(), *([] if held.everything is None else [held.everything])]
        if not every:
            return 0
        moved = 0
        async with self._slow_dedicated as conn:
            if any(hold.skips and hold.is_in_force for hold in every):
                moved += await self._take_back(conn)
            if any(not hold.is_in_force for hold in every):
                await holds.undecide(conn)  # first: what is settled is forgotten
                moved += await holds.settle(conn)
        if moved:
            self._catalogue.wake.set()
        return 0

    async def _take_back(self, conn: Connection) -> int:
        """The tasks of plan times that are still to come: the planner then decides these as paused."""
        schedules = await holds.planned_ahead(conn, SCHEDULES)
        for schedule in schedules:
            async with conn.transaction():
                now: datetime = await conn.fetchval(
                    "select mainspring.now() from mainspring.schedule where id = $1 for update", schedule
                )
                if now is not None:
                    await revoke.recall(conn, schedule, at=now, after=now)
        return len(schedules)
