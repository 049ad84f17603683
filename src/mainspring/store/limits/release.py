"""Release: tasks of jobs with limits move from their gate to a served pool, each with its slots, or are parked.

A gate is the pool in which the tasks of one job wait for its limits. A slot is in the row of the task that holds it,
under a unique index: it is free when the row is gone, however the task ended, and no two servers can give the same one.
A rate is a row of mainspring.throttle, updated in the same statement. Every task that is read moves: one whose key is
busy is parked, where no release reads it until the end of a holder returns the first one (trigger `free_slots`).
Next: store/limits/parked.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import asyncpg

from mainspring.model.limits.holds import LEAST_RATE, SPREAD
from mainspring.model.limits.limits import MAX_RUNNING
from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.jobs import PRIORITY_LEVELS
from mainspring.model.tasks.pools import PARKED
from mainspring.model.tasks.states import PENDING
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection

UNCLAIMED = 0.05  # seconds until the next try where a rate's burst was released and is not claimed yet

# The limits in force are those of the job now. `key_limit` is left out of JSON where it is 1.
LIMITS = """
    l.limits->>'key' as template, coalesce(l.limits->'defaults', '{}') as defaults,
    (l.limits->>'max_running')::integer as max_running,
    case when l.limits ? 'key_limit' then (l.limits->>'key_limit')::integer else 1 end as key_limit,
    (l.limits->'rate'->>'per')::float8 / (l.limits->'rate'->>'count')::float8 as spacing,
    coalesce((l.limits->'rate'->>'burst')::integer, 1) as burst,
    coalesce((l.limits->'rate'->>'per_key')::boolean, false) as per_key
"""
# Until when the starts so far have used up the rate: at most a burst ahead. A time further ahead, by more than any
# statement takes, was written under a slower rate or before the clock was set back: it is ignored.
_SINCE = """
    case when {until} between now and now + make_interval(secs => spacing * burst + 30) then {until} else now end
"""
# How many starts it allows now.
_TOKENS = "floor(burst - 1 - date_part('epoch', since - now) / spacing + 1e-6)::integer + 1"

# When the tasks that are parked for a key without rate left are tried again.
_WAKE_AT = """
    case when is_out then greatest(room.now, spent.until - make_interval(secs => room.spacing * (room.burst - 1))) end
"""

# The limits of a job `j`; no row while it is held. After the release of a hold it has a rate, unless it has one of its
# own, by which what waited is spread.
_LET_GO = f"""
    left join mainspring.hold h on h.job_id = any (array[j.id]) and j.held is not null
   cross join lateral (
       select coalesce(j.definition->'gate', '{{}}') || case
                  when h.spread_until > (select mainspring.now()) and j.definition->'gate'->'rate' is null
                  then jsonb_build_object('rate', jsonb_build_object(
                           'count', greatest(h.waiting, {SPREAD * LEAST_RATE:g}), 'per', {SPREAD:g},
                           'burst', greatest(1, h.waiting / {SPREAD:.0f})))
                  else '{{}}' end as limits
        where h.held_at is null or h.released_at is not null) l
"""

# What the release below would find at each gate, without its locks: most gates are full, and cost no statement each.
_LOOK = f"""
    with gate as materialized (
        select g.id, min(first.job_id) as job_id, min(first.run_at) as run_at
          from mainspring.pool g
         cross join generate_series(0, 9) as level(priority)
         cross join lateral (
             select t.run_at, t.job_id from mainspring.task t
              where t.pool = g.id and t.priority = level.priority and t.state = {PENDING:d}
              order by t.run_at, t.id
              limit 1
         ) first
         where g.target is not null and ($1::integer[] is null or g.id = any ($1))
         group by g.id
    ), job as materialized (
        select gate.*, (select mainspring.now()) as now, {LIMITS}
          from gate join mainspring.job j on j.id = any (array[gate.job_id])
          {_LET_GO}
    ), bounds as materialized (
        select job.*, held.slots, held.unclaimed, {_SINCE.format(until="used.until")} as since
          from job
         cross join lateral (
             select count(*) as slots, count(*) filter (where t.state = {PENDING:d}) as unclaimed
               from mainspring.task t
              where t.job_id = job.job_id and t.job_slot is not null
                and (job.max_running is not null or job.spacing is not null)) held
          left join mainspring.throttle used
            on used.job_id = any (array[job.job_id]) and used.key = '' and not job.per_key
    )
    select id, date_part('epoch', run_at - now) as due_in, coalesce(slots >= max_running, false) as is_full,
           case when spacing is null then 0
                when unclaimed >= case when per_key then greatest(burst, 50) else burst end then {UNCLAIMED}
                when per_key then 0
                else greatest(0, date_part('epoch', since - now) - spacing * (burst - 1)) end as opens_in
      from bounds
     order by id
