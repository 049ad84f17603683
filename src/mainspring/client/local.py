"""LocalClient: the operations on a database, as the user of the operating system who runs this process.

Next: operations/work/tasks.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from mainspring.client.interface import Operation, P, R
from mainspring.operations import Connections
from mainspring.operations.actors import this_user
from mainspring.operations.requests import bulk
from mainspring.operations.requests.bulk import Answer, OnError, Receive
from mainspring.operations.work import output, waiting
from mainspring.operations.work.output import Event


class LocalClient:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async with self._connections.acquire() as conn:
            return await operation(conn, this_user(), *args, **kwargs)

    async def wait(self, id: int, timeout: float | None) -> None:
        await waiting.wait(self._connections, id, timeout)

    def follow(self, id: int, *, wait: bool) -> AsyncIterator[Event]:
        return output.follow(self._connections, id, wait=wait)

    def submit_lines(
        self, receive: Receive, *, key: str | None = None, atomic: bool = False, on_error: OnError = "continue"
    ) -> AsyncIterator[Answer]:
        return bulk.submit_lines(self._connections, this_user(), receive, key=key, atomic=atomic, on_error=on_error)

    async def close(self) -> None:
        """The opener of its connections closes them."""
