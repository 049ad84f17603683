"""Keeper: as many replicas of each daemon as are wanted, spread over the agents, renewed one after another.

Reads   store.replicas.due   replicas whose next life is to begin
Asks    model.daemons        which session each goes to
Writes  store.daemons        (replicas made, stopped, restarted), store.replicas.claim (pending → assigned)
Sends   messages.Dispatch, through the gateway
Next:   store/daemons/daemons.py, then server/recording/recorder.py, where each of their lives ends
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.model.daemons.daemons import Unplaced, place
from mainspring.server.agents.gateway import Gateway
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.daemons import daemons, replicas
from mainspring.store.daemons.replicas import Due
from mainspring.store.postgres.database import Connection, Database

KEEP_EVERY = 1.0
BATCH = 1000  # replicas placed in one step
TRIM_EVERY = 30.0
SOON = 0.05  # seconds
JUST_AFTER = 0.002  # seconds; before its instant one is not due yet


class Keeper:
    def __init__(self, database: Database, catalogue: Catalogue, gateway: Gateway) -> None:
        self._line = database.line("errands")
        self._slow_line = database.line("slow")
        self._catalogue = catalogue
        self._gateway = gateway
        self._alarm: asyncio.TimerHandle | None = None  # for the next life that is to begin
        self.wake = asyncio.Event()
        self.on_stopping: list[Callable[[], None]] = []
        gateway.on_joined.append(self.wake.set)

    async def step(self) -> int:
        """See to all daemons; returns how many replicas were made, told to stop, or placed."""
        async with self._line as conn:
            if not await daemons.any_there(conn):
                return 0
            made = await daemons.make(conn)
            stopping = await daemons.stop_surplus(conn) + await daemons.roll(conn)
            due = await replicas.due(conn, within=KEEP_EVERY, limit=BATCH)
        for on_stopping in self.on_stopping if stopping else ():
            on_stopping()
        self._be_there_in(min((one.due_in for one in due if one.due_in > 0), default=None))
        placed = await self._place([one for one in due if one.due_in <= 0])
        return made + stopping + placed

    async def _place(self, due: list[Due]) -> int:
        if not due or self._gateway.doubts.any_unanswered:  # the dispatcher finds out what an unanswered claim took
            return 0
        if any(one.pool not in self._catalogue.pools for one in due):
            await self._catalogue.refresh()  # a pool that was made a moment ago
        pools = self._catalogue.pools
        known = [one for one in due if one.pool in pools]
        async with self._gateway.counting:
            rooms = {pool: self._gateway.room(pools[pool])[0] for pool in {one.pool for one in known}}
            room: dict[int, int] = {}
            for session, free in (each for its in rooms.values() for each in its.items()):
                room[session] = min(free, room.get(session, free))  # what they need may differ
            if not room:
                return 0
            full = {pool: frozenset(room.keys() - its.keys()) for pool, its in rooms.items()}
            waiting = [Unplaced(one.task, one.schedule, pools[one.pool], -one.due_in, full[one.pool]) for one in known]
            with self._gateway.claiming():
                async with self._line as conn:
                    return await self._claim(conn, waiting, room)

    async def _claim(self, conn: Connection, waiting: list[Unplaced], room: dict[int, int]) -> int:
        placed = place(waiting, room, await replicas.sessions(conn), await replicas.held(conn))
        if not placed:
            return 0
        claim, versions = await replicas.claim(conn, placed)
        known = {job: self._catalogue.job(job) for job in versions}
        if any(job is None or job.version < versions[id] for id, job in known.items()):
            await self._catalogue.refresh()  # a restarted replica runs what its job is now
        await self._gateway.arm(claim)
        if claim.size < len(placed):
            self._be_there_in(SOON)  # another server was quicker: there may be one left for us
        return claim.size

    def _be_there_in(self, seconds: float | None) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = None if seconds is None else loop.call_later(seconds + JUST_AFTER, self.wake.set)

    async def trim(self) -> int:
        """Keep the newest output of each replica, whatever it writes."""
        async with self._slow_line as conn:
            return await daemons.trim(conn)

    async def close(self) -> None:
        self._be_there_in(None)
        await self._line.close()
        await self._slow_line.close()
