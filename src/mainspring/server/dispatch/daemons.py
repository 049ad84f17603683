"""DaemonsLoop: keep the wanted number of replicas of each daemon running, spread over the agents; roll out changes.

Reads   store.daemons.replicas   replicas that are due to start
Asks    model.daemons            which session each goes to
Writes  store.daemons.daemons    (replicas made, stopped, restarted)
        store.daemons.replicas   (pending → assigned)
Sends   Dispatch, through the gateway
Next:   store/daemons/daemons.py
"""

from __future__ import annotations

import asyncio

from mainspring.loops import Alarm, Signal
from mainspring.model.daemons.daemons import Unplaced, place
from mainspring.server.agents.gateway import Gateway
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.dispatch.arming import Arming
from mainspring.store.cluster.registry import living
from mainspring.store.daemons import daemons, replicas
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks.claims import Claim

LOOK_EVERY = 1.0  # seconds
TRIM_EVERY = 30.0  # seconds
BATCH = 1000  # replicas placed in one step
RETRY_AFTER = 0.05  # seconds until the next step after another server was quicker to claim


class DaemonsLoop:
    def __init__(self, database: Database, catalogue: Catalogue, gateway: Gateway) -> None:
        self._dedicated = database.dedicated("background")
        self._slow_dedicated = database.dedicated("slow")
        self._catalogue = catalogue
        self._gateway = gateway
        self._arming = Arming(catalogue, gateway)
        self.wake = asyncio.Event()
        self._alarm = Alarm(self.wake)  # for the next replica that is to start
        self.on_stopping: Signal[[]] = Signal()
        gateway.on_joined.connect(self.wake.set)

    async def step(self) -> int:
        """Make, stop and place replicas of all daemons; returns how many."""
        async with self._dedicated as conn:
            if not await daemons.any_there(conn):
                return 0
            made = await daemons.make(conn)
            stopping = await daemons.stop_surplus(conn) + await daemons.roll(conn)
            due = await replicas.due(conn, within=LOOK_EVERY, limit=BATCH)
        if stopping:
            self.on_stopping.send()
        self._alarm.set(min((one.due_in for one in due if one.due_in > 0), default=None))
        placed = await self._place([one for one in due if one.due_in <= 0])
        return made + stopping + placed

    async def _place(self, due: list[replicas.DueReplica]) -> int:
        if not due or self._gateway.in_flight.any_unanswered:  # the dispatcher resolves unanswered claims first
            return 0
        if any(one.pool not in self._catalogue.pools for one in due):
            await self._catalogue.refresh()  # the pool is new
        pools = self._catalogue.pools
        known = [one for one in due if one.pool in pools]
        async with self._gateway.counting:
            rooms = {pool: self._gateway.room(pools[pool])[0] for pool in {one.pool for one in known}}
            room: dict[int, int] = {}
            for session, free in (each for its in rooms.values() for each in its.items()):
                room[session] = min(free, room.get(session, free))  # pools with different needs see different room
            if not room:
                return 0
            full = {pool: frozenset(room.keys() - its.keys()) for pool, its in rooms.items()}
            waiting = [Unplaced(one.task, one.schedule, pools[one.pool], -one.due_in, full[one.pool]) for one in known]
            with self._gateway.claiming():
                async with self._dedicated as conn:
                    claim = await self._claim(conn, waiting, room)
                await self._arming.arm(claim, self._dedicated)
                return claim.size

    async def _claim(self, conn: Connection, waiting: list[Unplaced], room: dict[int, int]) -> Claim:
        placed = place(waiting, room, await living(conn), await replicas.held(conn))
        if not placed:
            return Claim({}, {}, 0)
        claim, versions = await replicas.claim(conn, placed)
        known = {job: self._catalogue.jobs.get(job) for job in versions}
        if any(job is None or job.version < versions[id] for id, job in known.items()):
            await self._catalogue.refresh()  # a restarted replica runs the current version of its job
        if claim.size < len(placed):
            self._alarm.set(RETRY_AFTER)  # another server was quicker; some replicas may be left
        return claim

    async def trim(self) -> int:
        """Drop all but the newest output of each replica."""
        async with self._slow_dedicated as conn:
            return await daemons.trim(conn)
