"""Planner: decide on the plan times of schedules that are due within the plan-ahead window, and make their tasks.

Reads   store.schedules.plans      schedules that are due to be planned: idle ones cost nothing
Asks    model.schedules.planning   which plan times get a task
Writes  store.schedules.plans      fires, tasks and cursors in one statement
Wakes   the dispatcher of this server for tasks that are due soon; polling finds the others, here and on other servers
Next:   store/schedules/plans.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from mainspring.errors import MainspringError, StoreUnavailable, ValidationError
from mainspring.loops import Signal, let_fire
from mainspring.model.metrics.tallies import PlannerTally
from mainspring.model.schedules.planning import LOOK_WITHIN, Decision, arguments, decide, look_early, run_at
from mainspring.model.schedules.skips import Skip
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.planning.scopes import TIMEOUT, Provider, Providers
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import plans
from mainspring.store.schedules import skips as skipping
from mainspring.store.schedules.plans import Advance, DueSchedule, Fire
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

BATCH = 250  # schedules in one step
GATHER = 0.2  # seconds in which schedules come due, so that one step plans them all
FIRES = 5000  # rows that one schedule may add to a step
STEP_FIRES = 20_000  # rows after which a step takes no more schedules
SLICE = 0.0005  # seconds of computing after which other tasks on the event loop run
UNPLANNABLE = timedelta(seconds=60)  # until a schedule that cannot be computed is tried again
ASKING = timedelta(seconds=TIMEOUT + 1)  # within which a provider answers or has failed
PROVIDER_FAILED = timedelta(seconds=5)  # until a provider that failed is called again
OVERDUE = 30.0  # seconds past its time at which an unplanned schedule is logged
LOGGED = 20  # of the schedules that are overdue


class Planner:
    """`providers` are the functions of the application `app` that return scopes, by schedule.

    `longest_lead` is that of all agents, in seconds: tasks must exist so long before their time.
    """

    def __init__(
        self,
        database: Database,
        server_lease: ServerLease,
        app: str | None,
        providers: Mapping[str, Provider],
        longest_lead: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._dedicated = database.dedicated(hash_joins=True)
        self._server_lease = server_lease
        self._app = app
        self._longest_lead = longest_lead
        self._early = look_early(longest_lead())
        self._providers = Providers(providers)
        self._asking: dict[int, asyncio.Task[None]] = {}  # by schedule: a slow provider delays no other
        self._skipped: dict[int, Counter[str]] = {}  # by schedule: reasons, logged when it has caught up
        self._behind = 0  # due schedules that other servers had locked at the last step: start after them
        self.tally = PlannerTally()
        self.wake = asyncio.Event()
        self.provider_wake = asyncio.Event()
        self.on_planned: Signal[[]] = Signal()  # tasks that are due soon; polling finds the others in time

    async def plan(self) -> int:
        """A step, and a pause if there was little to do, so that the next one plans more at once."""
        found = await self.step()
        if 0 < found < BATCH:
            await asyncio.sleep(GATHER)
        return found

    async def step(self) -> int:
        """Plan a batch of schedules; returns how many moved, or more than 0 if others had locked the whole batch."""
        if not self._server_lease.may_act:
            return 0
        if self._providers:
            self.provider_wake.set()  # what woke this loop may concern the other
        self._early = look_early(self._longest_lead())
        began = boottime()
        async with self._dedicated as conn:
            found = await plans.due(conn, self._server_lease.id, BATCH, behind=self._behind, early=self._early)
            skips = await skipping.of_due(conn, found)
            decisions: list[tuple[DueSchedule, Decision]] = []
            fires: list[Fire] = []
            resumed = boottime()
            for due in found:
                decision = await self._decide(conn, due, len(due.schedule.policies.scopes) or 1, skips.get(due.id, ()))
                if decision is not None:
                    decisions.append((due, decision))
                    fires += _fires(due, decision)
                if len(fires) >= STEP_FIRES:
                    break
                if boottime() - resumed > SLICE:
                    await let_fire()
                    resumed = boottime()
            await let_fire()
            moved = await self._write(conn, decisions, fires)
        self._scanned(found, began)
        all_locked = len(found) == BATCH and bool(decisions) and not moved
        self._behind = self._behind + BATCH if all_locked else 0
        return moved or self._behind

    def _scanned(self, found: list[DueSchedule], began: float) -> None:
        ended = boottime()
        self._server_lease.tally.scan(len(found), began, ended)
        self.tally.scans.add(ended - began)
        behind = max(((due.now - due.cursor).total_seconds() for due in found), default=0.0)
        self.tally.lag.add(behind, ended)

    async def _decide(self, conn: Connection, due: DueSchedule, scopes: int, skips: Sequence[Skip]) -> Decision | None:
        """None if it cannot be computed; the reason is stored for people to see."""
        try:
            versions = await plans.versions(conn, due)
            limit = max(1, min(500, FIRES // max(scopes, 1)))
            return decide(
                versions,
                due.cursor,
                due.now,
                runs=due.runs,
                limit=limit,
                scopes=scopes,
                early=self._early,
                skips=skips,
            )
        except ValidationError as error:  # such as a timezone that is unknown on this host
            log.error("schedule %s cannot be planned: %s", due.schedule.name, error)
            await plans.trouble(conn, due, error.message, again_in=UNPLANNABLE + self._early)
            return None

    async def _write(self, conn: Connection, decisions: list[tuple[DueSchedule, Decision]], fires: list[Fire]) -> int:
        advances = [
            Advance(due.id, due.number, due.cursor, made.cursor, made.look_at, due.epoch, due.skips)
            for due, made in decisions
        ]
        moved = await plans.plan(conn, self._server_lease.id, advances, fires) if advances else set()
        loads = Counter[int]()  # by segment
        for due, decision in decisions:
            if due.id in moved:  # else another server decided, and logs
                self._server_lease.tally.planned += len(decision.plan_times)
                self.tally.fires.update(one.reason or "planned" for one in decision.plan_times)
                loads[due.segment] += len(decision.plan_times)
                self._log_skips(due, decision)
        if moved:
            self.tally.load.add(loads, boottime())
        if moved and self._is_soon(decisions[0][0].now, fires):
            self.on_planned.send()
        return len(moved)

    def _is_soon(self, now: datetime, fires: list[Fire]) -> bool:
        """Whether a task may be due within the lead before the loops that wait for it look by themselves."""
        soon = now + timedelta(seconds=self._longest_lead()) + LOOK_WITHIN
        return any(fire.run_at <= soon for fire in fires if fire.reason is None)

    # ── schedules whose scopes come from a provider ─────────────────────────────────────────────

    async def ask_providers(self) -> int:
        """Plan the schedules with a provider in this application, each in its own task."""
        if not self._providers or self._app is None or not self._server_lease.may_act:
            return 0
        async with self._dedicated as conn:
            found = await plans.due(conn, self._server_lease.id, BATCH, providers=[self._app], early=self._early)
        for due in found:
            if due.id not in self._asking:
                asking = self._asking[due.id] = asyncio.create_task(self._plan_with_provider(due))
                asking.add_done_callback(lambda _, id=due.id: self._asked(id))  # type: ignore[misc]
        return 0

    def _asked(self, id: int) -> None:
        asking = self._asking.pop(id)
        if asking.cancelled() or (error := asking.exception()) is None:
            return
        is_bug = not isinstance(error, StoreUnavailable)
        log.warning(
            "a schedule with a provider was not planned: %s; trying again", error, exc_info=error if is_bug else None
        )

    async def _plan_with_provider(self, due: DueSchedule) -> None:
        async with self._dedicated as conn:
            if not await plans.take(conn, due, ASKING, early=self._early):
                return  # another process of the application asks
        try:
            scopes = await self._providers.ask(due.schedule.name, due.cursor)
        except MainspringError as error:
            log.error("schedule %s: its scopes are unknown: %s", due.schedule.name, error)
            async with self._dedicated as conn:
                await plans.trouble(conn, due, error.message, again_in=PROVIDER_FAILED + self._early)
            return
        async with self._dedicated as conn:
            skips = await skipping.of_due(conn, [due])
            decision = await self._decide(conn, due, len(scopes), skips.get(due.id, ()))
            if decision is not None and await self._write(conn, [(due, decision)], _fires(due, decision, scopes)):
                self.provider_wake.set()  # more plan times may be due

    def _log_skips(self, due: DueSchedule, decision: Decision) -> None:
        """Log all plan times without a task in one line, once a schedule has caught up; not what a person skipped."""
        reasons = [one.reason for one in decision.plan_times if one.reason is not None and one.reason != "skipped"]
        if due.id not in self._skipped and not reasons:
            return
        skipped = self._skipped.pop(due.id, Counter())
        skipped.update(reasons)
        if decision.look_at is not None and decision.look_at <= due.now:
            self._skipped[due.id] = skipped
        elif skipped:
            counts = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            log.warning("schedule %s: plan times without a task: %s", due.schedule.name, counts)

    async def warn_overdue(self) -> int:
        """Warn of schedules that no server plans: their application is not running, or the servers are too slow."""
        async with self._dedicated as conn:
            found = await plans.overdue(conn, by=OVERDUE, limit=LOGGED)
        for schedule in found:
            app = f"; the application {schedule.provider_app!r} has its provider" if schedule.provider_app else ""
            log.warning("schedule %s is overdue since %s: no server plans it%s", schedule.name, schedule.since, app)
        return 0

    async def close(self) -> None:
        for asking in list(self._asking.values()):
            asking.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)


def _fires(due: DueSchedule, decision: Decision, scopes: tuple[str, ...] = ()) -> list[Fire]:
    """One fire per plan time and scope, by the version in force then; `scopes` are those of its provider.

    A plan time without any scope gets a fire too, with that reason.
    """
    fires = []
    for one in decision.plan_times:
        policies = one.policies
        given = scopes if policies.provider is not None else policies.scopes or ("",)
        if not given:
            fires.append(Fire(due.id, one.plan_time, "", one.due, one.reason or "no_scopes"))
        for scope in given:
            at = run_at(due.schedule.name, one, scope, policies.jitter)
            args = arguments(policies, due.schedule.timezone, one.plan_time, scope)
            fires.append(Fire(due.id, one.plan_time, scope, at, one.reason, args))
    return fires
