"""A scrape of a process tells of what its API asked of PostgreSQL, not only of what its server did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.server.agents.test_network import settings

from mainspring.compose.network import running_server, serving_api
from mainspring.model.access.actors import Role
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs


@asynccontextmanager
async def with_a_server(dsn: str, database: Database) -> AsyncIterator[str]:
    async with running_server(settings(dsn), database, None, {}, without_tls=False) as urls:
        assert urls.api is not None
        yield urls.api


@asynccontextmanager
async def alone(dsn: str, database: Database) -> AsyncIterator[str]:
    async with serving_api(settings(dsn), database, without_tls=False) as url:
        yield url


@pytest.mark.parametrize("serve", [with_a_server, alone])
async def test_refused_submissions_and_statements_of_the_api_are_told(
    serve: Callable[[str, Database], AbstractAsyncContextManager[str]], dsn: str, database: Database, conn: Connection
) -> None:
    await jobs.register(conn, {"small": Definition(Python("small"), max_queued=1)})
    _, secret = await tokens.create(conn, "program", role=Role.ADMIN)
    headers = {"Authorization": f"Bearer {secret}"}
    async with serve(dsn, database) as url, httpx2.AsyncClient(base_url=url, headers=headers) as client:
        answers = [await client.post("/api/v1/tasks", json={"job": "small"}) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 429]
        text = (await client.get("/metrics")).text
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for told in text_string_to_metric_families(text)
        for sample in told.samples
    }
    assert samples["mainspring_queue_full_total", "small"] == 1
    assert samples["mainspring_store_seconds_count", "select token"] >= 1
