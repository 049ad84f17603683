"""Hints: the NOTIFY payloads that make servers look at once. A lost hint costs time only: polling finds what it said.

    due                         tasks may be due in any pool
    due POOL PRIORITY AT ID     tasks became pending in this pool, the first of them at this position
    gate                        tasks may pass any gate
    gate POOL                   a task reached this gate, or one of its slots is free

The position matters: claims start from a floor (model/tasks/claim_floors.py), and a task that becomes pending again
usually lies below it, often in a segment of another server. So every statement that makes tasks pending sends it.
The other payloads are single words: see server/server.py.
Next: server/cluster/listener.py
"""

from __future__ import annotations

CHANNEL = "mainspring"
SOON = 1.0  # seconds; tasks that become due later lie above all floors, and polling arms them ahead of their time


def due(source: str, run_at: str = "run_at") -> str:
    """SQL that sends `due` for the first task of each pool and priority in `source`; returns how many hints.

    `source` is a CTE with pool, priority, id and the column `run_at`. Blocked tasks (a pool below 0) are left out.
    """
    return f"""
        select count(pg_notify('{CHANNEL}', format('due %s %s %s %s', pool, priority, extract(epoch from at), id)))
          from (select distinct on (pool, priority) pool, priority, {run_at} as at, id from {source}
                 where pool > 0 and {run_at} <= (select mainspring.now()) + make_interval(secs => {SOON})
                 order by pool, priority, {run_at}, id) first
    """
