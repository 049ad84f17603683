"""Submissions: tasks that handlers submit through the server, from an agent that has no database.

A request is kept until the server answers, and sent again on each new connection with the same id: the server answers
after its commit, and a repeated request with the first result.
Sends  Submit
Next:  server/agents/submissions.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mainspring.errors import ValidationError, from_code
from mainspring.model.messages import MAX_TASKS, Submit, Submitted

AT_ONCE = 64  # requests in flight; further ones wait here
LARGEST = 8 << 20  # bytes of one request; a frame holds twice as much
MOST_BYTES = 16 << 20  # of requests in flight


class Submissions:
    def __init__(self, ready: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.unsent: dict[str, Submit] = {}  # by request
        self._ready = ready  # wakes the outbox
        self._open: dict[str, tuple[Submit, asyncio.Future[Submitted]]] = {}
        self._bytes = 0  # of the open requests
        self._turn = asyncio.Lock()
        self._less = asyncio.Event()  # a request has ended

    async def submit(self, request: Submit) -> list[int]:
        """The ids of the tasks, once they are committed. Lost connections do not submit them twice."""
        size = request.size
        if size > LARGEST:
            raise ValidationError(
                f"args: {size / 2**20:.1f} MiB in one call; through a server at most {LARGEST >> 20} MiB: "
                "submit in parts, or give the agent a database with --dsn",
                field="args",
            )
        if len(request.args) > MAX_TASKS:
            raise ValidationError(
                f"args: {len(request.args):,} tasks in one call; through a server at most {MAX_TASKS:,}: "
                "submit in parts, or give the agent a database with --dsn",
                field="args",
            )
        await self._wait_for_room(size)
        future: asyncio.Future[Submitted] = self.loop.create_future()
        self._open[request.request] = (request, future)
        self._bytes += size
        self._send([request])
        try:
            answer = await future
        finally:
            del self._open[request.request]
            self.unsent.pop(request.request, None)
            self._bytes -= size
            self._less.set()
        if answer.code is not None:
            raise from_code(answer.code, answer.message, answer.field)
        return answer.tasks

    async def _wait_for_room(self, size: int) -> None:
        async with self._turn:  # first come, first served: small requests must not starve a large one
            while len(self._open) >= AT_ONCE or (self._open and self._bytes + size > MOST_BYTES):
                self._less.clear()
                await self._less.wait()

    def _send(self, requests: list[Submit]) -> None:
        if requests:
            self.unsent.update((request.request, request) for request in requests)
            self._ready()

    def resend(self) -> None:
        """There is a new connection: requests on the previous one, or their answers, may have been lost."""
        self._send([request for request, _ in self._open.values()])

    def answered(self, answer: Submitted) -> None:
        _, future = self._open.get(answer.request, (None, None))
        if future is not None and not future.done():  # else it is a repeated answer, or its handler was cancelled
            future.set_result(answer)

    def take(self, room: int) -> list[Submit]:
        """Requests to send now, of at most `room` bytes; the last may exceed it."""
        taken = []
        while self.unsent and room > 0:
            request = self.unsent.pop(next(iter(self.unsent)))
            room -= request.size
            taken.append(request)
        return taken
