"""OnDatabase: the tasks of an application that has a database.

Calls   operations.requests.group_commit
Writes  mainspring.task, through store.submission
Next:   operations/requests/group_commit.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from mainspring.agent.attempt import Attempt
from mainspring.compose import local
from mainspring.model.access.actors import Actor
from mainspring.operations.actors import this_user
from mainspring.operations.requests.new_tasks import check_agents
from mainspring.operations.work import tasks
from mainspring.sdk.lifecycle import Lifecycle
from mainspring.sdk.remote import attempt_without_database, loop_of, submit_through_server
from mainspring.sdk.task import Decode, result_of
from mainspring.store.batches import batches
from mainspring.store.postgres.connection import Connection, is_producer
from mainspring.store.postgres.database import Database
from mainspring.store.submission.drivers import submit, submit_sync
from mainspring.store.submission.enqueue import submit_each
from mainspring.store.submission.submissions import BulkSubmission, CloseBatch, Request, Submission
from mainspring.store.views.task_views import TaskView
from mainspring.sync import SYNC_TIMEOUT, SyncBridge

P = ParamSpec("P")
R = TypeVar("R")
Operation = Callable[Concatenate[Connection, Actor, P], Awaitable[R]]


class Tasks(Protocol):
    """How an application submits tasks and follows them: on its database, or over HTTP (sdk/backends/over_http.py)."""

    sync: SyncBridge

    @property
    def lifecycle(self) -> Lifecycle: ...

    async def submit(self, submission: Request, conn: Any, *, require_agents: bool = False) -> Any:
        """The id, or the list of ids, once they are committed; through `conn` as part of the caller's transaction.

        `require_agents`: NoAgents, and nothing is submitted, if no agent that is there could run these tasks.
        """

    def submit_sync(self, submission: Request, conn: Any, *, require_agents: bool = False) -> Any: ...

    async def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What an operation of operations/ returns."""

    async def wait_for(self, task: int, timeout: float | None, decode: Decode) -> Any:
        """The result of a task, once it has succeeded."""

    async def status(self, task: int) -> TaskView: ...

    async def control(self, act: Any, *given: Any, **options: Any) -> None:
        """Act on a task, a job or everything by an operation."""


class OnDatabase:
    """`settings` are those of the application, `engine` is what runs its jobs in this process, if anything does."""

    def __init__(
        self,
        settings: Callable[..., local.Settings],
        register: Callable[[Database], Any],
        engine: Callable[[], local.Engine | None],
    ) -> None:
        self._settings = settings
        self._engine = engine
        self.lifecycle = Lifecycle(settings, register, self._send)
        self.sync = SyncBridge(self.lifecycle)

    async def submit(self, submission: Request, conn: Any, *, require_agents: bool = False) -> Any:
        """Insert through the caller's connection, or through the application's, and wake its dispatcher."""
        if require_agents:
            await self._check_agents(submission)
        if self.lifecycle.is_stale:
            await self.lifecycle.register_more()
        if conn is not None:
            return await submit(conn, submission)
        if isinstance(submission, (Submission, BulkSubmission)) and (attempt := self._without_database()):
            return await submit_through_server(attempt, submission)
        await self.lifecycle.ensure()
        own = self.lifecycle.opened()
        if isinstance(submission, Submission) and submission.can_share:
            assert self.lifecycle.submissions is not None  # it is open
            return await self.lifecycle.submissions.submit(submission)
        async with own.acquire() as conn:
            if isinstance(submission, CloseBatch) and not is_producer(conn):
                async with conn.transaction():
                    return await batches.close(conn, submission.batch)
            ids = await submit(conn, submission)
        if (engine := self._engine()) is not None:
            engine.server.dispatcher.wake.set()
        return ids

    def _without_database(self) -> Attempt | None:
        """The attempt through whose server to submit, if neither its agent nor the application has a database."""
        return attempt_without_database(self._settings) if self.lifecycle.database is None else None

    async def _send(self, submissions: Sequence[Submission]) -> Sequence[int | None]:
        """In one statement, which also claims them if an agent in this process has room. See `submit_each`."""
        own, engine = self.lifecycle.opened(), self._engine()
        if engine is not None:
            ids = await engine.server.dispatcher.submit(submissions)
            if any(ids):
                return ids
        async with own.acquire() as conn:
            ids = await submit_each(conn, submissions)
        if engine is not None:
            engine.server.dispatcher.wake.set()
        return ids

    async def _check_agents(self, submission: Request) -> None:
        assert isinstance(submission, (Submission, BulkSubmission))  # others have jobs of several names
        await self.lifecycle.ensure()
        if self.lifecycle.is_stale:
            await self.lifecycle.register_more()
        async with self.lifecycle.opened().acquire() as conn:
            await check_agents(conn, submission.job)

    def submit_sync(self, submission: Request, conn: Any, *, require_agents: bool = False) -> Any:
        if require_agents:
            self.sync.call("enqueue", lambda: self._check_agents(submission), SYNC_TIMEOUT)
        if conn is not None and self.lifecycle.is_stale:
            self.sync.call("enqueue", self.lifecycle.register_more, SYNC_TIMEOUT)
        if conn is not None:
            return submit_sync(conn, submission)
        if isinstance(submission, (Submission, BulkSubmission)) and (attempt := self._without_database()):
            make = partial(submit_through_server, attempt, submission)
            return self.sync.call("enqueue", make, SYNC_TIMEOUT, loop_of(attempt))
        return self.sync.call("enqueue", lambda: self.submit(submission, None), SYNC_TIMEOUT)

    async def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        await self.lifecycle.ensure()
        async with self.lifecycle.opened().acquire() as conn:
            return await operation(conn, this_user(), *args, **kwargs)

    async def wait_for(self, task: int, timeout: float | None, decode: Decode) -> Any:
        await self.lifecycle.ensure()
        assert self.lifecycle.waiting is not None
        return result_of(task, await self.lifecycle.waiting.wait(task, timeout), decode)

    async def status(self, task: int) -> TaskView:
        await self.lifecycle.ensure()
        async with self.lifecycle.opened().acquire() as conn:
            return await tasks.status(conn, this_user(), task)

    async def control(self, act: Any, *given: Any, **options: Any) -> None:
        """Wakes the gateway, so that the agent in this process hears at once."""
        await self.lifecycle.ensure()
        async with self.lifecycle.opened().acquire() as conn:
            await act(conn, this_user(), *given, **options)
        if (engine := self._engine()) is not None:
            engine.server.gateway.cancel_wake.set()
