"""Punctuality: what the plan times of a schedule came to, by the expression, the ledger and the history.

Reads   fires, tasks and their attempts, by primary key: no part grows with retention
Asks    model.watch.punctuality   whether a plan time was in time
Next:   server/watch/slo_counter.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import NamedTuple

from mainspring.model.schedules.planning import GRACE, INSTANT, Decided, run_at
from mainspring.model.schedules.timing import timing
from mainspring.model.tasks.states import TaskState
from mainspring.model.watch.punctuality import UNDECIDED, Outcome, Verdict, judge, judged_from
from mainspring.store.postgres.connection import Connection
from mainspring.store.schedules import missed
from mainspring.store.schedules.missed import Expected
from mainspring.store.schedules.schedules import Stored

AT_ONCE = 250  # plan times and scopes of one query
OPEN_AGAIN = timedelta(seconds=5)  # until a plan time that is open is looked at again
IDLE = timedelta(hours=1)  # until a schedule without plan times to come is looked at again; a change wakes it


class Judged(NamedTuple):
    due: datetime  # plan time with delay and jitter
    verdict: Verdict


class Progress(NamedTuple):
    judged: list[Judged]
    until: datetime  # plan times up to this one are judged
    look_at: datetime  # when the next can be


async def judge_from(conn: Connection, stored: Stored, after: datetime, lateness: float, *, limit: int) -> Progress:
    """Judge the plan times after an instant, in order, `limit` of them at most; stops at one that is open."""
    coming = await missed.expected_times(conn, stored, after + INSTANT, stored.now)
    judged: list[Judged] = []
    until = after
    while limit > 0:
        chunk = list(islice(coming, max(1, min(limit, AT_ONCE // max(1, len(stored.schedule.policies.scopes))))))
        if not chunk:
            break
        limit -= len(chunk)
        known = await _outcomes(conn, stored.id, chunk[0].plan_time, chunk[-1].plan_time)
        for one in chunk:
            events = list(_events(stored.schedule.name, one, known.get(one.plan_time, {})))
            ready = max((judged_from(due, lateness) for due, _ in events), default=stored.now)
            ready = max(ready, _decided_by(one, stored))
            if ready > stored.now:
                return Progress(judged, until, ready)
            verdicts = [Judged(due, judge(outcome, due, lateness, stored.now)) for due, outcome in events]
            if any(event.verdict is Verdict.OPEN for event in verdicts):
                return Progress(judged, until, stored.now + OPEN_AGAIN)
            judged += verdicts
            until = one.plan_time
        await asyncio.sleep(0)  # computing so many holds the event loop for some milliseconds
    if limit <= 0:
        return Progress(judged, until, stored.now)
    following = timing(stored.schedule).after(stored.now) if stored.enabled else None
    delay = timedelta(seconds=stored.schedule.policies.delay)
    look_at = stored.now + IDLE if following is None else judged_from(following + delay, lateness)
    return Progress(judged, until, look_at)


def _events(name: str, one: Expected, known: dict[str, Outcome]) -> Iterator[tuple[datetime, Outcome]]:
    """Each scope of a plan time that was decided, or had to be."""
    policies = one.version.policies
    decided = Decided(one.plan_time, one.plan_time + timedelta(seconds=policies.delay), None)
    outcomes: Iterable[tuple[str, Outcome]] = [*known.items(), *((scope, UNDECIDED) for scope in one.gaps(known))]
    for scope, outcome in outcomes:
        yield run_at(name, decided, scope, policies.jitter), outcome


def _decided_by(one: Expected, stored: Stored) -> datetime:
    """When it is no longer too early to say that a plan time is missing in the ledger."""
    due = one.plan_time + timedelta(seconds=one.version.policies.delay)
    return due + GRACE if one.version.enabled and stored.enabled else stored.now


# The start of the first attempt that is known to have started: of a task that is tried again it is among the attempts.
_OUTCOMES = """
    select f.plan_time, f.scope, f.reason, least(a.started_at, h.started_at, t.started_at) as started_at,
           coalesce(h.state, t.state) as state, h.error_code
      from (select plan_time, scope, task_id, reason, decided_at from mainspring.fire
             where schedule_id = $1 and plan_time between $2 and $3 and origin <> 'manual') f
      left join lateral (
          select state, started_at from mainspring.task where id = f.task_id limit 1
      ) t on true
      left join lateral (
          select state, started_at, error_code from mainspring.task_history
           where id = f.task_id and recorded_at > f.decided_at - interval '1 day' limit 1
      ) h on true
      left join lateral (
          select min(started_at) as started_at from mainspring.attempt
           where task_id = f.task_id and recorded_at > f.decided_at - interval '1 day'
      ) a on true
"""


async def _outcomes(conn: Connection, id: int, first: datetime, last: datetime) -> dict[datetime, dict[str, Outcome]]:
    async with conn.transaction():
        await conn.execute("set local enable_partition_pruning = on; set local enable_seqscan = off")  # as in fires.py
        rows = await conn.fetch(_OUTCOMES, id, first, last)
    found: dict[datetime, dict[str, Outcome]] = {}
    for plan_time, scope, reason, started_at, state, error_code in rows:
        outcome = Outcome(True, reason, started_at, None if state is None else TaskState(state), error_code)
        found.setdefault(plan_time, {})[scope] = outcome
    return found
