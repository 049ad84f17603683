"""A front in a thread of its own, on uvloop or on asyncio's loop, and a client that speaks bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from websockets.asyncio.server import ServerConnection, serve

from mainspring.front.http_server import HttpServer, Limits

WAIT = 10.0  # seconds, for what takes milliseconds on a quiet machine


class Site:
    """A Starlette application, and what a test does to it."""

    def __init__(self) -> None:
        self.go = threading.Event()  # lets /wait answer
        self.is_stopping = False
        self.waiting = 0
        self.disconnects = 0
        self._starlette = Starlette(
            routes=[
                Route("/", self._hello),
                Route("/echo", self._echo, methods=["POST"]),
                Route("/wait", self._wait),
                Route("/stream", self._stream),
                Route("/early", self._early, methods=["POST"]),
                Route("/large", self._large),
                Route("/fails-late", self._fails_late),
            ]
        )

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/fails":
            raise RuntimeError("a secret of the server")
        if scope["path"] == "/head-first":
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
            while not self.go.is_set():
                await asyncio.sleep(0.005)
            await send({"type": "http.response.body", "body": b"body"})
            return
        await self._starlette(scope, receive, send)

    async def _hello(self, request: Request) -> Response:
        return PlainTextResponse(request.url.query or "hello")

    async def _echo(self, request: Request) -> Response:
        try:
            return JSONResponse({"length": len(await request.body())})
        except Exception:  # the client has left
            self.disconnects += 1
            raise

    async def _wait(self, request: Request) -> Response:
        self.waiting += 1
        while not self.go.is_set():
            await asyncio.sleep(0.005)
        return PlainTextResponse("done")

    async def _stream(self, request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            self.waiting += 1
            yield b"event: hello\n\n"
            while not self.is_stopping:
                await asyncio.sleep(0.005)
            yield b"event: bye\n\n"

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _early(self, request: Request) -> Response:
        return PlainTextResponse("too large", 413, {"connection": "close"})

    async def _large(self, request: Request) -> Response:
        self.waiting += 1
        return PlainTextResponse("x" * (16 << 20))

    async def _fails_late(self, request: Request) -> Response:
        async def broken() -> AsyncIterator[bytes]:
            yield b"the first half"
            raise RuntimeError("a secret of the server")

        return StreamingResponse(broken())

    def stop(self) -> None:
        self.is_stopping = True


class Served:
    """`limits` as in production, unless the test is about one of them."""

    def __init__(self, loop: str, tls: ssl.SSLContext | None = None, **limits: Any) -> None:
        self.site = Site()
        self.http = HttpServer(self.site.app, Limits(**limits), on_stop=self.site.stop)
        self.port = 0
        self._tls = tls
        self._loop = uvloop.new_event_loop() if loop == "uvloop" else asyncio.new_event_loop()
        self._started = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(WAIT)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async def echo(connection: ServerConnection) -> None:
            async for message in connection:
                await connection.send(message)

        def connect(*protocol: Any, **limits: Any) -> asyncio.Protocol:
            return self.http.multiplex("/agent", partial(ServerConnection, *protocol, **limits))

        kind: Any = connect
        server = await serve(
            echo, "127.0.0.1", 0, ssl=self._tls, create_connection=kind, origins=[None], server_header=None
        )
        self.port = next(iter(server.sockets)).getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        await asyncio.sleep(0)
        await self.http.stop()
        await server.wait_closed()

    def ask_to_stop(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop.set)

    def ended(self) -> bool:
        self._thread.join(WAIT)
        return not self._thread.is_alive()

    def call(self, function: Callable[[], Any]) -> Any:
        """Its result, on the loop of the server."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(WAIT)

    def client(self) -> Client:
        return Client(socket.create_connection(("127.0.0.1", self.port), timeout=WAIT))


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        members: dict[str, Any] = json.loads(self.body)
        assert members["status"] == self.status
        assert members["detail"] == members["message"]
        assert members["type"] == f"urn:mainspring:problem:{members['code']}"
        assert self.headers["mainspring-request-id"] == members["request_id"]
        return members


class Client:
    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._read = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Client:
        self.socket.sendall(data)
        return self

    def get(self, path: str = "/", *lines: str) -> Client:
        return self.send("\r\n".join([f"GET {path} HTTP/1.1", "Host: here", *lines, "", ""]).encode())

    def answer(self) -> Answer:
        head = self._until(b"\r\n\r\n").decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        assert "server" not in headers
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while (size := int(self._until(b"\r\n"), 16)) > 0:
                body += self._exactly(size + 2)[:-2]
            self._until(b"\r\n")
        else:
            body = self._exactly(int(headers.get("content-length", "0")))
        return Answer(int(first.split()[1]), headers, body)

    def until(self, mark: bytes) -> bytes:
        return self._until(mark)

    def is_closed(self) -> bool:
        """The server has closed the connection, after nothing more than what was read."""
        try:
            return self._read == b"" and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            self._more()
        found, _, self._read = self._read.partition(mark)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._read) < size:
            self._more()
        found, self._read = self._read[:size], self._read[size:]
        return found

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(f"closed after {self._read!r}")
        self._read += data
