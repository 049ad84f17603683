"""Behind a proxy below a path: requests are found with and without it, and what is answered has it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest

from mainspring.api.access.origins import Origins
from mainspring.api.make import make_api
from mainspring.model.access.actors import Role
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database
from tests.api.conftest import Caller

PROXY = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "10.0.0.7"}


@pytest.fixture
async def caller(database: Database, conn: Connection) -> AsyncIterator[Caller]:
    """Through a proxy on this machine, which is reached as https://example.org/jobs."""
    origins = Origins(public_url="https://example.org/jobs/", trusted=["127.0.0.1"])
    api = make_api(database, origins=origins)
    _, secret = await tokens.create(conn, "me", role=Role.ADMIN)
    transport = httpx2.ASGITransport(app=api)
    headers = {"Authorization": f"Bearer {secret}", **PROXY}
    async with httpx2.AsyncClient(transport=transport, base_url="http://example.org", headers=headers) as client:
        yield client
    await api.close()


@pytest.mark.parametrize("prefix", ["/jobs", ""], ids=["passed on", "cut off"])
async def test_a_location_has_the_path_of_the_proxy(caller: Caller, job: str, prefix: str) -> None:
    made = await caller.post(f"{prefix}/api/v1/tasks", json={"job": job})
    assert made.status_code == 201, made.text
    assert made.headers["location"] == f"/jobs/api/v1/tasks/{made.json()['id']}"


async def test_the_cookie_of_a_session_belongs_to_the_path(caller: Caller) -> None:
    secret = caller.headers["authorization"].removeprefix("Bearer ")
    opened = await caller.post("/jobs/api/v1/session", json={"token": secret})
    assert opened.status_code == 200, opened.text
    cookie = opened.headers["set-cookie"]
    assert cookie.startswith("__Secure-mainspring=")
    assert "Path=/jobs;" in cookie
    assert cookie.endswith("Secure")


async def test_who_comes_past_the_proxy_is_answered_without_the_path(caller: Caller, job: str) -> None:
    made = await caller.post("/api/v1/tasks", json={"job": job}, headers={"Host": "localhost:7070"})
    assert made.headers["location"] == f"/api/v1/tasks/{made.json()['id']}"
