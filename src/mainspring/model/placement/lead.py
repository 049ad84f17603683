"""Lead: how long before its time a task is armed on an agent.

An agent that acknowledges late, or is busy, is armed earlier. The maximum keeps changes of a schedule effective, the
minimum leaves time to send a lost message again.
Next: server/agents/session.py
"""

from __future__ import annotations

from msgspec import Struct


class Lead(Struct, frozen=True):
    """The settings, in seconds; `of` gives the lead of one agent."""

    default: float = 5.0
    min: float = 1.0
    max: float = 30.0
    latency_factor: float = 4.0  # seconds for each second until an agent acknowledges
    load_factor: float = 1.0  # seconds for an agent whose slots are all taken

    def of(self, ack_time: float, load: float) -> float:
        wanted = self.default + self.latency_factor * ack_time + self.load_factor * load
        return min(max(wanted, self.min), max(self.max, self.min))
