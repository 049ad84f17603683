"""Dispatcher: arm agents with the tasks that are due, and with those due within the lead.

Writes  store.tasks.claims   (pending → assigned)
Sends   Dispatch, through the gateway
Next:   server/dispatch/placement.py
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from itertools import cycle, islice
from math import inf

from mainspring.errors import StoreUnavailable
from mainspring.loops import Alarm
from mainspring.model.metrics.tallies import DispatchTally
from mainspring.model.placement.aging import Aged
from mainspring.model.placement.contender import BATCH, Contender, Reserved
from mainspring.model.placement.placement import Requirements
from mainspring.model.tasks.claim_floors import Floor, Floors, Released
from mainspring.model.tasks.jobs import PRIORITY_LEVELS
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.registry import Registry
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.dispatch.aging import Aging
from mainspring.server.dispatch.arming import Arming
from mainspring.server.dispatch.placement import AgentPlacement
from mainspring.server.dispatch.spread import SpreadClaims
from mainspring.server.dispatch.stragglers import Stragglers
from mainspring.server.dispatch.submissions import ClaimedSubmissions
from mainspring.server.recording.recorder import Recorder
from mainspring.store.postgres.database import Database
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks import claim_order, claims, sticky
from mainspring.wire.clock import Clock, boottime

AHEAD_EVERY = 0.05  # seconds between claims ahead of time while due tasks are found or wait for room
AHEAD_FROM_NOW_EVERY = 0.5  # seconds between claims ahead of time that do not start behind the last one
GATHER = 0.2  # seconds in which tasks come within the lead, so that one claim takes them all
RESOLVE_EVERY = 0.5  # seconds between searches for what unanswered claims took
BACKLOG = 20_000  # endings waiting to be recorded at which claims pause
GATHER_ROOM = 0.05  # seconds that a pool in full flow waits for room for a larger batch


class Dispatcher:
    """A pool *flows* while more tasks are due than its last claim took. It *gathers* while it waits, up to GATHER_ROOM,
    for room for a larger batch. It is *overtaken* while all its due tasks are behind those of other pools."""

    def __init__(
        self,
        database: Database,
        server_lease: ServerLease,
        catalogue: Catalogue,
        gateway: Gateway,
        recorder: Recorder,
        registry: Registry,
        clock: Clock,
    ) -> None:
        self._database = database
        self._dedicated = database.dedicated()
        self._stragglers = Stragglers(database, server_lease)
        self._server_lease = server_lease
        self._catalogue = catalogue
        self._gateway = gateway
        self._recorder = recorder
        self._placement = AgentPlacement(catalogue, gateway, registry)
        self._arming = Arming(catalogue, gateway)
        self._submissions = ClaimedSubmissions(
            database, server_lease, catalogue, gateway, self._placement, self._arming, clock, self.is_contended
        )
        self._clock = clock
        self.tally = DispatchTally()
        self._floors: dict[int, Floors] = {}
        self._flowing: dict[int, bool] = defaultdict(bool)  # by pool: more tasks are due than the last claim took
        self._gathers_since: dict[int, float] = {}  # by pool in full flow: when it first had room again
        self._overtaken: set[int] = set()  # pools with due tasks, all behind those of other pools
        self.rooms: dict[int, tuple[int, int]] = {}  # by pool: free places and windows at the last step
        self._resolved_at = -inf  # boot time, which begins at 0 when the machine starts
        self._claimed_ahead_at = -inf
        self._ahead_floors: dict[int, list[Floor]] = {}  # by pool: where its last claim ahead of time ended
        self._ahead_from_now_at = -inf
        self._ahead_is_outdated = False  # news has come since the last claim ahead of time began
        self._wants_room = True  # due tasks may wait for room
        self._may_gather = False  # nothing is due: only time brings more tasks
        self.wake = asyncio.Event()
        self._room_alarm = Alarm(self.wake)
        self._spread = SpreadClaims(catalogue, server_lease, self.wake)
        self._aging = Aging(catalogue, server_lease, clock)
        self._most = BATCH  # due tasks that the present step may claim
        recorder.on_requeued.connect(self.look_from_now)
        gateway.on_room.connect(self._room_made)
        gateway.on_joined.connect(self.wake.set)

    def look_from_now(self) -> None:
        """Tasks are pending that may lie before the floors of claims ahead of time: claim from now."""
        self._ahead_floors.clear()
        self._ahead_is_outdated = True
        self.wake.set()

    def _room_made(self) -> None:
        if self._wants_room:
            self.wake.set()

    async def dispatch(self) -> int:
        """A step, and a pause if all that it found came within the lead by time alone."""
        found = await self.step()
        if found and self._may_gather:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATHER):
                    await self.wake.wait()
        return found

    async def step(self) -> int:
        """Claim what is due, and what is due within the lead, for every pool that an agent here can run."""
        self._wants_room = True
        if self._recorder.backlog > BACKLOG or not self._server_lease.may_act:
            return 0
        if self._gateway.in_flight.any_unanswered:
            if self._gateway.in_flight.any_under_way:
                return 0  # its answer may still arrive: resolve only once no claim is under way
            if boottime() - self._resolved_at > RESOLVE_EVERY:
                self._resolved_at = boottime()
                await self._arming.resolve_unanswered(self._dedicated)
        self._wants_room = False
        self._may_gather = True
        most = await self._spread.most(self._dedicated)
        if most == 0:
            return 0
        self._most = BATCH if most is None else min(most, BATCH)
        found = await self._claim_in_turns(self._with_room)
        is_busy = found > 0 or (self._wants_room and not self._ahead_is_outdated)
        if not is_busy or boottime() - self._claimed_ahead_at > AHEAD_EVERY:
            self._claimed_ahead_at = boottime()
            found += await self._claim_in_turns(self._with_room_ahead)
        return found

    # ── which pool claims, and how much ─────────────────────────────────────────────────────────

    def _with_room(self) -> list[Contender]:
        """The pools that agents here have room for. One in full flow gathers room for a larger batch, for a moment."""
        now = boottime()
        contenders: list[Contender] = []
        alarms: list[float] = []
        for pool, requirements in self._catalogue.pools.items():
            room, window = self._gateway.room(requirements)
            free = sum(room.values())
            self.rooms[pool] = (0 if pool in self._overtaken else free, window)
            flowing = self._flowing.get(pool, False)
            if flowing and 0 < free < window // 4:
                alarms.append(self._gathers_since.setdefault(pool, now) + GATHER_ROOM - now)
            else:
                self._gathers_since.pop(pool, None)
            reserves_on = None if free or not window else self._gateway.nearest(requirements)
            if not free:
                self._wants_room |= window > 0  # 0: no agent here can run it
                if reserves_on is None:
                    continue
            gathers = reserves_on is not None or (pool in self._gathers_since and alarms[-1] > 0)
            floors = self._floors.setdefault(pool, Floors())
            start = list(floors.start(now, flowing=flowing))
            delay = self._placement.delay(requirements, room)
            contenders.append(
                Contender(pool, requirements, room, start, -delay, floors, gathers, reserves_on, self._most)
            )
        self._wants_room |= bool(alarms)
        self._room_alarm.set(min((left for left in alarms if left > 0), default=None))
        return contenders

    def _with_room_ahead(self) -> list[Contender]:
        """The pools with room for tasks that are not due yet, unless another server has a better agent for them.

        A claim starts where the last one ended: between now and there lie thousands of tasks that are claimed. Now and
        then it starts from now, for tasks that were submitted in between.
        """
        if boottime() - self._ahead_from_now_at > AHEAD_FROM_NOW_EVERY:
            self._ahead_from_now_at = boottime()
            self._ahead_floors.clear()
        self._ahead_is_outdated = False
        now: Floor = (self._clock.now(), 0)  # never below: what is due has a turn, and needs a free place
        from_now = [now] * len(PRIORITY_LEVELS)
        floors = {pool: [max(now, floor) for floor in floors] for pool, floors in self._ahead_floors.items()}
        return [
            Contender(pool, requirements, room, floors.get(pool, from_now), self._gateway.longest_lead(room))
            for pool, requirements in self._catalogue.pools.items()
            if (room := self._gateway.room_ahead(requirements)) and not self._placement.delay(requirements, room)
        ]

    async def _claim_in_turns(self, with_room: Callable[[], list[Contender]]) -> int:
        """Claim for all pools as if their tasks were in one: by priority, then by age. Returns how many.

        A pool that cannot take its share, because its tasks wait for certain agents, does not hold up the others. If
        they wait for amounts that no agent has free, less important tasks do not take these on the agent that lacks
        least: a task that needs much would never run beside others that need little.
        """
        found = 0
        stuck = set[int]()  # pools that could not take their share
        while True:
            contenders = [contender for contender in with_room() if contender.pool not in stuck]
            if all(contender.gathers for contender in contenders):
                return found
            if len(contenders) == 1:
                [alone] = contenders
                self._overtaken.discard(alone.pool)
                return found + await self._claim_some(alone, alone.limit, has_more=True, room=alone.room)
            turns = await self._turns(contenders)
            by_pool = {contender.pool: contender for contender in contenders}
            known = len(stuck)
            reserved: Reserved = {}
            for pool, tasks in turns.order:
                contender = by_pool[pool]
                if contender.reserves_on is not None:
                    reserved.setdefault(contender.reserves_on, set()).update(contender.requirements.placement.needs)
                if contender.gathers or pool in stuck:
                    continue
                claimed = await self._claim_some(contender, tasks, has_more=turns.has_more(pool), reserved=reserved)
                found += claimed
                if claimed < tasks:
                    stuck.add(pool)
            if len(stuck) == known:
                return found

    async def _turns(self, contenders: list[Contender]) -> claim_order.Turns:
        """Share the room among the pools that compete for it."""
        places: dict[int, int] = {}
        without_place = 0  # pools whose first task takes a turn, although it has no place
        for contender in contenders:
            for session, free in contender.room.items():
                places[session] = max(places.get(session, 0), free)
            without_place += contender.reserves_on is not None
        is_ahead = any(contender.floors is None for contender in contenders)
        room = min(sum(places.values()) + without_place, BATCH if is_ahead else self._most)
        wanted = [claim_order.Wanted(each.pool, each.limit, each.start, each.ahead) for each in contenders]
        async with self._dedicated as conn:
            turns = await claim_order.turns(conn, self._server_lease.id, wanted, room, aging=self._aging.seconds)
        for contender in contenders:
            if contender.floors is not None:
                has_turn = any(pool == contender.pool for pool, _ in turns.order)
                is_waiting = contender.pool in turns.waiting
                self._flowing[contender.pool] &= is_waiting
                (self._overtaken.add if is_waiting and not has_turn else self._overtaken.discard)(contender.pool)
        return turns

    def _counting(self, requirements: Requirements) -> AbstractAsyncContextManager[None]:
        """Serializes claims of tasks that need amounts: the daemons loop claims them too."""
        return self._gateway.counting if requirements.placement.needs else nullcontext()

    async def _claim_some(
        self,
        contender: Contender,
        most: int,
        *,
        has_more: bool,
        room: dict[int, int] | None = None,
        reserved: Reserved | None = None,
    ) -> int:
        """Claim up to `most` tasks of a pool. `room`: its free places, if nothing was awaited since they were read."""
        pool, requirements, floors = contender.pool, contender.requirements, contender.floors
        aged: Aged | None = None
        if floors is not None and self._flowing[pool] and self._aging.is_due(pool):
            aged, room = await self._aging.first(pool, contender.start, self._dedicated), None
        async with self._counting(requirements):
            if room is None or requirements.placement.needs:
                ahead = floors is None
                room = self._gateway.room_ahead(requirements) if ahead else self._gateway.room(requirements)[0]
            for session, names in (reserved or {}).items():
                if requirements.placement.needs.keys() & names:
                    room.pop(session, None)
            limit = min(most, sum(room.values()))
            if not limit:
                return 0
            claim = await self._claim(contender, room, limit, aged, ranked=aged is not None or reserved is not None)
        if floors is None:
            # A sticky claim skips tasks between those that it takes.
            if requirements.placement.sticky is None and not self._ahead_is_outdated:
                self._ahead_floors[pool] = [
                    claim.positions.get(priority, floor)
                    for priority, floor in zip(PRIORITY_LEVELS, contender.start, strict=True)
                ]
            if claim.size == limit < sum(room.values()):  # there may be more; room comes by time alone
                self._may_gather = False
                self._claimed_ahead_at = -inf
            return claim.size
        self._spread.claimed(claim.size)
        for priority, position in claim.positions.items():
            floors.claimed(priority, position)
        if claim.size and requirements.placement.sticky is not None:
            await self._lower_floors(pool, floors, contender.start)
        self._gathers_since.pop(pool, None)
        self._flowing[pool] = claim.size == limit and (has_more or limit < most)
        self._may_gather &= claim.size == 0
        if aged is None:
            return claim.size
        self._flowing[pool] = True  # more important tasks wait
        self.tally.aged += claim.size
        if claim.size == limit:
            self._aging.look_again(pool)
            return claim.size
        return claim.size + await self._claim_some(contender, most - claim.size, has_more=has_more, reserved=reserved)

    async def _lower_floors(self, pool: int, floors: Floors, start: list[Floor]) -> None:
        """A sticky claim skips tasks between those it takes: the next one must find them."""
        async with self._dedicated as conn:
            for _, priority, position in await claim_order.left(conn, self._server_lease.id, {pool: start}):
                floors.lower(priority, position)

    async def _claim(
        self, contender: Contender, room: dict[int, int], limit: int, aged: Aged | None, *, ranked: bool
    ) -> claims.Claim:
        """`aged`: only these tasks of the pool. `ranked`: others compete, and old ones may go before them."""
        pool, requirements, ahead = contender.pool, contender.requirements, contender.ahead
        levels, floors = PRIORITY_LEVELS, contender.start
        if aged is not None:
            levels, ahead = (aged.priority,), min(ahead, -aged.age)
            floors = [contender.start[PRIORITY_LEVELS.index(aged.priority)]]
        is_sticky = requirements.placement.sticky is not None
        contest = self._placement.contest(requirements, room) if is_sticky else None
        places = [] if is_sticky else self._placement.places(pool, requirements, room, limit)
        tasks = {} if ahead > 0 else Counter(islice(cycle(places), limit)) if places else room
        promised = {session: requirements.slots_for(count) for session, count in tasks.items()}
        with self._gateway.claiming():
            began = boottime()
            try:
                with self._gateway.promising(promised):
                    async with self._dedicated as conn:
                        if contest is not None:
                            claim = await sticky.claim(
                                conn, self._server_lease.id, pool, contest, limit, floors, ahead=ahead, levels=levels
                            )
                        else:
                            claim = await claims.claim(
                                conn, self._server_lease.id, pool, places, limit, floors, ahead=ahead, levels=levels
                            )
                            self._placement.placed(pool, places, claim.size)
            except StoreUnavailable:
                self.tally.claims["failed"] += 1
                raise
            took = boottime() - began
            self.tally.claimed(claim.size, took)
            if claim.size:
                self._server_lease.tally.claim_seconds = took
            if ranked:
                self._aging.rank(claim)
            await self._arming.arm(claim, self._dedicated)
        self._server_lease.tally.dispatched += claim.size
        await self._arming.let_start(claim)
        return claim

    async def submit(self, submissions: Sequence[Submission]) -> list[int | None]:
        """Enqueue plain tasks and claim them in one statement: see server/dispatch/submissions.py."""
        ids, any_pending = await self._submissions.submit(submissions, self._dedicated)
        if any_pending:
            self.wake.set()
        return ids

    @property
    def may_claim_out_of_turn(self) -> bool:
        """Whether a step would claim now, and has seen all news so far."""
        is_behind = self._recorder.backlog > BACKLOG or self._gateway.in_flight.any_unanswered
        return not is_behind and not self.wake.is_set()

    def is_contended(self, room: Mapping[int, int]) -> bool:
        """Whether tasks of any pool wait for these places: then none is given out of turn."""
        pools = self._catalogue.pools
        return any(
            flowing and pool in pools and self._gateway.room(pools[pool])[0].keys() & room.keys()
            for pool, flowing in self._flowing.items()
        )

    def look_from_bottom(self) -> None:
        """Segments were assigned, pools shared or holds released: tasks may lie below the floors of earlier claims."""
        self._floors.clear()
        self.look_from_now()

    def released(self, released: list[Released]) -> None:
        """Tasks became pending, here or by another server: they may lie below the floors."""
        for pool, priority, position in released:
            if pool in self._floors:
                self._floors[pool].lower(priority, position)
        self.look_from_now()

    async def search_below(self) -> int:
        """Find pending tasks below the floors that no hint announced."""
        if found := await self._stragglers.search({pool: floors.mark for pool, floors in self._floors.items()}):
            self.released(found)
        return 0
