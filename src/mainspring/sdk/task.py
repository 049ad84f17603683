"""Task: a handle on a task that was submitted.

Next: operations/work/tasks.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec

from mainspring.errors import ResultLost, TaskFailed, ValidationError, shown
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.durations import Duration, seconds
from mainspring.operations.work import tasks
from mainspring.store.tasks.tasks import Ended
from mainspring.store.views.task_views import TaskView

if TYPE_CHECKING:
    from mainspring.sdk.app import App

R = TypeVar("R", covariant=True)

Decode = Callable[[str], Any]


class Task(Generic[R]):
    """`id` is the task's number, `job` the name of its job where that is known. The rest is in the database.

    Each method has a twin for sync code: `result_sync()`, `status_sync()`, `cancel_sync()`, …
    """

    __slots__ = ("_app", "_decode", "id", "job")

    def __init__(self, app: App, id: int, job: str | None = None, decode: Decode | None = None) -> None:
        self._app = app
        self._decode = decode
        self.id = id
        self.job = job

    async def result(self, timeout: float | None = None) -> R:
        """Wait until the task has ended, and return what its handler returned, as the type it is annotated with.

        Raises TaskFailed if it did not succeed, WaitTimeout if it still runs after `timeout` seconds.
        """
        limit = check_timeout(timeout)
        value: R = await self._app.wait_for(self.id, limit, self._decode or await self._find_decoder())
        return value

    async def _find_decoder(self) -> Decode:
        """The decoder of the task's job if the application has that job, else plain JSON."""
        self.job = (await self.status()).job
        job = self._app.jobs.get(self.job)
        self._decode = msgspec.json.decode if job is None else job.decode_result
        return self._decode

    async def status(self) -> TaskView:
        """The task as it stands."""
        return await self._app.status(self.id)

    async def cancel(self, *, kill: bool = False) -> None:
        """End the task: at once if no agent runs it, else by a request to its agent; with `kill` it gets no grace."""
        if not isinstance(kill, bool):
            raise ValidationError(f"kill: {shown(kill)}; give True or False", field="kill")
        await self._app.control(tasks.cancel, self.id, kill=kill)

    async def skip(self, note: str | None = None) -> None:
        """End the task as skipped, if it has not started; `note` says why. One that its agent has is asked back first.

        InvalidTransition if it runs, or has ended.
        """
        await self._app.control(tasks.skip, self.id, note=note)

    async def edit(
        self, *, priority: int | str | None = None, run_at: datetime | None = None, now: bool = False
    ) -> None:
        """Another priority, or another time, for a task that no agent has yet; `now` makes it due at once.

        Its start deadline moves with its time. InvalidTransition if an agent has it, or it has ended.
        """
        await self._app.control(tasks.change, self.id, priority=priority, run_at=run_at, now=now)

    async def pause(self) -> None:
        """Suspend the processes of a running command until `resume`. InvalidTransition for any other task."""
        await self._app.control(tasks.pause, self.id)

    async def resume(self) -> None:
        """Continue a paused task."""
        await self._app.control(tasks.resume, self.id)

    async def restart(self) -> None:
        """Stop the running attempt, and run the task again at once; that costs no attempt."""
        await self._app.control(tasks.restart, self.id)

    async def retry(self, *, with_children: bool = False) -> None:
        """Run a task again that ended without success, attempts counted anew.

        `with_children`: also what was skipped or failed because of it; they wait for it again.
        """
        if not isinstance(with_children, bool):
            raise ValidationError(f"with_children: {shown(with_children)}; give True or False", field="with_children")
        await self._app.control(tasks.retry, self.id, with_children=with_children)

    # ── for sync code ───────────────────────────────────────────────────────────────────────────

    def result_sync(self, timeout: float | None = None) -> R:
        """`result()` for sync code: a script, a thread, a sync handler."""
        return self._app.call_sync("result", lambda: self.result(timeout), None)

    def status_sync(self) -> TaskView:
        return self._app.call_sync("status", self.status)

    def cancel_sync(self, *, kill: bool = False) -> None:
        self._app.call_sync("cancel", lambda: self.cancel(kill=kill))

    def skip_sync(self, note: str | None = None) -> None:
        self._app.call_sync("skip", lambda: self.skip(note))

    def edit_sync(
        self, *, priority: int | str | None = None, run_at: datetime | None = None, now: bool = False
    ) -> None:
        self._app.call_sync("edit", lambda: self.edit(priority=priority, run_at=run_at, now=now))

    def pause_sync(self) -> None:
        self._app.call_sync("pause", self.pause)

    def resume_sync(self) -> None:
        self._app.call_sync("resume", self.resume)

    def restart_sync(self) -> None:
        self._app.call_sync("restart", self.restart)

    def retry_sync(self, *, with_children: bool = False) -> None:
        self._app.call_sync("retry", lambda: self.retry(with_children=with_children))

    def __repr__(self) -> str:
        return f"<Task {self.id}>" if self.job is None else f"<Task {self.id} of {self.job}>"


def result_of(task: int, ended: Ended, decode: Decode) -> Any:
    """What a task that has ended returned. Raises TaskFailed if it did not succeed."""
    if ended.state is not TaskState.SUCCEEDED:
        headline = (ended.error or "no reason was given").partition("\n")[0]
        raise TaskFailed(
            f"task {task} {ended.state.label}: {headline}",
            task_id=task,
            state=ended.state.label,
            error_code=ended.error_code,
        )
    if ended.result_lost:
        raise ResultLost(
            f"task {task} succeeded, and what it wrote is committed; but there is no result: its handler failed "
            "after the commit, or its process died"
        )
    try:
        return None if ended.result is None else decode(ended.result)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ValidationError(
            f"result: what task {task} returned does not fit the annotation of its handler ({error}); "
            "status() has it as it is",
            field="result",
        ) from error


def check_timeout(timeout: object) -> float | None:
    """Seconds to wait for; None, or infinity: as long as it takes. What is past is 0: a caller's deadline is over."""
    if timeout is None or (isinstance(timeout, float) and timeout == math.inf):
        return None
    if isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout < 0:
        return 0.0
    return seconds(cast(Duration, timeout), field="timeout")
