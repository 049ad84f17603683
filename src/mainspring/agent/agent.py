"""Agent: what outlives a connection: attempts, clock, reports, lease.

It reconnects whenever the connection is lost; attempts continue meanwhile, as long as the lease holds. An agent that
cannot renew its lease stops its attempts before the lease expires, and begins a new session.
Next: agent/connection/connection.py
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from mainspring.agent.attempt import Executor
from mainspring.agent.connection.connection import ServerConnection
from mainspring.agent.connection.lease import Lease
from mainspring.agent.connection.outbox import Outbox
from mainspring.agent.connection.session_keeper import SessionKeeper
from mainspring.agent.run.failures import Failures
from mainspring.agent.run.runner import Runner
from mainspring.agent.timing.timers import Timers
from mainspring.errors import AccessDenied, MainspringError
from mainspring.model.messages import AgentMessage, Hello, ServerMessage
from mainspring.model.tasks.jobs import Run
from mainspring.watchdog import Blockages, Blocker
from mainspring.wire.channel import Channel, ChannelBusy, ChannelClosed
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")

Connect = Callable[[str | None], Awaitable[Channel[AgentMessage, ServerMessage]]]  # takes the credential, if any

FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds before reconnecting
FLUSH_WITHIN = 5.0  # seconds for the last reports to be acknowledged
WARN_EVERY = 60.0  # seconds, with the same message
IDLE_EVERY = 0.5  # seconds between two looks at whether it holds anything; less if it is to end soon
WATCH_EVERY = 0.5  # seconds between two checks of the lease; less if the lease is short


class Agent:
    """Runs attempts for servers. `executors` says how each kind of job is run."""

    def __init__(
        self,
        connect: Connect,
        *,
        hello: Hello,
        wall: Callable[[], float] = time.time,
        clock: Clock | None = None,
        executors: Mapping[type[Run], Executor],
        hold_until: Callable[[float], None] = lambda at: None,
    ) -> None:
        self._connect = connect
        self._hold_until = hold_until  # takes the boot time until which processes may live
        self._hello = replace(hello, instance=secrets.token_hex(16))
        self._is_clock_shared = clock is not None  # with the server in this process, which measures it
        self.clock = clock or Clock(wall=wall)
        self.timers = Timers(self.clock)
        self.clock.on_change = self.timers.clock_changed
        self._durations = Timers(Clock(offset=0.0))  # plain boot time
        self.outbox = Outbox(self.clock)
        self.lease = Lease()
        self._lease_lock = threading.Lock()  # the watchdog's thread renews it too
        self.blockages = Blockages()
        self.failures = Failures()
        self.runner = Runner(
            hello.slots,
            self.clock,
            self.timers,
            self._durations,
            self.outbox,
            executors,
            self._confirm,
            self.lease.has_expired,
            self.failures,
            hello.name,
        )
        self.name = hello.name
        self.credential: str | None = None
        self._connection: ServerConnection | None = None
        self._connections = 0  # so far
        self.closing = False  # do not reconnect
        self._warned = ("", 0.0)  # the last warning, and when
        self.session_keeper: SessionKeeper | None = None  # of a remote agent
        self.welcomed = asyncio.Event()  # set while a server has welcomed this agent
        self._wait = FIRST_WAIT  # seconds before the next reconnect

    async def run(self) -> None:
        """Until `close`, or until every server refuses this agent. Then stops the attempts and waits for them."""
        watching = asyncio.create_task(self._watch_lease())
        try:
            await self._keep_connected()
        finally:
            watching.cancel()
            self.runner.drain()
            self.runner.stop_all("lost")
            await self.runner.wait_until_stopped()
            self.runner.close()
            self.timers.close()
            self._durations.close()
            await self.failures.close()

    async def _keep_connected(self) -> None:
        while not self.closing:
            try:
                await self._serve(await self._connect(self.credential))
            except ChannelBusy as error:
                self._warn(f"no server: {error.message}; trying again")
                await self._keep_session()
            except ChannelClosed as error:
                self._warn(f"no server: {error.message}; trying again")
            except AccessDenied as error:
                if not self.lease.length:
                    raise
                log.error("%s; trying again as long as the lease holds", error)
            if not self.closing:
                await asyncio.sleep(self._wait * random.uniform(0.5, 1.0))
                self._wait = min(2 * self._wait, LONGEST_WAIT, self.lease.length / 6 or LONGEST_WAIT)

    async def _keep_session(self) -> None:
        """A server whose event loop is blocked takes no hello, and still renews leases."""
        keeper = self.session_keeper
        if keeper is not None and self.lease.length:
            with suppress(MainspringError, OSError, TimeoutError):
                async with asyncio.timeout(self.lease.length / 6):
                    await keeper.renew(0.0)
            await keeper.relieve()

    def _warn(self, message: str) -> None:
        """Log a message; the same one again only after a while."""
        last, at = self._warned
        if message != last or boottime() - at > WARN_EVERY:
            self._warned = (message, boottime())
            log.warning("%s", message)

    async def _serve(self, channel: Channel[AgentMessage, ServerMessage]) -> None:
        if self.closing:  # since the dial began
            await channel.close()
            return
        self._connection = ServerConnection(self, channel)
        try:
            await self._connection.run()
        finally:
            self.welcomed.clear()
            self.outbox.put_back(self._connection.link.take_unacknowledged())
            self._connection = None

    # ── for a connection ────────────────────────────────────────────────────────────────────────

    def hello(self) -> Hello:
        """Identity, and the attempts still held from the previous connection. Each call is for another connection."""
        self._connections += 1
        held = [*self.runner.holdings(), *self.outbox.holdings()]
        return replace(self._hello, connection=self._connections, held=held)

    @property
    def instance(self) -> str:
        """The secret that proves to servers that a session is this process's own."""
        return self._hello.instance

    @property
    def session(self) -> int | None:
        return self._hello.session

    def session_began(self, session: int) -> None:
        self._hello.session = session
        self.welcomed.set()
        self._wait = FIRST_WAIT
        self.outbox.submissions.resend()

    def lease_renewed(self, sent: float, seconds: float, *, session: int | None = None) -> None:
        """The lease holds for `seconds` from `sent`. With a `session`: only if that is not lost by now."""
        with self._lease_lock:
            if session is not None and (session != self.session or not self.lease.length):
                return
            self.lease.renew(sent, seconds)
            self._hold_until(self.lease.kill_at)

    def clock_measured(self, sent: float, received: float, now: float, error: float) -> None:
        """The answer to a message sent at `sent` (boot time) says that the database's time was `now` ± `error`."""
        if not self._is_clock_shared:
            self.clock.measured(sent, received, now, error)

    # ── the lease ───────────────────────────────────────────────────────────────────────────────

    async def _watch_lease(self) -> None:
        while True:
            await asyncio.sleep(min(WATCH_EVERY, self.lease.length / 30) if self.lease.length else WATCH_EVERY)
            self.runner.refuse_overdue(boottime())
            if self.lease.is_ending(boottime()):
                await self._lose_session()

    async def _lose_session(self) -> None:
        """The server requeues the attempts when the lease expires: they must have ended here before that."""
        log.error("the lease could not be renewed: stopping all attempts and opening a new session")
        grace = self.lease.grace(boottime())
        with self._lease_lock:
            self._hello.session = None
            self.lease.forget()
        self.runner.lose_all(grace)
        if self._connection is not None:
            await self._connection.link.close()

    async def _confirm(self) -> None:
        """Wait until everything reported so far is durable, across reconnects."""
        while True:
            await self.welcomed.wait()
            connection = self._connection
            if connection is not None:
                try:
                    return await connection.confirm()
                except ChannelClosed:
                    pass
            await asyncio.sleep(0.05)

    # ── for the watchdog's thread ───────────────────────────────────────────────────────────────

    def kept(self, session: int, sent: float, seconds: float) -> None:
        """A server has renewed the lease of this session while the loop is blocked."""
        self.lease_renewed(sent, seconds, session=session)

    def why_end(self, ahead: float) -> str | None:
        """Why this process must end while its loop is blocked; None if it need not.

        The guardian kills the commands of an agent whose lease is over. Only the loop can stop handlers.
        """
        if self.lease.has_expired(boottime() + ahead) and self.runner.runs_handlers:
            return "the lease could not be renewed, so that the tasks of its handlers may be given to other agents"
        return None

    def find_blocker(self, task: asyncio.Task[Any] | None) -> Blocker | None:
        """The attempt that runs in this task of the loop, or in one that its handler has started."""
        attempt = self.runner.in_task(task)
        return None if attempt is None else Blocker(attempt.job.name, attempt.armed.task)

    # ── idleness ────────────────────────────────────────────────────────────────────────────────

    @property
    def _is_idle(self) -> bool:
        """Whether it holds nothing, has nothing to report, and a server could give it tasks."""
        return self.runner.empty.is_set() and self.welcomed.is_set() and not self.outbox.holdings()

    async def idle(self, seconds: float) -> None:
        """Return once it has been idle for so long and all that it has reported is durable. Then it takes no more.

        It stops taking tasks in the same step that finds it idle: what is dispatched to it from then on, it refuses,
        which costs no attempt, and another agent runs it.
        """
        since, dispatches = boottime(), self.runner.dispatches
        while True:
            await asyncio.sleep(min(IDLE_EVERY, seconds / 10))
            if not self._is_idle or self.runner.dispatches != dispatches:
                since, dispatches = boottime(), self.runner.dispatches
            elif boottime() - since >= seconds:
                await self._confirm()
                if self._is_idle and self.runner.dispatches == dispatches:
                    self.runner.drain()
                    return

    # ── stopping ────────────────────────────────────────────────────────────────────────────────

    async def drain(self, patience: float) -> None:
        """Accept nothing new; let attempts end within `patience` seconds, then stop them; flush the reports."""
        self.runner.drain()
        if self._connection is not None:
            await self._connection.report_draining()
        try:
            async with asyncio.timeout(patience):
                await self.runner.empty.wait()
        except TimeoutError:
            self.runner.stop_all("shutdown")
            await self.runner.wait_until_stopped()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WITHIN):
                await self._confirm()
        self.stay_away()

    def stay_away(self) -> None:
        """Do not reconnect when this connection closes."""
        self.closing = True

    async def close(self) -> None:
        """End the connection, and `run`."""
        self.closing = True
        if self._connection is not None:
            await self._connection.link.close()
