"""Submissions for attempts: what a handler on an agent submits, through its server.

Next: store/submission/enqueue.py
"""

from __future__ import annotations

from uuid import UUID

from mainspring.errors import AccessDenied, StaleAttempt
from mainspring.model.messages import AttemptId
from mainspring.model.tasks.states import IS_ACTIVE
from mainspring.store.postgres.database import Connection
from mainspring.store.submission.drivers import submit
from mainspring.store.submission.submissions import BulkSubmission, Submission

# The guard: an agent submits on behalf of a handler that it runs, for jobs of the same application or of none.
_ACCEPT = f"""
    insert into mainspring.submission (id)
    select $1
      from mainspring.task t
      join mainspring.job own on own.id = t.job_id and own.definition->'run'->>'type' = 'python'
     where t.id = $2 and t.token = $3 and t.session = $4 and t.{IS_ACTIVE}
       and not exists (select from mainspring.job other
                        where other.namespace = own.namespace and other.name = $5
                          and other.definition->'requires'->>'app' <> own.definition->'requires'->>'app')
    on conflict (id) do nothing
    returning id
"""
_ANSWERED = "select tasks from mainspring.submission where id = $1"
# Through a server a handler adds to the batch of its own task only.
_IS_ITS_BATCH = "select exists (select from mainspring.task where id = $1 and batch_id = $2)"
_HOLDS = f"""
    select exists (select from mainspring.task where id = $1 and token = $2 and session = $3 and {IS_ACTIVE})
"""


async def submit_for_attempt(
    conn: Connection, request: UUID, attempt: AttemptId, session: int, submission: Submission | BulkSubmission
) -> list[int]:
    """Submit for a handler that `session` runs; returns the ids. A repeated request returns the ids of the first time.

    StaleAttempt if the session does not hold the attempt, AccessDenied if the job is of another application, or the
    batch is not that of its task.
    """
    async with conn.transaction():
        accepted = await conn.fetchval(_ACCEPT, request, attempt.task, attempt.token, session, submission.job)
        if accepted is None:
            ids: list[int] | None = await conn.fetchval(_ANSWERED, request)
            if ids is not None:
                return ids
            if not await conn.fetchval(_HOLDS, attempt.task, attempt.token, session):
                raise StaleAttempt(f"task {attempt.task} belongs to another attempt now; nothing was submitted")
            raise AccessDenied(
                f"a handler on an agent submits jobs of its own application; {submission.job!r} is of another one",
                field="job",
            )
        if submission.batch is not None and not await conn.fetchval(_IS_ITS_BATCH, attempt.task, submission.batch):
            raise AccessDenied(
                f"a handler on an agent adds to the batch of its own task; task {attempt.task} is not in batch "
                f"{submission.batch}",
                field="batch",
            )
        found = await submit(conn, submission)
        ids = found if isinstance(submission, BulkSubmission) else [found]
        await conn.execute("update mainspring.submission set tasks = $2 where id = $1", request, ids)
    return ids
