"""Session: the agent's side of one channel, from hello until it closes.

Reads   Welcome, Configure, Dispatch, Cancel, Recall, Drain
Sends   Hello, Heartbeat, and what the outbox has
Next:   agent/runner.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from mainspring.agent.executors.base import Executor
from mainspring.agent.outbox import Outbox
from mainspring.agent.runner import Runner
from mainspring.agent.timers import Timers
from mainspring.model.jobs import Job, Run
from mainspring.model.messages import (
    AgentMessage,
    Cancel,
    Configure,
    Dispatch,
    Drain,
    Heartbeat,
    Hello,
    Recall,
    ServerMessage,
    Welcome,
)
from mainspring.wire.channel import Channel, ChannelClosed
from mainspring.wire.clock import Clock, boottime
from mainspring.wire.link import Link

log = logging.getLogger("mainspring")


class Agent:
    """Runs attempts for a server. `executors` says how each kind of job is run."""

    def __init__(
        self,
        channel: Channel[AgentMessage, ServerMessage],
        *,
        name: str,
        slots: int,
        labels: dict[str, str],
        executors: Mapping[type[Run], Executor],
    ) -> None:
        self._link: Link[AgentMessage, ServerMessage] = Link(channel)
        self._hello = Hello(name, slots, labels)
        self.clock = Clock()
        self._timers = Timers(self.clock)
        self._durations = Timers(Clock(offset=0.0))  # plain boot time
        self._outbox = Outbox(self.clock)
        self._last_sent = 0
        self.runner = Runner(slots, self.clock, self._timers, self._durations, self._outbox, executors, self._confirm)
        self._jobs: dict[int, Job] = {}
        self._lease = 0.0
        self._lease_until = float("inf")  # boot time
        self._heartbeat_at = 0.0
        self.welcomed = asyncio.Event()

    async def run(self) -> None:
        """Until the channel closes. What runs then is stopped, and waited for."""
        try:
            self._heartbeat_at = boottime()
            self._last_sent = await self._link.send([self._hello])
            async with asyncio.TaskGroup() as group:
                receiving = group.create_task(self._receive())
                helpers = [
                    group.create_task(self._outbox.run(self._send, lambda: self.runner.crowded)),
                    group.create_task(self._keep_alive()),
                ]
                await asyncio.wait([receiving])
                for helper in helpers:
                    helper.cancel()
                self.runner.drain()
                self.runner.stop_all("lost")
                await self.runner.settled()
        finally:
            self.runner.close()
            self._timers.close()
            self._durations.close()

    async def _send(self, messages: list[AgentMessage]) -> int:
        try:
            self._last_sent = await self._link.send(messages)
        except ChannelClosed:
            log.debug("the channel closed with reports unsent")
        return self._last_sent

    async def _confirm(self) -> None:
        """Wait until all that was reported so far is durable."""
        sent = await self._send(self._outbox.take())
        await self._link.acknowledged(sent)

    async def _receive(self) -> None:
        try:
            while True:
                sequence, messages = await self._link.receive()
                for message in messages:
                    self._handle(message)
                self._link.settle_later(sequence)
        except ChannelClosed:
            return

    def _handle(self, message: ServerMessage) -> None:
        match message:
            case Dispatch(jobs, tasks):
                for job in jobs:
                    self._jobs[job.id] = job
                for armed in tasks:
                    self.runner.arm(armed, self._jobs.get(armed.job))
            case Configure(lease, now) | Welcome(lease=lease, now=now):
                received = boottime()
                if self.clock.measured(self._heartbeat_at, received, now):
                    self._timers.clock_changed()
                self._lease = self._lease or lease
                self._lease_until = self._heartbeat_at + lease
                self.welcomed.set()
            case Cancel(attempts, kill, restart):
                self.runner.cancel(attempts, kill=kill, restart=restart)
            case Recall(attempts):
                self.runner.recall(attempts)
            case Drain():
                self.runner.drain()

    async def _keep_alive(self) -> None:
        """Heartbeats; and if they are not answered, stop what runs before the lease is over."""
        await self.welcomed.wait()
        while True:
            self._heartbeat_at = boottime()
            await self._send([Heartbeat(self.runner.running)])
            for _ in range(10):
                await asyncio.sleep(self._lease / 30)
                self.runner.give_back_overdue(boottime())
                if boottime() > self._lease_until - self._lease / 6:
                    log.error("the lease could not be renewed; the session ends, and what runs in it is stopped")
                    await self._link.close()
                    return

    def follow(self, clock: Clock) -> None:
        """Take over the time of a clock in this process, for one whose server is in the same process."""
        self.clock.offset = clock.offset
        self._timers.clock_changed()

    async def close(self) -> None:
        await self._link.close()