"""


class Waiting(NamedTuple):
    """A gate at which tasks wait."""

    due_in: float  # seconds until the first is due
    opens_in: float | None  # seconds until its limits allow a start; None: not before a task of the job ends


async def look(conn: Connection, gates: Sequence[int] | None = None) -> dict[int, Waiting]:
    """The gates at which tasks wait, among all or these."""
    rows = await conn.fetch(_LOOK, gates)
    return {row["id"]: Waiting(row["due_in"], None if row["is_full"] else row["opens_in"]) for row in rows}


# The release is one statement in six parts, each of which builds on those before it: no process can die between them,
# and the counts of one are what the next one writes.

# 1. One release at a time for each gate, and how much room the job has. Tasks that were released under a rate and are
#    not claimed yet count against the burst: when agents return, one burst starts and not a whole hour's.
_ROOM = f"""
    gate as materialized (
        select id, target from mainspring.pool where id = $1 and target is not null for no key update skip locked
    ), job as materialized (
        select j.id, j.namespace, gate.target, (select mainspring.now()) as now, {LIMITS}
          from gate
         cross join lateral (select t.job_id from mainspring.task t where t.pool = gate.id limit 1) first
          join mainspring.job j on j.id = any (array[first.job_id])
          {_LET_GO}
    ), held as materialized (
        select count(*) as slots, count(*) filter (where t.state = {PENDING:d}) as unclaimed,
               coalesce(array_agg(t.job_slot), '{{}}') as taken
          from mainspring.task t where t.job_id = (select id from job) and t.job_slot is not null
    ), used as materialized (
        select th.until from job join mainspring.throttle th on th.job_id = any (array[job.id]) and th.key = ''
         where job.spacing is not null and not job.per_key
           for update of th
    ), bounds as materialized (
        select job.*, held.taken, held.slots, held.unclaimed, {_SINCE.format(until="(select until from used)")} as since
          from job cross join held
    ), room as materialized (
        select bounds.*, now + make_interval(secs => case when spacing is null then $3::float8 else 0 end) as latest,
               greatest(0, least($2::integer, max_running - slots,
                   case when spacing is null then null
                        when per_key then greatest(burst, 50) - unclaimed
                        else least({_TOKENS}, burst - unclaimed) end))::integer as places
          from bounds
    )
"""

# 2. The first that are due, as many as there is room for and $4 more, with their keys.
_DUE = f"""
    walked as materialized (
        select found.*
          from unnest(array[{", ".join(map(str, PRIORITY_LEVELS))}]::smallint[]) as level(priority)
         cross join lateral (
             select t.ctid as place, t.id, t.args, t.concurrency_key, t.key_given from mainspring.task t
              where t.pool = $1 and t.priority = level.priority and t.state = {PENDING:d}
                and t.run_at <= (select latest from room where places > 0)
              order by t.run_at, t.id
              limit (select places + $4::integer from room)
                for update skip locked
         ) found
         limit (select places + $4::integer from room)
    ), due as materialized (
        select walked.place, walked.id, row_number() over () as number,
               case when walked.key_given then walked.concurrency_key
                    when room.template is not null
                    then mainspring.key_within(room.namespace,
                                               mainspring.fill_key(room.template, walked.args, room.defaults))
               end as key
          from walked cross join room
    ), ranked as materialized (
        select due.*, row_number() over (partition by due.key order by due.number) as rank from due
    )
"""

# 3. The holders and the rate of each key, read once, then copied to all tasks that want the key. A holder that is just
#    ending is locked and not counted as `firm`: no task is parked for it.
_KEYS = f"""
    asked as materialized (
        select ranked.*, its.*
          from ranked left join lateral (
              select had.slots, had.taken, firm.slots as firm, rate.until is not null as was_used,
                     {_SINCE.format(until="rate.until")} as since
                from room
               cross join lateral (
                   select count(*) as slots, coalesce(array_agg(t.key_slot), '{{}}') as taken from mainspring.task t
                    where t.concurrency_key = ranked.key and t.key_slot is not null) had
               cross join lateral (
                   select count(*) as slots
                     from (select from mainspring.task t
                            where t.concurrency_key = ranked.key and t.key_slot is not null
                              for key share skip locked) locked) firm
                left join lateral (
                   select th.until from mainspring.throttle th
                    where room.per_key and th.job_id = room.id and th.key = ranked.key
                      for update) rate on true
               where ranked.key is not null and ranked.rank = 1
          ) its on true
    ), spread as materialized (
        select place, id, number, key, rank, first_value(slots) over its_key as slots,
               first_value(taken) over its_key as taken, first_value(firm) over its_key as firm,
               first_value(was_used) over its_key as was_used, first_value(since) over its_key as since
          from asked window its_key as (partition by key order by rank)
    )
