"""Broken variants of the protocol, each with the property that it must break. Next: tests/protocol/__main__.py"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.model.tasks.jobs import Delivery
from tests.protocol.explore import Explored, explore
from tests.protocol.world import Protocol, Rules


class Variant(NamedTuple):
    name: str
    rules: Rules
    delivery: Delivery
    breaks: str

    def explore(self) -> Explored:
        return explore(Protocol(self.delivery, self.rules))


VARIANTS = (
    Variant("no fence: a write does not name its token", Rules(tokens_fence=False), "at_least_once", "L6"),
    Variant("a late hello ends the agent's newer session", Rules(hellos_fence=False), "at_least_once", "L3"),
    Variant("requeue of what may be held", Rules(may_hold_is_requeued=True), "at_most_once", "L4"),
    Variant("acknowledgement before commit", Rules(acknowledges_after_commit=False), "at_most_once", "L4"),
    Variant("lease by a local clock", Rules(stops_before_its_lease_ends=False), "at_least_once", "L3"),
    Variant("a dispatch for a session that was given up", Rules(checks_session=False), "at_least_once", "L3"),
    Variant("a hello without unacknowledged endings", Rules(lists_unacknowledged=False), "at_most_once", "L4"),
)
