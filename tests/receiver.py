"""A receiver of alerts on loopback, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiohttp import web

LOOPBACK = ("127.0.0.0/8", "::1/128")  # what http_allow must hold


class Received(NamedTuple):
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def id(self) -> str:
        return self.headers["Mainspring-Delivery"]


class Receiver:
    """Keeps what it gets, and answers with `statuses` in turn; the last one stays."""

    def __init__(self) -> None:
        self.got: list[Received] = []
        self.statuses = [204]
        self.headers: dict[str, str] = {}
        self.before_answer: Callable[[], Awaitable[None]] | None = None
        self.url = ""

    @property
    def bodies(self) -> list[Any]:
        return [one.body for one in self.got]

    async def handle(self, request: web.Request) -> web.Response:
        self.got.append(Received(dict(request.headers), await request.read()))
        if self.before_answer is not None:
            await self.before_answer()
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.Response(status=status, headers=self.headers, text="" if status == 204 else "said")


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.url = f"http://{host}:{port}/alerts"
    try:
        yield receiver
    finally:
        await runner.cleanup()
