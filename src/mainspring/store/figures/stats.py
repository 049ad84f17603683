"""Stats: counts of live and finished tasks, their lateness, servers, agents, what waits, and maintenance."""

from __future__ import annotations

from typing import Any

from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.waits import why
from mainspring.store.cluster import cluster_views, registry
from mainspring.store.limits.waits import waiting_pools
from mainspring.store.maintenance import chore_log, vacuum
from mainspring.store.postgres.database import Connection

# Since the start of each process that was here within the hour. An agent that reconnects has another session with the
# same count; an agent inside a server's process shares its loop.
_BLOCKED = """
    with agents as (
        select max(blocked) as times, max(blocked_seconds) as seconds, max(process) as process from mainspring.agent
         where lease_until > mainspring.now() - interval '1 hour' group by coalesce(instance, session::text)
    ), loops as (
        select times, seconds from agents
         union all
        select blocked, blocked_seconds from mainspring.server
         where lease_until > mainspring.now() - interval '1 hour'
           and not exists (select from agents where agents.process = server.process)
    )
    select coalesce(sum(times), 0)::integer as times, coalesce(round(sum(seconds)::numeric, 1), 0)::float8 as seconds
      from loops
"""


async def stats(conn: Connection) -> dict[str, Any]:
    """All of it; finished tasks, their lateness and blocked event loops are those of the last hour."""
    live = await conn.fetch("select state, count(*) as tasks from mainspring.task group by state")
    done = await conn.fetch("""
        select state, count(*) as tasks from mainspring.task_history
         where recorded_at > mainspring.now() - interval '1 hour' group by state
    """)
    lateness = await conn.fetchval("""
        select percentile_cont(array[0.5, 0.99, 1])
               within group (order by date_part('epoch', started_at - greatest(run_at, created_at)) * 1000)
          from mainspring.task_history
         where recorded_at > mainspring.now() - interval '1 hour' and attempt = 1 and started_at is not null
    """)
    agents = [agent for agent in await registry.listing(conn) if agent.status in ("active", "draining")]
    cluster = await cluster_views.summary(conn)
    return {
        "live": {TaskState(row["state"]).label: row["tasks"] for row in live},
        "last_hour": {TaskState(row["state"]).label: row["tasks"] for row in done},
        "lateness_ms": lateness and dict(zip(("p50", "p99", "max"), (round(ms, 3) for ms in lateness), strict=True)),
        "blocked": dict(await conn.fetchrow(_BLOCKED)),
        "servers": cluster.servers,
        "leader": cluster.leader,
        "agents": [{"name": a.name, "session": a.session, "slots": a.slots, "holds": a.holds} for a in agents],
        "waiting": await _waiting(conn),
        "maintenance": await chore_log.listing(conn),
        "tables": [table._asdict() for table in await vacuum.tables(conn)],
    }


async def _waiting(conn: Connection) -> list[dict[str, Any]]:
    """Due tasks that no agent takes, and why."""
    there = await registry.loaded(conn)
    return [
        {"jobs": waiting.jobs, "tasks": waiting.tasks, "code": wait.code, "reason": wait.reason}
        for waiting in await waiting_pools(conn)
        if (wait := why(waiting.requirements, there)) is not None
    ]
