"""Submissions: tasks that handlers on remote agents submit, answered once they are committed.

Each agent's requests are carried out one after the other, those of a few agents at a time, on connections of the pool:
they delay neither reports nor each other for long. A request that was carried out before gets the same answer.
Reads   Submit, handed over by the connections
Writes  store.submit.submit_for_attempt
Sends   Submitted
Next:   store/tasks/enqueue.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg

from mainspring.errors import MainspringError, StoreUnavailable
from mainspring.loops import Signal
from mainspring.model.messages import Held, Submit, Submitted
from mainspring.server.agents.session import AgentSession
from mainspring.store.postgres.database import Database
from mainspring.store.tasks.enqueue import Submission, submit_for_attempt
from mainspring.store.tasks.enqueue import Submissions as Many
from mainspring.wire.channel import ChannelClosed

log = logging.getLogger("mainspring")

AGENTS_AT_ONCE = 4  # of the eight places of the pool
MOST_WAITING = 200  # requests of one agent: an honest one has 64 under way
MOST_BYTES = 48 << 20  # of their arguments: an honest one has 24 MiB under way
AGAIN_AFTER = 0.5  # seconds, while PostgreSQL is away


class _Queue:
    """What one agent has asked for and not been answered."""

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
        """Carry it out in its turn. ChannelClosed if the agent asks for more than any honest one."""
        queue = self._queues.setdefault(session, _Queue())
        queue.requests.append(request)
        queue.bytes += _size(request)
        if len(queue.requests) > MOST_WAITING or queue.bytes > MOST_BYTES:
            raise ChannelClosed("more submissions than any agent sends")
        if queue.worker is None or queue.worker.done():
            queue.worker = asyncio.create_task(self._work(session, queue))

    def left(self, session: AgentSession) -> None:
        """Its connection is gone: it asks again on the next one."""
        queue = self._queues.pop(session, None)
        if queue is not None and queue.worker is not None:
            queue.worker.cancel()

    async def _work(self, session: AgentSession, queue: _Queue) -> None:
        while queue.requests:
            request = queue.requests[0]
            async with self._places:
                answer = await self._answer(session, request)
            if answer is None:  # PostgreSQL is away
                await asyncio.sleep(AGAIN_AFTER)
                continue
            queue.requests.popleft()
            queue.bytes -= _size(request)
            session.link.post([answer])

    async def _answer(self, session: AgentSession, request: Submit) -> Submitted | None:
        """The answer to a request; None if nothing is known of its outcome: asked again, it finds out."""
        try:
            submission = _submission(request)
            attempt = Held(request.task, request.token)
            async with self._database.acquire() as conn:
                ids = await submit_for_attempt(conn, UUID(request.request), attempt, session.id, submission)
        except StoreUnavailable:
            return None
        except MainspringError as error:
            return Submitted(request.request, code=error.code, message=error.message, field=error.field)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, OverflowError, OSError) as error:
            log.warning("agent %s: a submission of task %d cannot be stored: %s", session.name, request.task, error)
            return Submitted(request.request, code="validation", message=f"it cannot be stored: {error}")
        except Exception as error:  # a bug: the handler must not wait for an answer that never comes
            log.exception("agent %s: a submission of task %d failed", session.name, request.task)
            return Submitted(request.request, code="error", message=f"the server failed: {type(error).__name__}")
        self.on_submitted.send()
        return Submitted(request.request, ids)


def _submission(request: Submit) -> Submission | Many:
    """ValueError, OverflowError or OSError for what no handler of ours sends."""
    if not all(0 < number < 2**63 for number in (request.task, request.token, *(request.after or ()))):
        raise ValueError("no such task")
    run_at = None if request.run_at is None else datetime.fromtimestamp(request.run_at, UTC)
    delay = None if request.delay is None else timedelta(seconds=request.delay)
    if request.many:
        return Many(request.job, request.args, request.priority, run_at, delay, request.concurrency_key)
    (args,) = request.args
    ttl = timedelta(seconds=request.key_ttl)
    return Submission(
        request.job, args, request.priority, run_at, delay, request.key, ttl, request.after, request.concurrency_key
    )


def _size(request: Submit) -> int:
    return sum(map(len, request.args))
