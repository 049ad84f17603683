"""What tasks at a gate, or aside in a lane, wait for.

Next: model/tasks/waits.py
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mainspring.model.limits.limits import Rate, plain_key
from mainspring.model.tasks.waits import Limited, Wait, why_limited
from mainspring.store.limits.release import LANE, LIMITS
from mainspring.store.postgres.database import Connection

_WAITING = f"""
    select t.id, t.key, t.key_limit, t.max_running, t.rate,
           (select count(*) from mainspring.task r where r.job_id = t.job_id and r.job_slot is not null) as running,
           array(select r.id from mainspring.task r
                  where r.concurrency_key = t.key and r.key_slot is not null order by r.id) as holders,
           (select date_part('epoch', th.until - mainspring.now()) - t.spacing * (t.burst - 1)
              from mainspring.throttle th
             where th.job_id = t.job_id and th.key = case when t.per_key then t.key else '' end) as next_in
      from (select t.id, t.job_id, l.limits->'rate' as rate, {LIMITS},
                   case when t.key_given then t.concurrency_key
                        else mainspring.key_within(j.namespace, mainspring.fill_key(
                            l.limits->>'key', t.args, coalesce(l.limits->'defaults', '{{}}'))) end as key
              from mainspring.task t join mainspring.job j on j.id = t.job_id
             cross join lateral (select coalesce(j.definition->'gate', '{{}}') as limits) l
             where t.id = any($1::bigint[]) and t.state = 1 and t.run_at <= mainspring.now()
               and (t.pool = {LANE} or exists (select from mainspring.pool p
                                                where p.id = t.pool and p.target is not null))) t
"""


async def waits(conn: Connection, tasks: Sequence[int]) -> dict[int, Wait]:
    """Of those of `tasks` that are due and have not passed their gate: what they wait for."""
    found = {}
    for row in await conn.fetch(_WAITING, tasks):
        limited = Limited(
            key=None if row["key"] is None else plain_key(row["key"]),
            key_limit=row["key_limit"],
            holders=row["holders"],
            max_running=row["max_running"],
            running=row["running"],
            rate=None if row["rate"] is None else msgspec.json.decode(row["rate"], type=Rate),
            next_in=row["next_in"],
        )
        wait = why_limited(limited)
        if wait is not None:
            found[row["id"]] = wait
    return found
