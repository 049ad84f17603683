"""What the tests of the API share: the application over a database of the test's own, and callers in each role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx2
import pytest

from mainspring.api.app import Api
from mainspring.api.make import make_api
from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.define_job import command, define
from mainspring.operations.definitions import jobs
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database
from tests.secret_keys import Ring

ACTOR = Actor("test")
BASE = "http://127.0.0.1:7070"

Caller = httpx2.AsyncClient
MakeCaller = Callable[..., Awaitable[Caller]]


@pytest.fixture
async def api(database: Database) -> AsyncIterator[Api]:
    made = make_api(database, keys=Ring())
    yield made
    await made.close()


def over(api: Api, *, base_url: str = BASE, **how: Any) -> Caller:
    """A client of the application in this process."""
    transport = httpx2.ASGITransport(app=api, raise_app_exceptions=True)
    return httpx2.AsyncClient(transport=transport, base_url=base_url, **how)


@pytest.fixture
async def anybody(api: Api) -> AsyncIterator[Caller]:
    """A caller without a token."""
    async with over(api) as client:
        yield client


@pytest.fixture
async def as_role(api: Api, conn: Connection) -> AsyncIterator[MakeCaller]:
    """`await as_role(Role.VIEWER)`: a caller with a token of that role."""
    made: list[Caller] = []

    async def make(role: Role = Role.ADMIN, **how: Any) -> Caller:
        _, secret = await tokens.create(conn, f"{role}-{len(made)}", role=role, **how)
        client = over(api, headers={"Authorization": f"Bearer {secret}"})
        made.append(client)
        return client

    yield make
    for client in made:
        await client.aclose()


@pytest.fixture
async def admin(as_role: MakeCaller) -> Caller:
    return await as_role(Role.ADMIN)


@pytest.fixture
async def job(conn: Connection) -> str:
    await jobs.put(conn, ACTOR, "hello", define(command(["echo", "hello"]), {}))
    return "hello"
