"""HandOver: the tasks that get the slots of those that end start on agents of this server, without a release or claim.

The recorder asks for an offer before it writes the ends of tasks under limits, and writes them through it. What was
claimed for the sessions in the offer is armed after the commit. A session is offered only where no other task can be
waiting for its place: the session is not full, no pool that it serves has more tasks due than were claimed, and the
dispatcher has looked at all news. Else the next tasks get their slots all the same, and the dispatcher claims them in
their turn.
Writes  store.limits.handover   (→ terminal, pending → assigned)
Sends   Dispatch, through the gateway
Next:   server/agents/gateway.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from mainspring.model.messages import Ending
from mainspring.model.placement.placement import Requirements
from mainspring.server.agents.gateway import Gateway
from mainspring.server.agents.registry import Registry
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.cluster.lease import ServerLease
from mainspring.server.dispatch.arming import Arming
from mainspring.server.dispatch.dispatcher import Dispatcher
from mainspring.server.dispatch.placement import AgentPlacement
from mainspring.store.limits import handover
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks.claims import BATCH_TOKENS

Places = dict[int, list[int]]  # by pool, a session for each task that the statement may claim


class Offer:
    """Places for the tasks that come after those of one flush of endings."""

    def __init__(self, hand_over: HandOver, places: Places) -> None:
        self._hand_over = hand_over
        self._places = places

    async def finish(self, conn: Connection, endings: list[Ending]) -> list[Ending]:
        """End tasks, pass their slots on, and arm those of the next tasks that were claimed; returns what ended."""
        ends = self._hand_over.ends(endings)
        places = {pool: left[: ends[pool]] for pool, left in self._places.items() if ends[pool]}
        ended = await self._hand_over.finish(conn, endings, places)
        # A place is given once, also where a flush is written in parts: see server/recording/flush.py.
        self._places = {pool: left[ends[pool] :] for pool, left in self._places.items()}
        return ended


class HandOver:
    def __init__(
        self,
        database: Database,
        server_lease: ServerLease,
        catalogue: Catalogue,
        gateway: Gateway,
        registry: Registry,
        dispatcher: Dispatcher,
    ) -> None:
        self._dedicated = database.dedicated("background")
        self._server_lease = server_lease
        self._catalogue = catalogue
        self._gateway = gateway
        self._dispatcher = dispatcher
        self._placement = AgentPlacement(catalogue, gateway, registry)
        self._arming = Arming(catalogue, gateway)

    @contextmanager
    def offering(self, endings: list[Ending]) -> Iterator[Offer | None]:
        """Around the statement that ends these tasks and the arming. None: none of them can have a slot."""
        if not (ends := self.ends(endings)):
            yield None
            return
        places, slots = self._places(ends)
        with self._gateway.promising(slots), self._gateway.claiming() if places else nullcontext():
            yield Offer(self, places)

    def ends(self, endings: list[Ending]) -> Counter[int]:
        """By pool, how many of these tasks may hold slots."""
        behind_gates = self._catalogue.behind_gates
        return Counter(behind_gates[ending.job] for ending in endings if ending.job in behind_gates)

    async def finish(self, conn: Connection, endings: list[Ending], places: Places) -> list[Ending]:
        handed_over = await handover.finish(conn, self._server_lease.id, endings, places)
        if handed_over.released:
            self._dispatcher.released(handed_over.released)
        if handed_over.claim.size:
            await self._arming.arm(handed_over.claim, self._dedicated)
            self._server_lease.tally.dispatched += handed_over.claim.size
        return handed_over.ended

    def _places(self, ends: Counter[int]) -> tuple[Places, Counter[int]]:
        """For each pool, at most as many as tasks that hold slots end there. And the slots that this takes, by
        session."""
        places: Places = {}
        taken: Counter[int] = Counter()
        left = BATCH_TOKENS
        if self._server_lease.may_act and self._dispatcher.may_claim_out_of_turn:
            for pool, ended in ends.items():
                requirements = self._catalogue.pools.get(pool)
                if requirements is None or not requirements.is_plain:
                    continue  # where placement matters, the usual claim decides
                if sessions := self._sessions(pool, requirements, min(ended, left), taken):
                    places[pool] = sessions
                    left -= len(sessions)
                    for session, tasks in Counter(sessions).items():
                        taken[session] += requirements.slots_for(tasks)
        return places, taken

    def _sessions(self, pool: int, requirements: Requirements, most: int, taken: Counter[int]) -> list[int]:
        room, _ = self._gateway.room(requirements)
        left = {id: free - taken[id] * requirements.chunk for id, free in room.items()}
        room = {id: free for id, free in left.items() if free > 0 and not self._gateway.is_full(id)}
        most = min(most, sum(room.values()))
        if not most or self._dispatcher.is_contended(room):
            return []
        places = self._placement.places(pool, requirements, room, most)
        self._placement.placed(pool, places, most)
        return [places[turn % len(places)] for turn in range(most)]
