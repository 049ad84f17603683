"""Server-sent events: one open answer, from its head to the reason of its end.

A stream ends when its source does, when the client hangs up, when the server stops (`bye`), and within two seconds when
the caller's token or session is revoked (`bye`). What is sent is always whole events, so a client that is cut off can
continue behind the last one by its `id`.
Next: api/streams/hub.py
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import msgspec

from mainspring.api.access.buckets import limited
from mainspring.api.call import Call, raw_headers
from mainspring.api.problems import encoded
from mainspring.errors import MainspringError

MEDIA_TYPE = "text/event-stream"
KEEP_AWAKE = 15.0  # seconds without an event after which a comment tells proxies that the stream lives
LOOK = 1.0  # seconds between looks whether the caller may still listen
STUCK = 60.0  # seconds that a reader may take for what it was sent last
LAST_WORD = 2.0  # seconds that the `bye` may take

_RETRY = b"retry: 1000\n\n"


class Source(Protocol):
    """Where the events of a stream come from."""

    @property
    def cursor(self) -> str | None:
        """Where the reader is that has all that came so far; None: each event says it."""

    async def next(self) -> bytes | None:
        """What to send next, once there is something; None: there is nothing more."""

    async def close(self) -> None: ...


def event(name: str, data: Any, id: str | None = None) -> bytes:
    """`data` is encoded as JSON, which has no line breaks, unless it is bytes already."""
    body = data if isinstance(data, bytes) else msgspec.json.encode(data)
    cursor = b"" if id is None else b"id: %b\n" % id.encode()
    return b"event: %b\n%bdata: %b\n\n" % (name.encode(), cursor, body)


class Streams:
    """The open streams of a server, each counted for its caller."""

    def __init__(self, *, per_caller: int, per_server: int) -> None:
        self._per_caller, self._per_server = per_caller, per_server
        self._open: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """For the metrics."""
        return self._open.total()

    @contextmanager
    def admit(self, identity: str) -> Iterator[None]:
        """RateLimited if the caller, or all callers together, have too many streams open."""
        if self._open[identity] >= self._per_caller:
            raise limited(f"{self._per_caller} streams are open with this token or session; close one", 1.0)
        if self.open >= self._per_server:
            raise limited(f"{self._per_server} streams are open on this server; close one, or ask another server", 5.0)
        self._open[identity] += 1
        try:
            yield
        finally:
            self._open[identity] -= 1
            if not self._open[identity]:
                del self._open[identity]


async def stream(
    call: Call, open: Callable[[], Source], *, media_type: str = MEDIA_TYPE, headers: Sequence[tuple[str, str]] = ()
) -> None:
    """Answer with what comes from the source. Another media type than ours is sent raw: no comments, no `bye`."""
    assert call.caller is not None
    with call.api.streams.admit(call.caller.identity):
        source = open()
        try:
            await _Stream(call, source, media_type, headers).run()
        finally:
            await source.close()


class _Stream:
    def __init__(self, call: Call, source: Source, media_type: str, headers: Sequence[tuple[str, str]]) -> None:
        self._call = call
        self._source = source
        self._is_raw = media_type != MEDIA_TYPE
        self._headers = [
            *call.common_headers(),
            *call.api.origins.cors_headers(call.headers),
            ("Content-Type", media_type),
            ("X-Accel-Buffering", "no"),
            *headers,
        ]

    async def run(self) -> None:
        await self._call.send({"type": "http.response.start", "status": 200, "headers": raw_headers(self._headers)})
        if self._call.method == "HEAD":
            await self._call.send({"type": "http.response.body", "body": b""})
            return
        writing = asyncio.create_task(self._write(), name="mainspring stream")
        watching = asyncio.create_task(self._watch(), name="mainspring stream watch")
        try:
            try:
                await asyncio.wait([writing, watching], return_when=asyncio.FIRST_COMPLETED)
                why = watching.result() if watching.done() else None
            finally:
                for task in (writing, watching):
                    task.cancel()
                await asyncio.wait([writing, watching])
        except asyncio.CancelledError:  # by the server of an application that we are mounted in: it stops
            await self._end("stopping")
            raise
        if writing.cancelled():
            await self._end(why)
        elif not writing.result():
            return  # stuck: it would not take a last word either
        else:
            await self._call.send({"type": "http.response.body", "body": b""})

    async def _end(self, why: str | None) -> None:
        """Before the source has. What is raw stays incomplete, so that its reader sees that it is."""
        if why is None or self._is_raw:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORD):
                await self._send(event("bye", {"reason": why}))
                await self._call.send({"type": "http.response.body", "body": b""})

    async def _write(self) -> bool:
        """Whether the reader has taken all of it."""
        try:
            if not self._is_raw:
                await self._send(_RETRY)
            while (data := await self._next()) is not None:
                if (way := self._call.api.giving_way) is not None:
                    await way.wait()
                await self._send(data)
        except TimeoutError:
            return False
        except MainspringError as error:
            if self._is_raw:
                return False
            await self._send(event("error", encoded(error, self._call.request_id)))
        return True

    async def _next(self) -> bytes | None:
        coming = asyncio.ensure_future(self._source.next())
        try:
            while not (await asyncio.wait([coming], timeout=KEEP_AWAKE))[0]:
                if not self._is_raw:
                    await self._send(self._comment())
            return coming.result()
        finally:
            if not coming.done():
                coming.cancel()
                await asyncio.wait([coming])

    def _comment(self) -> bytes:
        """With the cursor: a browser remembers it, and one that has heard nothing for long misses nothing either."""
        cursor = self._source.cursor
        return b":\n\n" if cursor is None else b":\nid: %b\n\n" % cursor.encode()

    async def _send(self, data: bytes) -> None:
        """Returns once the transport takes more: a slow reader holds up its own stream only."""
        async with asyncio.timeout(STUCK):
            await self._call.send({"type": "http.response.body", "body": data, "more_body": True})

    async def _watch(self) -> str | None:
        """Why the stream must end; None: the client has hung up."""
        call = self._call
        assert call.caller is not None
        gone = asyncio.ensure_future(self._hung_up())
        stopping = asyncio.ensure_future(call.api.stopping.wait())
        try:
            while True:
                await asyncio.wait([gone, stopping], timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return None
                if stopping.done():
                    return "stopping"
                if call.api.giving_way is not None:
                    await call.api.giving_way.wait()
                if not await call.api.guard.still_valid(call.caller, call.scope, call.headers, call.origin):
                    return "revoked"
        finally:
            for waiting in (gone, stopping):
                waiting.cancel()

    async def _hung_up(self) -> None:
        while (await self._call.receive())["type"] != "http.disconnect":
            pass
