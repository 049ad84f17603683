"""Endpoint: what /healthz and /readyz answer. Which agents are admitted: test_network.py."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from mainspring.compose.local import load, make_server
from mainspring.server.agents.endpoint import Endpoint
from mainspring.server.cluster.identity import Identity
from mainspring.store.postgres.database import Database

NOWHERE = "postgresql://127.0.0.1:1/nowhere"  # how the server is must be told while PostgreSQL is away


class Probe:
    """A endpoint, and the reason that its server gives for not acting."""

    def __init__(self) -> None:
        self.reason: str | None = None
        database = Database(NOWHERE)
        server = make_server(load({"dsn": NOWHERE}, environment={}), database, Identity(uuid4()), None, {})
        self.endpoint = Endpoint(
            database, server.agent_connections, host="127.0.0.1", port=0, why_not_ready=lambda: self.reason
        )
        self.address = ""

    async def get(self, path: str, **headers: str) -> Answer:
        return await asyncio.to_thread(_get, self.address, path, headers)


class Answer(NamedTuple):
    status: int
    kind: str | None
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def _get(address: str, path: str, headers: dict[str, str]) -> Answer:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        assert response.getheader("Server") is None
        return Answer(response.status, response.getheader("Content-Type"), response.read())
    finally:
        connection.close()


@pytest.fixture
async def probe() -> AsyncIterator[Probe]:
    probe = Probe()
    await probe.endpoint.bind()
    probe.address = urlsplit(await probe.endpoint.open()).netloc
    yield probe
    await probe.endpoint.close()


async def test_a_server_that_may_act_is_healthy_and_ready(probe: Probe) -> None:
    healthy = await probe.get("/healthz")
    assert (healthy.status, healthy.kind, healthy.json) == (200, "application/json", {"status": "healthy"})
    ready = await probe.get("/readyz?from=balancer")
    assert (ready.status, ready.json) == (200, {"status": "ready"})


async def test_a_server_that_may_not_act_lives_but_is_not_ready_and_says_why(probe: Probe) -> None:
    probe.reason = "the server is stopping"
    degraded = await probe.get("/healthz")
    assert (degraded.status, degraded.json) == (200, {"status": "degraded", "reason": probe.reason})
    refused = await probe.get("/readyz")
    assert (refused.status, refused.kind) == (503, "application/json")
    assert refused.json == {"status": "not_ready", "reason": probe.reason}
    probe.reason = None
    assert (await probe.get("/readyz")).status == 200


async def test_what_else_is_asked_for_needs_what_it_always_needed(probe: Probe) -> None:
    for path in ("/", "/healthz/", "/healthzz", "/metrics"):
        assert (await probe.get(path)).status == 404
    assert (await probe.get("/agent", Authorization="Bearer ms_wrong")).status == 503, "PostgreSQL is away"
