"""Gateway: the sessions of agents on this server. Sends them what was claimed, hands on what they report.

Reads   messages of agents
Writes  store.agents        (sessions and leases)
Sends   Welcome, Configure, Dispatch, Recall, Cancel, Drain
Next:   wire/link.py, then agent/session.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from mainspring.errors import StoreUnavailable
from mainspring.model.messages import (
    PROTOCOL,
    AgentMessage,
    Armed,
    Cancel,
    Configure,
    Drain,
    Ending,
    Finished,
    Heartbeat,
    Held,
    Hello,
    Output,
    Progress,
    Recall,
    Refused,
    ServerMessage,
    Started,
    Welcome,
)
from mainspring.model.placement import Requirements, fits
from mainspring.server.catalogue import Catalogue
from mainspring.server.doubts import Doubts
from mainspring.server.recorder import Recorder, Report
from mainspring.server.seat import Seat
from mainspring.store import agents, claims
from mainspring.store.claims import Claim
from mainspring.store.database import Database
from mainspring.store.recalls import KILL, RECALL
from mainspring.wire.channel import Channel, ChannelClosed
from mainspring.wire.clock import Clock, boottime
from mainspring.wire.link import Link

log = logging.getLogger("mainspring")


class Gateway:
    def __init__(
        self, database: Database, catalogue: Catalogue, recorder: Recorder, clock: Clock, lease: float
    ) -> None:
        self._database = database
        self._line = database.line()  # of its own: a full pool must not cost a lease
        self._catalogue = catalogue
        self._recorder = recorder
        self._clock = clock
        self._lease = lease
        self._seats: dict[int, Seat] = {}
        self._holders: dict[int, Seat] = {}  # by task
        self.drained: frozenset[str] = frozenset()  # names of agents that take nothing new: see server/roster.py
        self.doubts = Doubts()
        self._released: set[int] | None = None  # tokens, while somebody wants to know
        recorder.on_recorded.append(self._recorded)
        self.room_made = asyncio.Event()  # somebody has room again
        self.on_room: list[Callable[[], None]] = []
        self.on_joined: list[Callable[[], None]] = []
        self.cancel_wake = asyncio.Event()

    async def serve(self, channel: Channel[ServerMessage, AgentMessage], *, process: str | None) -> None:
        """One agent's session, from its hello until the channel closes."""
        link: Link[ServerMessage, AgentMessage] = Link(channel)
        seat: Seat | None = None
        try:
            sequence, messages = await link.receive()
            hello = messages[0] if messages else None
            if not isinstance(hello, Hello) or hello.protocol != PROTOCOL:
                log.warning("an agent was refused: it must say hello first, in protocol %d", PROTOCOL)
                return
            seat = await self._welcome(hello, link, process)
            link.settle_later(sequence)
            await link.send([Welcome(seat.session, self._lease, self._clock.now())])
            for on_joined in self.on_joined:
                on_joined()
            while True:
                sequence, messages = await link.receive()
                await self._received(seat, sequence, messages)
        except ChannelClosed:
            pass
        finally:
            if seat is not None:
                self._leave(seat)
            await link.close()

    async def _welcome(self, hello: Hello, link: Link[ServerMessage, AgentMessage], process: str | None) -> Seat:
        async with self._line as conn:
            session = await agents.begin(conn, hello.name, hello.slots, hello.labels, process, self._lease)
        seat = self._seats[session] = Seat(session, hello, link)
        return seat

    def _leave(self, seat: Seat) -> None:
        self._seats.pop(seat.session, None)
        for task in seat.held:
            self._holders.pop(task, None)

    async def _received(self, seat: Seat, sequence: int, messages: list[AgentMessage]) -> None:
        reports: list[Report] = []
        for message in messages:
            match message:
                case Finished(endings):
                    seat.ended(endings)
                    self._make_room()
                    reports.append(message)
                case Started() | Progress() | Output() | Refused():
                    reports.append(message)
                case Heartbeat():
                    left = self._lease - (boottime() - seat.renewed_at)
                    await seat.link.send([Configure(left, self._clock.now())])
                case Hello():
                    log.warning("agent %s said hello twice; ignored", seat.name)
        # Also a frame without reports: its acknowledgement covers all frames before it, which must be committed.
        self._recorder.submit(seat.link, sequence, reports)

    def _recorded(self, endings: list[Ending], refused: list[Held]) -> None:
        """The recorder has committed these: nobody holds them any more."""
        for ending in endings:
            self._release(ending.task, ending.token)
        for attempt in refused:
            self._release(attempt.task, attempt.token)
        self._make_room()

    def _make_room(self) -> None:
        self.room_made.set()
        for on_room in self.on_room:
            on_room()

    def _release(self, task: int, token: int) -> None:
        seat = self._holders.get(task)
        if seat is not None and seat.held.get(task) == token:  # else it has been given a new attempt since
            seat.release(task)
            del self._holders[task]
            if self._released is not None:
                self._released.add(token)

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

    async def arm(self, claim: Claim) -> None:
        """Send each session what was claimed for it, in one message."""
        batches = claim.batches
        for session, tasks in claim.tasks.items():
            seat = self._seats.get(session)
            if seat is None:
                continue  # it went away in the meantime: its lease ends, and they are rescued
            seat.batch = max(seat.batch, batches[session])
            for armed in tasks:
                if (before := self._holders.get(armed.task)) is not None:
                    before.release(armed.task)  # recorded a moment ago, and claimed again before we were told
                self._holders[armed.task] = seat
            seat.arm(tasks, self._clock.now(), self._catalogue.needs)
            try:
                await seat.link.send([seat.dispatch(self._catalogue, tasks)])
            except ChannelClosed:
                continue

    def claiming(self) -> AbstractContextManager[None]:
        """Around a claim, for all sessions here."""
        return self.doubts.claiming({seat.session: seat.batch for seat in self._seats.values()})

    def known(self) -> dict[int, int]:
        """By session, the last batch up to which every claim has been answered."""
        return {seat.session: self.doubts.known(seat.session, seat.batch) for seat in self._seats.values()}

    @contextmanager
    def watching_releases(self) -> Iterator[Callable[[int, Armed], bool]]:
        """Around a look for unanswered claims: tells which of the tasks found have been armed here before."""
        self._released = released = set[int]()
        try:
            yield (
                lambda session, armed: (
                    armed.token in released
                    or (session in self._seats and self._seats[session].held.get(armed.task) == armed.token)
                )
            )
        finally:
            self._released = None

    # ── loops ───────────────────────────────────────────────────────────────────────────────────

    async def renew(self) -> int:
        """Renew the leases of all sessions here, in one statement; drop those that are over."""
        if not self._seats:
            return 0
        asked_at = boottime()
        async with self._line as conn:
            living = await agents.renew(conn, list(self._seats), self._lease)
        for session in living:
            if session in self._seats:
                self._seats[session].renewed_at = asked_at
        for session in [s for s in self._seats if s not in living]:
            seat = self._seats[session]
            self._leave(seat)
            log.warning("the lease of agent %s (session %d) is over; its tasks go elsewhere", seat.name, session)
            await seat.link.close()
        return 0

    async def compact(self) -> int:
        """Note what each session still holds, in place of all that it has claimed."""
        async with self._database.acquire() as conn:
            for session, batch in self.known().items():
                seat = self._seats.get(session)
                if seat is not None and batch:
                    await claims.compact(conn, session, batch, list(seat.held))
        return 0

    async def cancel(self) -> int:
        """Tell agents which of their tasks somebody wants cancelled."""
        if not self._seats:
            return 0
        async with self._line as conn:
            wanted = await agents.cancelled(conn, list(self._seats))
        for attempt in wanted:
            seat = self._seats.get(attempt.session)
            asked = (attempt.token, attempt.mode)
            if seat is not None and asked not in seat.cancelling:
                seat.cancelling.add(asked)
                held = [Held(attempt.task, attempt.token)]
                try:
                    await seat.link.send(
                        [Recall(held) if attempt.mode == RECALL else Cancel(held, attempt.mode == KILL)]
                    )
                except ChannelClosed:
                    continue
        live = {(attempt.token, attempt.mode) for attempt in wanted}
        for seat in self._seats.values():
            seat.cancelling &= live
        return 0

    async def drain(self) -> None:
        """Ask all agents to take nothing new and to give back what has not started."""
        for seat in list(self._seats.values()):
            seat.draining = True
            try:
                await seat.link.send([Drain()])
            except ChannelClosed:
                continue

    @property
    def holds(self) -> int:
        return len(self._holders)

    async def released(self) -> None:
        """Wait until no agent here holds anything."""
        while self._holders:
            self.room_made.clear()
            await self.room_made.wait()

    async def close(self) -> None:
        """End the sessions here: what they still hold can be rescued at once."""
        sessions = list(self._seats)
        if sessions:
            try:
                await self.compact()
                async with self._line as conn:
                    await agents.end(conn, sessions)
            except StoreUnavailable as error:
                log.warning("sessions could not be ended (%s); their leases will", error)
        for seat in list(self._seats.values()):
            await seat.link.close()
        await self._line.close()
