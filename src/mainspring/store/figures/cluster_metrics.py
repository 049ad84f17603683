"""Cluster metrics: what belongs to the whole cluster, in a few statements that cost the same whatever is stored.

Next: api/metering/cluster_metrics.py
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from mainspring.model.metrics.metrics import JOBS, OTHER
from mainspring.model.tasks.states import LIVE, PENDING
from mainspring.store.cluster import holds, registry
from mainspring.store.cluster.cluster_views import STATUS
from mainspring.store.figures.waiting import by_code, waiting
from mainspring.store.maintenance import vacuum
from mainspring.store.postgres.database import Connection
from mainspring.store.postgres.rows import views

COUNTED_WITHIN = 60.0  # seconds that the leader's count of the queues is believed


class QueueDepth(msgspec.Struct, frozen=True):
    """The due tasks of a job that no agent holds; one of these stands for all jobs beyond the first JOBS."""

    job: str
    due: int
    age: float  # seconds since the oldest was due


class ClusterFigures(msgspec.Struct, frozen=True):
    """As of one moment. Counts of waiting tasks stop at 1,000 for each pool."""

    created: int | None  # tasks, ever; None: this role of PostgreSQL may not read the sequence
    refused: int | None  # submissions, ever, by full queues; None likewise
    segments: dict[UUID, int]  # by living owner
    unowned: int  # segments
    busy: int  # slots of all agents, by their last heartbeats
    slots: int
    waiting: dict[str, int]  # due tasks that no agent holds, by code
    held: dict[str, int]  # holds: of a job, of all
    dead_rows: dict[str, int]  # by table
    tasks: dict[str, int] | None  # live ones by state; None: not counted of late, for there is no leader
    queues: list[QueueDepth]


_EVER = """
    select case when has_sequence_privilege('mainspring.{0}', 'select, usage')
                then coalesce(pg_sequence_last_value('mainspring.{0}'), 0) end
"""
_SEGMENTS = f"""
    select case when {STATUS} in ('active', 'draining') then s.id end as owner, count(*) as segments
      from mainspring.segment g left join mainspring.server s on s.id = g.owner
     group by 1
"""


_TASKS = f"""
    select q.state, sum(q.tasks)::bigint as tasks
      from mainspring.queue_count c left join mainspring.queue_figure q on true
     where c.counted_at > (select mainspring.now()) - make_interval(secs => {COUNTED_WITHIN:g})
     group by q.state
"""
_QUEUES = f"""
    with due as (
        select job_id, sum(due) as due, min(oldest) as oldest,
               row_number() over (order by sum(due) desc, job_id) <= {JOBS} as is_named
          from mainspring.queue_figure where state = {PENDING:d} and due > 0 group by job_id
    )
    select coalesce(case when due.is_named then j.name end, '{OTHER}') as job, sum(due.due)::bigint as due,
           max(extract(epoch from (select mainspring.now()) - due.oldest))::float8 as age
      from due left join mainspring.job j on j.id = due.job_id
     group by 1
"""


async def _tasks(conn: Connection) -> dict[str, int] | None:
    rows = await conn.fetch(_TASKS)
    if not rows:
        return None
    counted = {row["state"]: row["tasks"] for row in rows}
    return {state.label: counted.get(state, 0) for state in sorted(LIVE)}


async def read(conn: Connection) -> ClusterFigures:
    agents = await registry.heard(conn)
    segments = {row["owner"]: row["segments"] for row in await conn.fetch(_SEGMENTS)}
    unowned = segments.pop(None, 0)
    tasks = await _tasks(conn)
    held = await holds.load(conn)
    return ClusterFigures(
        created=await conn.fetchval(_EVER.format("task_id")),
        refused=await conn.fetchval(_EVER.format("queue_full")),
        segments=segments,
        unowned=unowned,
        busy=sum(min(agent.due, agent.slots) for agent in agents),
        slots=sum(agent.slots for agent in agents),
        waiting=by_code(await waiting(conn), agents),
        held={"job": len(held.held_jobs), "all": int(held.stops_all)},
        dead_rows={table.table: table.dead for table in await vacuum.tables(conn)},
        tasks=tasks,
        queues=[] if tasks is None else views(QueueDepth, await conn.fetch(_QUEUES)),
    )
