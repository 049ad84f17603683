"""Reception: one connection of an agent, from its hello until it closes; what it says is handed on.

Reads   messages of agents
Writes  store.agents        (sessions)
Sends   Welcome, Configure
Next:   server/agents/handshake.py, server/agents/gateway.py, server/recording/recorder.py, server/agents/submissions.py
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from mainspring.errors import StoreUnavailable
from mainspring.model.messages import (
    PROTOCOL,
    AgentMessage,
    Configure,
    Finished,
    Heartbeat,
    Held,
    Hello,
    ServerMessage,
    Submit,
    Welcome,
)
from mainspring.model.words.skew import DEFAULT_LIMIT, skew_warning
from mainspring.server.agents import handshake
from mainspring.server.agents.frame_limit import Slowed
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.session import Seat
from mainspring.server.agents.submissions import Submissions
from mainspring.server.cluster.lease import Standing
from mainspring.server.recording.batch import Report, Reporter
from mainspring.server.recording.recorder import Recorder
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Database
from mainspring.wire.channel import Channel, ChannelClosed
from mainspring.wire.clock import Clock, boottime
from mainspring.wire.link import Link

log = logging.getLogger("mainspring")

HELLO_WITHIN = 10.0  # seconds after a connection was made
ALARM_EVERY = 600.0  # seconds between two words about one wrong clock


class Reception:
    def __init__(
        self,
        database: Database,
        standing: Standing,
        gateway: Gateway,
        recorder: Recorder,
        clock: Clock,
        lease: float,
        skew_limit: float = DEFAULT_LIMIT,
    ) -> None:
        self._line = database.line("arrivals")
        self._standing = standing
        self._gateway = gateway
        self._recorder = recorder
        self.submissions = Submissions(database)
        self._clock = clock
        self._lease = lease
        self._skew_limit = skew_limit
        self._alarmed_at: dict[str, float] = {}  # by agent

    async def serve(
        self, channel: Channel[ServerMessage, AgentMessage], *, process: str | None, token: int | None = None
    ) -> None:
        """One connection of an agent's, from its hello until it closes.

        `process` tells who runs an agent in this very process; any other came with a `token`.
        """
        link: Link[ServerMessage, AgentMessage] = Link(Slowed(channel))
        tending = asyncio.create_task(link.tend())
        seat: Seat | None = None
        try:
            async with asyncio.timeout(HELLO_WITHIN):
                sequence, messages = await link.receive()
            hello = messages[0] if messages else None
            if not isinstance(hello, Hello):
                await self._refuse(channel, "an agent must say hello first")
            elif hello.protocol != PROTOCOL:
                await self._refuse(channel, f"protocol {hello.protocol} is not spoken here, but {PROTOCOL}")
            else:
                link.settle_later(sequence)
                seat = await self._welcome(hello, link, channel, process, token)
            if seat is not None:
                await self._listen(seat)
        except (ChannelClosed, TimeoutError):
            pass
        finally:
            tending.cancel()
            if seat is not None:
                await self._left(seat)
            await link.close()

    async def _refuse(self, channel: Channel[ServerMessage, AgentMessage], reason: str) -> None:
        log.warning("an agent was refused: %s", reason)
        await channel.refuse(reason)

    async def _welcome(
        self,
        hello: Hello,
        link: Link[ServerMessage, AgentMessage],
        channel: Channel[ServerMessage, AgentMessage],
        process: str | None,
        token: int | None,
    ) -> Seat | None:
        asked_at = boottime()
        async with self._line as conn:
            arrival = await handshake.arrive(
                conn, hello, self._lease, server=self._standing.id, process=process, token=token
            )
        if isinstance(arrival, str):
            await self._refuse(channel, arrival)
            return None
        seat = Seat(arrival.session, hello, link, instance=arrival.instance, local=process is not None)
        seat.renewed_at = asked_at
        seat.batch = arrival.batch
        kept = [Held(armed.task, armed.token) for armed in arrival.tasks]
        now = self._clock.now()
        await link.send([Welcome(seat.session, self._lease, now, kept, arrival.credential, arrival.database)])
        self._tell_joined(seat, len(kept))
        self._gateway.join(seat, arrival.tasks)  # not before it is told: nothing may come to it earlier
        for on_joined in self._gateway.on_joined:
            on_joined()
        return seat

    async def _left(self, seat: Seat) -> None:
        """The connection is gone. Who held nothing has nothing to come back for; the others have their lease."""
        self.submissions.left(seat)
        was_here = seat.session in self._gateway.seats
        self._gateway.leave(seat)
        if was_here and not seat.is_local:
            waits = f"; it has its lease to come back for {len(seat.held)} attempts" if seat.held else ""
            log.info("the connection of agent %s is over%s", seat.name, waits)
        if was_here and not seat.held:
            with suppress(StoreUnavailable):
                async with self._line as conn:
                    await agents.leave(conn, [seat.session])

    async def _listen(self, seat: Seat) -> None:
        while True:
            sequence, messages = await seat.link.receive()
            reports: list[Report] = []
            foreign: list[tuple[Reporter, Report]] = []
            for message in messages:
                match message:
                    case Heartbeat():
                        await self._answer(seat, message)
                    case Submit():
                        self.submissions.take(seat, message)
                    case Hello():
                        log.warning("agent %s said hello twice; ignored", seat.name)
                    case _:
                        own, others = seat.sift(message)
                        if own is not None:
                            reports.append(own)
                        if others is not None:
                            foreign.append((seat, others))
                        if isinstance(own, Finished):
                            seat.ended(own.endings)
                            self._gateway.make_room()
            # Also a frame without reports: its acknowledgement covers all frames before it, which must be committed.
            if sequence:
                self._recorder.submit(seat.link, sequence, reports, foreign)

    async def _answer(self, seat: Seat, beat: Heartbeat) -> None:
        seat.hear(beat)
        self._watch_clock(seat)
        left = self._lease - (boottime() - seat.renewed_at)
        await seat.link.say([Configure(left, self._clock.now(), beat.sent)])

    def _tell_joined(self, seat: Seat, kept: int) -> None:
        if seat.is_local:
            return
        goes_on = f", goes on with {kept} attempts" if kept else ""
        log.info("agent %s joined: session %d, %d slots%s", seat.name, seat.session, seat.slots, goes_on)
        if any(other.name == seat.name and other.instance != seat.instance for other in self._gateway.seats.values()):
            log.warning("there are two agents named %s; give each a --name: drains and broadcasts go by it", seat.name)

    def _watch_clock(self, seat: Seat) -> None:
        told = skew_warning(f"agent {seat.name}", seat.pulse.skew, self._skew_limit)
        if told is not None and boottime() - self._alarmed_at.get(seat.name, -ALARM_EVERY) >= ALARM_EVERY:
            self._alarmed_at[seat.name] = boottime()
            log.warning("%s", told)

    async def close(self) -> None:
        await self._line.close()
