"""Parents: what became of the tasks that claimed tasks ran after; the graph around a task.

Reads   mainspring.task, mainspring.task_history, mainspring.dependent
Next:   server/dispatch/arming.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Raw, Struct

from mainspring.model.flows.parents import MOST_TOLD, UNKNOWN, Outcome, told
from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection

# A task that was retried by hand is live again. Sizes are as stored, compressed: no result is read to be left out.
_OUTCOMES = f"""
    with ended as materialized (
        select h.id, h.job_id, h.state, h.error_code, h.result, coalesce(pg_column_size(h.result), 4) as size
          from mainspring.task_history h where h.id = any($3::bigint[])
    ), live as materialized (
        select t.id, t.job_id, t.state from mainspring.task t where t.id = any($3::bigint[])
    ), edge as (
        select given.child, given.parent, coalesce(live.state, ended.state) as state,
               coalesce(live.job_id, ended.job_id) as job_id, ended.error_code, ended.result,
               sum(ended.size) over (partition by given.child) as size
          from unnest($1::bigint[], $2::bigint[]) as given(child, parent)
          left join live on live.id = given.parent
          left join ended on ended.id = given.parent and live.id is null
    )
    select edge.child, edge.parent, edge.state, j.name, edge.error_code,
           case when edge.size <= {MOST_TOLD} then coalesce(edge.result, 'null'::jsonb) end as result
      from edge left join mainspring.job j on j.id = edge.job_id
"""


async def outcomes(conn: Connection, parents: Mapping[int, Sequence[int]]) -> dict[int, str]:
    """For each of these tasks what became of its parents, as JSON (model/flows/parents.py)."""
    pairs = [(child, parent) for child, its in parents.items() for parent in its]
    children, of_each = [child for child, _ in pairs], [parent for _, parent in pairs]
    found: dict[int, list[Outcome]] = {child: [] for child in parents}
    for child, parent, state, job, error_code, result in await conn.fetch(
        _OUTCOMES, children, of_each, sorted(set(of_each))
    ):
        if state is None:
            outcome = Outcome(parent, None, UNKNOWN, None, Raw(b"null"))
        elif result is None:
            outcome = Outcome(parent, job, TaskState(state).label, error_code)
        else:
            outcome = Outcome(parent, job, TaskState(state).label, error_code, Raw(result.encode()))
        found[child].append(outcome)
    return {child: told(its) for child, its in found.items()}


# ── the graph around a task ─────────────────────────────────────────────────────────────────────

MOST_SHOWN = 100  # parents, and children
MOST_COUNTED = 10_000  # children


class Related(Struct, frozen=True):
    """A parent or a child of a task. Of one that retention has dropped the state is `unknown`."""

    id: int
    job: str | None
    state: str
    error_code: str | None = None


class Graph(Struct, frozen=True):
    """The tasks that a task runs after, and those that run after it: the first of each, and how many there are."""

    parents: list[Related]
    children: list[Related]
    parents_count: int
    children_count: int  # up to 10,000


_CHILDREN = f"""
    select array(select d.child from mainspring.dependent d where d.parent = $1 order by d.child limit {MOST_SHOWN}),
           (select count(*) from (select from mainspring.dependent d where d.parent = $1 limit {MOST_COUNTED}) counted)
"""
_RELATED = """
    select found.id, j.name, found.state, found.error_code
      from (select t.id, t.job_id, t.state, null::text as error_code from mainspring.task t
             where t.id = any($1::bigint[])
            union all
            select t.id, t.job_id, t.state, t.error_code from mainspring.task_history t
             where t.id = any($1::bigint[])) found
      left join mainspring.job j on j.id = found.job_id
"""


async def graph(conn: Connection, task: int, parents: Sequence[int]) -> Graph:
    """Around a task that was submitted to run after `parents`."""
    children, count = await conn.fetchrow(_CHILDREN, task)
    shown = sorted(parents)[:MOST_SHOWN]
    found = await related(conn, [*shown, *children])
    return Graph(found[: len(shown)], found[len(shown) :], len(parents), count)


async def related(conn: Connection, ids: Sequence[int]) -> list[Related]:
    """These tasks, in this order."""
    found = {
        id: Related(id, job, TaskState(state).label, error_code)
        for id, job, state, error_code in await conn.fetch(_RELATED, ids)
    }
    return [found.get(id, Related(id, None, UNKNOWN)) for id in ids]
