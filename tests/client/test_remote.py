"""The client of a server: the same calls, views and errors as on the database."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from tests.served import served

from mainspring.api.make import make_api
from mainspring.client.interface import Operations
from mainspring.client.local import LocalClient
from mainspring.client.remote import Client, check_url
from mainspring.errors import (
    Forbidden,
    InvalidTransition,
    ServerUnavailable,
    TaskNotFound,
    Unauthorized,
    ValidationError,
    WaitTimeout,
)
from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.define_job import command, define
from mainspring.operations import cluster, jobs, settings, tasks
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database

ACTOR = Actor("test")


@pytest.fixture
async def url(database: Database) -> AsyncIterator[str]:
    api = make_api(database)
    async with served(api) as url:
        yield url
    await api.close()


@pytest.fixture
async def remote(url: str, conn: Connection) -> AsyncIterator[Client]:
    _, secret = await tokens.create(conn, "client", role=Role.ADMIN)
    async with Client(url, secret) as client:
        yield client


@pytest.fixture(params=["database", "server"])
async def client(request: pytest.FixtureRequest, database: Database, remote: Client) -> Operations:
    return LocalClient(database) if request.param == "database" else remote


@pytest.fixture
async def task(conn: Connection) -> int:
    await jobs.put(conn, ACTOR, "hello", define(command(["echo", "hello"]), {}))
    return (await tasks.submit(conn, ACTOR, NewTask(job="hello"))).id


async def test_a_task_is_shown_and_moved_alike(client: Operations, task: int, conn: Connection) -> None:
    shown = await client.call(tasks.show, task)
    assert shown == await tasks.show(conn, ACTOR, task)
    await client.call(tasks.cancel, task, kill=True)
    with pytest.raises(InvalidTransition, match="has already ended"):
        await client.call(tasks.cancel, task)
    await client.wait(task, 10)


async def test_what_is_not_there_is_the_same_error(client: Operations) -> None:
    with pytest.raises(TaskNotFound) as missing:
        await client.call(tasks.show, 4711)
    assert missing.value.field == "task"


async def test_a_wait_ends_with_its_timeout(client: Operations, task: int) -> None:
    with pytest.raises(WaitTimeout):
        await client.wait(task, 0.05)


async def test_lists_and_settings_are_the_same_views(client: Operations, conn: Connection) -> None:
    assert await client.call(cluster.segments) == await cluster.segments(conn, ACTOR)
    changed = await client.call(settings.edit, placement="least_tasks")
    assert changed == await settings.show(conn, ACTOR)


async def test_namespaces_and_sync_are_the_same_calls(remote: Client, task: int) -> None:
    assert await remote.tasks.show(task) == await remote.call(tasks.show, task)
    found = await asyncio.to_thread(lambda: remote.sync.tasks.show(task))
    assert found == await remote.tasks.show(task)


async def test_a_stranger_and_a_lower_role_are_told(url: str, conn: Connection, task: int) -> None:
    async with Client(url) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.call(tasks.show, task)
    _, secret = await tokens.create(conn, "viewer", role=Role.VIEWER)
    async with Client(url, secret) as viewer:
        with pytest.raises(Forbidden):
            await viewer.call(tasks.retry, task)


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # and does not listen
        async with Client(f"http://127.0.0.1:{reserved.getsockname()[1]}", "ms_x", timeout=2) as client:
            with pytest.raises(ServerUnavailable, match="cannot be reached"):
                await client.call(tasks.show, 1)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "127.0.0.1:7070", "http://u:p@x", "http://x/?a=1"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        check_url(url)
