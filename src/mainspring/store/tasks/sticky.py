"""Sticky claims: tasks with an equal argument go to the same agent, as long as it lives and has room.

Rendezvous hashing: each agent has a hash of its name and the argument, and the highest gets the task. An agent that
leaves moves only its own tasks. The agents of other servers compete too, so that all servers find the same winner; a
task that one of those wins is left to its server for a moment.
Next: store/tasks/claims.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from mainspring.model.tasks.claim_floors import Floor
from mainspring.model.tasks.states import ARM, PENDING
from mainspring.store.cluster.holds import ON_HOLD, is_not_held, most
from mainspring.store.cluster.segments import holds, owned_or_shared
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.claims import BATCH_TOKENS, COLUMNS, LEVELS, NOTED, Claim, as_claim


class Contest(NamedTuple):
    """The agents that compete for tasks, and by which argument."""

    argument: str
    agents: list[tuple[str, int | None, int]]  # name; session and room of this server's own
    courtesy: float  # seconds that a due task is left to an agent of another server


# As the plain claim, except that each row gets its winner before it is locked: tasks that other servers' agents win
# stay unlocked. No session takes more than it has room for; what it leaves, the next claim finds. A task without the
# argument is hashed by its id.
_CLAIM = f"""
    with {owned_or_shared(server="$12", pool="$1")}, {ON_HOLD}, due as materialized (
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
                and t.state = {PENDING:d} and {holds("t.id % 100")} and {is_not_held("t.")}
                and winner.session is not null
              order by t.run_at, t.id
              limit {most("$6")}
                for no key update of t skip locked
         ) found
         limit $6
    ), placed as materialized (
        select place, id, session, row_number() over (order by number) - 1 as turn
          from (select *, row_number() over (partition by session order by number) as share from due) shared
         where share <= room
         order by number
    ), {NOTED}
    update mainspring.task t
       set {ARM.enters}, token = (select batch from number) * {BATCH_TOKENS} + placed.turn, attempt = attempt + 1,
           session = placed.session
      from placed
     where t.ctid = placed.place and t.{ARM.leaves}     -- a locked row keeps its place
    returning {COLUMNS}
"""


async def claim(
    conn: Connection,
    server: UUID,
    pool: int,
    contest: Contest,
    limit: int,
    floors: Sequence[Floor],
    *,
    ahead: float,
    levels: Sequence[int] = LEVELS,
) -> Claim:
    """Give up to `limit` tasks of `pool`, due within `ahead` seconds, to the agents of this server that win them."""
    assert limit <= BATCH_TOKENS
    names, sessions, rooms = zip(*contest.agents, strict=True)
    return as_claim(
        await conn.fetch(
            _CLAIM,
            pool,
            levels,
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
