"""ClaimedSubmissions: tasks that the application in this process submits are claimed by their own insert.

One statement in place of two, for agents here that have room while nothing waits before the tasks.
Writes  store.submission.enqueue   (a new task: pending, or assigned)
Sends   Dispatch, through server/dispatch/arming.py
Next:   server/dispatch/arming.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from mainspring.model.messages import Armed
from mainspring.model.tasks.define_job import priority_level
from mainspring.server.agents.gateway import Gateway
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.dispatch.arming import Arming
from mainspring.server.dispatch.placement import AgentPlacement
from mainspring.store.postgres.database import Database, DedicatedConnection
from mainspring.store.submission.enqueue import Place, submit_and_claim
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks.claims import Claim
from mainspring.wire.clock import Clock

Places = list[Place | None]


class ClaimedSubmissions:
    """`is_contended`: whether tasks wait for this room, free places by session."""

    def __init__(
        self,
        database: Database,
        server_lease: ServerLease,
        catalogue: Catalogue,
        gateway: Gateway,
        placement: AgentPlacement,
        arming: Arming,
        clock: Clock,
        is_contended: Callable[[dict[int, int]], bool],
    ) -> None:
        self._database = database
        self._server_lease = server_lease
        self._catalogue = catalogue
        self._gateway = gateway
        self._placement = placement
        self._arming = arming
        self._clock = clock
        self._is_contended = is_contended

    async def submit(
        self, submissions: Sequence[Submission], dedicated: DedicatedConnection
    ) -> tuple[list[int | None], bool]:
        """Enqueue tasks, and claim those that agents here have room for; returns their ids, and whether any is pending.

        No id: it was not enqueued. None has one if none can be claimed: they are enqueued and claimed as usual.
        """
        places, slots = self._places(submissions)
        if not slots:
            return [None] * len(submissions), False
        with self._gateway.promising(slots), self._gateway.claiming():
            async with self._database.acquire() as conn:
                enqueued = await submit_and_claim(conn, submissions, places, self._server_lease.id)
            await self._arming.arm(self._claim(submissions, places, enqueued), dedicated)
        return [id for id, _ in enqueued], any(token is None for _, token in enqueued)

    def _places(self, submissions: Sequence[Submission]) -> tuple[Places, Counter[int]]:
        """Where each may be claimed by its own insert; None: it waits its turn. And the slots that this takes, by
        session."""
        places: Places = [None] * len(submissions)
        taken: Counter[int] = Counter()
        is_held = self._catalogue.holds.stops_all
        if self._gateway.in_flight.any_unanswered or not self._server_lease.may_act or is_held:
            return places, taken
        by_job: dict[str, list[int]] = defaultdict(list)
        for number, submission in enumerate(submissions):
            if submission.is_plain:
                by_job[submission.job].append(number)
        for name, numbers in by_job.items():
            job = self._catalogue.named(name)
            requirements = None if job is None else self._catalogue.pools.get(job.pool)
            if job is None or requirements is None or not requirements.is_plain:
                continue  # a broadcast is not claimed; where placement matters, the usual claim decides
            free, _ = self._gateway.room(requirements)
            chunk = requirements.chunk
            room = {session: left for session, count in free.items() if (left := count - taken[session] * chunk) > 0}
            if not room or self._is_contended(room):
                continue
            size = min(len(numbers), sum(room.values()))
            sessions = self._placement.places(job.pool, requirements, room, size)
            self._placement.placed(job.pool, sessions, size)
            for number, session in zip(numbers[:size], cycle(sessions), strict=False):
                places[number] = Place(job.id, job.pool, session, job.definition.priority)
            for session, tasks in Counter(islice(cycle(sessions), size)).items():
                taken[session] += requirements.slots_for(tasks)
        return places, taken

    def _claim(
        self, submissions: Sequence[Submission], places: Places, enqueued: Sequence[tuple[int | None, int | None]]
    ) -> Claim:
        """What was claimed; the rest is pending, and the NOTIFY of its insert wakes the dispatchers."""
        now = self._clock.now()
        tasks: dict[int, list[Armed]] = {}
        for submission, place, (id, token) in zip(submissions, places, enqueued, strict=True):
            if id is None or token is None or place is None:
                continue
            given = submission.priority
            priority = place.priority if given is None else priority_level(given)
            armed = Armed(id, token, place.job, 1, now, submission.args, priority=priority)
            tasks.setdefault(place.session, []).append(armed)
        return Claim(tasks, {}, sum(map(len, tasks.values())))
