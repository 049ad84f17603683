"""Session: the agent's side of one connection, from hello until it closes.

Reads   Welcome, Configure, Dispatch, Cancel, Recall, Pause, Drain, Submitted
Sends   Hello, Heartbeat, and what the outbox has
Next:   agent/run/runner.py
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from mainspring.agent.connection.host_load import vitals
from mainspring.agent.connection.outbox import weight
from mainspring.agent.connection.send_window import Window
from mainspring.errors import AccessDenied
from mainspring.model.messages import (
    AgentMessage,
    Cancel,
    Configure,
    Dispatch,
    Drain,
    Heartbeat,
    Pause,
    Recall,
    ServerMessage,
    Submitted,
    Welcome,
)
from mainspring.model.tasks.jobs import Job
from mainspring.wire.channel import Channel, ChannelClosed, ChannelRefused
from mainspring.wire.clock import boottime
from mainspring.wire.link import Link

if TYPE_CHECKING:
    from mainspring.agent.agent import Agent

log = logging.getLogger("mainspring")

WELCOME_WITHIN = 20.0  # seconds
FIRST_BEATS, FIRST_BEAT_EVERY = 8, 0.03  # to know the time well before the first task is due


class Session:
    def __init__(self, agent: Agent, channel: Channel[AgentMessage, ServerMessage]) -> None:
        self._agent = agent
        self.link: Link[AgentMessage, ServerMessage] = Link(channel)
        self._window = Window()
        self.link.on_landed = self._landed
        self._jobs: dict[int, Job] = {}
        self._number = 0  # of the session, once the server has said it
        self._hello_at = self._heard_at = boottime()
        self._welcome = asyncio.Event()

    async def run(self) -> None:
        """Until the connection closes, or falls silent."""
        with suppress(ChannelClosed):
            await self.link.send([self._agent.hello()])
        receiving = asyncio.create_task(self._receive())
        helpers = [asyncio.create_task(part) for part in (self.link.tend(), self._keep_alive(), self._tell())]
        try:
            await asyncio.wait([receiving, *helpers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (receiving, *helpers):
                task.cancel()
            await asyncio.wait([receiving, *helpers])
            await self.link.close()
        for task in (receiving, *helpers):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error  # a bug, or no server wants us

    # ── receiving ───────────────────────────────────────────────────────────────────────────────

    async def _receive(self) -> None:
        try:
            while True:
                sequence, messages = await self.link.receive()
                self._heard_at = boottime()
                for message in messages:
                    self._handle(message)
                if sequence:
                    self.link.settle_later(sequence)
        except ChannelRefused as refused:
            if not self._number:
                raise AccessDenied(f"the server does not take this agent: {refused.message}") from None
            log.warning("the server ended the connection: %s", refused.message)
        except ChannelClosed as closed:
            if not self._agent.is_leaving:
                log.warning("%s", closed.message)

    def _handle(self, message: ServerMessage) -> None:
        runner = self._agent.runner
        match message:
            case Dispatch(jobs, tasks, session):
                if session != self._agent.session:  # also one that we have given up, and whose frames still come
                    log.warning("a dispatch for session %d came to session %s; ignored", session, self._agent.session)
                    return
                for job in jobs:
                    self._jobs[job.id] = job
                for armed in tasks:
                    runner.arm(armed, self._jobs.get(armed.job))
            case Configure(lease, now, echo):
                self._agent.follow(echo, now)
                self._agent.renewed(echo, lease)
            case Welcome():
                self._begin(message)
            case Cancel(attempts, kill, restart):
                runner.cancel(attempts, kill=kill, restart=restart)
            case Pause(attempts, resume):
                runner.pause(attempts, resume=resume)
            case Recall(attempts):
                runner.recall(attempts)
            case Drain():
                runner.drain()
            case Submitted():
                self._agent.outbox.submissions.answered(message)

    def _begin(self, welcome: Welcome) -> None:
        if self._number:
            return  # an echo
        self._number = welcome.session
        self._agent.runner.database = welcome.database
        self._agent.runner.keep_only(welcome.kept)  # first: what is another's must not live by the new lease
        self._agent.follow(self._hello_at, welcome.now)
        self._agent.renewed(self._hello_at, welcome.lease)
        self._agent.credential = welcome.credential or self._agent.credential
        self._agent.begin(welcome.session)
        self._welcome.set()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    async def _tell(self) -> None:
        """Send what the outbox has, beginning with what the connection before did not get acknowledged."""
        await self._welcome.wait()
        self._agent.outbox.ready.set()  # it may have waited for room on the connection before
        with suppress(ChannelClosed):
            await self._agent.outbox.run(self._send, lambda: self._agent.runner.crowded, self._room)

    async def _send(self, messages: list[AgentMessage]) -> None:
        await self.link.send(messages, weight(messages))

    def _room(self) -> int:
        """Bytes of output and results that may be sent now; heartbeats must not wait behind too much of them."""
        return self._window.size - self.link.under_way

    def _landed(self, size: int, seconds: float) -> None:
        if size:
            self._window.landed(size, seconds - self._agent.clock.round_trip)
            self._agent.outbox.ready.set()

    async def confirm(self) -> None:
        """Wait until all that was reported so far is durable."""
        while messages := self._agent.outbox.take():
            await self._send(messages)
        await self.link.acknowledged(self.link.sent)  # also what somebody else is sending at this moment

    async def _keep_alive(self) -> None:
        """Heartbeats; if nothing is heard any more, the connection is given up, and another one is tried."""
        with suppress(ChannelClosed):
            try:
                async with asyncio.timeout(WELCOME_WITHIN):
                    await self._welcome.wait()
            except TimeoutError:
                log.warning("the server does not answer our hello; connecting again")
                return
            for _ in range(FIRST_BEATS):
                await self._beat()
                await asyncio.sleep(FIRST_BEAT_EVERY)
            lease = self._agent.lease.length
            while (left := self._heard_at + lease / 2 - boottime()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):  # not longer: another server is to be found within the lease
                        await self._beat()  # which waits where nobody reads
                        await asyncio.sleep(lease / 4)
            log.warning("nothing was heard from the server; connecting again")
            self.link.abort()

    async def _beat(self) -> None:
        clock, runner = self._agent.clock, self._agent.runner
        cpu, memory = vitals()
        beat = Heartbeat(runner.running, boottime(), cpu, memory, clock.skew, clock.round_trip, runner.draining)
        await self.link.say([beat])

    async def tell_draining(self) -> None:
        """Say at once that nothing new is taken."""
        with suppress(ChannelClosed):
            await self._beat()
