"""Kinds about tasks that wait: queue_age, queue_full, unrunnable.

From the counts of the leader, and from one probe for each pool: they cost the same however many tasks wait.
Next: store/alerts/kinds/fleet.py
"""

from __future__ import annotations

from datetime import timedelta

from mainspring.model.alerts.findings import Finding, Found, Look
from mainspring.model.alerts.kinds import After, Parameters
from mainspring.model.tasks.states import BLOCKED, PENDING
from mainspring.model.tasks.waits import why
from mainspring.store.cluster import registry
from mainspring.store.figures.waiting import waiting
from mainspring.store.postgres.connection import Connection

HELD = "refused, and none starts, because of a hold: `mainspring hold --list` shows it, and `release` ends it"
SETTLING = 5.0  # seconds for an agent that can run a task to join

_COUNTED = "(select counted_at from mainspring.queue_count) > (select mainspring.now()) - interval '1 minute'"
_OLD = f"""
    select j.name, q.due, q.oldest, extract(epoch from $1::timestamptz - q.oldest)::float8 as age
      from mainspring.queue_figure q join mainspring.job j on j.id = q.job_id
     where q.state = {PENDING:d} and q.due > 0 and q.oldest < $1::timestamptz - $3::interval and {_COUNTED}
       and ($2::text[] is null or j.name like any($2))
     order by j.name
"""


async def queue_age(conn: Connection, look: Look[After]) -> Found:
    """Jobs whose oldest due task has waited for too long."""
    rows = await conn.fetch(_OLD, look.until, look.names, timedelta(seconds=look.parameters.after))
    return Found(
        [
            Finding(
                subject=f"job:{name}",
                job=name,
                message=f"{due:,} due task{'s' * (due != 1)} of {name} wait{'s' * (due == 1)}, the oldest for "
                f"{age:,.0f} s; `mainspring task list --job {name}` shows what for",
                since=oldest + timedelta(seconds=look.parameters.after),
                details={"due": due, "oldest": oldest.isoformat(), "age": round(age, 1)},
            )
            for name, due, oldest, age in rows
        ]
    )


_FULL = f"""
    with counted as (
        select q.job_id, sum(q.tasks)::bigint as waiting from mainspring.queue_figure q
         where q.state in ({BLOCKED:d}, {PENDING:d}) and {_COUNTED} group by q.job_id
    )
    select j.name, c.waiting, j.max_queued::bigint as bound,
           exists (select from mainspring.hold h
                    where h.released_at is null and (h.job_id = j.id or h.job_id is null)) as is_held
      from counted c join mainspring.job j on j.id = c.job_id
     where c.waiting >= j.max_queued and ($1::text[] is null or j.name like any($1))
     union all
    select null, (select sum(waiting)::bigint from counted), (s.value#>>'{{}}')::bigint,
           exists (select from mainspring.hold h where h.released_at is null and h.job_id is null)
      from mainspring.setting s
     where s.name = 'max_queued' and (select sum(waiting) from counted) >= (s.value#>>'{{}}')::bigint
     order by 1
"""


async def queue_full(conn: Connection, look: Look[Parameters]) -> Found:
    """Jobs with as many waiting tasks as they may have; and the cluster, if all jobs together do."""
    rows = await conn.fetch(_FULL, look.names)
    return Found(
        [
            Finding(
                subject="cluster" if name is None else f"job:{name}",
                job=name,
                message=f"{waiting:,} of at most {bound:,} tasks of {name or 'all jobs'} wait: submissions are "
                + (HELD if is_held else "refused; start more agents, or raise max_queued"),
                since=look.until,
                details={"waiting": waiting, "limit": bound},
            )
            for name, waiting, bound, is_held in rows
        ]
    )


async def unrunnable(conn: Connection, look: Look[Parameters]) -> Found:
    """Jobs with due tasks that none of the agents can run. Without any agent it is `no_agents`."""
    agents = await registry.heard(conn)
    findings: dict[str, Finding] = {}
    for pool in await waiting(conn) if agents else ():
        wait = None if pool.requirements is None else why(pool.requirements, agents)
        if wait is None or not wait.is_unrunnable or pool.age < SETTLING:
            continue
        for job in pool.jobs:
            findings[job] = Finding(
                subject=f"job:{job}",
                job=job,
                message=f"due tasks of {job} cannot run: {wait.reason}",
                since=pool.oldest,
                details={"code": wait.code},
            )
    if findings and look.names is not None:
        rows = await conn.fetch(
            "select job from unnest($1::text[]) as j(job) where job like any($2)", list(findings), look.names
        )
        findings = {row["job"]: findings[row["job"]] for row in rows}
    return Found(list(findings.values()))
