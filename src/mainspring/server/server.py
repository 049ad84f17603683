"""Server: wire the loops that plan, dispatch, record, rescue and clean up; start and stop them together.

Next: server/planning/planner.py
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from mainspring.errors import StoreUnavailable
from mainspring.loops import Step, retried, run_all, run_every
from mainspring.model.messages import Ending
from mainspring.model.placement.lead import Lead
from mainspring.model.placement.placement import DEFAULT_STRATEGY
from mainspring.model.tasks.claim_floors import Released, parse_released
from mainspring.model.tasks.pools import PARKED
from mainspring.model.words.skew import DEFAULT_LIMIT
from mainspring.server.agents.connection import AgentConnections
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.registry import Registry
from mainspring.server.alerting import evaluator, sender
from mainspring.server.alerting.evaluator import Evaluator
from mainspring.server.alerting.sender import Sender
from mainspring.server.cluster import bounds_keeper, queue_counter
from mainspring.server.cluster.bounds_keeper import BoundsKeeper
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.cluster.clock import ClockLoop
from mainspring.server.cluster.coordinator import Coordinator
from mainspring.server.cluster.dead_processes import DeadProcessesLoop
from mainspring.server.cluster.janitor import Janitor
from mainspring.server.cluster.leader import Leader
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.cluster.listener import Hear, Listener
from mainspring.server.cluster.membership import Membership
from mainspring.server.cluster.queue_counter import QueueCounter
from mainspring.server.dispatch import broadcaster, daemons, holds, overflow
from mainspring.server.dispatch.arming import Arming
from mainspring.server.dispatch.broadcaster import Broadcaster
from mainspring.server.dispatch.daemons import DaemonsLoop
from mainspring.server.dispatch.dispatcher import Dispatcher
from mainspring.server.dispatch.handover import HandOver
from mainspring.server.dispatch.holds import HoldsLoop
from mainspring.server.dispatch.overflow import OverflowLoop
from mainspring.server.planning import after, expiry, limits
from mainspring.server.planning.after import AfterLoop
from mainspring.server.planning.dependencies import DependenciesLoop
from mainspring.server.planning.expiry import ExpiryLoop
from mainspring.server.planning.limits import LimitsLoop
from mainspring.server.planning.overlap import OverlapLoop
from mainspring.server.planning.planner import Planner
from mainspring.server.planning.scopes import Provider
from mainspring.server.recording import batches, figures
from mainspring.server.recording.batches import BatchesLoop
from mainspring.server.recording.figures import FiguresWriter
from mainspring.server.recording.recorder import Recorder
from mainspring.server.recovery.rescuer import Rescuer
from mainspring.server.secrets.opened import ReadKeys, no_keys
from mainspring.server.watch import heartbeat, ledger_audit, pinger, slo_counter
from mainspring.server.watch.fetcher import Fetcher
from mainspring.server.watch.heartbeat import Heartbeat
from mainspring.server.watch.ledger_audit import LedgerAudit
from mainspring.server.watch.pinger import Pinger
from mainspring.server.watch.slo_counter import SloCounter
from mainspring.store.cluster.servers import ServerInfo
from mainspring.store.postgres.database import Database
from mainspring.wire.clock import Clock

log = logging.getLogger("mainspring")

MOVED_EVERY = 30.0  # seconds after which moved segments are assumed even without a hint
START_WITHIN = 10.0  # seconds that each step of the start is retried while PostgreSQL fails
PLAN_EVERY = 1.0  # seconds between steps of the planner and of the overlap loop, where nothing wakes them
CHORES_WITHIN = 4.0  # seconds after the start in which the chores of the leader begin


class Server:
    def __init__(
        self,
        database: Database,
        newcomer: ServerInfo,
        *,
        poll: float,
        lead: Lead,
        lease: float,
        keep_succeeded: timedelta,
        keep_failed: timedelta,
        skew_limit: float = DEFAULT_LIMIT,
        placement: str = DEFAULT_STRATEGY,
        providers: Mapping[str, Provider] | None = None,
        http_allow: Sequence[str] = (),
        read_keys: ReadKeys = no_keys,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.database = database
        self.clock = Clock(wall=wall)
        self.server_lease = server_lease = ServerLease(newcomer.id)
        self._poll = poll
        self.lease = lease
        self.clock_loop = ClockLoop(database, self.clock, skew_limit)
        self.catalogue = Catalogue(database, placement, read_keys)
        self.recorder = Recorder(database, self.catalogue)
        self.figures = FiguresWriter(database, self.recorder.tallies, self.clock)
        self.gateway = Gateway(database, self.catalogue, self.recorder, self.clock, lease, lead, skew_limit)
        self.membership = Membership(database, server_lease, newcomer, lease, lambda: len(self.gateway.sessions))
        self.leader = Leader(database, server_lease, lease)
        self.coordinator = Coordinator(database, server_lease, self.leader, lease)
        self.agent_connections = AgentConnections(
            database, server_lease, self.gateway, self.recorder, self.clock, lease, skew_limit
        )
        self.registry = Registry(database, self.catalogue, self.gateway)
        self.dispatcher = Dispatcher(
            database, server_lease, self.catalogue, self.gateway, self.recorder, self.registry, self.clock
        )
        self.recorder.offering = HandOver(
            database, server_lease, self.catalogue, self.gateway, self.registry, self.dispatcher
        ).offering
        self.overflow = OverflowLoop(database, server_lease, self.dispatcher)
        self.rescuer = Rescuer(database, self.catalogue, self.recorder, self.clock, lease)
        self.dead_processes = DeadProcessesLoop(database)
        self.dependencies = DependenciesLoop(database)
        self.after = AfterLoop(database)
        self.batches = BatchesLoop(database)
        self.expiry = ExpiryLoop(database)
        self.broadcaster = Broadcaster(
            database,
            self.catalogue,
            Arming(self.catalogue, self.gateway),
            self.recorder,
            longest_lead=self.registry.longest_lead,
            lease=lease,
        )
        self.planner = Planner(database, server_lease, newcomer.app, providers or {}, self.registry.longest_lead)
        self.overlap = OverlapLoop(database, server_lease, self.registry.longest_lead)
        self.limits = LimitsLoop(database, self.registry.lead_behind, lead.of(0.0, 1.0))
        self.daemons = DaemonsLoop(database, self.catalogue, self.gateway)
        self.holds = HoldsLoop(database, self.catalogue, self.gateway)
        self.janitor = Janitor(database, keep_succeeded=keep_succeeded, keep_failed=keep_failed)
        self.queue_counter = QueueCounter(database, self.recorder.tallies.note)
        self.slo_counter = SloCounter(database)
        self.ledger_audit = LedgerAudit(database)
        self.fetcher = Fetcher(http_allow)
        self.heartbeat = Heartbeat(database, self.catalogue, self.fetcher)
        self.pinger = Pinger(database, self.fetcher)
        self.evaluator = Evaluator(database, self.clock)
        self.sender = Sender(database, http_allow, read_keys)
        self.bounds_keeper = BoundsKeeper(database, self.catalogue)
        self._segments_wake = asyncio.Event()
        self.listener = Listener(database, self._hints())
        self._connect()
        self.loops: asyncio.Task[None] | None = None  # ends by `stop` or by a bug

    # ── which part wakes which ──────────────────────────────────────────────────────────────────

    def _hints(self) -> Mapping[str, Hear]:
        """The first word of a NOTIFY payload → the loops it wakes."""

        def wake(*events: asyncio.Event) -> Hear:
            def hear(_: str) -> None:
                for event in events:
                    event.set()

            return hear

        return {
            "due": self._hear_due,
            "gate": self._hear_gate,
            "cancel": wake(self.gateway.cancel_wake),
            "dependency": wake(self.dependencies.wake),
            "batch": wake(self.batches.wake),
            "armed": wake(self.broadcaster.armed_wake),
            "job": self._hear_job,
            "schedule": wake(self.planner.wake, self.daemons.wake),
            "agent": wake(self.registry.wake),
            "server": wake(self.coordinator.wake),
            "leader": wake(self.leader.wake),
            "segment": wake(self._segments_wake),
            "alert": wake(self.evaluator.wake, self.sender.wake),
        }

    def _hear_due(self, rest: str) -> None:
        released = parse_released(rest)
        if released is None:
            self.dispatcher.wake.set()
        else:
            self._released([released])

    def _hear_gate(self, rest: str) -> None:
        if rest.isdecimal() and (gate := int(rest)) < PARKED:
            self.limits.look_at(gate)
        else:
            self.limits.look_at_all()

    def _hear_job(self, _: str) -> None:
        self.catalogue.wake.set()
        self.limits.look_at_all()
        self.limits.sweep_wake.set()
        self.limits.gating_wake.set()

    def _released(self, released: list[Released]) -> None:
        """Tasks became pending in these pools, some of which may be gates."""
        for pool in {each.pool for each in released} - self.catalogue.pools.keys():
            self.limits.look_at(pool)
        self.dispatcher.released(released)

    def _connect(self) -> None:
        """Signals between the parts of this process, which need not wait for a NOTIFY.

        The end or retry of a limited task whose slots are not handed over wakes the limits loop by NOTIFY `gate`, sent
        by the transaction that records it: only the database knows that a slot was held.
        """
        claims, gates, cancels = self.dispatcher.wake.set, self.limits.look_at_all, self.gateway.cancel_wake.set
        self.leader.on_elected.connect(self.coordinator.wake.set)
        self.planner.on_planned.connect(self.dispatcher.look_from_now, self.overlap.wake.set, gates)
        self.overlap.on_released.connect(self._released)
        self.overlap.on_stopping.connect(cancels)
        self.limits.on_released.connect(self.dispatcher.released)
        self.dependencies.on_released.connect(self._released)
        self.after.on_released.connect(self._released)
        self.daemons.on_stopping.connect(cancels)
        self.batches.on_called.connect(claims, gates)
        self.batches.on_stopping.connect(cancels)
        self.catalogue.on_holds.connect(self.holds.look, self.dispatcher.look_from_bottom, gates, self.daemons.wake.set)
        self.catalogue.on_holds.connect(self.broadcaster.wake.set, self.planner.wake.set)
        self.registry.on_back.connect(claims)
        self.agent_connections.submissions.on_submitted.connect(claims)
        self.evaluator.on_told.connect(self.sender.wake.set)
        self.recorder.on_restarted.connect(self.daemons.wake.set)
        self.recorder.on_ended.connect(self._count, self.dependencies.ended, self.overlap.ended, self.broadcaster.ended)

    def _count(self, endings: list[Ending]) -> None:
        self.server_lease.tally.recorded += len(endings)

    async def _segments_moved(self) -> int:
        """Segments were assigned or pools shared: plan and claim what may be ours now."""
        self.dispatcher.look_from_bottom()
        self.planner.wake.set()
        self.overlap.wake.set()
        return 0

    # ── loops ───────────────────────────────────────────────────────────────────────────────────

    def _all_loops(self) -> Iterator[Coroutine[Any, Any, None]]:
        only, chore, every = self.leader.only, self._chore, self._every
        yield from (
            # the cluster
            every(self.membership.beat_every, self.membership.beat),
            every(self.leader.look_every, self.leader.step, self.leader.wake),
            every(self.coordinator.look_every, only(self.coordinator.step), self.coordinator.wake),
            every(MOVED_EVERY, self._segments_moved, self._segments_wake),
            every(overflow.LOOK_EVERY, self.overflow.step),
            # from a plan time to a pending task
            every(PLAN_EVERY, self.planner.plan, self.planner.wake),
            every(PLAN_EVERY, self.planner.ask_providers, self.planner.provider_wake),
            every(60.0, self.planner.warn_overdue),
            every(PLAN_EVERY, self.overlap.step, self.overlap.wake),
            every(1.0, self.dependencies.step, self.dependencies.wake),
            chore(after.LOOK_EVERY, self.after.step),
            chore(expiry.LOOK_EVERY, self.expiry.step),
            every(limits.LOOK_EVERY, self.limits.step, self.limits.wake),
            every(limits.SWEEP_EVERY, self.limits.sweep, self.limits.sweep_wake),
            every(limits.SWEEP_EVERY, only(self.limits.gate_waiting), self.limits.gating_wake),
            # to the agents and back
            every(self._poll, self.dispatcher.dispatch, self.dispatcher.wake, adaptive=True),
            every(self._poll, self.dispatcher.search_below, adaptive=True),
            every(broadcaster.LOOK_EVERY, self.broadcaster.step, self.broadcaster.wake),
            every(broadcaster.LOOK_EVERY, self.broadcaster.arm_claimed, self.broadcaster.armed_wake),
            every(daemons.LOOK_EVERY, self.daemons.step, self.daemons.wake),
            every(daemons.TRIM_EVERY, self.daemons.trim),
            every(holds.LOOK_EVERY, self.holds.recall, self.holds.wake),
            every(holds.LOOK_EVERY, only(self.holds.follow_up), self.holds.leader_wake),
            every(self.lease / 6, self.gateway.renew),
            every(1.0, self.gateway.compact),
            every(1.0, self.gateway.cancel, self.gateway.cancel_wake),
            every(1.0, self.recorder.flush, self.recorder.wake),
            every(60.0, self.recorder.flush_beside, self.recorder.second_wake),
            every(batches.LOOK_EVERY, self.batches.step, self.batches.wake),
            chore(batches.RECOUNT_EVERY, self.batches.recount),
            # figures
            every(figures.WRITE_EVERY, self.figures.step),
            every(queue_counter.COUNT_EVERY, only(self.queue_counter.step)),
            chore(slo_counter.COUNT_EVERY, self.slo_counter.step),
            chore(ledger_audit.LOOK_EVERY, self.ledger_audit.step),
            chore(heartbeat.EVERY, self.heartbeat.step),
            chore(pinger.LOOK_EVERY, self.pinger.step),
            chore(bounds_keeper.LOOK_EVERY, self.bounds_keeper.step),
            # alerts
            chore(evaluator.EVALUATE_EVERY, self.evaluator.step, self.evaluator.wake),
            chore(sender.LOOK_EVERY, self.sender.step, self.sender.wake),
            # recovery and cleaning
            every(1.0, only(self.rescuer.step)),
            every(1.0, self.dead_processes.step),
            chore(60.0, self.janitor.step),
            # what the other loops read
            every(2.0, self.catalogue.refresh, self.catalogue.wake),
            every(2.0, self.registry.refresh, self.registry.wake),
            every(5.0, self.registry.warn_unrunnable),
            every(2.0, self.listener.step),
            every(1.0, self.clock_loop.step),
        )

    def _chore(self, interval: float, step: Step, wake: asyncio.Event | None = None) -> Coroutine[Any, Any, None]:
        """A loop of the leader for which no task waits: it begins some time after the start, and none with another.

        A dozen at once would open a connection each, and take a core while the first tasks are claimed.
        """
        first = min(interval, CHORES_WITHIN) * random.uniform(0.5, 1.0)
        return self._every(interval, self.leader.only(step), wake, first=first)

    def _every(
        self,
        interval: float,
        step: Step,
        wake: asyncio.Event | None = None,
        *,
        adaptive: bool = False,
        first: float = 0.0,
    ) -> Coroutine[Any, Any, None]:
        return run_every(interval, step, wake, adaptive=adaptive, first=first, on_ticks=self._holds_nothing)

    def _holds_nothing(self) -> bool:
        """Whether the agent of this process has no attempt that several loops in one turn could make late."""
        return not self.gateway.holds

    # ── start and stop ──────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Join the cluster with a share of the segments, then run the loops until `stop`."""
        for step in (
            *[self.clock_loop.step] * 8,
            self.janitor.prepare,
            self.catalogue.refresh,
            self.registry.refresh,
            self.listener.step,
            self.membership.join,
            self.leader.step,
            self.coordinator.step,  # if this server was elected
        ):
            await retried(step, START_WITHIN)
        self.loops = asyncio.create_task(run_all(self._all_loops()), name="mainspring server")

    async def leave(self) -> None:
        """Take nothing new; release the segments and the leadership."""
        if not self.server_lease.is_draining:
            await self.membership.drain()
            await self.leader.close()

    async def stop(self, *, patience: float) -> None:
        """Take nothing new; wait up to `patience` seconds for the agent of this process, if any, and for its reports.

        Then end the loops. Remote agents reconnect to another server and keep what they hold.
        """
        await self.leave()
        try:
            async with asyncio.timeout(patience):
                await self.gateway.drain()
                await self.gateway.wait_until_empty()
                await self.recorder.idle.wait()
        except TimeoutError:
            log.warning(
                "not in time for the stop: %d tasks were not given back, %d endings not recorded; they will be rescued",
                self.gateway.holds,
                self.recorder.backlog,
            )
        if self.loops is not None:
            self.loops.cancel()
            await asyncio.wait([self.loops])
        await self._flush_reports()
        await self.gateway.close()
        await self.planner.close()
        await self.sender.close()
        await self.pinger.close()
        await self.fetcher.close()
        await self.leader.close()  # again: an election in flight during `leave` may have been won
        await self.membership.close()  # last: until then this server counts as running

    async def _flush_reports(self) -> None:
        try:
            async with asyncio.timeout(5.0):
                while await self.recorder.flush():
                    pass
                await self.figures.step()
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("reports could not be recorded before the stop (%s); their tasks will be rescued", error)
