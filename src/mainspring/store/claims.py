"""Claims: pending → assigned, in batches, in the order of priority and time.

A claim walks the index from a floor that its caller remembers: below it lie the dead entries of what was
claimed before, which stay as long as somebody's old snapshot does.
Next: server/dispatcher.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mainspring.model.floors import Floor
from mainspring.model.jobs import PRIORITY_LEVELS
from mainspring.model.messages import Armed
from mainspring.store.database import Connection

# One index descent per priority level, which stops as soon as there are enough. The rows take the sessions
# in order. FOR UPDATE SKIP LOCKED and the state in the last WHERE make each row one claimer's; `state + 0`
# keeps the planner on the primary key, whatever it thinks of the table.
_CLAIM = """
    with due as materialized (
        select found.id
          from unnest($2::smallint[], $3::float8[], $4::bigint[]) as level(priority, floor_at, floor_id)
         cross join lateral (
             select id from mainspring.task
              where state = 1 and pool = $1 and priority = level.priority
                and (run_at, id) >= (to_timestamp(level.floor_at), level.floor_id)
                and run_at <= (select mainspring.now()) + make_interval(secs => $5)
              order by run_at, id
              limit cardinality($6::bigint[])
                for update skip locked
         ) found
         limit cardinality($6::bigint[])
    ), placed as (
        select id, row_number() over () as slot from due
    )
    update mainspring.task t
       set state = 2, token = nextval('mainspring.attempt_token'), session = ($6::bigint[])[placed.slot],
           attempt = attempt + 1
      from placed
     where t.id = placed.id and t.state + 0 = 1
    returning t.id, t.token, t.job_id, t.attempt, extract(epoch from t.run_at)::float8 as run_at,
              t.args, t.checkpoint, t.crashes, t.priority, t.session
"""

_LEVELS = list(PRIORITY_LEVELS)


class Claim(NamedTuple):
    armed: Armed
    priority: int
    session: int


async def claim(
    conn: Connection, pool: int, sessions: Sequence[int], floors: Sequence[Floor], *, ahead: float
) -> list[Claim]:
    """Give the first tasks of `pool`, due within `ahead` seconds, to `sessions`, one each in order.

    `floors` has one lower bound per priority level, in the order of PRIORITY_LEVELS.
    """
    rows = await conn.fetch(
        _CLAIM, pool, _LEVELS, [at for at, _ in floors], [id for _, id in floors], ahead, sessions
    )
    return [
        Claim(Armed(task, token, job, attempt, run_at, args, checkpoint, crashes > 0), priority, session)
        for task, token, job, attempt, run_at, args, checkpoint, crashes, priority, session in rows
    ]


_RECALL = """
    with given as (select * from unnest($1::bigint[], $2::bigint[]) as given(id, token))
    update mainspring.task t
       set state = 1, session = null, started_at = null, attempt = attempt - 1
      from given
     where t.id = given.id and t.token = given.token and t.state + 0 = 2
    returning t.id
"""


async def give_back(conn: Connection, tasks: Sequence[int], tokens: Sequence[int]) -> int:
    """assigned → pending for tasks that never started: costs no attempt. Returns how many moved."""
    return len(await conn.fetch(_RECALL, tasks, tokens))


_STRAGGLERS = """
    select level.priority, extract(epoch from found.run_at)::float8 as run_at, found.id
      from unnest($2::smallint[], $3::float8[], $4::bigint[]) as level(priority, floor_at, floor_id)
     cross join lateral (
         select run_at, id from mainspring.task
          where state = 1 and pool = $1 and priority = level.priority
            and (run_at, id) < (to_timestamp(level.floor_at), level.floor_id)
          order by run_at, id
          limit 1
     ) found
"""


async def stragglers(conn: Connection, pool: int, floors: Sequence[Floor]) -> list[tuple[int, Floor]]:
    """The first pending task below the floor of each level, if any: (priority, position)."""
    rows = await conn.fetch(_STRAGGLERS, pool, _LEVELS, [at for at, _ in floors], [id for _, id in floors])
    return [(priority, (run_at, id)) for priority, run_at, id in rows]
