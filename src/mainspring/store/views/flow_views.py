"""Flow views: the whole flow that a task is part of, and what runs after what among the tasks of a batch.

Reads   mainspring.dependent, mainspring.task, mainspring.task_history; up to 200 tasks, whatever there is
"""

from __future__ import annotations

from msgspec import Struct

from mainspring.store.postgres.connection import Connection
from mainspring.store.views.parents import Related, related

MOST_TASKS = 200
MOST_EDGES = 2000


class Edge(Struct, frozen=True):
    """A task that runs after another."""

    parent: int
    child: int


class FlowView(Struct, frozen=True):
    tasks: list[Related]  # by id
    edges: list[Edge]
    is_whole: bool  # False: there are more tasks than these


# Breadth first from the task, both ways; the limit ends the recursion.
_OF_TASK = f"""
    with recursive reached(id) as (
        select $1::bigint
        union
        select next.id
          from reached cross join lateral (
               select d.child as id from mainspring.dependent d where d.parent = reached.id
               union all
               select parent.id::bigint
                 from (select t.options from mainspring.task t where t.id = reached.id
                       union all
                       select h.options from mainspring.task_history h where h.id = reached.id) own
                cross join lateral jsonb_array_elements_text(own.options->'parents') as parent(id)) next
    )
    select id from reached limit {MOST_TASKS + 1}
"""
_OF_BATCH = f"""
    (select id from mainspring.task where batch_id = $1 order by id limit {MOST_TASKS + 1})
    union
    (select id from mainspring.task_history where batch_id = $1 order by id limit {MOST_TASKS + 1})
    order by id limit {MOST_TASKS + 1}
"""
_EDGES = f"""
    select parent, child from mainspring.dependent
     where parent = any($1::bigint[]) and child = any($1::bigint[]) order by parent, child limit {MOST_EDGES}
"""


async def of_task(conn: Connection, task: int) -> FlowView:
    """The task, all that it runs after, all that runs after it, and so on: those nearest to it."""
    return await _flow(conn, _OF_TASK, task)


async def of_batch(conn: Connection, batch: int) -> FlowView:
    """The first tasks of a batch."""
    return await _flow(conn, _OF_BATCH, batch)


async def _flow(conn: Connection, statement: str, id: int) -> FlowView:
    found = [row["id"] for row in await conn.fetch(statement, id)]
    ids = sorted(found[:MOST_TASKS])
    edges = [Edge(*row) for row in await conn.fetch(_EDGES, ids)]
    return FlowView(await related(conn, ids), edges, len(found) <= MOST_TASKS)
