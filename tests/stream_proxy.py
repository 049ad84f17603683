"""A proxy for bytes: what happens below WebSocket. See tests/proxy.py for faults of whole messages.

While a direction is stalled, nothing passes in it, neither bytes nor the end of the stream, and nobody gets a
reset: as on a line that has gone dead. Healed, it goes on where it was, as TCP does when it sends again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.proxy import Way


class StreamProxy:
    """`delay`, `jitter`, `bytes_per_second` and `stall()` of the two ways apply; the others are for messages."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._target_port = port
        self.up = Way(seed=7)
        self.down = Way(seed=8)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "the proxy is used inside `async with`"
        return int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def lead_to(self, port: int) -> None:
        """Connections from now on go there; those that there are end."""
        self._target_port = port
        self.cut()

    def black_hole(self) -> None:
        """Half-open: each side believes that the other is there."""
        self.up.stall()
        self.down.stall()

    def heal(self) -> None:
        self.up.heal()
        self.down.heal()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = {writer}
        try:
            # Cancelled only by our own end, after which asyncio would complain about each connection.
            with suppress(OSError, asyncio.CancelledError):
                server_reader, server_writer = await asyncio.open_connection(self._host, self._target_port)
                writers.add(server_writer)
                self._writers |= writers
                await asyncio.gather(
                    self._carry(self.up, reader, server_writer), self._carry(self.down, server_reader, writer)
                )
        finally:
            self._writers -= writers
            for each in writers:
                each.transport.abort()
            self._connections.discard(task)

    async def _carry(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Bytes wait for their turn in a queue, so that a delay does not slow the line down."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue(maxsize=1024)

        async def read() -> None:
            data: bytes | None = b"begin"
            while data:
                await way.flowing()
                try:
                    data = await reader.read(16384)
                except OSError:
                    data = None  # a reset, which passes on in its turn
                await queue.put((loop.time() + way.delay + way.chance.random() * way.jitter, data))

        reading = asyncio.create_task(read())
        try:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(due - loop.time())
                await way.flowing()
                if data is None:
                    raise ConnectionResetError
                if not data:
                    break
                writer.write(data)
                await writer.drain()
                if way.bytes_per_second:
                    await asyncio.sleep(len(data) / way.bytes_per_second)
            writer.write_eof()
            await reading
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
