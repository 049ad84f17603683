"""Planner: decide about the plan times of schedules that are due within the window, and make their tasks.

Reads   store.plans.due       schedules whose time to look has come: idle ones cost nothing
Asks    model.planning        which plan times get a task
Writes  store.plans.plan      fires, tasks and cursors in one statement
Next:   store/schedules/plans.py, then server/dispatch/dispatcher.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping

from mainspring.errors import MainspringError, ValidationError
from mainspring.model.schedules.planning import Decision, arguments, decide, run_at
from mainspring.server.cluster.lease import Standing
from mainspring.server.planning.scopes import Provider, Providers
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import plans
from mainspring.store.schedules.plans import Advance, Due, Fire
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

BATCH = 200  # schedules in one step
COMPANY = 0.1  # seconds that a schedule waits for others that come due
FIRES = 5000  # rows that one schedule may add to a step
STEP_FIRES = 20_000  # rows of all schedules after which a step takes no more of them
BREATH = 10  # schedules computed before others on this event loop get their turn
UNPLANNABLE = 60.0  # seconds until a schedule that cannot be computed is looked at again
PROVIDER_FAILED = 5.0  # the same for one whose scopes could not be told
OVERDUE = 30.0  # seconds after which a schedule that nobody looks at is told of
TOLD_AT_ONCE = 20


class Planner:
    """`providers` are the functions of the application `app` that tell scopes, by schedule."""

    def __init__(
        self, database: Database, standing: Standing, app: str | None, providers: Mapping[str, Provider]
    ) -> None:
        self._line = database.line(hash_joins=True)
        self._standing = standing
        self._app = app
        self._providers = Providers(providers)
        self._asking: dict[int, asyncio.Task[None]] = {}  # by schedule: a slow provider holds up nobody else
        self._skipped: dict[int, Counter[str]] = {}  # by schedule: told when it has caught up
        self._behind = 0  # due schedules that others held at the last look: go on behind them
        self.wake = asyncio.Event()
        self.provider_wake = asyncio.Event()
        self.on_planned: list[Callable[[], None]] = []

    async def plan(self) -> int:
        """A step, and a rest if there was little to do: what comes due meanwhile is then planned together."""
        found = await self.step()
        if 0 < found < BATCH:
            await asyncio.sleep(COMPANY)
        return found

    async def step(self) -> int:
        """Plan a batch; returns how many schedules moved. What somebody else holds or has done is no work of ours."""
        if not self._standing.may_act:
            return 0
        if self._providers:
            self.provider_wake.set()  # who was told of a change was told for both
        began = boottime()
        async with self._line as conn:
            found = await plans.due(conn, self._standing.id, BATCH, behind=self._behind)
            decisions: list[tuple[Due, Decision]] = []
            fires: list[Fire] = []
            for number, due in enumerate(found, 1):
                decision = await self._decide(conn, due, len(due.schedule.policies.scopes) or 1)
                if decision is not None:
                    decisions.append((due, decision))
                    fires += _fires(due, decision)
                if len(fires) >= STEP_FIRES:
                    break
                if number % BREATH == 0:
                    await asyncio.sleep(0)
            moved = await self._write(conn, decisions, fires)
        self._standing.tally.scan(len(found), began, boottime())
        self._behind = self._behind + BATCH if len(found) == BATCH and not moved else 0
        return moved or self._behind

    async def _decide(self, conn: Connection, due: Due, scopes: int) -> Decision | None:
        """None: it cannot be computed, which is noted for people to see."""
        try:
            versions = await plans.versions(conn, due)
            limit = max(1, min(500, FIRES // max(scopes, 1)))
            return decide(versions, due.cursor, due.now, runs=due.runs, limit=limit, scopes=scopes)
        except ValidationError as error:  # a timezone that is unknown on this host, for one
            log.error("schedule %s cannot be planned: %s", due.schedule.name, error)
            await plans.trouble(conn, due, error.message, again_in=UNPLANNABLE)
            return None

    async def _write(self, conn: Connection, decisions: list[tuple[Due, Decision]], fires: list[Fire]) -> int:
        advances = [
            Advance(due.id, due.number, due.cursor, made.cursor, made.look_at, due.epoch) for due, made in decisions
        ]
        moved = await plans.plan(conn, self._standing.id, advances, fires) if advances else set()
        for due, decision in decisions:
            if due.id in moved:  # else somebody else decided, and tells
                self._standing.tally.planned += len(decision.plan_times)
                self._tell_of_skips(due, decision)
        if moved and fires:
            for on_planned in self.on_planned:
                on_planned()
        return len(moved)

    # ── scopes that a function tells ────────────────────────────────────────────────────────────

    async def ask_providers(self) -> int:
        """Start to plan the schedules whose scopes our application tells, each by itself."""
        if not self._providers or self._app is None or not self._standing.may_act:
            return 0
        async with self._line as conn:
            found = await plans.due(conn, self._standing.id, BATCH, providers=[self._app])
        for due in found:
            if due.id not in self._asking:
                asking = self._asking[due.id] = asyncio.create_task(self._plan_with_provider(due))
                asking.add_done_callback(lambda _, id=due.id: self._asked(id))  # type: ignore[misc]
        return 0

    def _asked(self, id: int) -> None:
        asking = self._asking.pop(id)
        if not asking.cancelled() and (error := asking.exception()) is not None:
            log.warning("a schedule with a provider was not planned: %s; trying again", error)

    async def _plan_with_provider(self, due: Due) -> None:
        try:
            scopes = await self._providers.ask(due.schedule.name, due.cursor)
        except MainspringError as error:
            log.error("schedule %s: its scopes could not be told: %s", due.schedule.name, error)
            async with self._line as conn:
                await plans.trouble(conn, due, error.message, again_in=PROVIDER_FAILED)
            return
        async with self._line as conn:
            decision = await self._decide(conn, due, len(scopes))
            if decision is not None and await self._write(conn, [(due, decision)], _fires(due, decision, scopes)):
                self.provider_wake.set()  # there may be more to plan

    def _tell_of_skips(self, due: Due, decision: Decision) -> None:
        """One line for all that a schedule has skipped, once it is through with it."""
        skipped = self._skipped.pop(due.id, Counter())
        skipped.update(one.reason for one in decision.plan_times if one.reason is not None)
        if decision.look_at is not None and decision.look_at <= due.now:
            self._skipped[due.id] = skipped
        elif skipped:
            told = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
            log.warning("schedule %s: plan times without a task: %s", due.schedule.name, told)

    async def tell_overdue(self) -> int:
        """Schedules that no planner can plan are told of: their application is not running, or cannot follow."""
        async with self._line as conn:
            found = await plans.overdue(conn, by=OVERDUE, limit=TOLD_AT_ONCE)
        for schedule in found:
            why = f"; the application {schedule.provider_app!r} tells its scopes" if schedule.provider_app else ""
            log.warning("schedule %s is overdue since %s: nobody plans it%s", schedule.name, schedule.since, why)
        return 0

    async def close(self) -> None:
        for asking in list(self._asking.values()):
            asking.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        await self._line.close()


def _fires(due: Due, decision: Decision, scopes: tuple[str, ...] = ()) -> list[Fire]:
    """One fire per plan time and scope, by the version in force then; `scopes` are what its provider tells.

    A plan time without any scope is kept too, with that reason.
    """
    fires = []
    for one in decision.plan_times:
        policies = one.policies
        told = scopes if policies.provider is not None else policies.scopes or ("",)
        if not told:
            fires.append(Fire(due.id, one.plan_time, "", one.due, one.reason or "no_scopes"))
        for scope in told:
            at = run_at(due.schedule.name, one, scope, policies.jitter)
            args = arguments(policies, due.schedule.timezone, one.plan_time, scope)
            fires.append(Fire(due.id, one.plan_time, scope, at, one.reason, args))
    return fires
