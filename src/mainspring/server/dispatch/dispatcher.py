"""Dispatcher: arm agents with the tasks that are due, and ahead of time with those due within the lead.

Writes  store.claims.claim   (pending → assigned)
Sends   messages.Dispatch, through the gateway
Next:   server/agents/gateway.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

from mainspring.model.messages import Armed
from mainspring.model.placement.placement import Requirements
from mainspring.model.tasks.claim_floors import Floor, Floors, Released
from mainspring.model.tasks.jobs import PRIORITY_LEVELS
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.registry import Roster
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.cluster.lease import Standing
from mainspring.server.dispatch.placement import Placer
from mainspring.server.recording.recorder import Recorder
from mainspring.store.postgres.database import Connection, Database, Line
from mainspring.store.tasks import claims, sticky
from mainspring.store.tasks.enqueue import Submission, submit_and_claim
from mainspring.wire.clock import Clock, boottime

BATCH = 1000  # tasks in one claim
AHEAD_EVERY = 0.05  # seconds between looks ahead while due tasks take all the time
COMPANY = 0.1  # seconds that a task within the lead waits for others, so that they are claimed together
SETTLE_EVERY = 0.5  # seconds between looks for claims whose answer was lost
BACKLOG = 20_000  # endings that may wait to be recorded before claims pause


class Dispatcher:
    def __init__(
        self,
        database: Database,
        standing: Standing,
        catalogue: Catalogue,
        gateway: Gateway,
        recorder: Recorder,
        roster: Roster,
        clock: Clock,
    ) -> None:
        self._database = database
        self._line = database.line()
        self._slow_line = database.line("slow")
        self._standing = standing
        self._catalogue = catalogue
        self._gateway = gateway
        self._recorder = recorder
        self._placer = Placer(catalogue, gateway, roster)
        self._clock = clock
        self._floors: dict[int, Floors] = {}
        self._flowing: dict[int, bool] = {}  # pools whose last claim was full
        self.rooms: dict[int, tuple[int, int]] = {}  # by pool: free places here and the windows, at the last look
        self._settled_at = 0.0
        self._looked_ahead_at = 0.0
        self._looked_below_until = 0.0
        self._wants_room = True  # something may wait for it
        self._may_rest = False  # until time brings more
        self.wake = asyncio.Event()
        gateway.on_room.append(self._room_made)
        gateway.on_joined.append(self.wake.set)

    def _room_made(self) -> None:
        if self._wants_room:
            self.wake.set()

    async def dispatch(self) -> int:
        """A step, and a rest if all that it found was brought within the lead by time alone."""
        found = await self.step()
        if found and self._may_rest:
            with suppress(TimeoutError):
                async with asyncio.timeout(COMPANY):
                    await self.wake.wait()
        return found

    async def step(self) -> int:
        """Claim what is due and what will be soon, for every pool that some agent can serve."""
        self._wants_room = True
        if self._recorder.backlog > BACKLOG or not self._standing.may_act:
            return 0
        if self._gateway.doubts.any_unanswered:
            if self._gateway.doubts.any_under_way:
                return 0  # its answer is on the way: look when only lost ones are left
            if boottime() - self._settled_at > SETTLE_EVERY:
                await self._settle_unanswered()
        self._wants_room = False
        self._may_rest = True
        found = 0
        for pool, requirements in self._catalogue.pools.items():
            async with self._counting(requirements):
                found += await self._claim_due(pool, requirements)
        if not found or boottime() - self._looked_ahead_at > AHEAD_EVERY:
            self._looked_ahead_at = boottime()
            for pool, requirements in self._catalogue.pools.items():
                async with self._counting(requirements):
                    found += await self._claim_ahead(pool, requirements)
        return found

    def _counting(self, requirements: Requirements) -> AbstractAsyncContextManager[None]:
        """Around a claim of tasks that need amounts: the keeper claims too, and each must see what the other took."""
        return self._gateway.counting if requirements.placement.needs else nullcontext()

    async def _claim_due(self, pool: int, requirements: Requirements) -> int:
        room, window = self._gateway.room(requirements)
        free = sum(room.values())
        self.rooms[pool] = (free, window)
        flowing = self._flowing.get(pool, False)
        if not free or (flowing and free < window // 4):  # in full flow, wait for a batch that is worth it
            self._wants_room |= window > 0  # else nobody here can serve it
            return 0
        floors = self._floors.setdefault(pool, Floors())
        limit = min(free, BATCH)
        start = list(floors.start(boottime(), flowing=flowing))
        claim = await self._claim(pool, requirements, room, limit, start, -self._placer.delay(requirements, room))
        for priority, position in claim.positions.items():
            floors.claimed(priority, position)
        if claim.size and requirements.placement.sticky is not None:
            await self._lower_to_what_is_left(pool, floors, start)
        self._flowing[pool] = claim.size == limit
        self._may_rest &= claim.size == 0
        return claim.size

    async def _lower_to_what_is_left(self, pool: int, floors: Floors, start: list[Floor]) -> None:
        """A sticky claim leaves tasks between those it takes: the next one must find them."""
        async with self._line as conn:
            for priority, position in await claims.left(conn, self._standing.id, pool, start):
                floors.lower(priority, position)

    async def _claim_ahead(self, pool: int, requirements: Requirements) -> int:
        room = self._gateway.room_ahead(requirements)
        if not room or self._placer.delay(requirements, room):
            return 0
        from_now: list[Floor] = [(self._clock.now(), 0)] * len(PRIORITY_LEVELS)
        limit = min(sum(room.values()), BATCH)
        claim = await self._claim(pool, requirements, room, limit, from_now, self._gateway.longest_lead(room))
        self._may_rest &= claim.size < limit
        return claim.size

    async def _claim(
        self,
        pool: int,
        requirements: Requirements,
        room: dict[int, int],
        limit: int,
        floors: list[Floor],
        ahead: float,
    ) -> claims.Claim:
        is_sticky = requirements.placement.sticky is not None
        contest = self._placer.contest(requirements, room) if is_sticky else None
        places = [] if is_sticky else self._placer.places(pool, requirements, room, limit)
        with self._gateway.claiming():
            async with self._line as conn:
                if contest is not None:
                    claim = await sticky.claim(conn, self._standing.id, pool, contest, limit, floors, ahead=ahead)
                else:
                    claim = await claims.claim(conn, self._standing.id, pool, places, limit, floors, ahead=ahead)
                    self._placer.placed(pool, places, claim.size)
            await self._arm_new(claim)
        self._standing.tally.dispatched += claim.size
        return claim

    async def _arm_new(self, claim: claims.Claim) -> None:
        """Arm what was claimed a moment ago. Of what nobody was told, it is certain that it has not started."""
        if homeless := await self._arm(claim):
            async with self._line as conn:
                await claims.give_back(conn, [armed.task for armed in homeless], [armed.token for armed in homeless])

    async def _arm(self, claim: claims.Claim) -> list[Armed]:
        if any(self._catalogue.job(armed.job) is None for tasks in claim.tasks.values() for armed in tasks):
            await self._catalogue.refresh()  # a job that was made a moment ago
        return await self._gateway.arm(claim)

    async def _settle_unanswered(self) -> None:
        """A claim whose answer was lost may have been made, or be made yet: find out, and arm what it gave us."""
        self._settled_at = boottime()
        await self._arm_unknown(self._line, lambda conn: claims.unanswered(conn, self._gateway.known()))

    async def take_up(self, line: Line) -> int:
        """Look for claims that others have made for sessions here, arm them, and note that they are told.

        Of a session that has left in the meantime nothing is noted: whoever has it next finds the claim.
        """
        batches: claims.Batches = []

        async def look(conn: Connection) -> claims.Claim:
            found, claim = await claims.untold(conn, list(self._gateway.known()))
            batches.extend(found)
            return claim

        await self._arm_unknown(line, look)
        here = self._gateway.known()
        if told := [(session, batch) for session, batch in batches if session in here]:
            async with line as conn:
                await claims.told(conn, told)
        return len(told)

    async def _arm_unknown(self, line: Line, look: Callable[[Connection], Awaitable[claims.Claim]]) -> None:
        """Arm what a look finds, but for what has been armed here before, or is armed while it looks."""
        with self._gateway.watching_releases() as is_known:
            async with line as conn:
                claim = await look(conn)
            unknown = {
                session: new
                for session, tasks in claim.tasks.items()
                if (new := [armed for armed in tasks if not is_known(session, armed)])
            }
        await self._arm(claim._replace(tasks=unknown))

    async def submit(self, submission: Submission) -> int | None:
        """Insert a plain task and claim it in the same statement. None: something waits, let it wait its turn."""
        job = self._catalogue.named(submission.job)
        if job is None or not submission.is_plain or not self._standing.may_act:
            return None
        if self._flowing.get(job.pool) or self._gateway.doubts.any_unanswered:
            return None
        requirements = self._catalogue.pools.get(job.pool)
        if requirements is None or not requirements.is_plain:
            return None  # no claim serves a broadcast; and where it matters who takes it, the claim knows
        room, _ = self._gateway.room(requirements)
        if not room:
            return None
        places = self._placer.places(job.pool, requirements, room, 1)
        self._placer.placed(job.pool, places, 1)
        session = places[0]
        with self._gateway.claiming():
            async with self._database.acquire() as conn:
                id, batch = await submit_and_claim(conn, submission, session, self._standing.id)
            if batch is None:  # it waits its turn, and whoever may claim it was told
                return id
            armed = Armed(id, batch * claims.BATCH_TOKENS, job.id, 1, self._clock.now(), submission.args)
            await self._arm_new(claims.Claim({session: [armed]}, {}, 1))
        return id

    def segments_moved(self) -> None:
        """Segments have come, or pools were opened to us: what waits there may lie below what was claimed here."""
        self._floors.clear()
        self.wake.set()

    def released(self, released: list[Released]) -> None:
        """Tasks that waited for their turn may be claimed: they lie where they would have run."""
        for pool, priority, position in released:
            if pool in self._floors:
                self._floors[pool].lower(priority, position)
        self.wake.set()

    async def look_below(self) -> int:
        """Find pending tasks below the floors. Rests twenty times as long as it took."""
        if boottime() < self._looked_below_until:
            return 0
        began = boottime()
        found = 0
        for pool, floors in list(self._floors.items()):
            async with self._slow_line as conn:
                stragglers = await claims.stragglers(conn, self._standing.id, pool, floors.mark)
            for priority, position in stragglers:
                floors.lower(priority, position)
            found += len(stragglers)
        self._looked_below_until = boottime() + 20 * (boottime() - began)
        if found:
            self.wake.set()
        return 0

    async def close(self) -> None:
        await self._line.close()
        await self._slow_line.close()
