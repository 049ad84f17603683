"""A client for benchmarks/api.py, in a process of its own: bare sockets that stay open, so that it is not the limit.

It reads what to do from standard input, as one JSON object, and prints what it measured as another. `stream` answers
only once its input is closed: it reads events until then.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from array import array
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any, cast

import uvloop

from benchmarks.common import quantiles

LINES = 1_000  # of a chunk of a bulk submission
CLOSED = "the server has closed the connection"


class Connection(asyncio.Protocol):
    """One request after another; each has an answer with a Content-Length."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(CLOSED))

    def data_received(self, data: bytes) -> None:
        self._data = self._data + data if self._data else data
        head = self._data.find(b"\r\n\r\n")
        if head < 0 or self._answer is None:
            return
        at = self._data.index(b"content-length: ", 0, head + 2) + 16
        end = head + 4 + int(self._data[at : self._data.index(b"\r", at)])
        if len(self._data) >= end:
            answer, self._answer, status = self._answer, None, int(self._data[9:12])
            body, self._data = self._data[head + 4 : end], self._data[end:]
            answer.set_result((status, body))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer


def written(method: str, path: str, token: str, body: bytes | None = None) -> bytes:
    lines = [f"{method} /api/v1{path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {token}"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


async def load(given: dict[str, Any]) -> dict[str, Any]:
    """Requests for so many seconds, on so many connections: as fast as they are answered, or at a rate."""
    loop = asyncio.get_running_loop()
    requests = [
        written(method, path, given["token"], None if body is None else json.dumps(body).encode())
        for method, path, body in given["requests"]
    ]
    number, seconds, rate = given["connections"], given["seconds"], given.get("rate")
    connections = [(await loop.create_connection(Connection, "127.0.0.1", given["port"]))[1] for _ in range(number)]
    waits = array("d")
    wrong: dict[str, int] = {}
    why: dict[str, str] = {}
    began = time.perf_counter() + (0.0 if rate else 1.0)  # connections and plans are made in the first second

    async def ask(connection: Connection, place: int) -> None:
        offset = place * len(requests) // number  # they do not all begin with the same one
        for turn in count():
            due = began + (turn * number + place) / rate if rate else 0.0
            await asyncio.sleep(due - time.perf_counter()) if due else None
            if (now := time.perf_counter()) >= began + seconds:
                return
            status, body = await connection.ask(requests[(offset + turn) % len(requests)])
            if now >= began:
                waits.append((time.perf_counter() - now) * 1000)
            if not 200 <= status < 300:
                wrong[str(status)] = wrong.get(str(status), 0) + 1
                why[str(status)] = body[:300].decode(errors="replace")

    cpu = time.process_time()
    await asyncio.gather(*(ask(connection, place) for place, connection in enumerate(connections)))
    ran = time.perf_counter() - began
    return {
        "per_s": round(len(waits) / ran, 1),
        **quantiles(waits),
        "client_cpu": round((time.process_time() - cpu) / ran, 3),
        "wrong": wrong,
        "why": why,
    }


async def bulk(given: dict[str, Any]) -> dict[str, Any]:
    """A stream of lines on one connection, and its answers; seconds until the last."""
    reader, writer = await asyncio.open_connection("127.0.0.1", given["port"], limit=1 << 24)
    head = written("POST", "/tasks/bulk", given["token"])[:-2]
    head += b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = (json.dumps(given["line"]) + "\n").encode() * LINES
    framed = b"%x\r\n" % len(chunk) + chunk + b"\r\n"
    began = time.perf_counter()

    async def send() -> None:
        writer.write(head)
        for _ in range(given["tasks"] // LINES):
            writer.write(framed)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    sending = asyncio.ensure_future(send())
    last = b""
    while not last.endswith(b"\r\n0\r\n\r\n"):
        data = await reader.read(1 << 20)
        if not data:
            raise ConnectionError(CLOSED)
        last = (last + data)[-1_000:]
    await sending
    ran = time.perf_counter() - began
    if b'"done":true' not in last:
        raise RuntimeError(last.decode())
    return {"tasks_per_s": round(given["tasks"] // LINES * LINES / ran), "seconds": round(ran, 2)}


class Listener(asyncio.Protocol):
    """Reads a stream of events and counts them."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.bytes = self.events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._head)

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        self.events += data.count(b"event: ")


async def stream(given: dict[str, Any]) -> dict[str, Any]:
    """Listeners until standard input is closed."""
    loop = asyncio.get_running_loop()
    tokens: Sequence[str] = given["tokens"]
    listeners = []
    for number in range(given["connections"]):
        head = written("GET", "/events", tokens[number % len(tokens)])
        listener = (await loop.create_connection(partial(Listener, head), "127.0.0.1", given["port"]))[1]
        listeners.append(listener)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    return {
        "events": sum(listener.events for listener in listeners),
        "silent": sum(not listener.events for listener in listeners),
        "bytes": sum(listener.bytes for listener in listeners),
    }


DOES = {"load": load, "bulk": bulk, "stream": stream}

if __name__ == "__main__":
    given = json.loads(sys.stdin.readline())
    print(json.dumps(uvloop.run(DOES[given["what"]](given))), flush=True)
