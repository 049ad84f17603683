"""Replicas: claim a daemon's task for a chosen session, and requeue it whatever its attempt came to.

The rules of store/tasks/claims.py and store/tasks/transitions.py hold: a claim takes a new token and is noted under a
batch, and an ending moves only a task that has its token and is still held. A replica returns to pending by a report of
its own agent or when that agent's lease has expired, so it never runs twice at once.
Next: server/agents/gateway.py
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mainspring.errors import ValidationError
from mainspring.model.daemons.daemons import next_life
from mainspring.model.messages import Ending
from mainspring.model.schedules.schedules import Policies
from mainspring.model.tasks.pools import IS_DAEMON
from mainspring.model.tasks.states import ARM, IS_ACTIVE, RETRY, RUNS_AGAIN, CancelMode, TaskState
from mainspring.store.cluster.holds import any_hold_of
from mainspring.store.postgres.database import Connection
from mainspring.store.schedules.plans import policies
from mainspring.store.tasks import partitions, transitions
from mainspring.store.tasks.claims import BATCH_TOKENS, COLUMNS, NOTED, Claim, as_claim

MOST_ATTEMPTS = 32_000  # then the numbers start from one again: a smallint holds no more


class DueReplica(NamedTuple):
    task: int
    schedule: int
    pool: int  # of its job, for the requirements
    due_in: float  # seconds; negative once it is due


_DUE = f"""
    select t.id, t.schedule_id, coalesce(p.target, p.id) as pool,
           date_part('epoch', t.run_at - (select mainspring.now())) as due_in
      from mainspring.task t
      join mainspring.schedule s on s.id = any (array[t.schedule_id])
      join mainspring.job j on j.id = any (array[s.job_id])
      join mainspring.pool p on p.id = any (array[j.pool])       -- gated, if the job was held a moment ago
     where t.{IS_DAEMON} and t.{ARM.leaves} and t.run_at <= (select mainspring.now()) + make_interval(secs => $1)
       and s.enabled and s.kind = 'daemon' and not {any_hold_of("j.id")}
     order by t.run_at, t.id
     limit $2
"""


async def due(conn: Connection, *, within: float, limit: int) -> list[DueReplica]:
    """Replicas that are due within so many seconds."""
    return [DueReplica(*row) for row in await conn.fetch(_DUE, within, limit)]


_HELD = f"""
    select schedule_id, session, count(*) from mainspring.task
     where {IS_DAEMON} and {IS_ACTIVE} group by schedule_id, session
"""


async def held(conn: Connection) -> dict[tuple[int, int], int]:
    """How many replicas of a schedule a session has: (schedule, session) → count."""
    return {(schedule, session): count for schedule, session, count in await conn.fetch(_HELD)}


# A replica runs what its schedule and job define now; the job's version shows whether the claimer knows it.
_CLAIM = f"""
    with given as (select * from unnest($1::bigint[], $2::bigint[]) as given(id, session)), due as materialized (
        select t.id, given.session, s.generation, s.policies, j.id as job_id, j.priority, j.version
          from given
          join mainspring.task t on t.id = any (array[given.id])
          join mainspring.schedule s on s.id = any (array[t.schedule_id])
          join mainspring.job j on j.id = any (array[s.job_id])
         where t.{IS_DAEMON} and t.{ARM.leaves} and t.run_at <= (select mainspring.now())
           and s.enabled and case when s.kind = 'daemon' then t.scope::integer <= s.expression::integer end
           and not {any_hold_of("j.id")}
           for update of t skip locked
    ), placed as materialized (
        select *, row_number() over () - 1 as turn from due
    ), {NOTED}
    update mainspring.task t
       set {ARM.enters}, token = (select batch from number) * {BATCH_TOKENS} + placed.turn,
           attempt = t.attempt % {MOST_ATTEMPTS} + 1, session = placed.session, healthy = null,
           generation = placed.generation, job_id = placed.job_id, priority = placed.priority,
           args = coalesce(placed.policies->'args', '{{}}')
      from placed
     where t.id = any (array[placed.id]) and t.{ARM.leaves}
    returning {COLUMNS}, placed.version
