"""Undecided: a connection to a port that has two protocols; its first request line says which one it is for.

It hands the transport and what it has read to the other protocol, and is no longer part of the connection.
Next: server/agents/endpoint.py (agents), front/http_connection.py (all else)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from mainspring.front.http_server import HttpServer


class Undecided(asyncio.Protocol):
    """If as many as the server takes are undecided, the oldest is cut off, so that a prompt client is served."""

    def __init__(self, server: HttpServer, path: bytes, other: Callable[[], asyncio.Protocol]) -> None:
        self._server = server
        self._path = path
        self._other = other
        self._transport: asyncio.Transport
        self._accepted_at = 0.0
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._accepted_at = asyncio.get_running_loop().time()
        undecided = self._server.undecided
        if len(undecided) >= self._server.limits.connections:
            next(iter(undecided)).abort()
        undecided[self] = None

    def data_received(self, data: bytes) -> None:
        self._read += data
        line = self._read.lstrip(b"\r\n")  # empty lines may come before a request
        if b"\n" in line or len(self._read) > self._server.limits.head_bytes:
            self._hand_over(self._is_for_other(line))

    def _is_for_other(self, line: bytes) -> bool:
        words = line[: line.find(b"\n")].split(b" ", 2)
        return len(words) == 3 and words[1].partition(b"?")[0] == self._path

    def _hand_over(self, to_other: bool) -> None:
        self._server.undecided.pop(self, None)
        protocol = self._other() if to_other else self._server.connect(self._accepted_at)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._read)

    def eof_received(self) -> None:
        """It hangs up before it has asked for anything."""

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.undecided.pop(self, None)

    def check(self, now: float) -> None:
        if now < self._accepted_at + self._server.limits.head:
            return
        if self._read:
            self._hand_over(to_other=False)  # its deadline has passed: it answers
        else:
            self.abort()

    def abort(self) -> None:
        self._server.undecided.pop(self, None)
        self._transport.abort()
