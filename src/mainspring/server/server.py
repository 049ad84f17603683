"""Server: the loops that plan, dispatch, record, rescue and tidy, and how they start and stop together.

Next: server/membership.py, then server/planner.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta

from mainspring.errors import StoreUnavailable
from mainspring.loops import run_every
from mainspring.model.lead import Lead
from mainspring.model.messages import Ending
from mainspring.model.skew import DEFAULT_LIMIT, alarm
from mainspring.server.broadcaster import LOOK_EVERY, Broadcaster
from mainspring.server.catalogue import Catalogue
from mainspring.server.coordinator import LOOK_EVERY as ASSIGN_EVERY
from mainspring.server.coordinator import Coordinator
from mainspring.server.dispatcher import Dispatcher
from mainspring.server.gatekeeper import LOOK_EVERY as GATES_EVERY
from mainspring.server.gatekeeper import SWEEP_EVERY, Gatekeeper
from mainspring.server.gateway import Gateway
from mainspring.server.janitor import Janitor
from mainspring.server.keeper import KEEP_EVERY, TRIM_EVERY, Keeper
from mainspring.server.leader import Leader
from mainspring.server.lender import LOOK_EVERY as LEND_EVERY
from mainspring.server.lender import Lender
from mainspring.server.listener import Listener
from mainspring.server.measure import measure
from mainspring.server.membership import Membership
from mainspring.server.neighbours import Neighbours
from mainspring.server.planner import Planner
from mainspring.server.reception import Reception
from mainspring.server.recorder import Recorder
from mainspring.server.rescuer import Rescuer
from mainspring.server.roster import Roster
from mainspring.server.scopes import Provider
from mainspring.server.settler import Settler
from mainspring.server.standing import Standing
from mainspring.server.turnstile import Turnstile
from mainspring.store.database import Database
from mainspring.store.servers import Newcomer
from mainspring.wire.clock import Clock

log = logging.getLogger("mainspring")

MOVED_EVERY = 30.0  # seconds between looks at what may be ours, where no hint of a move came
PLAN_EVERY = 1.0  # seconds between looks of the planner, and of the turnstile, where nothing wakes them


class Server:
    def __init__(
        self,
        database: Database,
        newcomer: Newcomer,
        *,
        poll: float,
        lead: Lead,
        lease: float,
        keep_succeeded: timedelta,
        keep_failed: timedelta,
        skew_limit: float = DEFAULT_LIMIT,
        providers: Mapping[str, Provider] | None = None,
    ) -> None:
        self.clock = Clock()
        self.standing = standing = Standing(newcomer.id)
        self._poll = poll
        self._lease = lease
        self._clock_line = database.line("hints")
        self._skew_limit = skew_limit
        self._is_skewed = False
        self.catalogue = Catalogue(database)
        self.recorder = Recorder(database, self.catalogue)
        self.gateway = Gateway(database, self.catalogue, self.recorder, self.clock, lease, lead)
        self.membership = Membership(database, standing, newcomer, lease, lambda: len(self.gateway.seats))
        self.leader = Leader(database, standing, lease)
        self.coordinator = Coordinator(database, standing, self.leader, lease)
        self.reception = Reception(database, standing, self.gateway, self.recorder, self.clock, lease, skew_limit)
        self.roster = Roster(database, self.catalogue, self.gateway)
        self.dispatcher = Dispatcher(
            database, standing, self.catalogue, self.gateway, self.recorder, self.roster, self.clock
        )
        self.lender = Lender(database, standing, self.dispatcher)
        self.rescuer = Rescuer(database, self.catalogue, self.recorder, self.clock, lease)
        self.neighbours = Neighbours(database)
        self.settler = Settler(database)
        self.broadcaster = Broadcaster(
            database, self.catalogue, self.dispatcher, self.recorder, lead=lead.default, lease=lease
        )
        self.planner = Planner(database, standing, newcomer.app, providers or {})
        self.turnstile = Turnstile(database, standing, lead.default)
        self.gatekeeper = Gatekeeper(database, lead.default)
        self.keeper = Keeper(database, self.catalogue, self.gateway)
        self.janitor = Janitor(database, keep_succeeded=keep_succeeded, keep_failed=keep_failed)
        self.segments_wake = asyncio.Event()
        self.listener = Listener(
            database,
            {
                "due": self.dispatcher.wake,
                "cancel": self.gateway.cancel_wake,
                "job": self.catalogue.wake,
                "agent": self.roster.wake,
                "dependency": self.settler.wake,
                "schedule": self.planner.wake,
                "armed": self.broadcaster.armed_wake,
                "server": self.coordinator.wake,
                "leader": self.leader.wake,
                "segment": self.segments_wake,
                "gate": self.gatekeeper.wake,
            },
        )
        self.listener.also("job", self.gatekeeper.wake)
        self.listener.also("job", self.gatekeeper.sweep_wake)
        self.listener.also("schedule", self.keeper.wake)
        self.leader.on_elected.append(self.coordinator.wake.set)  # what the leader before let go of has no owner
        self.recorder.on_ended.append(self._count)
        self.recorder.on_restarted.append(self.keeper.wake.set)
        self.keeper.on_stopping.append(self.gateway.cancel_wake.set)
        self.recorder.on_ended.append(self.settler.ended)
        self.recorder.on_requeued.append(self.dispatcher.wake.set)
        self.recorder.on_ended += [self.turnstile.ended, self.broadcaster.ended]
        self.roster.on_back.append(self.dispatcher.wake.set)
        self.settler.on_requeued += [self.dispatcher.wake.set, self.gatekeeper.wake.set]
        self.planner.on_planned += [self.dispatcher.wake.set, self.turnstile.wake.set, self.gatekeeper.wake.set]
        self.turnstile.on_released += [self.dispatcher.released, lambda _: self.gatekeeper.wake.set()]
        self.gatekeeper.on_released.append(self.dispatcher.released)
        self.turnstile.on_stopping.append(self.gateway.cancel_wake.set)
        self.loops: asyncio.Task[None] | None = None  # ends only by `stop`, or by a bug

    async def start(self) -> None:
        """Look around once, take a share of the segments, then keep the loops running until `stop`."""
        for _ in range(8):
            await self.follow_clock()
        await self.janitor.prepare()
        await self.catalogue.refresh()
        await self.roster.look()
        await self.listener.step()
        await self.membership.join()
        await self.leader.step()
        await self.coordinator.step()  # if nobody else leads
        self.loops = asyncio.create_task(self._run(), name="mainspring server")

    async def _run(self) -> None:
        only = self.leader.only
        async with asyncio.TaskGroup() as group:
            group.create_task(run_every(self.membership.beat_every, self.membership.beat))
            group.create_task(run_every(self.leader.look_every, self.leader.step, self.leader.wake))
            group.create_task(run_every(ASSIGN_EVERY, only(self.coordinator.step), self.coordinator.wake))
            group.create_task(run_every(LEND_EVERY, self.lender.step))
            group.create_task(run_every(MOVED_EVERY, self._segments_moved, self.segments_wake))
            group.create_task(run_every(self._poll, self.dispatcher.dispatch, self.dispatcher.wake, adaptive=True))
            group.create_task(run_every(self._poll, self.dispatcher.look_below, adaptive=True))
            group.create_task(run_every(1.0, self.recorder.flush, self.recorder.wake))
            group.create_task(run_every(self._lease / 6, self.gateway.renew))
            group.create_task(run_every(1.0, self.gateway.compact))
            group.create_task(run_every(1.0, self.gateway.cancel, self.gateway.cancel_wake))
            group.create_task(run_every(1.0, only(self.rescuer.step)))
            group.create_task(run_every(1.0, self.neighbours.step))
            group.create_task(run_every(1.0, self.settler.step, self.settler.wake))
            group.create_task(run_every(LOOK_EVERY, self.broadcaster.step, self.broadcaster.wake))
            group.create_task(run_every(LOOK_EVERY, self.broadcaster.take_up, self.broadcaster.armed_wake))
            group.create_task(run_every(PLAN_EVERY, self.planner.plan, self.planner.wake))
            group.create_task(run_every(PLAN_EVERY, self.planner.ask_providers, self.planner.provider_wake))
            group.create_task(run_every(60.0, self.planner.tell_overdue))
            group.create_task(run_every(PLAN_EVERY, self.turnstile.step, self.turnstile.wake))
            group.create_task(run_every(GATES_EVERY, self.gatekeeper.step, self.gatekeeper.wake))
            group.create_task(run_every(SWEEP_EVERY, self.gatekeeper.sweep, self.gatekeeper.sweep_wake))
            group.create_task(run_every(KEEP_EVERY, self.keeper.step, self.keeper.wake))
            group.create_task(run_every(TRIM_EVERY, self.keeper.trim))
            group.create_task(run_every(2.0, self.roster.look, self.roster.wake))
            group.create_task(run_every(5.0, self.roster.tell_unrunnable))
            group.create_task(run_every(2.0, self.catalogue.refresh, self.catalogue.wake))
            group.create_task(run_every(2.0, self.listener.step))
            group.create_task(run_every(1.0, self.follow_clock))
            group.create_task(run_every(60.0, only(self.janitor.step)))

    async def follow_clock(self) -> int:
        """Measure the database's time by a round trip."""
        async with self._clock_line as conn:
            await measure(conn, self.clock)
        told = alarm("this server's machine", self.clock.skew, self._skew_limit)
        if told is not None and not self._is_skewed:
            log.warning("%s", told)
        self._is_skewed = told is not None
        return 0

    def _count(self, endings: list[Ending]) -> None:
        self.standing.tally.recorded += len(endings)

    async def _segments_moved(self) -> int:
        """Segments changed hands, or pools were opened: look at what may be ours now."""
        self.dispatcher.segments_moved()
        self.planner.wake.set()
        self.turnstile.wake.set()
        return 0

    async def leave(self) -> None:
        """Take nothing new: others have the segments, and the lead."""
        if not self.standing.is_draining:
            await self.membership.drain()
            await self.leader.close()

    async def stop(self, *, patience: float) -> None:
        """Take nothing new, let agents give back what has not started, record what they report."""
        await self.leave()
        try:
            async with asyncio.timeout(patience):
                await self.gateway.drain()
                await self.gateway.released()
                await self.recorder.idle.wait()
        except TimeoutError:
            log.warning("%d tasks were not handed back in time; they will be rescued", self.gateway.holds)
        if self.loops is not None:
            self.loops.cancel()
            await asyncio.wait([self.loops])
        await self._last_words()
        await self.gateway.close()
        parts = (
            self.reception,
            self.dispatcher,
            self.recorder,
            self.rescuer,
            self.neighbours,
            self.settler,
            self.broadcaster,
            self.listener,
            self.planner,
            self.turnstile,
            self.gatekeeper,
            self.keeper,
            self.janitor,
            self.lender,
            self.coordinator,
            self.leader,
            self._clock_line,
        )
        await asyncio.gather(*(part.close() for part in parts))  # each waits a while for a PostgreSQL that is silent
        await self.membership.close()  # not before all else has ended

    async def _last_words(self) -> None:
        """What was reported and not yet recorded."""
        try:
            async with asyncio.timeout(5.0):
                while await self.recorder.flush():
                    pass
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("reports could not be recorded before the stop (%s); their tasks will be rescued", error)
