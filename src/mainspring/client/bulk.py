"""Bulk submit over HTTP: lines out, answers in, on one connection and at the same time.

Next: api/streams/bulk.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from mainspring.api.problems import from_problem
from mainspring.client.reading import read
from mainspring.client.sse import lines
from mainspring.errors import ServerUnavailable
from mainspring.operations.requests.bulk import Answer, Committed, Done, OnError, Receive, RefusedLine

if TYPE_CHECKING:
    from mainspring.client.remote import Client

_KINDS: tuple[tuple[str, type[Answer]], ...] = (("done", Done), ("lines", Committed), ("line", RefusedLine))


async def submit_lines(
    client: Client, receive: Receive, *, key: str | None, atomic: bool, on_error: OnError
) -> AsyncIterator[Answer]:
    """ServerUnavailable if the connection is lost: what was answered is stored, of the rest it is not known."""

    async def body() -> AsyncIterator[bytes]:
        while (part := await receive()) is not None:
            yield part

    headers = {**client.headers(), "Content-Type": "application/x-ndjson"}
    if key is not None:
        headers["Idempotency-Key"] = key
    query = {"atomic": "true" if atomic else "false", "on_error": on_error}
    # A source may be slow, and then nothing is answered for as long: only what it sends is waited for.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=client.timeout)
    is_done = False
    try:
        async with client.session.post(
            client.address("/api/v1/tasks/bulk"),
            params=query, headers=headers, data=body(), timeout=timeout, allow_redirects=False,
        ) as answer:  # fmt: skip
            if answer.status >= 300:
                raise from_problem(await answer.read(), answer.status)
            async for line in lines(answer.content):
                if (made := read_answer(line)) is not None:
                    is_done = isinstance(made, Done)
                    yield made
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise client.unreachable(error) from None
    if not is_done:
        raise ServerUnavailable("the server ended the stream before its last line; submit the rest again")


def read_answer(line: bytes) -> Answer | None:
    """None: a kind of answer that a later version has."""
    members = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    kind = next((kind for member, kind in _KINDS if member in members), None)
    found: Answer | None = None if kind is None else read(line, kind)
    return found
