"""Remote: submission by a handler on an agent without a database, through the agent's server.

Next: agent/connection/submissions.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

from mainspring.agent.attempt import Attempt, Submitter
from mainspring.agent.context import attempt_of_handler
from mainspring.compose import local, stores
from mainspring.model.messages import Submit
from mainspring.store.submission.submissions import BulkSubmission, Submission


async def submit_through_server(attempt: Attempt, submission: Submission | BulkSubmission) -> Any:
    """The id of the task, or the list of ids, once they are committed."""
    request = Submit(
        uuid4().hex,
        attempt.armed.task,
        attempt.armed.token,
        submission.job,
        args=[],
        priority=submission.priority,
        run_at=None if submission.run_at is None else submission.run_at.timestamp(),
        delay=_seconds(submission.delay),
        concurrency_key=submission.concurrency_key,
        tags=None if submission.tags is None else list(submission.tags),
        expires=_seconds(submission.expires),
        batch=submission.batch,
        timeout=_seconds(submission.timeout),
        retries=submission.retries,
        stalls_after=_seconds(submission.stalls_after),
    )
    if isinstance(submission, BulkSubmission):
        request.many, request.args = True, submission.args
        return await _submissions(attempt).submit(request)
    request.args = [submission.args]
    request.key, request.key_ttl = submission.key, submission.key_ttl.total_seconds()
    request.after, request.on_parent_failure = submission.after, submission.on_parent_failure
    request.if_exists = submission.if_exists
    (id,) = await _submissions(attempt).submit(request)
    return id


def _seconds(given: timedelta | None) -> float | None:
    return None if given is None else given.total_seconds()


def attempt_without_database(settings: Callable[[], local.Settings]) -> Attempt | None:
    """The attempt that runs here, if its agent and its application have no database."""
    return attempt_of_handler() if stores.lacks_database() and settings().dsn is None else None


def loop_of(attempt: Attempt) -> asyncio.AbstractEventLoop:
    """The event loop of the agent, on which `submit_through_server` must run."""
    return _submissions(attempt).loop


def _submissions(attempt: Attempt) -> Submitter:
    assert attempt.submissions is not None  # a runner has armed it
    return attempt.submissions
