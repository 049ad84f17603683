"""Broadcaster: expand a broadcast into a child task on every matching agent; end it when the last child has ended.

Writes  store.tasks.broadcasts   (pending → running, with a child on each agent; children that run again;
                                  running → succeeded, failed, cancelled)
Sends   Dispatch to its own agents, through arming.py; other servers do so on NOTIFY `armed`
Next:   store/tasks/broadcasts.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from mainspring.model.messages import Ending
from mainspring.model.placement.placement import Requirements
from mainspring.model.tasks.states import TaskState
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.dispatch.arming import Arming
from mainspring.server.recording.recorder import Recorder
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import broadcasts
from mainspring.store.tasks.broadcasts import Parent

LOOK_EVERY = 0.5  # seconds
PATIENCE = 2.0  # seconds that a due broadcast waits for a first agent: servers start before agents
NOTICE = 0.5  # seconds from the expansion of an overdue broadcast to its instant, so that all agents are armed by then


class Broadcaster:
    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        arming: Arming,
        recorder: Recorder,
        *,
        longest_lead: Callable[[Iterable[Requirements]], float],
        lease: float,
    ) -> None:
        self._dedicated = database.dedicated("background")
        self._catalogue = catalogue
        self._arming = arming
        self._recorder = recorder
        self._longest_lead = longest_lead
        self._lease = lease
        self._any = False  # a broadcast was running at the last step
        self.wake = asyncio.Event()
        self.armed_wake = asyncio.Event()  # a server has claimed tasks for sessions that may be connected here

    def ended(self, _endings: list[Ending]) -> None:
        """The recorder has committed some endings: one may be the last of a broadcast."""
        if self._any:
            self.wake.set()

    async def step(self) -> int:
        """Expand broadcasts that are due soon, retry failed children, end broadcasts that are over.

        Retries do not count as work found: an agent that refuses a child at once must not cause a busy loop. Without
        broadcast jobs it costs nothing.
        """
        if not self._catalogue.broadcast_pools:
            return 0
        lead = self._longest_lead(self._catalogue.broadcast_pools.values())
        async with self._dedicated as conn:
            parents = await broadcasts.look(conn, ahead=lead)
            expanded = await self._expand(conn, [parent for parent in parents if not parent.is_running])
            await broadcasts.cancel_waiting(conn)
            await broadcasts.end_with_their_agents(conn, lease=self._lease)
            again = await broadcasts.assign(conn, ahead=lead)
            running = [parent.task for parent in parents if parent.is_running]
            ended = await broadcasts.end(conn, running) if running else []
        self._any = expanded > 0 or len(running) > len(ended)
        if expanded or again:
            self.armed_wake.set()
        self._announce(ended)
        return expanded + len(ended)

    async def _expand(self, conn: Connection, waiting: list[Parent]) -> int:
        expanded = 0
        without_agents: list[int] = []
        for parent in waiting:
            if await broadcasts.expand(conn, parent.task, notice=NOTICE):
                expanded += 1
            elif parent.overdue > PATIENCE:
                without_agents.append(parent.task)
        if without_agents:
            self._announce(await broadcasts.end_without_agents(conn, without_agents))
        return expanded

    def _announce(self, ended: list[int]) -> None:
        """Signal these endings as the recorder signals those of other tasks."""
        endings = [Ending(task, 0, 0, 0, TaskState.SUCCEEDED, 0.0, 0.0) for task in ended]
        if endings:
            self._recorder.on_ended.send(endings)

    async def arm_claimed(self) -> int:
        """Arm what this server's broadcaster or another's has claimed for sessions connected here."""
        if not self._catalogue.broadcast_pools:
            return 0
        return await self._arming.arm_claimed(self._dedicated)