"""


async def claim(conn: Connection, placed: dict[int, int]) -> tuple[Claim, dict[int, int]]:
    """pending → assigned for replicas, each to its session; returns also the versions of their jobs."""
    assert len(placed) <= BATCH_TOKENS
    rows = await conn.fetch(_CLAIM, list(placed), list(placed.values()))
    return as_claim([tuple(row)[:-1] for row in rows]), {row["job_id"]: row["version"] for row in rows}


_LIVES = f"""
    select t.token, coalesce(t.failures, 0) as failures, t.crashes, coalesce(s.policies, '{{}}') as policies
      from unnest($1::bigint[], $2::bigint[]) as given(id, token)
      join mainspring.task t on t.id = any (array[given.id])
      left join mainspring.schedule s on s.id = any (array[t.schedule_id])
     where t.{IS_DAEMON} and t.token = given.token and t.{IS_ACTIVE}
"""

_AGAIN = f"""
    with given as (
        select * from unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::float8[], $5::float8[],
                             $6::text[], $7::text[], $8::integer[], $9::real[], $10::float8[], $11::smallint[],
                             $12::smallint[])
                   as given(id, token, state, started, finished, code, error, exit_code, armed_ahead, delay, failures,
                            crashes)
    ), was as materialized (
        select given.*, t.session, t.attempt, t.run_at
          from given join mainspring.task t on t.id = any (array[given.id])
    ), moved as (
        update mainspring.task t
           set {RETRY.enters}, session = null, started_at = null, healthy = null, cancel_at = null, cancel_mode = null,
               paused_at = null,
               run_at = (select mainspring.now()) + make_interval(secs => was.delay),
               failures = nullif(was.failures, 0), crashes = was.crashes, restarts = coalesce(t.restarts, 0) + 1
          from was
         where t.id = any (array[was.id]) and t.token = was.token and t.{RETRY.leaves} and t.{IS_DAEMON}
           and (t.cancel_at is null or t.cancel_mode in {RUNS_AGAIN})     -- else it ends
        returning was.*
    ), kept as (
        {transitions.INTO_ATTEMPTS}
    )
    select token from moved
"""


class Restarted(NamedTuple):
    again: list[Ending]  # of replicas that run again
    ended: list[Ending]  # of replicas that were stopped on request
    others: list[Ending]  # of other tasks, or of attempts that no longer hold their replica


async def restart(conn: Connection, endings: Sequence[Ending]) -> Restarted:
    """assigned, running → pending for those of `endings` that are a replica's, or → cancelled on request."""
    rows = await conn.fetch(_LIVES, [e.task for e in endings], [e.token for e in endings])
    lives = {row["token"]: (row["failures"], row["crashes"], _policies(row["policies"])) for row in rows}
    ours = [ending for ending in endings if ending.token in lives]
    if not ours:
        return Restarted([], [], list(endings))
    moved = await partitions.write(conn, lambda: _again(conn, ours, lives))
    stopping = [ending for ending in ours if ending.token not in moved]
    ended = [replace(e, state=TaskState.CANCELLED, code="stopped", error="stopped") for e in stopping]
    if ended:
        ended = await partitions.write(conn, lambda: transitions.finish(conn, ended))
    others = [ending for ending in endings if ending.token not in lives]
    return Restarted([ending for ending in ours if ending.token in moved], ended, others)


def _policies(text: str) -> Policies:
    """Policies that a newer version wrote and this one cannot read must not keep a replica down."""
    try:
        return policies(text)
    except ValidationError:
        return Policies()


async def _again(conn: Connection, endings: Sequence[Ending], lives: dict[int, tuple[int, int, Policies]]) -> set[int]:
    following = [next_life(ending, *lives[ending.token], random.random()) for ending in endings]
    rows = await conn.fetch(
        _AGAIN,
        *transitions.attempt_columns(endings),
        [life.delay for life in following],
        [life.failures for life in following],
        [life.crashes for life in following],
    )
    return {row["token"] for row in rows}


_LEAVE = transitions.asking_agents(f"""
    update mainspring.task t set cancel_at = mainspring.now(), cancel_mode = {CancelMode.RESTART:d}
     where t.{IS_DAEMON} and t.session = any($1::bigint[]) and t.{IS_ACTIVE} and t.cancel_at is null
""")


async def leave(conn: Connection, sessions: Sequence[int]) -> int:
    """Restart the replicas of these sessions elsewhere; returns how many."""
    return len(await conn.fetch(_LEAVE, sessions))
