"""The application on a real socket: what streams cannot be tested without."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from mainspring.api.app import Api
from mainspring.api.make import make_api
from mainspring.store.postgres.database import Database
from tests.secret_keys import Ring


class Served(NamedTuple):
    api: Api
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, secret: str) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx2.AsyncClient(base_url=f"{self.url}/api/v1", headers=headers, timeout=20)


@asynccontextmanager
async def serving(dsn: str) -> AsyncIterator[Served]:
    """A server of its own on this database."""
    database = Database(dsn)
    api = make_api(database, keys=Ring())
    config = uvicorn.Config(api, lifespan="off", ws="none", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    made: list[HttpToolsProtocol] = []

    def protocol() -> HttpToolsProtocol:
        made.append(HttpToolsProtocol(config=config, server_state=state, app_state={}))
        return made[-1]

    server = await loop.create_server(protocol, "127.0.0.1", 0)
    try:
        yield Served(api, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await api.close()
        if state.tasks:
            await asyncio.wait(set(state.tasks), timeout=5)
        for one in made:
            if one.transport is not None:
                one.transport.abort()
        await asyncio.sleep(0)
        await database.close()


class Told(NamedTuple):
    name: str
    data: Any
    id: str | None


class Stream:
    """The events of an open answer."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self, timeout: float = 15.0) -> Told:
        """The next event; EOFError if the stream has ended."""
        name, id, data = "message", None, None
        async with asyncio.timeout(timeout):
            async for line in self._lines:
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    id = value
                elif field == "data":
                    data = value
                elif line == "" and data is not None:
                    return Told(name, msgspec.json.decode(data), id)
        raise EOFError

    async def until(self, name: str) -> Told:
        while True:
            told = await self.next()
            if told.name == name:
                return told

    async def rest(self) -> list[Told]:
        """All events up to the end."""
        found = []
        while True:
            try:
                found.append(await self.next())
            except EOFError:
                return found


@asynccontextmanager
async def streaming(client: httpx2.AsyncClient, path: str, **headers: str) -> AsyncIterator[Stream]:
    given = {"Accept": "text/event-stream", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with client.stream("GET", path, headers=given) as answer:
        assert answer.status_code == 200, await answer.aread()
        yield Stream(answer)