"""

# 4. Which tasks are released, which are parked, and which stay.
_DECIDED = f"""
    allowed as materialized (
        select s.*, s.key is null or s.rank <= coalesce(least(b.key_limit - s.slots, b.tokens), s.rank) as may_go,
               b.tokens, b.key_limit
          from spread s cross join lateral (
              select room.key_limit, case when room.per_key then
                         (select {_TOKENS} from (select s.since, room.now, room.burst, room.spacing) rate) end as tokens
                from room) b
    ), turned as materialized (
        select allowed.*, sum(may_go::integer) over (order by number) as turn from allowed
    ), going as materialized (
        select turned.*, may_go and turn <= room.places as goes from turned cross join room
    ), decided as materialized (
        select tallied.*, not may_go and (firm + gone >= key_limit or gone >= tokens) as parks
          from (select going.*, count(*) filter (where goes) over (partition by key) as gone from going) tallied
    )
"""

# 5. The tasks move, with the first free slots. `pool + 0` keeps the planner from an index: a locked row has its ctid.
_MOVED = f"""
    free as materialized (
        select array(select generate_series(0, max_running - 1) except select unnest(taken)
                      order by 1 limit places) as slots
          from room where max_running is not null
    ), released as (
        update mainspring.task t
           set pool = room.target, gate = $1, concurrency_key = d.key, run_at = greatest(t.run_at, room.now),
               job_slot = case when room.max_running is not null then (select slots from free)[d.turn::integer]
                               when room.spacing is not null then {MAX_RUNNING} + t.id % 2000000000 end,
               key_slot = case when d.key is not null and room.key_limit is not null then
                   (array(select s from generate_series(0, room.key_limit - 1) s where s <> all (d.taken) order by s)
                   )[d.rank::integer] end
          from decided d cross join room
         where d.goes and t.ctid = d.place and t.pool + 0 = $1 and t.state = {PENDING:d}
        returning t.pool, t.priority, t.run_at, t.id
    ), parked as (
        update mainspring.task t set pool = {PARKED}, gate = $1, concurrency_key = d.key
          from decided d
         where d.parks and t.ctid = d.place and t.pool + 0 = $1 and t.state = {PENDING:d}
        returning t.id
    )
"""

# 6. What this has used up of the rate, of the job or of each key. If two statements insert the first row at once, the
#    second fails and is tried again.
_PACED = f"""
    spent as materialized (
        select '' as key, exists (select from used) as was_used, false as is_out,
               room.since + make_interval(secs => room.spacing * count(*)) as until
          from room join decided d on d.goes
         where room.spacing is not null and not room.per_key
         group by room.since, room.spacing
         union all
        select d.key, d.was_used, true, d.since + make_interval(secs => room.spacing * d.gone)
          from decided d cross join room
         where room.per_key and d.key is not null and d.rank = 1 and (d.gone > 0 or d.tokens <= 0)
    ), paced as (
        update mainspring.throttle th
           set until = spent.until, wake_at = {_WAKE_AT}
          from spent cross join room
         where spent.was_used and th.job_id = any (array[room.id]) and th.key = any (array[spent.key])
    ), first_paced as (
        insert into mainspring.throttle (job_id, key, until, wake_at)
        select room.id, spent.key, spent.until, {_WAKE_AT}
          from spent cross join room
         where not spent.was_used
    )
"""

_RELEASE = f"""
    with {_ROOM}, {_DUE}, {_KEYS}, {_DECIDED}, {_MOVED}, {_PACED}
    select exists (select from gate) as was_free, coalesce((select places from room), 0) as places,
           (select count(*) from parked) as parked,
           (select date_part('epoch', coalesce((select until from spent where key = '' limit 1), since) - now)
                   - spacing * (burst - 1)
              from room where spacing is not null and not per_key) as next_in,
           (select count(*) from decided where not may_go and parks is not true) as stay,
           (select array_agg(array[pool, priority, date_part('epoch', run_at), id]) from released) as released,
           ({hints.due("released")}) as hints
"""


class Passed(NamedTuple):
    """The result of one release at one gate."""

    released: list[Released]
    parked: int
    has_room: bool  # the limits allow more tasks than are due
    next_in: float | None  # seconds until the rate allows the next start; negative: it does now
    is_busy: bool = False  # another server has the gate: try again soon
    stay: int = 0  # due tasks that neither passed nor were parked: a holder of their key is about to end


_BUSY = Passed([], 0, has_room=False, next_in=None, is_busy=True)


async def release(conn: Connection, gate: int, most: int, *, ahead: float, beyond: int = 0) -> Passed:
    """Release up to `most` tasks that are due within `ahead` seconds; reads `beyond` more than have room."""
    try:
        row = await conn.fetchrow(_RELEASE, gate, most, ahead, beyond)
    except (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError):
        return _BUSY  # another server gave the same slot at the same moment; nothing changed
    if not row["was_free"]:
        return _BUSY
    released = [Released(int(pool), int(priority), (at, int(id))) for pool, priority, at, id in row["released"] or ()]
    return Passed(released, row["parked"], row["places"] > len(released), row["next_in"], stay=row["stay"])
