"""Cluster metrics: what belongs to the whole cluster, in a few statements that cost the same whatever is stored.

Next: operations/metrics.py
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from mainspring.store.cluster import registry
from mainspring.store.cluster.cluster_views import STATUS
from mainspring.store.figures.waiting import by_code, waiting
from mainspring.store.maintenance import vacuum
from mainspring.store.postgres.database import Connection


class ClusterFigures(msgspec.Struct, frozen=True):
    """As of one moment. Counts of waiting tasks stop at 1,000 for each pool."""

    created: int | None  # tasks, ever; None: this role of PostgreSQL may not read the sequence
    segments: dict[UUID, int]  # by living owner
    unowned: int  # segments
    busy: int  # slots of all agents, by their last heartbeats
    slots: int
    waiting: dict[str, int]  # due tasks that no agent holds, by code
    dead_rows: dict[str, int]  # by table


_CREATED = """
    select case when has_sequence_privilege('mainspring.task_id', 'select, usage')
                then coalesce(pg_sequence_last_value('mainspring.task_id'), 0) end
"""
_SEGMENTS = f"""
    select case when {STATUS} in ('active', 'draining') then s.id end as owner, count(*) as segments
      from mainspring.segment g left join mainspring.server s on s.id = g.owner
     group by 1
"""


async def read(conn: Connection) -> ClusterFigures:
    agents = await registry.heard(conn)
    segments = {row["owner"]: row["segments"] for row in await conn.fetch(_SEGMENTS)}
    unowned = segments.pop(None, 0)
    return ClusterFigures(
        created=await conn.fetchval(_CREATED),
        segments=segments,
        unowned=unowned,
        busy=sum(min(agent.due, agent.slots) for agent in agents),
        slots=sum(agent.slots for agent in agents),
        waiting=by_code(await waiting(conn), agents),
        dead_rows={table.table: table.dead for table in await vacuum.tables(conn)},
    )
