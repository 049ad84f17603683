"""Batch: tasks that are counted together, with callbacks when they end.

    async with app.batch("import 2026-11", on_success=publish.with_args(month="2026-11"), on_failure=alert) as batch:
        await load.using(batch=batch).enqueue_many(files)
    await batch.wait()

Leaving the block closes the batch: from then on it ends with its last task. An exception in the block cancels it, so
that nothing is published of half an import.
Next: store/batches/batches.py
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.errors import MainspringError, ValidationError, shown
from mainspring.model.flows.batches import Callback, TaskBatch
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.words.names import check_name
from mainspring.model.words.numbers import check_id
from mainspring.operations.work import batches, waiting
from mainspring.operations.work.batches import BatchDetail
from mainspring.sdk.flows.flow import Step
from mainspring.sdk.task import check_timeout
from mainspring.store.submission.submissions import CloseBatch, OpenBatch

if TYPE_CHECKING:
    from mainspring.sdk.app import App
    from mainspring.sdk.job import Submitter

log = logging.getLogger("mainspring")


class Batch:
    """`id` is the batch's number; the rest is in the database. `using(batch=…)` adds tasks to it.

    Each method has a twin for sync code: `wait_sync()`, `status_sync()`, `cancel_sync()`, …
    """

    __slots__ = ("_app", "_conn", "id")

    def __init__(self, app: App, id: int, conn: Any = None) -> None:
        self._app = app
        self._conn = conn
        self.id = id

    async def status(self) -> BatchDetail:
        """The batch as it stands: its state, counts, progress, rate, callbacks."""
        return await self._app.call(batches.show, self.id)

    async def wait(self, timeout: float | None = None) -> BatchDetail:
        """Wait until the batch has ended; `outcome` says how. WaitTimeout if it goes on after `timeout` seconds."""
        return await waiting.wait_for_batch(self.status, self.id, check_timeout(timeout))

    async def close(self) -> bool:
        """Let the batch end with its last task; at once, if none is live. False: it was not open."""
        closed: bool = await self._app.submit(CloseBatch(self.id), self._conn)
        return closed

    async def cancel(self, *, kill: bool = False) -> None:
        """Cancel all that is live in it, and close it; with `kill` tasks get no grace."""
        if not isinstance(kill, bool):
            raise ValidationError(f"kill: {shown(kill)}; give True or False", field="kill")
        await self._app.call(batches.cancel, self.id, kill=kill)

    async def retry_failed(self, *, callbacks_again: bool = False) -> None:
        """Run its failed tasks again. Callbacks that were called before are called again only if asked for."""
        if not isinstance(callbacks_again, bool):
            raise ValidationError(
                f"callbacks_again: {shown(callbacks_again)}; give True or False", field="callbacks_again"
            )
        await self._app.call(batches.retry, self.id, callbacks_again=callbacks_again)

    # ── for sync code ───────────────────────────────────────────────────────────────────────────

    def status_sync(self) -> BatchDetail:
        return self._app.call_sync("status", self.status)

    def wait_sync(self, timeout: float | None = None) -> BatchDetail:
        return self._app.call_sync("wait", lambda: self.wait(timeout), None)

    def close_sync(self) -> bool:
        closed: bool = self._app.submit_sync(CloseBatch(self.id), self._conn)
        return closed

    def cancel_sync(self, *, kill: bool = False) -> None:
        self._app.call_sync("cancel", lambda: self.cancel(kill=kill))

    def retry_failed_sync(self, *, callbacks_again: bool = False) -> None:
        self._app.call_sync("retry_failed", lambda: self.retry_failed(callbacks_again=callbacks_again))

    def __repr__(self) -> str:
        return f"<Batch {self.id}>"


class BatchBlock:
    """`async with app.batch(…) as batch:`, or `with` in sync code. `open()` opens one that is closed by hand."""

    def __init__(self, app: App, opening: OpenBatch, conn: Any) -> None:
        self._app = app
        self._opening = opening
        self._conn = conn
        self._batch: Batch | None = None

    async def open(self) -> Batch:
        return self._opened(await self._app.submit(self._opening, self._conn))

    def open_sync(self) -> Batch:
        return self._opened(self._app.submit_sync(self._opening, self._conn))

    def _opened(self, id: int) -> Batch:
        self._batch = Batch(self._app, id, self._conn)
        return self._batch

    async def __aenter__(self) -> Batch:
        return await self.open()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        batch = self._batch
        assert batch is not None  # it was entered
        if error is None:
            await batch.close()
        elif self._conn is None:  # else the caller's transaction is rolled back, and the batch with it
            try:
                await batch.cancel()
            except MainspringError as refusal:
                _warn(batch, refusal)

    def __enter__(self) -> Batch:
        return self.open_sync()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        batch = self._batch
        assert batch is not None
        if error is None:
            batch.close_sync()
        elif self._conn is None:
            try:
                batch.cancel_sync()
            except MainspringError as refusal:
                _warn(batch, refusal)


def _warn(batch: Batch, refusal: MainspringError) -> None:
    log.warning(
        "batch %d could not be cancelled after an exception in its block (%s); it stays open", batch.id, refusal
    )


def opening(
    name: str,
    *,
    on_success: Callback | Submitter[..., Any] | None,
    on_complete: Callback | Submitter[..., Any] | None,
    on_failure: Callback | Submitter[..., Any] | None,
    parent: Batch | TaskBatch | int | None,
    created_by: str,
) -> OpenBatch:
    return OpenBatch(
        check_name(name, field="name"),
        _callback(on_success, "on_success"),
        _callback(on_complete, "on_complete"),
        _callback(on_failure, "on_failure"),
        None if parent is None else batch_id(parent, field="parent"),
        created_by,
    )


def batch_id(given: object, *, field: str = "batch") -> int:
    """The number of a batch, from a handle on it, from `current_task().batch`, or as it is."""
    return check_id(given.id if isinstance(given, (Batch, TaskBatch)) else given, field=field, of="a batch")


def _callback(given: Any, field: str) -> str | None:
    """As the database keeps it. A job without arguments stands for itself."""
    if given is None:
        return None
    if not isinstance(given, Callback):
        if not hasattr(given, "with_args"):
            raise ValidationError(f"{field}: {shown(given)} is not a job; give job.with_args(…)", field=field)
        try:
            given = given.with_args()
        except ValidationError as error:
            raise ValidationError(
                f"{field}: {error.message}; give its arguments by with_args(…)", field=field
            ) from None
    if isinstance(given, Step) and not given.is_plain:
        raise ValidationError(f"{field}: of what using() can say, a callback takes a priority only", field=field)
    priority = {} if given.priority is None else {"priority": str(priority_level(given.priority))}
    return msgspec.json.encode({"job": given.job, "args": given.args, **priority}).decode()
