"""Planning: decide about each plan time within the window, late ones included.

Pure: (versions, cursor, now) → the plan times decided now, each with a task or with the reason why it has none, the
cursor behind them, and when to look again.

A plan time is late when its instant has passed. Up to GRACE late, it runs. If the first undecided plan time is later
than that, there was an outage, and catch-up decides about all plan times in the past: `skip` runs none, `latest` the
last, `all` those within the window.
Next: server/planning/planner.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Literal, NamedTuple

import msgspec

from mainspring.model.schedules.schedules import Policies, stable_hash
from mainspring.model.schedules.skips import HasPlanTimes, Skip, covering
from mainspring.model.words.zones import check_zone

GRACE = timedelta(seconds=5)
AHEAD = timedelta(seconds=10)  # plan times up to here get their tasks
LOOK_BEFORE = timedelta(seconds=7.5)  # a planner looks at a schedule this long before its next plan time
LOOK_WITHIN = timedelta(seconds=1.5)  # that a planner takes until it looks, and a dispatcher until it claims
TICK = timedelta(seconds=1)  # at most `max_per_tick` late tasks are made in one
INSTANT = timedelta(microseconds=1)
MOST_AHEAD = 5_000  # skipped plan times that are passed over to find the last one that is not

Reason = Literal["overlap", "paused", "misfire", "coalesced", "no_scopes", "queue_full", "skipped"]


class Version(NamedTuple):
    """A version of a schedule, in force after `since` up to and including `until`."""

    timing: HasPlanTimes
    policies: Policies
    enabled: bool
    since: datetime
    until: datetime | None = None  # None: it is still in force
    number: int | None = None  # as the schedule counts its versions


class Decided(NamedTuple):
    plan_time: datetime
    due: datetime  # when it may run, before jitter
    reason: Reason | None  # None: it gets a task
    policies: Policies = Policies()  # of the version that was in force then


class Decision(NamedTuple):
    plan_times: list[Decided]
    cursor: datetime | None  # all plan times from here on are undecided; None: there are none
    look_at: datetime | None


def look_early(lead: float) -> timedelta:
    """How long before its time to look a planner looks, so that tasks exist a lead of so many seconds ahead."""
    return max(timedelta(0), timedelta(seconds=lead) + LOOK_WITHIN - LOOK_BEFORE)


def expected(versions: Sequence[Version], cursor: datetime) -> Iterator[tuple[datetime, Version]]:
    """All plan times from `cursor` on, each with the version that was in force then."""
    for version in versions:
        after = max(cursor - INSTANT, version.since)
        while (at := version.timing.after(after)) is not None:
            if version.until is not None and at > version.until:
                break
            yield at, version
            after = at


def decide(
    versions: Sequence[Version],
    cursor: datetime,
    now: datetime,
    *,
    runs: int = 0,
    limit: int = 500,
    scopes: int = 1,
    early: timedelta = timedelta(0),
    skips: Sequence[Skip] = (),
) -> Decision:
    """Decide about the plan times from `cursor` up to the end of the window, about `limit` of them at most.

    `versions` are those in force at the cursor and later, in order; `runs` counts the plan times that got a
    task before, and each plan time makes as many tasks as there are `scopes`. Planners look `early` before `look_at`.
    Catch-up takes those that `skips` cover for not there: the last that is not skipped is the latest.
    """
    coming = expected(versions, cursor)
    current = next(coming, None)
    if current is None:
        return Decision([], None, None)
    policies = versions[-1].policies
    horizon = now + AHEAD + early
    is_outage = False
    decided: list[Decided] = []
    late = 0
    while current is not None:
        at, version = current
        due = _due(at, version)
        # Those of a replaced version are decided at once: its delay must not hold up its successor.
        if due > horizon and version.until is None:
            return Decision(decided, at, due - LOOK_BEFORE)
        if policies.max_runs is not None and runs >= policies.max_runs:
            # Only runs that are already written use up `max_runs`, not those of this decision.
            return Decision(decided, at, now) if decided else Decision([], None, None)
        # Not near the end of an outage: the next decision would take the rest for ordinary lateness.
        if len(decided) >= limit and not (is_outage and timedelta(0) <= now - due <= GRACE):
            return Decision(decided, at, now + TICK + early if late and due <= now else now)
        following = next(coming, None)
        lateness = now - due
        is_outage = is_outage or (version.enabled and lateness > GRACE)  # a pause is no outage
        is_last = following is None or _due(*following) > now
        if skips and following is not None and not is_last:
            is_last = not _is_any_left(versions, following[0], now, skips)
        reason = _reason(version, lateness, is_outage, is_last)
        if skips and version.enabled and covering(skips, at) is not None:
            reason = "skipped"
        if reason is None:
            if is_outage and due <= now:
                if late and late + scopes > policies.max_per_tick:
                    return Decision(decided, at, now + TICK + early)
                late += scopes
            runs += scopes > 0
        decided.append(Decided(at, due, reason, version.policies))
        current = following
    return Decision(decided, None, None)


def _is_any_left(versions: Sequence[Version], since: datetime, now: datetime, skips: Sequence[Skip]) -> bool:
    """Whether a plan time from `since` on is due by now and not skipped."""
    for at, version in islice(expected(versions, since), MOST_AHEAD):
        if _due(at, version) > now:
            return False
        if covering(skips, at) is None:
            return True
    return False


def _due(at: datetime, version: Version) -> datetime:
    delay = version.policies.delay
    return at + timedelta(seconds=delay) if delay else at


def _reason(version: Version, lateness: timedelta, is_outage: bool, is_last: bool) -> Reason | None:
    """Why a plan time gets no task. `is_last`: no later one is in the past."""
    policies = version.policies
    if not version.enabled:
        return "paused"
    if policies.misfire_after is not None and lateness > timedelta(seconds=policies.misfire_after):
        return "misfire"
    if not is_outage or lateness < timedelta(0):
        return None
    match policies.catch_up:
        case "skip":
            # `misfire_after`, if given, is the only limit.
            return "misfire" if policies.misfire_after is None else None
        case "latest":
            return None if is_last else "coalesced"
        case "all":
            return None if is_last or lateness <= timedelta(seconds=policies.window) else "misfire"


def arguments(policies: Policies, timezone: str, plan_time: datetime, scope: str) -> str:
    """The arguments of a task as JSON: those of its schedule, and those that its plan time fills in."""
    if not policies.fills:
        return msgspec.json.encode(policies.args).decode() if policies.args else "{}"
    local = plan_time.astimezone(check_zone(timezone))
    known = {"scope": scope, "day": local.date().isoformat(), "plan_time": local.isoformat()}
    return msgspec.json.encode({name: known[name] for name in policies.fills} | policies.args).decode()


def run_at(schedule: str, decided: Decided, scope: str, jitter: float) -> datetime:
    """When the task of a plan time and scope runs: due, plus a deterministic jitter."""
    if not jitter:
        return decided.due
    share = stable_hash(schedule, scope, decided.plan_time.isoformat()) / 2**64
    return decided.due + timedelta(seconds=jitter * share)
