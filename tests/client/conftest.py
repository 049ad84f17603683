"""A server over the test's database, and clients for both."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.secret_keys import Ring
from tests.served import served

from mainspring.api.make import make_api
from mainspring.client.interface import Operations
from mainspring.client.local import LocalClient
from mainspring.client.remote import Client
from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.define_job import command, define
from mainspring.operations.definitions import jobs
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import tasks
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database

ACTOR = Actor("test")


@pytest.fixture
async def url(database: Database) -> AsyncIterator[str]:
    api = make_api(database, keys=Ring())
    async with served(api) as url:
        yield url
    await api.close()


@pytest.fixture
async def token(conn: Connection) -> str:
    _, secret = await tokens.create(conn, "client", role=Role.ADMIN)
    return secret


@pytest.fixture
async def remote(url: str, token: str) -> AsyncIterator[Client]:
    async with Client(url, token) as client:
        yield client


@pytest.fixture(params=["database", "server"])
async def client(request: pytest.FixtureRequest, database: Database, remote: Client) -> Operations:
    return LocalClient(database) if request.param == "database" else remote


@pytest.fixture
async def task(conn: Connection) -> int:
    await jobs.put(conn, ACTOR, "hello", define(command(["echo", "hello"]), {}))
    return (await tasks.submit(conn, ACTOR, NewTask(job="hello"))).id
