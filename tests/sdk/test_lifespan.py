"""The lifespan of a web application: FastAPI's own, with an application of ours in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from httpx2 import ASGITransport, AsyncClient

from mainspring import App, Job, testing


@pytest.fixture
def double(app: App) -> Job[[int], int]:
    @app.job
    async def double(value: int) -> int:
        return 2 * value

    return double


def web(app: App, double: Job[[int], int], lifespan: Callable[..., Any]) -> FastAPI:
    api = FastAPI(lifespan=lifespan)

    @api.post("/double/{value}")
    async def submit(value: int) -> int:
        return (await double.enqueue(value)).id

    @api.get("/task/{id}")
    async def state(id: int) -> str:
        return (await app.task(id).status()).state

    @api.get("/result/{id}")
    async def result(id: int) -> int:
        return int(await app.task(id).result(timeout=10))

    return api


@asynccontextmanager
async def served(api: FastAPI) -> AsyncIterator[AsyncClient]:
    """As a server would: its lifespan around its requests."""
    async with (
        api.router.lifespan_context(api),
        AsyncClient(transport=ASGITransport(app=api), base_url="http://shop") as client,
    ):
        yield client


async def test_a_lifespan_opens_for_submitting_and_closes(app: App, double: Job[[int], int]) -> None:
    async with served(web(app, double, app.lifespan)) as client:
        id = (await client.post("/double/21")).json()
        assert (await client.get(f"/task/{id}")).json() == "pending", "nothing runs here"
        assert app.engine is None
    assert app.loop is None


async def test_a_running_lifespan_runs_the_jobs_too(app: App, double: Job[[int], int]) -> None:
    async with served(web(app, double, app.lifespan_running)) as client:
        id = (await client.post("/double/21")).json()
        assert (await client.get(f"/result/{id}")).json() == 42
    assert (app.engine, app.loop) == (None, None)


@pytest.mark.usefixtures("server_dsn")
@pytest.mark.parametrize("running", [False, True])
async def test_inside_of_a_tests_own_run_a_lifespan_uses_that(app: App, double: Job[[int], int], running: bool) -> None:
    async with testing.running(app) as run:
        engine = app.engine
        async with served(web(app, double, app.lifespan_running if running else app.lifespan)) as client:
            id = (await client.post("/double/21")).json()
            await run.until_idle()
            assert (await client.get(f"/result/{id}")).json() == 42
        assert app.engine is engine, "the end of the web application is not that of the test"
        assert await (await double.enqueue(4)).result(timeout=10) == 8


def test_a_lifespan_is_part_of_the_users_own(app: App, double: Job[[int], int]) -> None:
    @asynccontextmanager
    async def lifespan(api: FastAPI) -> AsyncIterator[dict[str, str]]:
        async with app.lifespan(api):
            yield {"shop": "open"}

    api = web(app, double, lifespan)

    @api.get("/state")
    async def state(request: Request) -> str:
        return str(request.state.shop)

    with TestClient(api) as client:
        assert client.get("/state").json() == "open"
        assert client.get(f"/task/{client.post('/double/1').json()}").json() == "pending"
    assert app.loop is None
