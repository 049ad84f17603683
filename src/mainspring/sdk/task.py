"""Task: a handle on a task that was submitted.

Next: sdk/waiting.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from mainspring.store import control, tasks
from mainspring.store.tasks import TaskView

if TYPE_CHECKING:
    from mainspring.sdk.app import App

R = TypeVar("R", covariant=True)


class Task(Generic[R]):
    """`id` is the task's number. Everything else is asked of the database."""

    __slots__ = ("_app", "_decode", "id", "job")

    def __init__(self, app: App, id: int, job: str, decode: Callable[[str], Any] = msgspec.json.decode) -> None:
        self._app = app
        self._decode = decode
        self.id = id
        self.job = job

    async def result(self, timeout: float | None = None) -> R:
        """Wait until the task has ended, and return what its handler returned, as the type it is annotated with.

        Raises TaskFailed if it did not succeed, WaitTimeout if it goes on after `timeout` seconds.
        """
        value: R = await self._app.wait_for(self.id, timeout, self._decode)
        return value

    async def status(self) -> TaskView:
        """The task as it stands."""
        return await self._app.status(self.id)

    async def cancel(self, *, kill: bool = False) -> None:
        """End the task: at once if nobody runs it, else by telling its agent; with `kill` it gets no grace."""
        await self._app.control(partial(tasks.cancel, kill=kill), self.id)

    async def pause(self) -> None:
        """Hold the processes of a running command still, until `resume`. InvalidTransition for what cannot."""
        await self._app.control(control.pause, self.id)

    async def resume(self) -> None:
        """Let a paused task go on."""
        await self._app.control(control.resume, self.id)

    async def restart(self) -> None:
        """Stop the running attempt, and run the task again at once; that costs no attempt."""
        await self._app.control(control.restart, self.id)

    async def retry(self) -> None:
        """Run a task again that ended without success, attempts counted anew."""
        await self._app.control(tasks.run_again, self.id)

    def __repr__(self) -> str:
        return f"<Task {self.id} of {self.job}>"
