"""History: how a task gets there whose end is no attempt's: skipped, recalled, cancelled before it started.

What attempts came to is written by store/tasks/transitions.py, which knows their results; no attempt is named here.
Next: store/schedules/overlap.py, store/schedules/revoke.py
"""

from __future__ import annotations

from mainspring.model.tasks.states import TaskState


def into_history(source: str, state: TaskState, code: str, error: str) -> str:
    """SQL that inserts the tasks of `source` (rows of mainspring.task that were deleted) in a terminal state.

    `error` is an SQL expression over a row of `source`.
    """
    return f"""
        insert into mainspring.task_history
            (id, run_at, created_at, finished_at, recorded_at, job_id, pool, state, priority, attempt, crashes,
             args, checkpoint, progress, error_code, error, key, schedule_id, plan_time, scope, origin, parent_id,
             target, concurrency_key, key_given)
        select id, run_at, created_at, (select mainspring.now()), (select mainspring.now()), job_id,
               coalesce(gate, abs(pool)),
               {int(state)}, priority, attempt, crashes, args, checkpoint, progress, '{code}', {error}, key,
               schedule_id, plan_time, scope, origin, parent_id, target,
               concurrency_key, key_given
          from {source}
    """
