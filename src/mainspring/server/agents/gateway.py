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
from mainspring.model.messages import (
    Armed,
    Cancel,
    Drain,
    Ending,
    Held,
)
from mainspring.model.placement.lead import Lead
from mainspring.model.placement.placement import Requirements, fits
from mainspring.server.agents.inflight import Doubts
from mainspring.server.agents.session import Seat, stop_message
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import broadcasts, claims, rescue, session_tasks
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
        self._seats: dict[int, Seat] = {}
        self._holders: dict[int, Seat] = {}  # by task
        self.drained: frozenset[str] = frozenset()  # names of agents that take nothing new: see agents/registry.py
        self.doubts = Doubts()
        self._closing: set[asyncio.Task[None]] = set()  # connections that are being ended
        self.counting = asyncio.Lock()  # from a look at free amounts until what was claimed of them is armed
        self._watches: list[set[int]] = []  # tokens released since, for each who wants to know
        recorder.on_recorded.append(self._recorded)
        self.room_made = asyncio.Event()  # somebody has room again
        self.on_room: list[Callable[[], None]] = []
        self.on_joined: list[Callable[[], None]] = []
        self.cancel_wake = asyncio.Event()

    # ── who is here ─────────────────────────────────────────────────────────────────────────────

    def join(self, seat: Seat, tasks: list[Armed]) -> None:
        """An agent is here, and has these from a session before."""
        self._seats[seat.session] = seat
        self._take(seat, tasks)

    def leave(self, seat: Seat) -> None:
        """Its connection is over, or its lease."""
        self._seats.pop(seat.session, None)
        for task in seat.held:
            if self._holders.get(task) is seat:  # else the agent is here again, and has it
                del self._holders[task]

    def _take(self, seat: Seat, tasks: list[Armed]) -> None:
        """The seat holds these from now on."""
        for armed in tasks:
            if (before := self._holders.get(armed.task)) is not None:
                before.release(armed.task)  # recorded a moment ago, and claimed again before we were told
            self._holders[armed.task] = seat
        seat.arm(tasks, self._clock.now(), self._catalogue.needs)

    def _recorded(self, endings: list[Ending], refused: list[Held]) -> None:
        """The recorder has committed these: nobody holds them any more."""
        for ending in endings:
            self._release(ending.task, ending.token)
        for attempt in refused:
            self._release(attempt.task, attempt.token)
        self.make_room()

    def make_room(self) -> None:
        self.room_made.set()
        for on_room in self.on_room:
            on_room()

    def _release(self, task: int, token: int) -> None:
        seat = self._holders.get(task)
        if seat is not None and seat.held.get(task) == token:  # else it has been given a new attempt since
            seat.release(task)
            del self._holders[task]
            for released in self._watches:
                released.add(token)

    # ── what the dispatcher asks ────────────────────────────────────────────────────────────────

    def room(self, requirements: Requirements) -> tuple[dict[int, int], int]:
        """Free places for due tasks by session, and the sum of the windows they are part of."""
        now, needs = self._clock.now(), requirements.placement.needs
        fitting = self._fitting(requirements)
        free = {seat.session: room for seat in fitting if (room := seat.room(now, needs)) > 0}
        return free, sum(seat.window_for(needs) for seat in fitting)

    def room_ahead(self, requirements: Requirements) -> dict[int, int]:
        """Free places for tasks whose time has not come, by session."""
        now, needs = self._clock.now(), requirements.placement.needs
        fitting = self._fitting(requirements)
        return {seat.session: room for seat in fitting if (room := seat.room_ahead(now, needs)) > 0}

    def _fitting(self, requirements: Requirements) -> list[Seat]:
        return [
            seat
            for seat in self._seats.values()
            if fits(requirements, seat.labels, seat.offers)
            and seat.is_trusted(self._lease)
            and seat.name not in self.drained
        ]

    @property
    def seats(self) -> Mapping[int, Seat]:
        """The sessions here."""
        return self._seats

    def longest_lead(self, sessions: Iterable[int]) -> float:
        """The lead of the slowest of these agents: what is due within it is armed now, on whichever of them."""
        seats = (self._seats[session] for session in sessions)
        return max(self.lead.of(seat.link.ack_time, seat.load) for seat in seats)

    async def arm(self, claim: Claim) -> list[Armed]:
        """Send each session what was claimed for it, in one message; returns what is of sessions that have gone."""
        batches = claim.batches
        homeless: list[Armed] = []
        for session, tasks in claim.tasks.items():
            seat = self._seats.get(session)
            if seat is None:
                homeless += tasks
                continue
            seat.batch = max(seat.batch, batches[session])
            self._take(seat, tasks)
            for dispatch in seat.dispatches(self._catalogue, tasks):
                seat.link.post([dispatch])
        return homeless

    def claiming(self) -> AbstractContextManager[None]:
        """Around a claim, for all sessions here."""
        return self.doubts.claiming({seat.session: seat.batch for seat in self._seats.values()})

    def known(self) -> dict[int, int]:
        """By session, the last batch up to which every claim has been answered."""
        return {seat.session: self.doubts.known(seat.session, seat.batch) for seat in self._seats.values()}

    @contextmanager
    def watching_releases(self) -> Iterator[Callable[[int, Armed], bool]]:
        """Around a look for unanswered claims: tells which of the tasks found have been armed here before."""
        released = set[int]()
        self._watches.append(released)
        try:
            yield (
                lambda session, armed: (
                    armed.token in released
                    or (session in self._seats and self._seats[session].held.get(armed.task) == armed.token)
                )
            )
        finally:
            self._watches = [watch for watch in self._watches if watch is not released]

    # ── loops ───────────────────────────────────────────────────────────────────────────────────

    async def renew(self) -> int:
        """Renew the leases of all sessions here, in one statement; drop those that are over."""
        if not self._seats:
            return 0
        asked_at = boottime()
        asked = {session: seat for session, seat in self._seats.items() if seat.is_there(self._lease)}
        living = set[int]()
        if asked:
            async with self._lease_line as conn:
                living = await agents.renew(conn, [seat.vital(self.lead) for seat in asked.values()], self._lease)
        for session in living:
            asked[session].renewed_at = asked_at
        for session, seat in list(self._seats.items()):
            is_over = boottime() - seat.renewed_at > self._lease
            if is_over or (session in asked and session not in living):
                self.leave(seat)
                log.warning("session %d of agent %s is over here", session, seat.name)
                self._close(seat)
        return 0

    def _close(self, seat: Seat) -> None:
        """End its connection, without waiting: one that is silent takes a while, and the leases of others run."""
        closing = asyncio.create_task(seat.link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def compact(self) -> int:
        """Note what each session still holds, in place of all that it has claimed."""
        async with self._database.acquire() as conn:
            for session, batch in self.known().items():
                seat = self._seats.get(session)
                if seat is not None and batch and seat.compacted != (batch, seat.held):
                    held = dict(seat.held)
                    await claims.compact(conn, session, batch, list(held))
                    seat.compacted = (batch, held)
        return 0

    async def cancel(self) -> int:
        """Tell agents which of their tasks somebody wants cancelled, or to stand still or go on."""
        if not self._seats:
            return 0
        async with self._line as conn:
            if self._catalogue.broadcast_pools:
                await broadcasts.pass_on_cancels(conn)
            paused = await session_tasks.paused(conn, list(self._seats))
            wanted = await session_tasks.cancelled(conn, list(self._seats))
            await self._pass_on_stops(conn)
        for seat in list(self._seats.values()):
            if messages := seat.pause(paused.get(seat.session, {})):
                seat.link.post(messages)
        for attempt in wanted:
            holder = self._seats.get(attempt.session)
            asked = (attempt.token, attempt.mode)
            if holder is None or holder.held.get(attempt.task) != attempt.token:
                continue  # claimed, and not told of yet: a word about it would come too early, and be lost
            if asked not in holder.cancelling:
                holder.cancelling.add(asked)
                holder.link.post([stop_message(attempt)])
        live = {(attempt.token, attempt.mode) for attempt in wanted}
        for seat in self._seats.values():
            seat.cancelling &= live
        return 0

    async def _pass_on_stops(self, conn: Connection) -> None:
        """What was taken from agents that live: they stop it at once, for it may run elsewhere."""
        orders = await rescue.stop_orders(conn, list(self._seats))
        for order in orders:
            seat = self._seats.get(order.session)
            if seat is not None:  # else it has gone, and will be told when it comes back what it may keep
                seat.link.post([Cancel([Held(order.task, order.token)], kill=True)])
        if orders:
            await rescue.stops_sent(conn, orders)

    async def drain(self) -> None:
        """Claim nothing more. Our own agent is to give back what has not started; others go on elsewhere."""
        for seat in list(self._seats.values()):
            seat.draining = True
            if seat.is_local:
                seat.link.post([Drain()])

    @property
    def holds(self) -> int:
        """Tasks that end with this process."""
        return sum(len(seat.held) for seat in self._seats.values() if seat.is_local)

    async def released(self) -> None:
        """Wait until our own agent holds nothing."""
        while self.holds:
            self.room_made.clear()
            await self.room_made.wait()

    async def close(self) -> None:
        """End the sessions of our own agent: what they still hold can be rescued at once. Others go on elsewhere."""
        sessions = [session for session, seat in self._seats.items() if seat.is_local]
        if sessions:
            try:
                await self.compact()
                async with self._line as conn:
                    await agents.leave(conn, [session for session in sessions if not self._seats[session].held])
                    await agents.end(conn, [session for session in sessions if self._seats[session].held])
            except StoreUnavailable as error:
                log.warning("sessions could not be ended (%s); their leases will", error)
        seats, self._seats = self._seats, {}
        for seat in seats.values():
            self._close(seat)
        if self._closing:
            await asyncio.wait(self._closing)
        await self._lease_line.close()
        await self._line.close()
