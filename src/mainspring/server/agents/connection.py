"""AgentConnections: serve one agent's connection from its hello until it closes.

Reads   messages of agents; reports go to the recorder, through server/agents/report_filter.py
Writes  store.cluster.agents   (sessions)
Sends   Welcome, Configure
Next:   server/agents/report_filter.py
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
    Keep,
    Refused,
    ServerMessage,
    Submit,
    Welcome,
)
from mainspring.model.reports import Report, items
from mainspring.model.words.skew import DEFAULT_LIMIT, skew_warning
from mainspring.server.agents import handshake
from mainspring.server.agents.frame_limit import LimitedChannel
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.keep import keep_session
from mainspring.server.agents.refusals import Recent, Refusals
from mainspring.server.agents.report_filter import ReportFilter
from mainspring.server.agents.session import AgentSession
from mainspring.server.agents.submissions import Submissions
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.recording.recorder import Recorder
from mainspring.store.access import tokens
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Database
from mainspring.wire.channel import SUPERSEDED, Channel, ChannelClosed
from mainspring.wire.clock import Clock, boottime
from mainspring.wire.link import PATIENCE, TICK, Link

log = logging.getLogger("mainspring")

HELLO_WITHIN = 10.0  # seconds from the connection to the hello
MANY = 250  # items of a frame, after which the event loop turns
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
        self._handshakes = database.for_handshakes()
        self._lease_dedicated = database.for_leases()
        self._server_lease = server_lease
        self._gateway = gateway
        self._recorder = recorder
        self._filter = ReportFilter(database)
        self.submissions = Submissions(database)
        self.refusals = Refusals()
        self._clock = clock
        self._lease = lease
        self._skew_limit = skew_limit
        self._warned_at = Recent(WARN_EVERY)  # of its clock, by agent

    async def serve(
        self, channel: Channel[ServerMessage, AgentMessage], *, process: str | None, token: int | None = None
    ) -> None:
        """Serve a connection until it closes.

        `process` identifies the process of a local agent; a remote one was admitted by a `token`.
        """
        patience = PATIENCE if process is None else TICK
        link: Link[ServerMessage, AgentMessage] = Link(LimitedChannel(channel), patience=patience)
        tending = asyncio.create_task(link.maintain())
        session: AgentSession | None = None
        try:
            async with asyncio.timeout(HELLO_WITHIN):
                sequence, messages = await link.receive()
            hello = messages[0] if messages else None
            if isinstance(hello, Keep):
                await self._keep(hello, link, channel)
            elif not isinstance(hello, Hello):
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
        self.refusals.add(reason)
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
            async with self._handshakes.acquire() as conn:
                accepted = await handshake.open_session(
                    conn, hello, self._lease, server=self._server_lease.id, process=process, token=token
                )
                if (
                    token is not None
                    and not isinstance(accepted, str)
                    and not accepted.tasks  # one that resumes has had its name before
                    and await tokens.is_contested(conn, accepted.session)
                ):
                    await agents.end(conn, [accepted.session])
                    accepted = tokens.NAME_TAKEN
                if not isinstance(accepted, str) and (
                    line := await agents.last_line(conn, hello.name, accepted.session)
                ):
                    link.expect(*line)
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
        session.output.kept(armed.token for armed in accepted.tasks)
        kept = [AttemptId(armed.task, armed.token) for armed in accepted.tasks]
        now, error = self._clock.reading()
        await link.send([Welcome(session.id, self._lease, now, kept, accepted.credential, accepted.database, error)])
        self._log_joined(session, len(kept))
        self._gateway.tally.connections["resumed" if hello.session is not None else "accepted"] += 1
        self._gateway.join(session, accepted.tasks)  # after Welcome, which must be the first message that it gets
        self._gateway.on_joined.send()
        return session

    async def _keep(
        self, keep: Keep, link: Link[ServerMessage, AgentMessage], channel: Channel[ServerMessage, AgentMessage]
    ) -> None:
        """Renew the lease of an agent whose event loop is blocked, once for each `Keep`, until its watchdog leaves.

        The session may be connected to this server, to another one, or to none: the agent cannot reconnect now.
        """

        def kept(id: int, instance: str, asked_at: float) -> None:
            session = self._gateway.sessions.get(id)
            if session is not None and session.instance == instance:
                session.renewed_at = max(session.renewed_at, asked_at)

        if not keep.blocked:
            await channel.refuse("this server is not blocked: say hello")
            return
        await keep_session(keep, link, self._lease_dedicated, self._lease, self._clock, kept)
        await channel.refuse("this session is over")

    async def _left(self, session: AgentSession) -> None:
        """The connection has closed. A session that holds nothing ends; any other may reconnect within its lease."""
        self.submissions.left(session)
        was_here = session.id in self._gateway.sessions
        self._gateway.leave(session)
        if was_here and not session.is_local:
            kept = f"; it may reconnect within its lease for {len(session.held)} attempts" if session.held else ""
            log.info("the connection of agent %s has closed%s", session.name, kept)
        if was_here:
            with suppress(StoreUnavailable):
                async with self._handshakes.acquire() as conn:
                    if session.held:
                        await agents.disconnect(conn, session.id)
                    else:
                        await agents.leave(conn, [session.id])

    async def _listen(self, session: AgentSession) -> None:
        while True:
            await self._recorder.room(session.link)
            sequence, messages = await session.link.receive()
            reports: list[Report] = []
            for message in messages:
                match message:
                    case Heartbeat():
                        await self._answer(session, message)
                    case Submit():
                        self.submissions.take(session, message)
                    case Hello() | Keep():
                        log.warning("agent %s said hello twice; ignored", session.name)
                    case _:
                        own, earlier = await self._filter.admit(session, message)
                        reports += [report for report in (own, earlier) if report is not None]
                        if isinstance(own, Refused):
                            self._gateway.tally.dispatches["refused"] += len(own.attempts)
                        elif isinstance(own, Finished):
                            session.ended(own.endings)
                            self._gateway.announce_room()
            # Also a frame without reports: its acknowledgement covers all frames before it, which must be committed.
            if sequence:
                self._recorder.submit(session.link, sequence, reports)
            if sum(len(items(report)) for report in reports) > MANY:
                await asyncio.sleep(0)  # the next frame may be there already: it is another step of the event loop

    async def _answer(self, session: AgentSession, beat: Heartbeat) -> None:
        session.hear(beat)
        self._gateway.tally.heartbeats["ok"] += 1
        self._check_clock(session)
        left = self._lease - (boottime() - session.renewed_at)
        now, error = self._clock.reading()
        await session.link.send_unnumbered([Configure(left, now, beat.sent, error)])

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
        if warning is not None and self._warned_at.is_first(session.name):
            log.warning("%s", warning)
