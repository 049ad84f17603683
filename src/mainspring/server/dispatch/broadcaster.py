"""Broadcaster: broadcasts become a run on every agent that matches, and end when the last of those has.

Writes  store.broadcasts       (pending → running, with a child on each agent; children that run again)
        store.broadcast_ends   (running → succeeded, failed, cancelled)
Arms    through the dispatcher, what was claimed for sessions here; other servers do so upon the hint `armed`
Next:   store/tasks/broadcasts.py
"""

from __future__ import annotations

import asyncio

from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.dispatch.dispatcher import Dispatcher
from mainspring.server.recording.recorder import Recorder
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import broadcast_ends, broadcasts
from mainspring.store.tasks.broadcasts import Parent

LOOK_EVERY = 0.5  # seconds
PATIENCE = 2.0  # seconds that a due broadcast waits for a first agent: after a start, servers come before agents
NOTICE = 0.5  # seconds from the expansion of a broadcast that is due at once to its instant, so that all agents know


class Broadcaster:
    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        dispatcher: Dispatcher,
        recorder: Recorder,
        *,
        lead: float,
        lease: float,
    ) -> None:
        self._line = database.line("errands")
        self._catalogue = catalogue
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._lead = lead
        self._lease = lease
        self._any = False  # whether a broadcast ran at the last look
        self.wake = asyncio.Event()
        self.armed_wake = asyncio.Event()  # somebody has claimed for sessions that may be here

    def ended(self, _endings: list[Ending]) -> None:
        """The recorder has committed some endings: one may be the last of a broadcast."""
        if self._any:
            self.wake.set()

    async def step(self) -> int:
        """Send out what is due soon, run again what failed, end what is over. Where no job broadcasts it costs nothing.

        What runs again is not counted: an agent that gives it back at once must not be asked again and again.
        """
        if not self._catalogue.broadcast_pools:
            return 0
        async with self._line as conn:
            parents = await broadcasts.look(conn, ahead=self._lead)
            sent = await self._send_out(conn, [parent for parent in parents if not parent.is_running])
            await broadcast_ends.cancel_waiting(conn)
            await broadcast_ends.end_with_their_agents(conn, lease=self._lease)
            again = await broadcasts.assign(conn, ahead=self._lead)
            running = [parent.task for parent in parents if parent.is_running]
            ended = await broadcast_ends.end(conn, running) if running else []
        self._any = sent > 0 or len(running) > len(ended)
        if sent or again:
            self.armed_wake.set()
        self._tell(ended)
        return sent + len(ended)

    async def _send_out(self, conn: Connection, waiting: list[Parent]) -> int:
        sent = 0
        nobody: list[int] = []
        for parent in waiting:
            if await broadcasts.expand(conn, parent.task, notice=NOTICE):
                sent += 1
            elif parent.overdue > PATIENCE:
                nobody.append(parent.task)
        if nobody:
            self._tell(await broadcast_ends.end_without_agents(conn, nobody))
        return sent

    def _tell(self, ended: list[int]) -> None:
        """Those who wait for tasks to end hear of these as of any other."""
        endings = [Ending(task, 0, 0, 0, TaskState.SUCCEEDED, 0.0, 0.0) for task in ended]
        if endings:
            self._recorder.on_ended.send(endings)

    async def take_up(self) -> int:
        """Arm what was claimed for sessions here, by this server's own broadcaster or by another's."""
        if not self._catalogue.broadcast_pools:
            return 0
        return await self._dispatcher.take_up(self._line)

    async def close(self) -> None:
        await self._line.close()
