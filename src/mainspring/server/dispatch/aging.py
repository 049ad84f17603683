"""Aging of waiting tasks: which of a pool's tasks are old enough to be claimed before more important ones.

Only a pool in full flow can starve a task: what is due in another is claimed at once. At most once a second, before its
next claim, the heads of its levels are read.
Reads   store.tasks.claim_order    the first task of each level
        server.cluster.catalogue   the setting `aging`
Next:   model/placement/aging.py
"""

from __future__ import annotations

from mainspring.model.placement.aging import Aged, counts_as, outranking
from mainspring.model.settings import unless_off
from mainspring.model.tasks.claim_floors import Floor
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.cluster.lease import ServerLease
from mainspring.store.postgres.database import DedicatedConnection
from mainspring.store.tasks import claim_order, claims
from mainspring.wire.clock import Clock, boottime

LOOK_EVERY = 1.0  # seconds, for each pool


class Aging:
    def __init__(self, catalogue: Catalogue, server_lease: ServerLease, clock: Clock) -> None:
        self._catalogue = catalogue
        self._server_lease = server_lease
        self._clock = clock
        self._looked_at: dict[int, float] = {}  # by pool, in boot time

    @property
    def seconds(self) -> float | None:
        """After which a task counts one level higher; None: never."""
        return unless_off(self._catalogue.settings.aging)

    def is_due(self, pool: int) -> bool:
        """Whether to look at the heads of its levels again."""
        return self.seconds is not None and boottime() - self._looked_at.get(pool, -LOOK_EVERY) >= LOOK_EVERY

    async def first(self, pool: int, start: list[Floor], dedicated: DedicatedConnection) -> Aged | None:
        """The tasks of a pool in full flow that come before what an ordinary claim would take."""
        self._looked_at[pool] = boottime()
        async with dedicated as conn:
            heads = await claim_order.left(conn, self._server_lease.id, {pool: start})
        return outranking(heads, self._clock.now(), self.seconds)

    def rank(self, claim: claims.Claim) -> None:
        """Let agents start the old ones of a claim in their turn: what waits for a slot there has an order too."""
        if (aging := self.seconds) is None:
            return
        now = self._clock.now()
        for tasks in claim.tasks.values():
            for armed in [armed for armed in tasks if armed.fire_at <= now - aging]:
                armed.rank = counts_as(armed.priority, now - armed.fire_at, aging)

    def look_again(self, pool: int) -> None:
        """There may be more of them."""
        self._looked_at.pop(pool, None)
