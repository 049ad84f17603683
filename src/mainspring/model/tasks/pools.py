"""Pools: which loop looks at a task, by the number in `task.pool`.

A row of mainspring.pool is an interned set of requirements. What a task's column says about it:

    kind      task.pool                     looked at by
    served    the id of a pool              claims: store/tasks/claims.py
    gated     the id of a pool with a       limits: store/limits/release.py moves it on to the target
              target, which is a gate
    parked    PARKED                        nothing, until its concurrency key is free: store/limits/parked.py
    blocked   minus the id of a pool        overlap, dependencies; a run of a broadcast stays here in all its states,
                                            because only its own agent may get it: store/tasks/broadcasts.py
    daemon    DAEMON                        the loop that places replicas: store/daemons/replicas.py

No index contains the state, so only `pool` keeps a task out of claims: a claim scans one served pool.
The conditions are for SQL, behind the name of a task's row: `where t.{IS_DAEMON}`.
Next: store/submission/enqueue.py
"""

from __future__ import annotations

DAEMON = 0
PARKED = 2**31 - 1  # no pool gets this id

IS_DAEMON = f"pool = {DAEMON}"
IS_NOT_DAEMON = f"pool <> {DAEMON}"
IS_PARKED = f"pool + 0 = {PARKED}"  # `+ 0`: see the index task_parked
IS_BLOCKED = "pool < 0"
IS_QUEUED = "pool > 0"  # served, gated or parked


def blocked(pool: str) -> str:
    """The value for `task.pool` that keeps a task out of the pool of this column."""
    return f"-abs({pool})"


def unblocked(pool: str) -> str:
    """The value for `task.pool` of a task that this column may keep out of its pool."""
    return f"abs({pool})"
