"""Output of a task over HTTP: followed in order and each piece once, across lost connections and stopped servers.

Next: api/events
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from mainspring.client.sse import ServerEvent
from mainspring.errors import ServerUnavailable, StoreUnavailable
from mainspring.operations import tasks
from mainspring.operations.output import Event, Interrupted, NewAttempt
from mainspring.store.tasks.tasks import Piece

if TYPE_CHECKING:
    from mainspring.client.remote import Client

AGAIN_AFTER = 0.5  # seconds before a connection that was lost is made again


class _Told(msgspec.Struct):
    token: int
    number: int
    stream: int
    at: datetime
    text: str | None = None
    base64: str | None = None

    def piece(self) -> Piece:
        data = (self.text or "").encode() if self.base64 is None else b64decode(self.base64)
        return Piece(self.token, self.number, self.stream, self.at, data)


async def follow(client: Client, id: int, *, wait: bool) -> AsyncIterator[Event]:
    """With `wait` until the task has ended; a server that is away for a while is waited for."""
    after: str | None = None
    token, is_away = 0, False
    while True:
        try:
            async for event in _events(client, id, after, wait):
                is_away = False
                if event.name == "end":
                    return
                if event.name != "output":
                    continue
                piece = msgspec.json.decode(event.data, type=_Told).piece()
                if token and piece.token != token:
                    yield await _attempt(client, id, piece.token)
                token, after = piece.token, event.id
                yield piece
        except (ServerUnavailable, StoreUnavailable):
            if not wait or after is None:
                raise
            if not is_away:
                yield Interrupted()
            is_away = True
        await asyncio.sleep(AGAIN_AFTER)


async def _events(client: Client, id: int, after: str | None, wait: bool) -> AsyncIterator[ServerEvent]:
    query = [("follow", "true")] if wait else []
    headers = {} if after is None else {"Last-Event-ID": after}
    async for event in client.events(f"/api/v1/tasks/{id}/output", query, headers):
        yield event


async def _attempt(client: Client, id: int, token: int) -> NewAttempt:
    found = await client.call(tasks.show, id)
    attempt = next((one for one in found.attempts if one.token == token), None)
    return NewAttempt(0, None) if attempt is None else NewAttempt(attempt.number, attempt.agent)
