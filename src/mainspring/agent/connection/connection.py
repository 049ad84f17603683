"""ServerConnection: the agent's side of one connection, from hello until it closes.

Reads   Welcome, Configure, Dispatch, Cancel, Recall, Pause, Drain, Submitted
Sends   Hello, Heartbeat, and the reports of the outbox
Next:   agent/run/runner.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from mainspring.agent.connection.outbox import weight
from mainspring.agent.connection.send_window import SendWindow
from mainspring.agent.timing.timers import LATEST
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
from mainspring.model.secrets.values import SecretValues
from mainspring.model.tasks.jobs import Job
from mainspring.wire.channel import Channel, ChannelClosed, ChannelRefused
from mainspring.wire.clock import boottime
from mainspring.wire.link import Link

if TYPE_CHECKING:
    from mainspring.agent.agent import Agent

log = logging.getLogger("mainspring")

WELCOME_WITHIN = 20.0  # seconds
LATE = 1 / 30  # of a lease that this loop wakes late
FIRST_BEATS, FIRST_BEAT_EVERY = 8, 0.03  # to measure the clock before the first task is due
BEAT_EVERY = 5.0  # seconds between heartbeats at most, however long the lease: they measure the clock
ARMED_AT_ONCE = 250  # attempts, in half a millisecond


def check_times(message: ServerMessage) -> None:
    """Raises ChannelClosed for a lease or a time that makes no sense, NaN among them: try another server."""
    match message:
        case Configure(lease, now) | Welcome(lease=lease, now=now):
            if not 0.0 < lease < LATEST or not 0.0 <= now < LATEST:
                raise ChannelClosed(f"the server sent a lease of {lease} s and the time {now}; connecting again")


class ServerConnection:
    def __init__(self, agent: Agent, channel: Channel[AgentMessage, ServerMessage]) -> None:
        self._agent = agent
        self.link: Link[AgentMessage, ServerMessage] = Link(channel)
        self._window = SendWindow()
        self.link.on_arrival = self._arrived
        self._jobs: dict[int, Job] = {}
        self._session = 0  # its number, from the welcome on
        self._hello_at = self._heard_at = boottime()
        self._round_trips: deque[float] = deque(maxlen=8)
        self._welcome = asyncio.Event()
        self._load = 0.0, 0.0  # CPU and memory in use on the whole machine, 0 to 1

    async def run(self) -> None:
        """Until the connection closes, or the server falls silent."""
        with suppress(ChannelClosed):
            await self.link.send([self._agent.hello()])
        parts = (self._receive(), self.link.maintain(), self._keep_alive(), self._send_reports())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self.link.close()
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error  # a bug, or AccessDenied

    # ── receiving ───────────────────────────────────────────────────────────────────────────────

    async def _receive(self) -> None:
        try:
            while True:
                sequence, messages = await self.link.receive()
                self._heard_at = boottime()
                for message in messages:
                    check_times(message)
                    if isinstance(message, Dispatch):
                        await self._arm(message)
                    else:
                        self._handle(message)
                if sequence:
                    self.link.settle_later(sequence)
        except ChannelRefused as refused:
            if not self._session:
                raise AccessDenied(f"the server does not take this agent: {refused.message}") from None
            log.warning("the server ended the connection: %s", refused.message)
        except ChannelClosed as closed:
            if not self._agent.closing:
                log.warning("%s", closed.message)

    def _handle(self, message: ServerMessage) -> None:
        runner = self._agent.runner
        match message:
            case Configure(lease, now, echo, error):
                self._measured(echo, now, error)
                self._agent.lease_renewed(echo, lease, session=self._session)
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

    async def _arm(self, dispatch: Dispatch) -> None:
        """Arm in slices: a thousand at once would hold the event loop, and with it what is due meanwhile."""
        for job in dispatch.jobs:
            self._jobs[job.id] = job
        secrets = {its.job: SecretValues(its.values, its.withheld) for its in dispatch.secrets}
        for first in range(0, len(dispatch.tasks), ARMED_AT_ONCE):
            if first:
                await asyncio.sleep(0)
            if dispatch.session != self._agent.session:  # it was lost, now or before this frame arrived
                ours = self._agent.session
                log.warning("a dispatch for session %d came to session %s; ignored", dispatch.session, ours)
                return
            self._agent.runner.arm(dispatch.tasks[first : first + ARMED_AT_ONCE], self._jobs, secrets)

    def _begin(self, welcome: Welcome) -> None:
        if self._session:
            return  # a repeated welcome
        self._session = welcome.session
        self._agent.runner.database = welcome.database
        self._agent.runner.keep_only(welcome.kept)  # first: the new lease covers only these
        self._measured(self._hello_at, welcome.now, welcome.error)
        self._agent.lease_renewed(self._hello_at, welcome.lease)
        self._agent.credential = welcome.credential or self._agent.credential
        self._agent.session_began(welcome.session)
        self._welcome.set()

    def _measured(self, sent: float, now: float, error: float) -> None:
        received = boottime()
        self._round_trips.append(received - sent)
        self._agent.clock_measured(sent, received, now, error)

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    @property
    def _round_trip(self) -> float:
        """Seconds, the quickest of the last ones."""
        return min(self._round_trips, default=0.0)

    async def _send_reports(self) -> None:
        """Send the outbox, beginning with what the previous connection left unacknowledged."""
        await self._welcome.wait()
        self._agent.outbox.ready.set()  # it may have waited for room on the previous connection
        with suppress(ChannelClosed):
            await self._agent.outbox.run(self._send, lambda: self._agent.runner.crowded, self._room)

    async def _send(self, messages: list[AgentMessage]) -> None:
        await self.link.send(messages, weight(messages))

    def _room(self) -> int:
        """Bytes of output and results that may be sent now."""
        return self._window.size - self.link.bytes_in_flight

    def _arrived(self, size: int, seconds: float) -> None:
        if size:
            self._window.arrived(size, seconds - self._round_trip)
            self._agent.outbox.ready.set()

    async def confirm(self) -> None:
        """Wait until everything reported so far is durable."""
        # On a closed link they would be lost: what it had not acknowledged is with the next one already.
        while not self.link.is_closed and (messages := self._agent.outbox.take()):
            await self.link.send(messages, weight(messages), urgent=True)
        await self.link.acknowledged(self.link.sent)  # includes a frame that another task is sending now

    async def _keep_alive(self) -> None:
        """Send heartbeats; abort the connection once the server has been silent for half a lease."""
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
            self._heard_at = boottime()
            while (left := self._heard_at + lease / 2 - boottime()) > 0:  # half a lease is left to find another server
                due = boottime() + left
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._beat()  # blocks while the server does not read
                        due = boottime() + min(left, lease / 4, BEAT_EVERY)
                        await asyncio.sleep(min(lease / 4, BEAT_EVERY))
                if boottime() - due > lease * LATE:
                    self._heard_at = boottime()  # this loop was blocked: what the server sent meanwhile is not read yet
            log.warning("the server is silent; connecting again")
            self.link.abort()

    async def _beat(self) -> None:
        clock, runner = self._agent.clock, self._agent.runner
        with suppress(OSError):  # no descriptor to read them: the last ones hold
            self._load = psutil.cpu_percent() / 100, psutil.virtual_memory().percent / 100
        blockages = self._agent.blockages
        beat = Heartbeat(
            runner.running,
            boottime(),
            *self._load,
            clock.skew,
            self._round_trip,
            runner.draining,
            blockages.times,
            blockages.seconds,
        )
        await self.link.send_unnumbered([beat])

    async def report_draining(self) -> None:
        """Tell the server at once that the agent accepts nothing new."""
        with suppress(ChannelClosed):
            await self._beat()
