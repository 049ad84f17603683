"""The kind daemon_down: daemons with fewer replicas up than they should have.

Next: store/daemons/daemon_views.py
"""

from __future__ import annotations

from mainspring.model.alerts.findings import Finding, Found, Look
from mainspring.model.alerts.kinds import Parameters
from mainspring.model.tasks.states import RUNNING
from mainspring.store.postgres.connection import Connection

# With a health check, a replica is up once that succeeds.
_DOWN = f"""
    select s.name, j.name as job, s.expression::integer as wanted, up.count as up
      from mainspring.schedule s
      join mainspring.job j on j.id = s.job_id
     cross join lateral (
         select count(*) from mainspring.task t
          where t.schedule_id = s.id and t.origin = 'daemon' and t.state = {RUNNING:d} and t.cancel_at is null
            and (t.healthy or not j.definition ? 'health')) up
     where s.kind = 'daemon' and s.enabled and s.expression ~ '^[0-9]{{1,9}}$' and up.count < s.expression::integer
       and ($1::text[] is null or s.name like any($1))
     order by s.name
"""


async def daemon_down(conn: Connection, look: Look[Parameters]) -> Found:
    rows = await conn.fetch(_DOWN, look.names)
    return Found(
        [
            Finding(
                subject=f"daemon:{name}",
                job=job,
                message=f"daemon {name} has {up} of {wanted} replicas up; `mainspring daemon show {name}` says why",
                since=look.until,
                details={"up": up, "wanted": wanted},
            )
            for name, job, wanted, up in rows
        ]
    )
