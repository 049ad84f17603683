"""Submissions: enqueue tasks for handlers on remote agents; answer once they are committed.

Each agent's requests run one after the other, those of a few agents at once, on connections of the pool: they delay
neither reports nor each other for long. A repeated request gets the same answer and enqueues nothing more.
Reads   Submit, from server/agents/connection.py
Writes  store.submission.for_attempts
Sends   Submitted
Next:   store/submission/enqueue.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from mainspring.errors import MainspringError, StoreUnavailable
from mainspring.loops import Signal
from mainspring.model.messages import AttemptId, Submit, Submitted
from mainspring.server.agents.session import AgentSession
from mainspring.store.postgres.database import Database
from mainspring.store.submission.for_attempts import submit_for_attempt
from mainspring.store.submission.submissions import BulkSubmission, Submission
from mainspring.wire.channel import ChannelClosed

log = logging.getLogger("mainspring")

AGENTS_AT_ONCE = 4  # of the eight connections of the pool
MOST_WAITING = 200  # requests of one agent: an honest one has at most 64 in flight
MOST_BYTES = 24 << 20  # of their arguments: an honest one has at most 16 MiB in flight
RETRY_AFTER = 0.5  # seconds, while PostgreSQL is down


class _Queue:
    """The unanswered requests of one agent."""

    def __init__(self) -> None:
        self.requests: deque[Submit] = deque()
        self.bytes = 0
        self.worker: asyncio.Task[None] | None = None


class Submissions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._places = asyncio.Semaphore(AGENTS_AT_ONCE)
        self._queues: dict[AgentSession, _Queue] = {}
        self.on_submitted: Signal[[]] = Signal()

    def take(self, session: AgentSession, request: Submit) -> None:
        """Queue a request. Raises ChannelClosed if the agent has more of them in flight than any honest one."""
        queue = self._queues.setdefault(session, _Queue())
        queue.requests.append(request)
        queue.bytes += request.size
        if len(queue.requests) > MOST_WAITING or queue.bytes > MOST_BYTES:
            raise ChannelClosed("more submissions than any agent sends")
        if queue.worker is None or queue.worker.done():
            queue.worker = asyncio.create_task(self._work(session, queue))

    def left(self, session: AgentSession) -> None:
        """Drop its requests: the agent repeats them on its next connection."""
        queue = self._queues.pop(session, None)
        if queue is not None and queue.worker is not None:
            queue.worker.cancel()

    async def _work(self, session: AgentSession, queue: _Queue) -> None:
        while queue.requests:
            request = queue.requests[0]
            async with self._places:
                answer = await self._answer(session, request)
            if answer is None:
                await asyncio.sleep(RETRY_AFTER)
                continue
            queue.requests.popleft()
            queue.bytes -= request.size
            session.link.post([answer])

    async def _answer(self, session: AgentSession, request: Submit) -> Submitted | None:
        """The answer to a request; None if PostgreSQL is down and its outcome unknown: then it is repeated."""
        try:
            submission = _submission(request)
            attempt = AttemptId(request.task, request.token)
            async with self._database.acquire() as conn:
                ids = await submit_for_attempt(conn, UUID(request.request), attempt, session.id, submission)
        except StoreUnavailable:
            return None
        except MainspringError as error:
            return Submitted(request.request, code=error.code, message=error.message, field=error.field)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, OverflowError, OSError) as error:
            log.warning("agent %s: a submission of task %d cannot be stored: %.500s", session.name, request.task, error)
            return Submitted(request.request, code="validation", message=f"it cannot be stored: {str(error)[:500]}")
        except Exception as error:  # a bug: the handler must still get an answer
            log.exception("agent %s: a submission of task %d failed", session.name, request.task)
            return Submitted(request.request, code="error", message=f"the server failed: {type(error).__name__}")
        self.on_submitted.send()
        return Submitted(request.request, ids)


def _submission(request: Submit) -> Submission | BulkSubmission:
    """Raises ValueError, OverflowError or OSError for what no honest agent sends."""
    if not all(0 < number < 2**63 for number in (request.task, request.token, *(request.after or ()))):
        raise ValueError("no such task")
    common: dict[str, Any] = {
        "priority": request.priority,
        "run_at": None if request.run_at is None else datetime.fromtimestamp(request.run_at, UTC),
        "delay": _duration(request.delay),
        "concurrency_key": request.concurrency_key,
        "batch": request.batch,
        "expires": _duration(request.expires),
        "tags": request.tags,
        "timeout": _duration(request.timeout),
        "retries": request.retries,
        "stalls_after": _duration(request.stalls_after),
        "submitter": f"task:{request.task}",
    }
    if request.many:
        return BulkSubmission(request.job, request.args, **common)
    (args,) = request.args
    return Submission(
        request.job,
        args,
        key=request.key,
        key_ttl=timedelta(seconds=request.key_ttl),
        after=request.after,
        on_parent_failure=request.on_parent_failure,
        if_exists=request.if_exists,
        **common,
    )


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
