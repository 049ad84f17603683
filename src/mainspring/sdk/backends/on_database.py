"""OnDatabase: the tasks of an application that has a database.

Next: operations/requests/group_commit.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from mainspring.compose import local
from mainspring.operations import tasks
from mainspring.operations.actors import this_user
from mainspring.sdk.lifecycle import Lifecycle
from mainspring.sdk.remote import attempt_without_database, loop_of, submit_through_server
from mainspring.sdk.task import Decode, result_of
from mainspring.store.postgres.database import Database
from mainspring.store.search.task_views import TaskView
from mainspring.store.tasks.enqueue import BulkSubmission, Submission, submit, submit_each, submit_sync
from mainspring.sync import SYNC_TIMEOUT, SyncBridge


class Tasks(Protocol):
    """How an application submits tasks and follows them: on its database, or over HTTP (sdk/backends/over_http.py)."""

    sync: SyncBridge

    @property
    def lifecycle(self) -> Lifecycle: ...

    async def submit(self, submission: Submission | BulkSubmission, conn: Any) -> Any:
        """The id, or the list of ids, once they are committed; through `conn` as part of the caller's transaction."""

    def submit_sync(self, submission: Submission | BulkSubmission, conn: Any) -> Any: ...

    async def wait_for(self, task: int, timeout: float | None, decode: Decode) -> Any:
        """The result of a task, once it has succeeded."""

    async def status(self, task: int) -> TaskView: ...

    async def control(self, act: Any, task: int, **options: Any) -> None:
        """Act on a task by an operation of operations/tasks.py."""


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

    async def submit(self, submission: Submission | BulkSubmission, conn: Any) -> Any:
        """Insert through the caller's connection, or through the application's, and wake its dispatcher."""
        if self.lifecycle.is_stale:
            await self.lifecycle.register_more()
        if conn is not None:
            return await submit(conn, submission)
        if self.lifecycle.database is None and (attempt := attempt_without_database(self._settings)) is not None:
            return await submit_through_server(attempt, submission)
        await self.lifecycle.ensure()
        own = self.lifecycle.opened()
        if isinstance(submission, Submission) and submission.can_share:
            assert self.lifecycle.submissions is not None  # it is open
            return await self.lifecycle.submissions.submit(submission)
        async with own.acquire() as conn:
            ids = await submit(conn, submission)
        if (engine := self._engine()) is not None:
            engine.server.dispatcher.wake.set()
        return ids

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

    def submit_sync(self, submission: Submission | BulkSubmission, conn: Any) -> Any:
        if conn is not None and self.lifecycle.is_stale:
            self.sync.call("enqueue", self.lifecycle.register_more, SYNC_TIMEOUT)
        if conn is not None:
            return submit_sync(conn, submission)
        if self.lifecycle.database is None and (attempt := attempt_without_database(self._settings)) is not None:
            make = partial(submit_through_server, attempt, submission)
            return self.sync.call("enqueue", make, SYNC_TIMEOUT, loop_of(attempt))
        return self.sync.call("enqueue", lambda: self.submit(submission, None), SYNC_TIMEOUT)

    async def wait_for(self, task: int, timeout: float | None, decode: Decode) -> Any:
        await self.lifecycle.ensure()
        assert self.lifecycle.waiting is not None
        return result_of(task, await self.lifecycle.waiting.wait(task, timeout), decode)

    async def status(self, task: int) -> TaskView:
        await self.lifecycle.ensure()
        async with self.lifecycle.opened().acquire() as conn:
            return await tasks.status(conn, this_user(), task)

    async def control(self, act: Any, task: int, **options: Any) -> None:
        """Wakes the gateway, so that the agent in this process hears at once."""
        await self.lifecycle.ensure()
        async with self.lifecycle.opened().acquire() as conn:
            await act(conn, this_user(), task, **options)
        if (engine := self._engine()) is not None:
            engine.server.gateway.cancel_wake.set()
