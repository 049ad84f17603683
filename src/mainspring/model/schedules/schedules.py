"""What a schedule is: when its job runs, and what happens when things go otherwise.

Stored in `schedule`: kind, expression and timezone in columns of their own, the rest as JSON in `policies`.
Next: model/schedules/timing.py, which tells the plan times; model/schedules/planning.py, which decides about them
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from mainspring.model.placement.segments import SEGMENTS

Kind = Literal["cron", "every", "once", "daemon"]
Gap = Literal["skip", "shift"]
Fold = Literal["first", "second", "both"]
CatchUp = Literal["skip", "latest", "all"]
Overlap = Literal["allow", "skip", "queue", "queue_all", "cancel_running", "terminate_running"]

FILLED = ("scope", "day", "plan_time")  # arguments that a plan gives by itself to a handler that names them


class Policies(Struct, frozen=True, omit_defaults=True):
    """Durations are seconds."""

    gap: Gap = "shift"  # a fixed time that the clocks leave out: first instant after it, or not at all
    fold: Fold = "first"  # a fixed time that comes twice
    anchor: datetime | None = None  # of `every`; any of its instants, 1970 if none is given
    start: datetime | None = None  # no plan time before
    end: datetime | None = None  # no plan time after
    max_runs: int | None = None  # plan times that get a task
    jitter: float = 0.0  # up to so much later, the same for a plan time whoever computes it
    delay: float = 0.0  # eligible so long after its time
    calendars: tuple[str, ...] = ()  # names of the calendars that `excluded` was copied from
    excluded: tuple[str, ...] = ()  # days without plan times: 2026-12-25, 12-25 of every year, sun
    scopes: tuple[str, ...] = ()
    provider: str | None = None  # its application tells the scopes, by a function of this name
    fills: tuple[str, ...] = ()  # which of FILLED its job takes
    catch_up: CatchUp = "latest"
    window: float = 86400.0  # how far back `all` goes; the last plan time counts however old
    max_per_tick: int = 100  # late tasks in a second; one plan time at least
    misfire_after: float | None = None  # later than this is skipped, whatever the catch-up
    overlap: Overlap = "allow"
    restart_delay: float = 1.0  # of a daemon that ended; doubled while its lives are short
    max_restart_delay: float = 60.0
    stable: float = 60.0  # a life of so long is not short
    ready: float = 1.0  # without a health check, it is up after so long
    args: dict[str, Any] = {}
    description: str = ""


class Schedule(Struct, frozen=True):
    """`expression` is a cron expression, seconds, an instant, or the number of replicas, by kind."""

    name: str
    job: str
    kind: Kind
    expression: str
    timezone: str = "UTC"
    policies: Policies = Policies()

    @property
    def segment(self) -> int:
        return stable_hash(self.name) % SEGMENTS


def stable_hash(*parts: str) -> int:
    """A number that is the same for these texts on every machine and in every run."""
    return int.from_bytes(hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest(), "big")
