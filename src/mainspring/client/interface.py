"""Operations: what a client offers, whether it reaches a database or a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from mainspring.model.access.actors import Actor
from mainspring.operations.requests.bulk import Answer, OnError, Receive
from mainspring.operations.work.output import Event
from mainspring.store.postgres.connection import Connection

P = ParamSpec("P")
R = TypeVar("R")

Operation = Callable[Concatenate[Connection, Actor, P], Awaitable[R]]


class Operations(Protocol):
    async def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`await client.call(operations.jobs.show, "backup")`"""

    async def wait(self, id: int, timeout: float | None) -> None:
        """Until the task has ended. WaitTimeout if it has not after `timeout` seconds, TaskNotFound without one."""

    def follow(self, id: int, *, wait: bool) -> AsyncIterator[Event]:
        """The output of a task in order and each piece once; with `wait` until the task has ended."""

    def submit_lines(
        self, receive: Receive, *, key: str | None = None, atomic: bool = False, on_error: OnError = "continue"
    ) -> AsyncIterator[Answer]:
        """Submit many tasks: each line that `receive` brings is the JSON of a NewTask. Yields what became of them."""

    async def close(self) -> None: ...
