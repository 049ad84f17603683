"""Gateway: the agents that are connected to this server, what each holds, and what they are sent.

Writes  store.agents        (leases)
Sends   Dispatch, Recall, Cancel, Pause, Drain
Next:   server/agents/session.py, wire/link.py, then agent/connection/connection.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from mainspring.errors import StoreUnavailable
from mainspring.loops import Signal
from mainspring.model.messages import (
    Armed,
    Cancel,
    Drain,
    Ending,
    Held,
)
from mainspring.model.placement.lead import Lead
from mainspring.model.placement.placement import Requirements, fits
from mainspring.server.agents.inflight import InFlight
from mainspring.server.agents.session import AgentSession, stop_message
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import broadcasts, claims, rescue
from mainspring.store.tasks.claims import Claim
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")


class Gateway:
    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        recorder: Recorder,
        clock: Clock,
        lease: float,
        lead: Lead = Lead(),  # noqa: B008 — frozen
    ) -> None:
        self._database = database
        self._lease_line = database.lease_line()  # of their own: a full pool must not cost a lease
        self._line = database.line("errands")
        self._catalogue = catalogue
        self._recorder = recorder
        self._clock = clock
        self._lease = lease
        self.lead = lead
        self._sessions: dict[int, AgentSession] = {}
        self._holders: dict[int, AgentSession] = {}  # by task
        self.drained: frozenset[str] = frozenset()  # names of agents that take nothing new: see agents/registry.py
        self.in_flight = InFlight()
        self._closing: set[asyncio.Task[None]] = set()  # connections that are being ended
        self.counting = asyncio.Lock()  # from a look at free amounts until what was claimed of them is armed
        self._watches: list[set[int]] = []  # tokens released since, for each who wants to know
        recorder.on_recorded.connect(self._recorded)
        self.room_made = asyncio.Event()  # somebody has room again
        self.on_room: Signal[[]] = Signal()
        self.on_joined: Signal[[]] = Signal()
        self.cancel_wake = asyncio.Event()

    # ── who is here ─────────────────────────────────────────────────────────────────────────────

    def join(self, session: AgentSession, tasks: list[Armed]) -> None:
        """An agent is here, and has these from a session before."""
        self._sessions[session.id] = session
        self._take(session, tasks)

    def leave(self, session: AgentSession) -> None:
        """Its connection is over, or its lease."""
        self._sessions.pop(session.id, None)
        for task in session.held:
            if self._holders.get(task) is session:  # else the agent is here again, and has it
                del self._holders[task]

    def _take(self, session: AgentSession, tasks: list[Armed]) -> None:
        """The session holds these from now on."""
        for armed in tasks:
            if (before := self._holders.get(armed.task)) is not None:
                before.release(armed.task)  # recorded a moment ago, and claimed again before we were told
            self._holders[armed.task] = session
        session.arm(tasks, self._clock.now(), self._catalogue.needs)

    def _recorded(self, endings: list[Ending], refused: list[Held]) -> None:
        """The recorder has committed these: nobody holds them any more."""
        for ending in endings:
            self._release(ending.task, ending.token)
        for attempt in refused:
            self._release(attempt.task, attempt.token)
        self.make_room()

    def make_room(self) -> None:
        self.room_made.set()
        self.on_room.send()

    def _release(self, task: int, token: int) -> None:
        session = self._holders.get(task)
        if session is not None and session.held.get(task) == token:  # else it has been given a new attempt since
            session.release(task)
            del self._holders[task]
            for released in self._watches:
                released.add(token)

    # ── what the dispatcher asks ────────────────────────────────────────────────────────────────

    def room(self, requirements: Requirements) -> tuple[dict[int, int], int]:
        """Free places for due tasks by session, and the sum of the windows they are part of."""
        now, needs = self._clock.now(), requirements.placement.needs
        fitting = self._fitting(requirements)
        free = {session.id: room for session in fitting if (room := session.room(now, needs)) > 0}
        return free, sum(session.window_for(needs) for session in fitting)

    def room_ahead(self, requirements: Requirements) -> dict[int, int]:
        """Free places for tasks whose time has not come, by session."""
        now, needs = self._clock.now(), requirements.placement.needs
        fitting = self._fitting(requirements)
        return {session.id: room for session in fitting if (room := session.room_ahead(now, needs)) > 0}

    def _fitting(self, requirements: Requirements) -> list[AgentSession]:
        return [
            session
            for session in self._sessions.values()
            if fits(requirements, session.labels, session.offers)
            and session.is_trusted(self._lease)
            and session.name not in self.drained
        ]

    @property
    def sessions(self) -> Mapping[int, AgentSession]:
        """The sessions here."""
        return self._sessions

    def longest_lead(self, ids: Iterable[int]) -> float:
        """The lead of the slowest of these agents: what is due within it is armed now, on whichever of them."""
        sessions = (self._sessions[id] for id in ids)
        return max(self.lead.of(session.link.ack_time, session.load) for session in sessions)

    async def arm(self, claim: Claim) -> list[Armed]:
        """Send each session what was claimed for it, in one message; returns what is of sessions that have gone."""
        batches = claim.batches
        homeless: list[Armed] = []
        for id, tasks in claim.tasks.items():
            session = self._sessions.get(id)
            if session is None:
                homeless += tasks
                continue
            session.batch = max(session.batch, batches[id])
            self._take(session, tasks)
            for dispatch in session.dispatches(self._catalogue, tasks):
                session.link.post([dispatch])
        return homeless

    def claiming(self) -> AbstractContextManager[None]:
        """Around a claim, for all sessions here."""
        return self.in_flight.claiming({session.id: session.batch for session in self._sessions.values()})

    def known(self) -> dict[int, int]:
        """By session, the last batch up to which every claim has been answered."""
        return {session.id: self.in_flight.known(session.id, session.batch) for session in self._sessions.values()}

    @contextmanager
    def watching_releases(self) -> Iterator[Callable[[int, Armed], bool]]:
        """Around a look for unanswered claims: tells which of the tasks found have been armed here before."""
        released = set[int]()
        self._watches.append(released)
        try:
            yield (
                lambda id, armed: (
                    armed.token in released
                    or (id in self._sessions and self._sessions[id].held.get(armed.task) == armed.token)
                )
            )
        finally:
            self._watches = [watch for watch in self._watches if watch is not released]

    # ── loops ───────────────────────────────────────────────────────────────────────────────────

    async def renew(self) -> int:
        """Renew the leases of all sessions here, in one statement; drop those that are over."""
        if not self._sessions:
            return 0
        asked_at = boottime()
        asked = {id: session for id, session in self._sessions.items() if session.is_there(self._lease)}
        living = set[int]()
        if asked:
            async with self._lease_line as conn:
                living = await agents.renew(conn, [session.vital(self.lead) for session in asked.values()], self._lease)
        for id in living:
            asked[id].renewed_at = asked_at
        for id, session in list(self._sessions.items()):
            is_over = boottime() - session.renewed_at > self._lease
            if is_over or (id in asked and id not in living):
                self.leave(session)
                log.warning("session %d of agent %s is over here", id, session.name)
                self._close(session)
        return 0

    def _close(self, session: AgentSession) -> None:
        """End its connection, without waiting: one that is silent takes a while, and the leases of others run."""
        closing = asyncio.create_task(session.link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def compact(self) -> int:
        """Note what each session still holds, in place of all that it has claimed."""
        async with self._database.acquire() as conn:
            for id, batch in self.known().items():
                session = self._sessions.get(id)
                if session is not None and batch and session.compacted != (batch, session.held):
                    held = dict(session.held)
                    await claims.compact(conn, id, batch, list(held))
                    session.compacted = (batch, held)
        return 0

    async def cancel(self) -> int:
        """Tell agents which of their tasks somebody wants cancelled, or to stand still or go on."""
        if not self._sessions:
            return 0
        async with self._line as conn:
            if self._catalogue.broadcast_pools:
                await broadcasts.pass_on_cancels(conn)
            paused = await agents.paused(conn, list(self._sessions))
            wanted = await agents.cancelled(conn, list(self._sessions))
            await self._pass_on_stops(conn)
        for session in list(self._sessions.values()):
            if messages := session.pause(paused.get(session.id, {})):
                session.link.post(messages)
        for attempt in wanted:
            holder = self._sessions.get(attempt.session)
            asked = (attempt.token, attempt.mode)
            if holder is None or holder.held.get(attempt.task) != attempt.token:
                continue  # claimed, and not told of yet: a word about it would come too early, and be lost
            if asked not in holder.cancelling:
                holder.cancelling.add(asked)
                holder.link.post([stop_message(attempt)])
        live = {(attempt.token, attempt.mode) for attempt in wanted}
        for session in self._sessions.values():
            session.cancelling &= live
        return 0

    async def _pass_on_stops(self, conn: Connection) -> None:
        """What was taken from agents that live: they stop it at once, for it may run elsewhere."""
        orders = await rescue.stop_orders(conn, list(self._sessions))
        for order in orders:
            session = self._sessions.get(order.session)
            if session is not None:  # else it has gone, and will be told when it comes back what it may keep
                session.link.post([Cancel([Held(order.task, order.token)], kill=True)])
        if orders:
            await rescue.told(conn, orders)

    async def drain(self) -> None:
        """Claim nothing more. Our own agent is to give back what has not started; others go on elsewhere."""
        for session in list(self._sessions.values()):
            session.draining = True
            if session.is_local:
                session.link.post([Drain()])

    @property
    def holds(self) -> int:
        """Tasks that end with this process."""
        return sum(len(session.held) for session in self._sessions.values() if session.is_local)

    async def released(self) -> None:
        """Wait until our own agent holds nothing."""
        while self.holds:
            self.room_made.clear()
            await self.room_made.wait()

    async def close(self) -> None:
        """End the sessions of our own agent: what they still hold can be rescued at once. Others go on elsewhere."""
        ids = [id for id, session in self._sessions.items() if session.is_local]
        if ids:
            try:
                await self.compact()
                async with self._line as conn:
                    await agents.leave(conn, [id for id in ids if not self._sessions[id].held])
                    await agents.end(conn, [id for id in ids if self._sessions[id].held])
            except StoreUnavailable as error:
                log.warning("sessions could not be ended (%s); their leases will", error)
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            self._close(session)
        if self._closing:
            await asyncio.wait(self._closing)
        await self._lease_line.close()
        await self._line.close()
