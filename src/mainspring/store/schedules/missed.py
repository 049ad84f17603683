"""Missed: the dead-man's switch: plan times that were expected and are not in the ledger.

It needs no server and no planner, so it also covers the time in which none was running.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from mainspring.model.schedules.planning import GRACE, Version, expected
from mainspring.model.schedules.story import local
from mainspring.model.schedules.timing import timing
from mainspring.model.words.zones import by_its_clocks
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules import fires
from mainspring.store.schedules.fires import UsedUp
from mainspring.store.schedules.schedules import Stored

MOST_CHECKED = 100_000  # fires of one schedule
MOST_LISTED = 100
AT_ONCE = 250  # fires compared in one query: computing so many plan times holds the event loop for some 2 ms


class Missing(Struct, frozen=True):
    plan_time: datetime
    scope: str


class Checked(Struct, frozen=True):
    """The result of checking one schedule: the first missing plan times, and how many more there are."""

    schedule: str
    since: datetime
    until: datetime  # earlier than requested if there were too many to check
    expected: int
    missing: list[Missing]
    more: int
    complete: bool
    why: str | None = None


class Expected(NamedTuple):
    """A plan time of a schedule; `is_due` if it must be in the ledger by now."""

    plan_time: datetime
    version: Version
    scope_sets: list[tuple[str, ...]]  # one of them suffices: a late plan time gets the scopes of a later version
    by_provider: bool  # any scope suffices
    is_due: bool

    def gaps(self, known: Collection[str]) -> list[str]:
        """The scopes that were not decided, if it had to be; `known` are those that were."""
        if not self.is_due:
            return []
        if self.by_provider:
            return [] if known else [""]
        gaps = [[scope for scope in scopes if scope not in known] for scopes in self.scope_sets]
        return gaps[0] if all(gaps) else []


async def missing(
    conn: Connection, stored: Stored, since: datetime, until: datetime, *, limit: int = MOST_LISTED
) -> Checked:
    """Compare the expected plan times between two instants with the ledger; none before the schedule was created."""
    since = max(since, stored.created_at)
    until = max(since, min(until, stored.now - GRACE))
    zone = timing(stored.schedule).zone
    coming = await expected_times(conn, stored, since, until)
    found: list[Missing] = []
    count = checked = 0
    reached = since
    at_once = max(1, AT_ONCE // max(1, len(stored.schedule.policies.scopes)))
    while checked < MOST_CHECKED and (some := list(islice(coming, at_once))):
        chunk = [one for one in some if one.is_due]
        if not chunk:
            await asyncio.sleep(0)
            continue
        known = await _known(conn, stored.id, chunk[0].plan_time, chunk[-1].plan_time)
        for one in chunk:
            checked += len(one.scope_sets[0])
            gaps = [Missing(by_its_clocks(one.plan_time, zone), scope) for scope in one.gaps(known[one.plan_time])]
            count += len(gaps)
            found += gaps[: max(0, limit - len(found))]
        reached = chunk[-1].plan_time
    complete = checked < MOST_CHECKED or not any(one.is_due for one in coming)
    return Checked(
        schedule=stored.schedule.name,
        since=by_its_clocks(since, zone),
        until=by_its_clocks(until if complete else reached, zone),
        expected=checked,
        missing=found,
        more=count - len(found),
        complete=complete,
        why=_why(stored) if found else None,
    )


async def expected_times(conn: Connection, stored: Stored, since: datetime, until: datetime) -> Iterator[Expected]:
    """The plan times of a schedule from `since` to `until`, each by the version that was in force then."""
    versions = [past.version for past in await fires.versions(conn, stored, since)]
    used_up = {id(version): await fires.used_up(conn, stored, version) for version in versions}
    return _coming(versions, used_up, stored, since, until)


def unknown(stored: Stored, problem: str) -> Checked:
    """The result for a schedule whose plan times cannot be computed here."""
    return Checked(stored.schedule.name, stored.now, stored.now, 0, [], 0, complete=False, why=problem)


def _coming(
    versions: Sequence[Version],
    used_up: Mapping[int, UsedUp | None],  # by the id() of a version
    stored: Stored,
    since: datetime,
    until: datetime,
) -> Iterator[Expected]:
    scopes: dict[int, tuple[list[tuple[str, ...]], bool]] = {}
    for number, version in enumerate(versions):
        later = [one.policies for one in versions[number:]]
        scopes[id(version)] = [one.scopes or ("",) for one in later], any(one.provider for one in later)
    for at, version in expected(versions, since):
        used = used_up[id(version)]
        if at > until or (used is not None and used.before is None and used.has(at) and version is versions[-1]):
            return
        is_used_up = used is not None and used.has(at)
        due = at + timedelta(seconds=version.policies.delay)
        # While a schedule is disabled, what became due since then stays undecided.
        waits_for_enable = not stored.enabled and due > stored.since
        is_due = version.enabled and due <= stored.now - GRACE and not waits_for_enable and not is_used_up
        yield Expected(at, version, *scopes[id(version)], is_due)


# A run by hand has no plan time of the schedule.
_KNOWN = """
    select plan_time, scope from mainspring.fire
     where schedule_id = $1 and plan_time between $2 and $3 and origin <> 'manual'
"""


async def _known(conn: Connection, id: int, first: datetime, last: datetime) -> dict[datetime, set[str]]:
    found: dict[datetime, set[str]] = defaultdict(set)
    for row in await conn.fetch(_KNOWN, id, first, last):
        found[row["plan_time"]].add(row["scope"])
    return found


def _why(stored: Stored) -> str:
    if stored.problem is not None:
        return f"it cannot be planned: {stored.problem}"
    if stored.next_plan_at is not None and stored.next_plan_at <= stored.now - GRACE:
        since = local(stored.next_plan_at, timing(stored.schedule))
        if not stored.enabled:
            return f"nothing was decided from {since} on, and now the schedule is disabled"
        return f"nothing was decided from {since} on: is a server running?"
    return "later plan times were decided, these were not, or their rows are gone"
