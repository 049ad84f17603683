"""Sticky claims: tasks with an equal argument go to the same agent, as long as it is there and has room.

Rendezvous hashing: each agent has a hash of its name and the argument, and the highest takes the task. An agent
that leaves moves its own tasks and nobody else's. The agents of other servers compete, so that all servers come to
the same winner; what one of them wins is left to its server for a moment.
Next: server/dispatch/placement.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from mainspring.model.tasks.claim_floors import Floor
from mainspring.store.cluster.segments import holds, owned_or_open
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.claims import BATCH_TOKENS, LEVELS, NOTED, TAKE, Claim, as_claim


class Contest(NamedTuple):
    """Who competes for tasks, by which argument."""

    argument: str
    agents: list[tuple[str, int | None, int]]  # name; session and room of those who are ours
    courtesy: float  # seconds that a due task is left to an agent that is not ours


# As the plain claim, except that each row names its winner, before it is locked: what others win is not touched. No
# session takes more than it has room; what it had to leave goes to the next in order with the next claim. A task
# without the argument goes by its number, to anybody.
_CLAIM = f"""
    with {owned_or_open(server="$12", pool="$1")}, due as materialized (
        select found.ctid as place, found.id, found.session, found.room, row_number() over () as number
          from unnest($2::smallint[], $3::float8[], $4::bigint[]) as level(priority, floor_at, floor_id)
         cross join lateral (
             select t.ctid, t.id, winner.session, winner.room
               from mainspring.task t
              cross join lateral (
                  select agent.session, agent.room
                    from unnest($7::text[], $8::bigint[], $9::integer[]) as agent(name, session, room)
                   where agent.session is not null
                      or t.run_at > (select mainspring.now()) - make_interval(secs => $11)
                   order by hashtextextended(coalesce(t.args->>$10::text, t.id::text),
                                             hashtextextended(agent.name, 0)) desc, agent.session
                   limit 1
              ) winner
              where t.pool = $1 and t.priority = level.priority
                and (t.run_at, t.id) >= (to_timestamp(level.floor_at), level.floor_id)
                and t.run_at <= (select mainspring.now()) + make_interval(secs => $5)
                and t.state = 1 and {holds("t.id % 100")}
                and winner.session is not null
              order by t.run_at, t.id
              limit $6
                for no key update of t skip locked
         ) found
         limit $6
    ), placed as materialized (
        select place, id, session, row_number() over (order by number) - 1 as turn
          from (select *, row_number() over (partition by session order by number) as share from due) shared
         where share <= room
         order by number
    ), {NOTED}
    {TAKE}
"""


async def claim(
    conn: Connection, server: UUID, pool: int, contest: Contest, limit: int, floors: Sequence[Floor], *, ahead: float
) -> Claim:
    """Give up to `limit` tasks of `pool`, due within `ahead` seconds, to those of ours who win them."""
    assert limit <= BATCH_TOKENS
    names, sessions, rooms = zip(*contest.agents, strict=True)
    return as_claim(
        await conn.fetch(
            _CLAIM,
            pool,
            LEVELS,
            [at for at, _ in floors],
            [id for _, id in floors],
            ahead,
            limit,
            names,
            sessions,
            rooms,
            contest.argument,
            contest.courtesy,
            server,
        )
    )


_LEFT = f"""
    with {owned_or_open(server="$5", pool="$1")}
    select level.priority, date_part('epoch', found.run_at) as run_at, found.id
      from unnest($2::smallint[], $3::float8[], $4::bigint[]) as level(priority, floor_at, floor_id)
     cross join lateral (
         select run_at, id from mainspring.task
          where pool = $1 and priority = level.priority
            and (run_at, id) >= (to_timestamp(level.floor_at), level.floor_id)
            and state = 1 and {holds("id % 100")}
          order by run_at, id
          limit 1
     ) found
"""


async def left(conn: Connection, server: UUID, pool: int, floors: Sequence[Floor]) -> list[tuple[int, Floor]]:
    """The first pending task from the floor of each level on, if any: what a sticky claim had to leave lies there."""
    rows = await conn.fetch(_LEFT, pool, LEVELS, [at for at, _ in floors], [id for _, id in floors], server)
    return [(priority, (run_at, id)) for priority, run_at, id in rows]
