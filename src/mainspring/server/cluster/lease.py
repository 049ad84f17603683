"""ServerLease: this server's id, until when it may act, and what it has done.

The loops that act for this server's segments check it first. The database checks their writes as well.
Next: server/cluster/membership.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from mainspring.model.metrics.tallies import ClusterTally
from mainspring.watchdog import Blockages
from mainspring.wire.clock import boottime


@dataclass(slots=True)
class Tally:
    """What a server has done since its start."""

    scanned: int = 0  # schedules read by its planner
    planned: int = 0  # plan times decided
    dispatched: int = 0  # tasks claimed
    recorded: int = 0  # endings written
    scanned_at: float | None = None  # the last step of its planner, in boot time
    scan_seconds: float = 0.0
    claim_seconds: float | None = None  # of the last claim that found tasks
    blockages: Blockages = field(default_factory=Blockages)  # of its event loop

    def scan(self, schedules: int, began: float, ended: float) -> None:
        """A step of its planner has read so many schedules."""
        self.scanned += schedules
        self.scanned_at, self.scan_seconds = ended, ended - began


@dataclass(slots=True)
class ServerLease:
    """`trusted_until` is in boot time, before the end of the lease: a server stops before its segments move."""

    id: UUID
    trusted_until: float = 0.0
    is_draining: bool = False
    tally: Tally = field(default_factory=Tally)
    cluster_tally: ClusterTally = field(default_factory=ClusterTally)  # of membership, leader and coordinator

    @property
    def may_act(self) -> bool:
        return not self.is_draining and boottime() < self.trusted_until

    @property
    def why_not(self) -> str | None:
        """Why it may not act, for people; None if it may."""
        if self.is_draining:
            return "the server is stopping"
        return None if self.may_act else "the server cannot renew its lease: PostgreSQL does not answer"
