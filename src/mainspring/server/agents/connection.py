"""AgentConnections: serve one agent's connection from its hello until it closes.

Reads   messages of agents; reports go to the recorder, checked by model/reports.py
Writes  store.cluster.agents   (sessions)
Sends   Welcome, Configure
Next:   server/recording/recorder.py
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from mainspring.errors import SessionSuperseded, StoreUnavailable
from mainspring.model.messages import (
    PROTOCOL,
    AgentMessage,
    AttemptId,
    Configure,
    Finished,
    Heartbeat,
    Hello,
    ServerMessage,
    Submit,
    Welcome,
)
from mainspring.model.reports import Report, checked
from mainspring.model.words.skew import DEFAULT_LIMIT, skew_warning
from mainspring.server.agents import handshake
from mainspring.server.agents.frame_limit import LimitedChannel
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.session import AgentSession
from mainspring.server.agents.submissions import Submissions
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.recording.batch import Reporter
from mainspring.server.recording.recorder import Recorder
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Database
from mainspring.wire.channel import SUPERSEDED, Channel, ChannelClosed
from mainspring.wire.clock import Clock, boottime
from mainspring.wire.link import Link

log = logging.getLogger("mainspring")

HELLO_WITHIN = 10.0  # seconds from the connection to the hello
WARN_EVERY = 600.0  # seconds between two warnings about one agent's clock


class AgentConnections:
    def __init__(
        self,
        database: Database,
        server_lease: ServerLease,
        gateway: Gateway,
        recorder: Recorder,
        clock: Clock,
        lease: float,
        skew_limit: float = DEFAULT_LIMIT,
    ) -> None:
        self._dedicated = database.dedicated("handshakes")
        self._server_lease = server_lease
        self._gateway = gateway
        self._recorder = recorder
        self.submissions = Submissions(database)
        self._clock = clock
        self._lease = lease
        self._skew_limit = skew_limit
        self._warned_at: dict[str, float] = {}  # of its clock, by agent

    async def serve(
        self, channel: Channel[ServerMessage, AgentMessage], *, process: str | None, token: int | None = None
    ) -> None:
        """Serve a connection until it closes.

        `process` identifies the process of a local agent; a remote one was admitted by a `token`.
        """
        link: Link[ServerMessage, AgentMessage] = Link(LimitedChannel(channel))
        tending = asyncio.create_task(link.maintain())
        session: AgentSession | None = None
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
                session = await self._welcome(hello, link, channel, process, token)
            if session is not None:
                await self._listen(session)
        except (ChannelClosed, TimeoutError):
            pass
        finally:
            tending.cancel()
            if session is not None:
                await self._left(session)
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
    ) -> AgentSession | None:
        asked_at = boottime()
        try:
            async with self._dedicated as conn:
                accepted = await handshake.open_session(
                    conn, hello, self._lease, server=self._server_lease.id, process=process, token=token
                )
        except SessionSuperseded as late:
            log.warning("%s; nothing was changed", late.message)
            await channel.refuse(f"{late.code}: {late.message}", SUPERSEDED)
            return None
        if isinstance(accepted, str):
            await self._refuse(channel, accepted)
            return None
        session = AgentSession(accepted.session, hello, link, instance=accepted.instance, local=process is not None)
        session.renewed_at = asked_at
        session.batch = accepted.batch
        kept = [AttemptId(armed.task, armed.token) for armed in accepted.tasks]
        now = self._clock.now()
        await link.send([Welcome(session.id, self._lease, now, kept, accepted.credential, accepted.database)])
        self._log_joined(session, len(kept))
        self._gateway.join(session, accepted.tasks)  # after Welcome, which must be the first message that it gets
        self._gateway.on_joined.send()
        return session

    async def _left(self, session: AgentSession) -> None:
        """The connection has closed. A session that holds nothing ends; any other may reconnect within its lease."""
        self.submissions.left(session)
        was_here = session.id in self._gateway.sessions
        self._gateway.leave(session)
        if was_here and not session.is_local:
            kept = f"; it may reconnect within its lease for {len(session.held)} attempts" if session.held else ""
            log.info("the connection of agent %s has closed%s", session.name, kept)
        if was_here and not session.held:
            with suppress(StoreUnavailable):
                async with self._dedicated as conn:
                    await agents.leave(conn, [session.id])

    async def _listen(self, session: AgentSession) -> None:
        while True:
            sequence, messages = await session.link.receive()
            reports: list[Report] = []
            foreign: list[tuple[Reporter, Report]] = []
            for message in messages:
                match message:
                    case Heartbeat():
                        await self._answer(session, message)
                    case Submit():
                        self.submissions.take(session, message)
                    case Hello():
                        log.warning("agent %s said hello twice; ignored", session.name)
                    case _:
                        own, others = session.split(checked(message))
                        if own is not None:
                            reports.append(own)
                        if others is not None:
                            foreign.append((session, others))
                        if isinstance(own, Finished):
                            session.ended(own.endings)
                            self._gateway.announce_room()
            # Also a frame without reports: its acknowledgement covers all frames before it, which must be committed.
            if sequence:
                self._recorder.submit(session.link, sequence, reports, foreign)

    async def _answer(self, session: AgentSession, beat: Heartbeat) -> None:
        session.hear(beat)
        self._check_clock(session)
        left = self._lease - (boottime() - session.renewed_at)
        await session.link.send_unnumbered([Configure(left, self._clock.now(), beat.sent)])

    def _log_joined(self, session: AgentSession, kept: int) -> None:
        if session.is_local:
            return
        keeps = f", keeps {kept} attempts" if kept else ""
        log.info("agent %s joined: session %d, %d slots%s", session.name, session.id, session.slots, keeps)
        if any(
            other.name == session.name and other.instance != session.instance
            for other in self._gateway.sessions.values()
        ):
            log.warning(
                "there are two agents named %s; give each a --name: drains and broadcasts go by it", session.name
            )

    def _check_clock(self, session: AgentSession) -> None:
        warning = skew_warning(f"agent {session.name}", session.heartbeat.skew, self._skew_limit)
        if warning is not None and boottime() - self._warned_at.get(session.name, -WARN_EVERY) >= WARN_EVERY:
            self._warned_at[session.name] = boottime()
            log.warning("%s", warning)
