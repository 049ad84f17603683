"""Gateway: the sessions of the agents connected to this server, what each holds, and what is sent to it.

Writes  store.cluster.agents   (leases)
        store.tasks.claims     (what each session holds)
Sends   Dispatch, Recall, Cancel, Pause, Drain
Next:   server/agents/session.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from mainspring.errors import StoreUnavailable
from mainspring.loops import Signal
from mainspring.model.messages import Armed, AttemptId, Cancel, Dispatch, Drain, Ending, ServerMessage
from mainspring.model.metrics.tallies import GatewayTally
from mainspring.model.placement.lead import Lead
from mainspring.model.placement.placement import Requirements, fits
from mainspring.model.words.skew import DEFAULT_LIMIT
from mainspring.server.agents.session import NO_SECRETS, AgentSession, stop_message
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.server.secrets.opened import OpenSecrets
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import STATEMENT_TIMEOUT, Connection, Database
from mainspring.store.tasks import broadcasts, claims, rescue, session_tasks
from mainspring.store.tasks.claims import Claim
from mainspring.store.tasks.session_tasks import CancelRequest
from mainspring.wire.clock import Clock, boottime

log = logging.getLogger("mainspring")

MAY_COMMIT_FOR = STATEMENT_TIMEOUT + 5.0  # seconds after its answer was lost in which a claim may still commit

Mark = dict[int, int]  # by session, the last batch that was known when a claim began


class InFlight:
    """Claims that the database has not answered. What they may have taken is unknown until it does."""

    def __init__(self) -> None:
        self._claiming: list[Mark] = []
        self._unanswered: list[tuple[float, Mark]] = []  # with the time until which each may still commit

    @contextmanager
    def claiming(self, mark: Mark) -> Iterator[None]:
        """Around a claim: what it may have taken counts as unknown until its answer is armed."""
        self._claiming.append(mark)
        try:
            yield
        except (StoreUnavailable, asyncio.CancelledError):
            self._unanswered.append((boottime() + MAY_COMMIT_FOR, mark))  # it may have committed, or may do so yet
            raise
        finally:
            self._claiming.remove(mark)

    def known(self, session: int, batch: int) -> int:
        """The last batch of a session, at most `batch`, up to which every claim has been answered."""
        marks = self._claiming + [mark for _, mark in self._unanswered]
        return min([batch, *(mark[session] for mark in marks if session in mark)])

    @property
    def any_unanswered(self) -> bool:
        """Whether the answer to a claim was lost, so that it may have taken tasks unknown to this server."""
        self._unanswered = [(until, mark) for until, mark in self._unanswered if until > boottime()]
        return bool(self._unanswered)

    @property
    def any_under_way(self) -> bool:
        """Whether a claim is under way whose answer may still arrive."""
        return bool(self._claiming)


class Gateway:
    def __init__(
        self,
        database: Database,
        catalogue: Catalogue,
        recorder: Recorder,
        clock: Clock,
        lease: float,
        lead: Lead = Lead(),  # noqa: B008 — frozen
        skew_limit: float = DEFAULT_LIMIT,
    ) -> None:
        self._database = database
        self._lease_dedicated = database.for_leases()  # apart: a full pool must not cost a lease
        self._dedicated = database.dedicated("background")
        self._catalogue = catalogue
        self._clock = clock
        self._lease = lease
        self.lead = lead
        self._skew_limit = skew_limit
        self._sessions: dict[int, AgentSession] = {}
        self._holders: dict[int, AgentSession] = {}  # by task
        self.drained: frozenset[str] = frozenset()  # names of agents that take nothing new, kept by agents/registry.py
        self.in_flight = InFlight()
        self.tally = GatewayTally()
        self._closing: set[asyncio.Task[None]] = set()
        self.counting = asyncio.Lock()  # held from reading free amounts until the claims on them are armed
        self._watches: list[set[int]] = []  # tokens released since, for each `watching_releases`
        recorder.on_recorded.connect(self._recorded)
        self.room_made = asyncio.Event()
        self.on_room: Signal[[]] = Signal()  # a session has room again
        self.on_joined: Signal[[]] = Signal()
        self.cancel_wake = asyncio.Event()

    # ── sessions and what they hold ─────────────────────────────────────────────────────────────

    def join(self, session: AgentSession, tasks: list[Armed]) -> None:
        """Add a session; `tasks` are what its agent kept from the session before."""
        self._sessions[session.id] = session
        session.link.on_acknowledged = self._acknowledged
        session.link.on_resent = self._resent
        self._hold(session, tasks)

    def leave(self, session: AgentSession) -> None:
        """Remove a session whose connection or lease is over."""
        if self._sessions.pop(session.id, None) is not None:
            self.tally.dispatches["expired"] += _attempts(session.link.messages_in_flight())
        for task in session.held:
            if self._holders.get(task) is session:  # else the agent has reconnected and kept it
                del self._holders[task]
        self.room_made.set()  # a stop may wait for what it held

    def _acknowledged(self, messages: list[ServerMessage], seconds: float) -> None:
        if attempts := _attempts(messages):
            self.tally.acknowledged(attempts, seconds)

    def _resent(self, messages: list[ServerMessage]) -> None:
        self.tally.dispatches["resent"] += _attempts(messages)

    def _hold(self, session: AgentSession, tasks: list[Armed]) -> None:
        for armed in tasks:
            if (before := self._holders.get(armed.task)) is not None:
                before.release(armed.task)  # its ending was committed, and it was claimed again before `_recorded`
            self._holders[armed.task] = session
        session.arm(tasks, self._clock.now(), self._catalogue.needs, self._catalogue.chunks)

    def _recorded(self, endings: list[Ending], refused: list[AttemptId]) -> None:
        """The recorder has committed these: no session holds them any more."""
        holders, watches = self._holders, self._watches
        for attempt in (*endings, *refused):
            session = holders.get(attempt.task)
            if session is None or session.held.get(attempt.task) != attempt.token:
                continue  # it left, or holds a newer attempt
            session.release(attempt.task)
            del holders[attempt.task]
            for released in watches:
                released.add(attempt.token)
        self.announce_room()

    def announce_room(self) -> None:
        self.room_made.set()
        self.on_room.send()

    # ── for the dispatcher ──────────────────────────────────────────────────────────────────────

    def room(self, requirements: Requirements) -> tuple[dict[int, int], int]:
        """Free places for due tasks by session, and the sum of the windows of all sessions that fit."""
        now, needs, chunk = self._clock.now(), requirements.placement.needs, requirements.chunk
        fitting = self._fitting(requirements)
        free = {session.id: room for session in fitting if (room := session.room(now, needs, chunk)) > 0}
        return free, sum(session.window_for(needs, chunk) for session in fitting)

    def is_full(self, id: int) -> bool:
        """Whether due tasks may wait for a place of this session, but for those that are just ending there."""
        session = self._sessions[id]
        return session.room(self._clock.now(), {}) <= len(session.reported)

    def nearest(self, requirements: Requirements) -> int | None:
        """The session with a free slot that lacks least of the amounts that a task needs, if all lack some."""
        now, needs = self._clock.now(), requirements.placement.needs
        short = [session for session in self._fitting(requirements) if session.room(now, {}) > 0]
        if not needs or any(session.room(now, needs) > 0 for session in short):
            return None
        nearest = max(short, key=lambda session: (session.amounts.share_of(needs), session.id), default=None)
        return None if nearest is None else nearest.id

    def room_ahead(self, requirements: Requirements) -> dict[int, int]:
        """Free places for tasks that are not due yet, by session."""
        now, needs = self._clock.now(), requirements.placement.needs
        fitting = self._fitting(requirements)
        return {session.id: room for session in fitting if (room := session.room_ahead(now, needs)) > 0}

    def _fitting(self, requirements: Requirements) -> list[AgentSession]:
        """Asked for every pool at every step: what it costs for one session, a claim costs for each agent here."""
        now = boottime()
        return [
            session
            for session in self._sessions.values()
            if fits(requirements, session.labels, session.offers)
            and session.is_trusted(now, self._lease)
            and session.name not in self.drained
        ]

    @property
    def sessions(self) -> Mapping[int, AgentSession]:
        return self._sessions

    def longest_lead(self, ids: Iterable[int]) -> float:
        """The lead of the slowest of these agents: tasks due within it are claimed now, for any of them."""
        sessions = (self._sessions[id] for id in ids)
        return max(self.lead.of(session.link.ack_time, session.load) for session in sessions)

    async def arm(self, claim: Claim, secrets: OpenSecrets | None = None) -> list[Armed]:
        """Send each session what was claimed for it; returns what was claimed for sessions that have left.

        `secrets` are those of the jobs in the claim that refer to any.
        """
        batches = claim.batches
        unsent: list[Armed] = []
        for id, tasks in claim.tasks.items():
            session = self._sessions.get(id)
            if session is None:
                unsent += tasks
                continue
            session.batch = max(session.batch, batches[id])
            self._hold(session, tasks)
            own = NO_SECRETS if secrets is None else secrets.for_agent(session.name, session.labels)
            for dispatch in session.dispatches(self._catalogue, tasks, own):
                session.link.post([dispatch])
            self.tally.queued(tasks, self._clock.now())
        return unsent

    def claiming(self) -> AbstractContextManager[None]:
        """Around a claim, for all sessions here."""
        return self.in_flight.claiming({session.id: session.batch for session in self._sessions.values()})

    @contextmanager
    def promising(self, places: Mapping[int, int]) -> Iterator[None]:
        """Around a statement that may claim so many due tasks for each session: no other one is given these places."""
        promised = [(self._sessions[id], tasks) for id, tasks in places.items()]
        for session, tasks in promised:
            session.promised += tasks
        try:
            yield
        finally:
            for session, tasks in promised:
                session.promised -= tasks

    def known(self) -> dict[int, int]:
        """By session, the last batch up to which every claim has been answered."""
        return {session.id: self.in_flight.known(session.id, session.batch) for session in self._sessions.values()}

    @contextmanager
    def watching_releases(self) -> Iterator[Callable[[int, Armed], bool]]:
        """Around a search for unanswered claims: yields a test whether a task it found was already armed here."""
        released = set[int]()
        self._watches.append(released)
        try:
            yield (
                lambda id, armed: (
                    armed.token in released
                    or (id in self._sessions and self._sessions[id].held.get(armed.task) == armed.token)
                )
            )
        finally:
            self._watches = [watch for watch in self._watches if watch is not released]

    # ── loops ───────────────────────────────────────────────────────────────────────────────────

    async def renew(self) -> int:
        """Renew the leases of all sessions in one statement; drop those that have expired."""
        if not self._sessions:
            return 0
        asked_at = boottime()
        asked = {id: session for id, session in self._sessions.items() if session.is_responsive(self._lease)}
        living = set[int]()
        if asked:
            async with self._lease_dedicated as conn:
                vitals = [session.vital(self.lead) for session in asked.values()]
                living = await agents.renew(conn, vitals, self._lease, self._skew_limit)
        for id in living:
            asked[id].renewed_at = asked_at
        for id, session in list(self._sessions.items()):
            is_over = boottime() - session.renewed_at > self._lease
            if is_over or (id in asked and id not in living):
                self.leave(session)
                self.tally.heartbeats["expired"] += 1
                self.tally.connections["expired"] += 1
                log.warning("session %d of agent %s is over here: its lease was not renewed", id, session.name)
                self._close(session)
        return 0

    def _close(self, session: AgentSession) -> None:
        """Close its connection without waiting: a silent one takes a while, and other leases must be renewed."""
        closing = asyncio.create_task(session.link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def compact(self) -> int:
        """Replace each session's rows of claims by one with what it still holds."""
        held: dict[tuple[int, int], list[int]] = {}
        noted: dict[int, int] = {}
        for id, batch in self.known().items():
            session = self._sessions.get(id)
            if session is not None and batch and session.is_worth_compacting(batch):
                held[id, batch] = list(session.held)
                noted[id] = session.noted
        if not held:
            return 0
        async with self._database.acquire() as conn:
            await claims.compact(conn, held)
        for (id, batch), tasks in held.items():
            if session := self._sessions.get(id):
                session.compacted = (batch, tasks)
                session.noted += len(tasks) - noted[id]  # more may have been armed meanwhile
        return 0

    async def cancel(self) -> int:
        """Send agents the cancels, recalls and pauses that people and other loops have asked for."""
        if not self._sessions:
            return 0
        async with self._dedicated as conn:
            if self._catalogue.broadcast_pools:
                await broadcasts.pass_on_cancels(conn)
            paused: dict[int, dict[int, int]] = {}
            wanted: list[CancelRequest] = []
            if await session_tasks.any_asked(conn, list(self._sessions)):
                paused = await session_tasks.paused(conn, list(self._sessions))
                wanted = await session_tasks.cancelled(conn, list(self._sessions))
                await self._send_stop_orders(conn)
        for session in list(self._sessions.values()):
            if messages := session.pause(paused.get(session.id, {})):
                session.link.post(messages)
        for attempt in wanted:
            holder = self._sessions.get(attempt.session)
            asked = (attempt.token, attempt.mode)
            if holder is None or holder.held.get(attempt.task) != attempt.token:
                continue  # not dispatched yet: the agent would ignore a message about it
            if asked not in holder.cancelling:
                holder.cancelling.add(asked)
                holder.link.post([stop_message(attempt)])
        live = {(attempt.token, attempt.mode) for attempt in wanted}
        for session in self._sessions.values():
            session.cancelling &= live
        return 0

    async def _send_stop_orders(self, conn: Connection) -> None:
        """Kill attempts that the rescuer took from living agents: their tasks may run elsewhere."""
        orders = await rescue.stop_orders(conn, list(self._sessions))
        for order in orders:
            session = self._sessions.get(order.session)
            if session is not None:  # else its agent learns on reconnect which attempts it may keep
                session.link.post([Cancel([AttemptId(order.task, order.token)], kill=True)])
        if orders:
            await rescue.stops_sent(conn, orders)

    async def drain(self) -> None:
        """Claim nothing more. The local agent gives back what has not started; remote ones reconnect elsewhere."""
        for session in list(self._sessions.values()):
            session.draining = True
            if session.is_local:
                session.link.post([Drain()])

    @property
    def holds(self) -> int:
        """How many attempts the local agent holds: they end with this process."""
        return sum(len(session.held) for session in self._sessions.values() if session.is_local)

    async def wait_until_empty(self) -> None:
        """Wait until the local agent holds nothing."""
        while self.holds:
            self.room_made.clear()
            await self.room_made.wait()

    async def close(self) -> None:
        """End the local agent's sessions: what they hold can be rescued at once. Remote agents reconnect elsewhere."""
        ids = [id for id, session in self._sessions.items() if session.is_local]
        if ids:
            try:
                await self.compact()
                async with self._dedicated as conn:
                    await agents.leave(conn, [id for id in ids if not self._sessions[id].held])
                    await agents.end(conn, [id for id in ids if self._sessions[id].held])
            except StoreUnavailable as error:
                log.warning("sessions could not be ended (%s); their leases will expire", error)
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            self._close(session)
        if self._closing:
            await asyncio.wait(self._closing)


def _attempts(messages: Iterable[ServerMessage]) -> int:
    """How many attempts these messages arm."""
    return sum(len(message.tasks) for message in messages if isinstance(message, Dispatch))
