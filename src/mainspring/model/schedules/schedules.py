"""Schedules: what a schedule is, its timing and its policies.

Stored in `schedule`: kind, expression and timezone as columns, the rest as JSON in `policies`.
Next: model/schedules/timing.py
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from mainspring.model.placement.segments import SEGMENTS
from mainspring.model.watch.slo import Slo

Kind = Literal["cron", "every", "once", "daemon"]
Gap = Literal["skip", "shift"]
Fold = Literal["first", "second", "both"]
CatchUp = Literal["skip", "latest", "all"]
WhenFull = Literal["plan", "skip"]
Overlap = Literal["allow", "skip", "queue", "queue_all", "cancel_running", "terminate_running"]
First = Literal["next", "latest"]

FILLED = ("scope", "day", "plan_time")  # arguments that a plan time fills in, for handlers that name them


# Neither of the two can be part of a cycle: a server has many of them, at which the garbage collector need not look.
class Policies(Struct, frozen=True, omit_defaults=True, gc=False):
    """Durations are seconds."""

    gap: Gap = "shift"  # a fixed time that a clock change skips: the first instant after it, or none
    fold: Fold = "first"  # a fixed time that a clock change repeats
    anchor: datetime | None = None  # one instant of `every`; 1970 if none is given
    start: datetime | None = None  # no plan time before
    end: datetime | None = None  # no plan time after
    max_runs: int | None = None  # plan times that get a task
    jitter: float = 0.0  # at most so much later, deterministic for each plan time
    delay: float = 0.0  # a task becomes due so long after its plan time
    calendars: tuple[str, ...] = ()  # names of the calendars that `excluded` was copied from
    excluded: tuple[str, ...] = ()  # days without plan times: 2026-12-25, 12-25 of every year, sun
    scopes: tuple[str, ...] = ()
    provider: str | None = None  # the function of its application that returns the scopes
    fills: tuple[str, ...] = ()  # which of FILLED its job takes
    catch_up: CatchUp = "latest"
    window: float = 86400.0  # how far back `all` goes; the last plan time runs however old
    max_per_tick: int = 100  # late tasks in a second; one plan time at least
    misfire_after: float | None = None  # later than this is skipped, whatever the catch-up
    overlap: Overlap = "allow"
    after: str | None = None  # the schedule whose plan time, the same or the latest earlier one, must succeed first
    first: First = "next"  # the plan time that runs first: the one after it is made, or the last before
    slo: Slo | None = None
    ping_url: str | None = None  # called when a task of it starts, succeeds or fails
    expires: float | None = None  # a task that has not started so long after its time is skipped; None: as its job says
    when_full: WhenFull = "plan"  # while as many tasks of its job wait as may
    restart_delay: float = 1.0  # of a replica that ended; doubled while its runs are short
    max_restart_delay: float = 60.0
    stable: float = 60.0  # a run of this length is not short
    ready: float = 1.0  # without a health check, a replica counts as up after so long
    args: dict[str, Any] = {}
    description: str = ""


class Schedule(Struct, frozen=True, gc=False):
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
