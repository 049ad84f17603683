"""Output of a task over HTTP: followed in order and each piece once, across lost connections and stopped servers.

Next: api/streams/output.py
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from mainspring.client.reading import read as read_json
from mainspring.client.sse import ServerEvent
from mainspring.errors import ServerUnavailable, StoreUnavailable
from mainspring.operations.work import output, tasks
from mainspring.operations.work.output import STREAMS, Event, Interrupted, NewAttempt, PieceView
from mainspring.store.tasks.tasks import Piece

if TYPE_CHECKING:
    from mainspring.client.remote import Client

AGAIN_AFTER = 0.5  # seconds before a connection that was lost is made again


class _Bye(msgspec.Struct):
    reason: str = ""


def _piece(view: PieceView) -> Piece:
    data = (view.text or "").encode() if view.base64 is None else b64decode(view.base64)
    stream = view.stream if view.stream in STREAMS else "stdout"  # one that a later version has
    return Piece(view.token, view.number, STREAMS.index(stream), view.at, data)


async def read(client: Client, id: int) -> AsyncIterator[Event]:
    """What the task has written so far, page by page."""
    after: str | None = None
    token = 0
    while True:
        page = await client.call(output.read, id, after=after)
        for view in page.items:
            if token and view.token != token:
                yield await _attempt(client, id, view.token)
            token = view.token
            yield _piece(view)
        if page.next is None or not page.items:
            return
        after = page.next


async def follow(client: Client, id: int) -> AsyncIterator[Event]:
    """Until the task has ended; a server that is away for a while is waited for."""
    after: str | None = None
    token, is_away = 0, False
    while True:
        try:
            async for event in _events(client, id, after):
                is_away = False
                if event.name == "bye" and read_json(event.data, _Bye).reason == "ended":
                    return
                if event.name != "output":
                    continue
                piece = _piece(read_json(event.data, PieceView))
                if token and piece.token != token:
                    yield await _attempt(client, id, piece.token)
                token, after = piece.token, event.id
                yield piece
        except (ServerUnavailable, StoreUnavailable):
            if after is None:
                raise
            if not is_away:
                yield Interrupted()
            is_away = True
        await asyncio.sleep(AGAIN_AFTER)


def _events(client: Client, id: int, after: str | None) -> AsyncIterator[ServerEvent]:
    headers = {} if after is None else {"Last-Event-ID": after}
    return client.events(f"/api/v1/tasks/{id}/output", [], headers)


async def _attempt(client: Client, id: int, token: int) -> NewAttempt:
    found = await client.call(tasks.attempts, id)
    attempt = next((one for one in found.items if one.token == token), None)
    return NewAttempt(0, None) if attempt is None else NewAttempt(attempt.number, attempt.agent)
