"""HttpConnection: one HTTP/1.1 connection; uvicorn's protocol, with bounds on time and size and with our own errors.

uvicorn parses (httptools), keeps the order of pipelined requests, and runs the application. Added here:

    the head of a request takes too long, or is too large    408, 431
    its body stops arriving                                  408
    it is no HTTP, or ends early                             400
    the client does not read the answer                      cut off
    a half-closed socket, a body that is not wanted          the answer still arrives
Deadlines are kept by one timer for all connections.
Next: front/http_server.py
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from mainspring.api.problems import HeadersTooLarge, TooSlow
from mainspring.errors import Busy, MainspringError, Malformed
from mainspring.front.asgi import answer, request_id_of

if TYPE_CHECKING:
    from mainspring.front.http_server import HttpServer

DROPPED = 1 << 20  # bytes read and thrown away, so that an answer which came early reaches a client that still sends


class Phase(Enum):
    """What the next bytes of the client belong to."""

    IDLE = auto()  # the next request
    HEAD = auto()
    BODY = auto()
    OVER = auto()  # nothing: they are dropped


class Refused(Exception):
    """Raised inside the parser, which then stops; `_fault` says why."""


class HttpConnection(HttpToolsProtocol):
    def __init__(self, server: HttpServer, accepted_at: float) -> None:
        super().__init__(config=server.config, server_state=server.state, app_state={})
        self.logger = server.logger
        self.access_log = False
        self._server = server
        self._limits = server.limits
        self._phase = Phase.IDLE
        self._deadline = accepted_at + self._limits.head
        self._fault: MainspringError | None = None
        self._head = 0  # bytes of the head that are parsed
        self._unparsed = 0  # bytes that arrived since, of a line that is not complete
        self._heads = 0  # that have begun
        self._dropped = 0
        self._unread = (math.inf, 0.0)  # bytes that the client did not read, and since when there are no fewer

    # ── the connection ──────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > 2 * self._limits.connections:
            transport.abort()
        elif len(self.connections) > self._limits.connections:
            self._refuse(Busy(f"{self._limits.connections} connections are open, as many as this server takes"))

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.OVER:
            self._drop(len(data))
            return
        head = self._heads
        super().data_received(data)
        if self._phase is Phase.HEAD:
            self._unparsed = self._unparsed + len(data) if self._heads == head else 0
            if self._unparsed > self._limits.head_bytes:
                self._refuse(self._too_large())

    def eof_received(self) -> bool:  # type: ignore[override]
        """True keeps the connection open for the answer. TLS has no half-closed connections."""
        if self._phase is Phase.OVER:
            return False
        if self._phase in (Phase.HEAD, Phase.BODY):
            self._refuse(Malformed("the request ends before it is complete"))
            return False
        cycle = self.cycle
        if cycle is None or cycle.response_complete or self.transport.get_extra_info("sslcontext") is not None:
            return False
        if cycle.response_started and not self.pipeline:
            return False  # a stream to a client that has left, as all do who do not use `shutdown`
        cycle.keep_alive = False
        return True

    def shutdown(self) -> None:
        """The server stops: close, or after the answer if one is under way."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    @property
    def is_answering(self) -> bool:
        """Whether an answer has begun and not ended."""
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete

    # ── requests ────────────────────────────────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._limits.pipelined:
            raise Refused  # those before it are answered, then it closes
        super().on_message_begin()
        self._phase = Phase.HEAD
        self._heads += 1
        self._head = self._unparsed = 0
        if self.cycle is not None:  # the first request has its time from the connect
            self._deadline = self.loop.time() + self._limits.head

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._grow(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._grow(len(name) + len(value) + 4)

    def _grow(self, size: int) -> None:
        self._head += size
        self._unparsed = 0
        if self._head > self._limits.head_bytes:
            self._fault = self._too_large()
            raise Refused

    def _too_large(self) -> MainspringError:
        most = self._limits.head_bytes
        return HeadersTooLarge(f"the request line and the headers have more than {most:,} bytes")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._phase = Phase.BODY
        self._deadline = self.loop.time() + self._limits.body
        self.cycle.transport = cast(asyncio.Transport, _Writing(self, self.cycle))

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle.response_complete:
            self._drop(len(body))
        else:
            self._deadline = self.loop.time() + self._limits.body

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._phase = Phase.IDLE
        is_done = self.cycle.response_complete
        self._deadline = self.loop.time() + self._limits.idle if is_done else math.inf

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # `_deadline` has its part
        if self._phase is Phase.IDLE and not self.pipeline and self.cycle.response_complete:
            self._deadline = self.loop.time() + self._limits.idle
        elif self._phase is Phase.BODY and self.cycle.response_complete:
            self._dropped = 0
            self._deadline = self.loop.time() + self._limits.linger

    def send_400_response(self, msg: str) -> None:
        """uvicorn's parser has stopped."""
        fault, self._fault = self._fault, None
        self._refuse(fault or Malformed("this is not a request that HTTP/1.1 allows"))

    def _unsupported_upgrade_warning(self) -> None:
        """An upgrade that we do not take is answered as if it had not been asked for. What follows is not HTTP."""
        self.cycle.keep_alive = False
        self._phase = Phase.OVER

    # ── limits ──────────────────────────────────────────────────────────────────────────────────

    def check(self, now: float) -> None:
        """Called about once a second."""
        if self.flow.write_paused or self.transport.is_closing():
            left = self.transport.get_write_buffer_size()
            if left < self._unread[0]:
                self._unread = (left, now)
            elif now - self._unread[1] >= self._limits.unread:
                self.transport.abort()
        else:
            self._unread = (math.inf, now)
        if now >= self._deadline:
            self._expire(now)

    def _expire(self, now: float) -> None:
        if self.flow.read_paused:  # it is we who do not read
            self._deadline = now + self._limits.head
        elif self._phase is Phase.OVER:
            self.transport.abort()
        elif self._phase is Phase.IDLE or (self._phase is Phase.BODY and self.cycle.response_complete):
            self.transport.close()
        else:
            part, most = ("head", self._limits.head) if self._phase is Phase.HEAD else ("body", self._limits.body)
            self._refuse(TooSlow(f"the {part} of the request did not arrive within {most:g} s"))

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > DROPPED:
            self.transport.abort()

    def _refuse(self, fault: MainspringError) -> None:
        """Read no further. Answer with `fault`, unless that would come amid the answer to another request."""
        phase, self._phase, self._deadline = self._phase, Phase.OVER, math.inf
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._answer(fault, self.headers if phase is not Phase.IDLE and self.headers else [])
        elif phase is not Phase.BODY:
            cycle.keep_alive = False  # the requests before this one are answered; then it closes
        elif cycle.response_started or self.pipeline:
            self.transport.abort()
        else:
            cycle.disconnected = True  # the application learns that the rest will not come
            cycle.message_event.set()
            self._answer(fault, cycle.scope["headers"])

    def _answer(self, fault: MainspringError, request_headers: Iterable[tuple[bytes, bytes]]) -> None:
        status, headers, body = answer(fault, request_id_of(request_headers))
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
        for name, value in [*self.server_state.default_headers, *headers, (b"connection", b"close")]:
            lines.append(name + b": " + value)
        lines.append(b"content-length: %d" % len(body))
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.end()

    def end(self) -> None:
        """Close. If the client may still be sending, read on for a moment: closing a socket with unread bytes resets
        the connection, and the client would lose the answer."""
        self.pipeline.clear()
        if self._phase in (Phase.IDLE, Phase.HEAD) or self.transport.is_closing():
            self.transport.close()
            return
        self._phase = Phase.OVER
        self._deadline = self.loop.time() + self._limits.linger
        self.flow.resume_reading()
        if self.transport.can_write_eof():
            self.transport.write_eof()


class _Writing:
    """The transport of a request. Its head and the first part of its body go out as one, which spares a system call and
    a packet; its `close` is `HttpConnection.end`."""

    def __init__(self, connection: HttpConnection, cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle
        self._transport = connection.transport
        self._head = b""
        self._joins = cycle.scope["method"] != "HEAD"  # the head is all there is
        self.is_closing = connection.transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif self._joins and self._cycle.response_started:  # it has just begun
            self._joins = False
            self._head = data
            self._connection.loop.call_soon(self._flush)  # the body of a stream comes later
        else:
            self._transport.write(data)

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self._flush()
        self._connection.end()
