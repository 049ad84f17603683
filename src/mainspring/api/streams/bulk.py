"""Bulk submit over HTTP: NDJSON in, NDJSON out, on one connection and at the same time.

The body is read no faster than its tasks are committed, and the answer is written no faster than the client reads it: a
client that does not read is not read from either, and ends after a minute.
Next: operations/requests/bulk.py
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import msgspec

from mainspring.api import idempotency, parameters
from mainspring.api.answers import Answer
from mainspring.api.bodies import Disconnected
from mainspring.api.call import Call, raw_headers
from mainspring.api.problems import UnsupportedMediaType
from mainspring.errors import MainspringError, Stopping, Unauthorized, shown
from mainspring.model.access.actors import Actor
from mainspring.operations.requests import bulk
from mainspring.operations.requests.bulk import OnError
from mainspring.store.postgres.connection import Connection

NDJSON = "application/x-ndjson"
LOOK = 1.0  # seconds between looks whether the caller may still submit
STUCK = 60.0  # seconds that a client may take for what it was answered last

_KINDS = (NDJSON, "application/ndjson", "application/jsonl")


async def submit(conn: Connection, actor: Actor, *, atomic: bool = False, on_error: OnError = "continue") -> str:
    """Submit many tasks: each line is the body of POST /tasks, the stream may be of any length.

    Lines are committed in chunks; the answer has a line per commit, one per refused line, and a last one with `done`.
    With `atomic` all of them, at most 10,000, are committed at once or none; `on_error=stop` ends at the first refused
    line. With Idempotency-Key K line n gets the key K:n: the whole can be sent again, and nothing is created twice.
    """
    raise NotImplementedError  # its handler streams


async def handle(call: Call) -> Answer | None:
    given: dict[str, Any] = parameters.from_query(call.row.shape, call.query, also=("namespace",))
    key = idempotency.key_of(call)
    _check_type(call)
    upload = _Upload(call)
    answers = bulk.submit_lines(
        call.api.connections, call.actor, upload.receive, key=key, may_continue=upload.why_not, **given
    )
    try:
        async for answer in answers:
            await upload.answer(answer)
    except TimeoutError:
        return None  # it does not read: what was committed stays
    finally:
        await answers.aclose()  # type: ignore[attr-defined]
    await call.send({"type": "http.response.body", "body": b""})
    return None


def _check_type(call: Call) -> None:
    kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _KINDS:
        given = shown(call.headers.get("content-type", ""))
        raise UnsupportedMediaType(f"content-type: {given}; send {NDJSON}", field="content-type")
    if call.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType("content-encoding: send the body as it is", field="content-encoding")


class _Upload:
    def __init__(self, call: Call) -> None:
        self._call = call
        self._ended = False
        self._looked_at = monotonic()
        self._answering = False

    async def receive(self) -> bytes | None:
        if self._ended:
            return None
        message = await self._call.receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        self._ended = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    async def why_not(self) -> MainspringError | None:
        call = self._call
        assert call.caller is not None
        if call.api.stopping.is_set():
            return Stopping("this server stops; send the rest to another")
        if monotonic() - self._looked_at >= LOOK:
            self._looked_at = monotonic()
            if not await call.api.guard.still_valid(call.caller, call.scope, call.headers, call.origin):
                return Unauthorized("the token or session was revoked")
        return None

    async def answer(self, answer: bulk.Answer) -> None:
        call = self._call
        async with asyncio.timeout(STUCK):
            if not self._answering:
                self._answering = True
                headers = [*call.common_headers(), *call.api.origins.cors_headers(call.headers)]
                headers += [("Content-Type", NDJSON), ("X-Accel-Buffering", "no")]
                await call.send({"type": "http.response.start", "status": 200, "headers": raw_headers(headers)})
            line = msgspec.json.encode(answer) + b"\n"
            await call.send({"type": "http.response.body", "body": line, "more_body": True})
