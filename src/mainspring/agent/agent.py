"""Agent: what outlives a connection: the attempts it holds, its clock, its reports, its lease.

It connects, and connects again when the connection is lost; what runs goes on meanwhile, as long as the lease
holds. An agent that cannot renew it stops what runs before the lease ends, and begins afresh.
Next: agent/connection/connection.py, then agent/run/runner.py
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from msgspec.structs import replace

from mainspring.agent.attempt import Executor
from mainspring.agent.connection.connection import Session
from mainspring.agent.connection.lease import Lease
from mainspring.agent.connection.outbox import Outbox
from mainspring.agent.run.failures import Failures
from mainspring.agent.run.runner import Runner
from mainspring.agent.timing.timers import Timers
from mainspring.errors import AccessDenied
from mainspring.model.messages import AgentMessage, Hello, ServerMessage
from mainspring.model.tasks.jobs import Run
from mainspring.wire.channel import Channel, ChannelClosed
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")

Connect = Callable[[str | None], Awaitable[Channel[AgentMessage, ServerMessage]]]  # given its credential, if it has one

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds before connecting again
LAST_WORDS = 5.0  # seconds for the last reports to be acknowledged
COMPLAIN_EVERY = 60.0  # seconds
WATCH = 0.5  # seconds between two looks at the lease, or less where it is short


class Agent:
    """Runs attempts for servers. `executors` says how each kind of job is run."""

    def __init__(
        self,
        connect: Connect,
        *,
        hello: Hello,
        wall: Callable[[], float] = time.time,
        executors: Mapping[type[Run], Executor],
        hold_until: Callable[[float], None] = lambda at: None,
    ) -> None:
        self._connect = connect
        self._hold_until = hold_until  # told until when processes may live, in boot time
        self._hello = replace(hello, instance=secrets.token_hex(16))
        self.clock = Clock(wall=wall)
        self.timers = Timers(self.clock)
        self._durations = Timers(Clock(offset=0.0))  # plain boot time
        self.outbox = Outbox(self.clock)
        self.lease = Lease()
        self.failures = Failures()
        self.runner = Runner(
            hello.slots,
            self.clock,
            self.timers,
            self._durations,
            self.outbox,
            executors,
            self._confirm,
            self._lapsed,
            self.failures,
        )
        self.credential: str | None = None
        self._session: Session | None = None
        self._closing = False
        self._complaint = ("", 0.0)  # the last, and when
        self.welcomed = asyncio.Event()  # a server knows us now
        self._was_welcomed = asyncio.Event()

    async def run(self) -> None:
        """Until `close`, or until no server lets us in. What runs then is stopped, and waited for."""
        watching = asyncio.create_task(self._watch_lease())
        try:
            await self._keep_connected()
        finally:
            watching.cancel()
            self.runner.drain()
            self.runner.stop_all("lost")
            await self.runner.settled()
            self.runner.close()
            self.timers.close()
            self._durations.close()
            await self.failures.close()

    async def _keep_connected(self) -> None:
        wait = FIRST_WAIT
        while not self._closing:
            try:
                await self._converse(await self._connect(self.credential))
            except ChannelClosed as error:
                self._complain(f"no server: {error.message}; trying again")
            except AccessDenied as error:
                if not self.lease.length:
                    raise
                log.error("%s; trying again as long as the lease holds", error)  # what runs need not die for it
            if self._was_welcomed.is_set():
                wait = FIRST_WAIT
                self._was_welcomed.clear()
            if not self._closing:
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))
                wait = min(2 * wait, LONGEST_WAIT)

    def _complain(self, message: str) -> None:
        """Say it, and again only after a while, or if it is something else."""
        said, at = self._complaint
        if message != said or boottime() - at > COMPLAIN_EVERY:
            self._complaint = (message, boottime())
            log.warning("%s", message)

    async def _converse(self, channel: Channel[AgentMessage, ServerMessage]) -> None:
        if self._closing:  # somebody asked to stop while we dialled
            await channel.close()
            return
        self._session = Session(self, channel)
        try:
            await self._session.run()
        finally:
            self.welcomed.clear()
            self.outbox.put_back(self._session.link.take_unacknowledged())
            self._session = None

    # ── what a session asks ─────────────────────────────────────────────────────────────────────

    def hello(self) -> Hello:
        """Who we are, and what we hold of the session before."""
        return replace(self._hello, held=[*self.runner.holdings(), *self.outbox.holdings()])

    @property
    def session(self) -> int | None:
        return self._hello.session

    def begin(self, session: int) -> None:
        self._hello.session = session
        self.welcomed.set()
        self._was_welcomed.set()
        self.outbox.submissions.ask_again()

    def renewed(self, sent: float, seconds: float) -> None:
        """The lease holds for `seconds` from `sent`."""
        self.lease.renew(sent, seconds)
        self._hold_until(self.lease.kill_at)

    def follow(self, sent: float, now: float) -> None:
        """A message that we sent at `sent` (boot time) found the database's time to be `now`."""
        if self.clock.measured(sent, boottime(), now):
            self.timers.clock_changed()

    # ── the lease ───────────────────────────────────────────────────────────────────────────────

    async def _watch_lease(self) -> None:
        while True:
            await asyncio.sleep(min(WATCH, self.lease.length / 30) if self.lease.length else WATCH)
            self.runner.give_back_overdue(boottime())
            if self.lease.is_ending(boottime()):
                await self._lose_session()

    def _lapsed(self) -> bool:
        return self.lease.is_over(boottime())

    async def _lose_session(self) -> None:
        """What we hold goes elsewhere when the lease ends: it must have ended here before."""
        log.error("the lease could not be renewed; what runs is stopped, and the agent begins afresh")
        grace = self.lease.grace(boottime())
        self._hello.session = None
        self.lease.forget()
        self.runner.lose(grace)
        if self._session is not None:
            await self._session.link.close()

    async def _confirm(self) -> None:
        """Wait until all that was reported so far is durable, on whichever connection."""
        while True:
            await self.welcomed.wait()
            session = self._session
            if session is not None:
                try:
                    return await session.confirm()
                except ChannelClosed:
                    pass
            await asyncio.sleep(0.05)

    def set_clock(self, clock: Clock) -> None:
        """Follow another clock of this process at once."""
        self.clock.copy(clock)
        self.timers.clock_changed()

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    async def drain(self, patience: float) -> None:
        """Take nothing new; let what runs end within `patience` seconds, then stop it; see that it is all told."""
        self.runner.drain()
        if self._session is not None:
            await self._session.tell_draining()
        try:
            async with asyncio.timeout(patience):
                await self.runner.empty.wait()
        except TimeoutError:
            self.runner.stop_all("shutdown")
            await self.runner.settled()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self._confirm()
        self.stay_away()

    @property
    def is_leaving(self) -> bool:
        """Whether the end of the connection is what we want."""
        return self._closing

    def stay_away(self) -> None:
        """Do not connect again once this connection is over."""
        self._closing = True

    async def close(self) -> None:
        """End the connection, and `run`."""
        self._closing = True
        if self._session is not None:
            await self._session.link.close()
