"""Hand-over: one statement ends tasks, gives their slots to the next ones, and claims some of these.

No slot becomes free in between: the row that held it is deleted and another row takes it in the same statement. So no
release on another server can give the same slot, and the statement needs no lock on the gate. It passes on only the
slots of the tasks that it ends, and only where one limit decides: `max_running`, or a concurrency key. Where there is a
rate, a second limit, a limit that was lowered, or a task that may come first and whose key is not known yet, it leaves
the slot free and wakes the release, as every other end does by the trigger `free_slots` (0001_schema.sql, 6).
Next: server/dispatch/handover.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from mainspring.model.messages import Ending
from mainspring.model.tasks.claim_floors import Released
from mainspring.model.tasks.jobs import PRIORITY_LEVELS
from mainspring.model.tasks.pools import IS_PARKED, PARKED
from mainspring.model.tasks.states import ARM, PENDING
from mainspring.store.cluster.segments import holds, owned
from mainspring.store.limits.release import LIMITS
from mainspring.store.postgres import hints
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.claims import BATCH_TOKENS, COLUMNS, Claim, as_claim
from mainspring.store.tasks.transitions import ending, finished, moved

# Like the release, one statement in parts, each of which builds on those before it.

# 1. The tasks end. `freed` has what they held. The setting keeps the trigger `free_slots` from waking anything: part 6
#    does that for the slots that are left.
_HANDS_OVER = "set_config('mainspring.hands_over', '{}', true)"
_ENDED = ending(also=", t.gate, t.job_slot, t.key_slot", only=f"and (select {_HANDS_OVER.format('on')}) is not null")
_FREED = f"""
    {_ENDED}, freed as materialized (
        select gate, job_id, job_slot, key_slot, concurrency_key as key from ended
         where job_slot is not null or key_slot is not null
    ), clock as materialized (
        select mainspring.now() as now
    )
"""

_LEVELS = f"unnest(array[{', '.join(map(str, PRIORITY_LEVELS))}]::smallint[]) as level(priority)"


def _first(gate: str, most: str, columns: str, lock: str = "") -> str:
    """SQL for the first due tasks at a gate."""
    return f"""
        select waiting.* from {_LEVELS}
         cross join lateral (
             select t.id, t.priority, t.run_at, {columns} from mainspring.task t
              where t.pool = {gate} and t.priority = level.priority and t.state = {PENDING:d}
                and t.run_at <= (select now from clock)
              order by t.run_at, t.id
              limit {most}
              {lock}
         ) waiting
         limit {most}
    """


_HEADS = _first(
    "job_slots.gate",
    "cardinality(job_slots.slots)",
    "t.ctid as place, t.key_given is true as has_key",
    "for update skip locked",
)


# 2. Slots of `max_running` go to the first tasks at the gate, up to the first that has a key of its own. If a slot
#    beyond the limit is held, the limit was lowered and too many run: then none is passed on.
_BY_JOB = f"""
    job_slots as materialized (
        select f.gate, pool.target, array(select slot from unnest(f.slots) slot where slot < max_running) as slots
          from (select gate, job_id, array_agg(job_slot order by job_slot) as slots
                  from freed where job_slot is not null group by gate, job_id) f
          join mainspring.job j on j.id = any (array[f.job_id]) and j.pool = f.gate and j.held is null
          join mainspring.pool pool on pool.id = any (array[f.gate])
         cross join lateral (select {LIMITS} from (select j.definition->'gate' as limits) l) its
         where max_running is not null and template is null and spacing is null
           and not exists (select from mainspring.task t
                            where t.job_id = f.job_id and t.job_slot >= max_running and t.job_slot <> all (f.slots))
    ), by_job as materialized (
        select job_slots.*, found.*, row_number() over first as turn, bool_or(found.has_key) over first as is_behind_key
          from job_slots cross join lateral ({_HEADS}) found
        window first as (partition by job_slots.gate order by found.priority desc, found.run_at, found.id)
    )
"""

# 3. Slots of a key go to the first tasks that are parked for it, of whichever job, each by the limit of its own. A task
#    at the gate that would come first may have the same key, which only the release finds out.
_BY_KEY = f"""
    parked as materialized (
        select f.key, f.slots, found.*, row_number() over first as turn
          from (select key, array_agg(key_slot order by key_slot) as slots
                  from freed where key_slot is not null group by key) f
         cross join lateral (
             select t.ctid as place, t.id, t.priority, t.run_at, t.gate, t.job_id, t.args,
                    t.key_given is true as has_key
               from mainspring.task t
              where t.{IS_PARKED} and t.concurrency_key = f.key
              order by t.priority desc, t.run_at, t.id
              limit cardinality(f.slots)
                for update skip locked) found
        window first as (partition by f.key order by found.priority desc, found.run_at, found.id)
    ), gates as materialized (
        select g.gate, g.job_id, pool.target, j.namespace, {LIMITS},
               first.priority as first_priority, first.run_at as first_run_at, first.id as first_id
          from (select distinct gate, job_id from parked) g
          join mainspring.pool pool on pool.id = any (array[g.gate])
          join mainspring.job j on j.id = any (array[g.job_id]) and j.pool in (pool.id, pool.target)
           and j.held is null
         cross join lateral (select coalesce(j.definition->'gate', '{{}}') as limits) l
          left join lateral ({_first("g.gate", "1", "t.pool")}) first on true
    ), by_key as materialized (
        select parked.*, gates.target
          from parked join gates on gates.gate = parked.gate and gates.job_id = parked.job_id
         where max_running is null and spacing is null and slots[turn::integer] < key_limit
           and run_at <= (select now from clock)
           and (first_id is null or priority > first_priority
                or priority = first_priority and (run_at, id) < (first_run_at, first_id))
           and not exists (select from mainspring.task t
                            where t.concurrency_key = parked.key and t.key_slot >= key_limit
                              and t.key_slot <> all (parked.slots))
           and (has_key or key = mainspring.key_within(namespace, mainspring.fill_key(template, args, defaults)))
    )
