"""Gating: tasks that were there before their job got limits, or was held, move to its gate, part by part.

A registration or a hold only marks the gate (store/tasks/jobs.py): a job may have a million tasks, and the start of an
application does not wait for them. The leader then walks over the live tasks in short statements. Waiting tasks move; a
task that an agent holds keeps running, and returns to the gate if it is retried. The mark is removed when a walk has
found no such task, and no transaction that may add one without knowing the gate was open when the walk began.
Reads   mainspring.job
Writes  mainspring.task, mainspring.pool
Next:   store/limits/release.py
"""

from __future__ import annotations

from typing import NamedTuple

from mainspring.model.tasks.states import IS_WAITING, PENDING
from mainspring.store.postgres.database import Connection


class Marks(NamedTuple):
    """The marks that there are."""

    newest: int  # transaction that marked a gate; 0: there is none
    settled: int  # transactions before this one have ended


_MARKS = """
    select coalesce(max(gating_since::text::bigint), 0), pg_snapshot_xmin(pg_current_snapshot())::text::bigint
      from mainspring.pool where gating_since is not null
"""


async def marks(conn: Connection) -> Marks:
    return Marks(*await conn.fetchrow(_MARKS))


class Walked(NamedTuple):
    found: int  # tasks without their gate
    moved: int  # of those; another transaction has locked the others
    last: int | None  # the id to continue after; None: all tasks were read


# The sign keeps a blocked task blocked. `gate` is set in tasks that have passed their gate: while their job is held,
# those that no agent has return there, and give up their slots. The runs of a broadcast have no gate.
_WALK = f"""
    with part as materialized (
        select t.ctid as place, t.id, t.job_id, t.pool, t.gate, t.state from mainspring.task t
         where t.id > $1 and t.parent_id is null order by t.id limit $2
    ), strays as materialized (
        select part.place, gate.id as gate
          from part
          join mainspring.job j on j.id = any (array[part.job_id])
          join mainspring.pool gate on gate.id = any (array[j.pool]) and gate.gating_since is not null
         where abs(part.pool) = gate.target
           and (part.gate is null
                or part.state = {PENDING:d} and exists (select from mainspring.hold h
                                                         where h.job_id = j.id and h.released_at is null))
    ), locked as materialized (
        select t.ctid as place, strays.gate, t.gate as passed, t.job_id,
               t.job_slot is not null or t.key_slot is not null as has_slots,
               case when t.key_slot is not null then t.concurrency_key end as held_key
          from strays join mainspring.task t on t.ctid = strays.place
           for update of t skip locked
    ), moved as (
        update mainspring.task t
           set pool = case when t.{IS_WAITING} then sign(t.pool)::integer * locked.gate else t.pool end,
               gate = case when not t.{IS_WAITING} then locked.gate end, job_slot = null, key_slot = null
          from locked
         where t.ctid = locked.place and (t.gate is null or t.state = {PENDING:d} and t.gate = locked.passed)
        returning t.id
    )
    select (select count(*) from strays)::integer, (select count(*) from moved)::integer,
           (select max(id) from part having count(*) = $2),
           (select count(mainspring.slot_freed(locked.passed, locked.job_id, locked.held_key))
              from locked where locked.has_slots)
"""


async def walk(conn: Connection, after: int, limit: int) -> Walked:
    """Move the tasks without their gate among the next `limit` live tasks after the id `after`."""
    found, moved, last, _ = await conn.fetchrow(_WALK, after, limit)
    return Walked(found, moved, last)


async def settle(conn: Connection, before: int) -> None:
    """Remove the marks of transactions before this one: a walk that began after they ended has found nothing."""
    await conn.execute("update mainspring.pool set gating_since = null where gating_since::text::bigint < $1", before)