"""

# 4. Those of segments that the server owns go to the sessions that it offers for their pool. The others stay pending.
_PLACED = f"""
    going as materialized (
        select place, id, priority, run_at, gate, target, gate as leaves, null::text as key,
               slots[turn::integer] as job_slot, null::smallint as key_slot
          from by_job where not is_behind_key
         union all
        select place, id, priority, run_at, gate, target, {PARKED}, key, null, slots[turn::integer] from by_key
    ), {owned(server="$11")}, offered as materialized (
        select * from unnest($12::integer[], $13::integer[], $14::integer[]) as offered(pool, before, places)
         where not exists (select from mainspring.hold where job_id is null and released_at is null)
    ), numbered as materialized (
        select going.*, offered.before, offered.places, row_number() over (
                   partition by target, {holds("id % 100")} order by priority desc, run_at, id) as turn,
               {holds("id % 100")} as is_ours
          from going left join offered on offered.pool = going.target
    ), placed as materialized (
        select numbered.*, case when is_ours and turn <= places then before + turn end as number,
               case when is_ours and turn <= places then ($15::bigint[])[(before + turn)::integer] end as session
          from numbered
    ), batch as materialized (
        select nextval('mainspring.claim_batch') as batch from placed where session is not null limit 1
    ), noted as (
        insert into mainspring.claim (session, batch, tasks)
        select session, (select batch from batch), array_agg(id) from placed where session is not null group by session
    )
"""

# 5. They move, with their slots. `pool + 0`: a locked row has its ctid, by which the update finds it.
_MOVED = f"""
    moved as (
        update mainspring.task t
           set pool = p.target, gate = p.gate, concurrency_key = p.key, job_slot = p.job_slot, key_slot = p.key_slot,
               run_at = greatest(t.run_at, (select now from clock)),
               state = case when p.session is null then {PENDING:d} else {ARM.target:d} end,
               token = case when p.session is null then t.token
                            else (select batch from batch) * {BATCH_TOKENS} + p.number - 1 end,
               attempt = t.attempt + (p.session is not null)::integer, session = p.session
          from placed p
         where t.ctid = p.place and t.pool + 0 = p.leaves and t.{ARM.leaves}
        returning {COLUMNS}, t.pool, t.gate, t.job_slot, t.key_slot, t.concurrency_key as key
    ), unclaimed as materialized (
        select pool, priority, to_timestamp(run_at) as run_at, id from moved where session is null
    )
"""

# 6. The slots that are left are free: whatever waits for them is woken.
_LEFT = """
    left_free as materialized (
        select distinct gate, max(job_id) as job_id, null::text as key
          from (select gate, job_id, job_slot from freed where job_slot is not null
                 union all
                select gate, null, job_slot from moved where job_slot is not null) of_jobs
         group by gate, job_slot having count(*) = 1
         union all
        select max(gate), max(job_id), key
          from (select gate, job_id, key, key_slot from freed where key_slot is not null
                 union all
                select null, null, key, key_slot from moved where key_slot is not null) of_keys
         group by key, key_slot having count(*) = 1
    )
"""

_FINISH_AND_HAND_OVER = f"""
    with {_FREED}, {_BY_JOB}, {_BY_KEY}, {_PLACED}, {_MOVED}, {_LEFT}
    select moved.*, (select count(*) from ended)::integer as ended, ({hints.due("unclaimed")}) as hints,
           (select count(mainspring.slot_freed(gate, job_id, key)) from left_free) as woken,
           {_HANDS_OVER.format("off")} as hands_over
      from (values (true)) as always left join moved on true
"""
_BEYOND = 9  # columns of a row that no claim has


class HandedOver(NamedTuple):
    ended: list[Ending]
    claim: Claim
    released: list[Released]  # tasks that have a slot and that no session has


async def finish(
    conn: Connection, server: UUID, endings: list[Ending], places: Mapping[int, Sequence[int]]
) -> HandedOver:
    """assigned, running → the state of each ending; then the next tasks get the slots: pending → assigned for those of
    segments of `server` to whose pool `places` gives a session, the others become pending in that pool.

    Each session in `places` gets one task for each time that it is named there.
    """
    sessions = [session for its in places.values() for session in its]
    assert len(sessions) <= BATCH_TOKENS
    counts = [len(its) for its in places.values()]
    before = [sum(counts[:number]) for number in range(len(counts))]
    given = (*await finished(endings), server, list(places), before, counts, sessions)
    rows = await conn.fetch(_FINISH_AND_HAND_OVER, *given)
    claimed = [tuple(row)[:-_BEYOND] for row in rows if row["session"] is not None]
    released = [
        Released(row["pool"], row["priority"], (row["run_at"], row["id"]))
        for row in rows
        if row["id"] is not None and row["session"] is None
    ]
    return HandedOver(await moved(conn, endings, rows[0]["ended"]), as_claim(claimed), released)
