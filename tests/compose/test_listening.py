"""What a process listens on: agents and requests on one port, or apart; which port, if the first is taken."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.server.agents.test_network import Shop, agent, settings, token

from mainspring.compose.listening import Listening
from mainspring.compose.local import Engine
from mainspring.compose.network import listening_for, running_server, serving_api
from mainspring.errors import ValidationError
from mainspring.front import sockets
from mainspring.model.access.actors import Role
from mainspring.store.postgres.database import Connection, Database


@pytest.fixture
async def shop(dsn: str, database: Database) -> AsyncIterator[Shop]:
    shop = Shop(dsn)
    async with shop.app:
        yield shop


def _get(url: str, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers or {}), timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
        return error.code, json.loads(text) if text.startswith(b"{") else text


async def get(url: str, **headers: str) -> tuple[int, Any]:
    return await asyncio.to_thread(_get, url, headers)


async def test_tasks_run_on_an_agent_while_requests_are_answered_on_the_same_port(
    shop: Shop, database: Database, dsn: str, conn: Connection
) -> None:
    async with running_server(settings(dsn), database, "shop", {}, without_tls=False) as urls:
        assert urls.agents is not None
        assert urls.api == urls.agents.replace("ws://", "http://")
        async with agent(shop, dsn, urls.agents, await token(conn)):
            for number in range(10):
                task = await shop.double.enqueue(number)
                assert await get(f"{urls.api}/readyz") == (200, {"status": "ready"})
                assert await task.result(timeout=20) == 2 * number
        status, problem = await get(f"{urls.api}/nothing")
        assert (status, problem["code"]) == (404, "not_found")


async def test_an_api_that_is_off_leaves_health_to_the_agents_port(database: Database, dsn: str) -> None:
    async with running_server(settings(dsn, api=False), database, None, {}, without_tls=False) as urls:
        assert urls.agents is not None
        assert urls.api is None
        there = urls.agents.replace("ws://", "http://")
        assert await get(f"{there}/healthz") == (200, {"status": "healthy"})
        assert (await get(f"{there}/nothing")) == (404, b"agents connect to /agent\n")


async def test_an_api_with_an_address_of_its_own_is_not_on_the_agents_port(
    shop: Shop, database: Database, dsn: str, conn: Connection
) -> None:
    given = settings(dsn, api_listen="127.0.0.1:0")
    async with running_server(given, database, "shop", {}, without_tls=False) as urls:
        assert urls.agents is not None
        there = urls.agents.replace("ws://", "http://")
        assert urls.api not in (None, there)
        assert (await get(f"{urls.api}/nothing"))[1]["code"] == "not_found"
        assert (await get(f"{urls.api}/agent"))[1]["code"] == "not_found"
        assert await get(f"{there}/nothing") == (404, b"agents connect to /agent\n")
        assert await get(f"{there}/readyz") == (200, {"status": "ready"})
        async with agent(shop, dsn, urls.agents, await token(conn)):
            assert await (await shop.double.enqueue(4)).result(timeout=20) == 8


async def test_the_url_of_a_proxy_is_the_one_that_is_told(database: Database, dsn: str) -> None:
    given = settings(dsn, public_url="https://example.org/jobs/")
    async with serving_api(given, database, without_tls=False) as url:
        assert url == "https://example.org/jobs"


async def test_an_engine_takes_agents_and_requests_beside_its_own_agent(
    shop: Shop, database: Database, dsn: str, conn: Connection
) -> None:
    listening = Listening(settings(dsn))
    engine = Engine(settings(dsn, agent_name="near"), database, {}, {}, {})  # its agent knows no handlers
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine.running())
        urls = await stack.enter_async_context(listening_for(engine, database, listening))
        assert urls.agents is not None
        assert await get(f"{urls.api}/readyz") == (200, {"status": "ready"})
        async with agent(shop, dsn, urls.agents, await token(conn), agent_name="far"):
            assert await (await shop.double.enqueue(4)).result(timeout=20) == 8


async def test_requests_are_answered_while_two_thousand_fires_a_second_are_armed(
    database: Database, dsn: str, conn: Connection
) -> None:
    listening = Listening(settings(dsn))
    engine = Engine(settings(dsn), database, {}, {}, {})
    viewer = await token(conn, role=Role.VIEWER)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(engine.running())
        urls = await stack.enter_async_context(listening_for(engine, database, listening))
        fired: list[int] = []
        timers = engine.agent.timers
        for number in range(60_000):
            timers.after(number / 2_000, fired.append, number)
        for path in ("readyz", "api/v1/stats", "api/v1/jobs", "api/v1/tasks?limit=50"):
            status, _ = await get(f"{urls.api}/{path}", Authorization=f"Bearer {viewer}")
            assert status == 200
        assert fired
        assert len(timers), "the answers came after the flood, not in it"


async def test_while_the_loop_is_blocked_requests_are_told_so(database: Database, dsn: str) -> None:
    given = settings(dsn, lease=1.2)
    async with running_server(given, database, None, {}, without_tls=False) as urls:
        found: list[tuple[int, Any]] = []

        def ask() -> None:
            """In a thread, while this loop does nothing."""
            request = urllib.request.Request(f"{urls.api}/api/v1/tasks", data=b"{}", method="POST")
            try:
                urllib.request.urlopen(request, timeout=10)
            except urllib.error.HTTPError as error:
                with error:
                    found.append((error.code, json.load(error)))
            found.append(_get(f"{urls.api}/readyz"))
            found.append(_get(f"{urls.api}/healthz"))

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join(20)  # blocks this loop
        reason = "the event loop of this server is blocked"
        status, problem = found[0]
        assert (status, problem["code"], problem["message"]) == (503, "not_ready", f"{reason}; try again")
        assert found[1] == (503, {"status": "not_ready", "reason": reason})
        assert found[2] == (200, {"status": "degraded", "reason": reason})


async def test_the_api_alone_says_that_postgresql_is_away(database: Database, dsn: str) -> None:
    away = Database("postgresql://127.0.0.1:1/nowhere")
    async with serving_api(settings(dsn), away, without_tls=False) as url:
        async with asyncio.timeout(10):
            while (await get(f"{url}/readyz"))[0] == 200:
                await asyncio.sleep(0.01)
        status, body = await get(f"{url}/readyz")
        assert (status, body["status"]) == (503, "not_ready")
        assert (await get(f"{url}/healthz"))[0] == 200
        status, problem = await get(f"{url}/api/v1/tasks", Authorization="Bearer ms_x")
        assert (status, problem["code"]) == (503, "store_unavailable")


# ── ports ───────────────────────────────────────────────────────────────────────────────────────


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for field in ("listen", "api_listen"):
            with pytest.raises(ValidationError, match=f"{field}: 127.0.0.1:{port}: Address already in use; name"):
                Listening(settings(dsn, **{field: f"127.0.0.1:{port}"}))


def test_the_next_free_port_of_a_range_is_taken_and_no_other_process_can_have_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = sockets.bind("127.0.0.1", port, min(port + 20, 65535))
        assert port < found[0].getsockname()[1] <= port + 20
        with pytest.raises(OSError, match="in use"):
            sockets.bind("127.0.0.1", found[0].getsockname()[1])
        sockets.close(found)
        with pytest.raises(OSError, match="in use"):
            sockets.bind("127.0.0.1", port, port)


def test_all_addresses_of_a_host_have_one_port() -> None:
    found = sockets.bind("localhost", 0)
    assert len({each.getsockname()[1] for each in found}) == 1
    sockets.close(found)


async def test_an_ipv6_address_is_told_in_brackets(database: Database, dsn: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    async with running_server(settings(dsn, listen="[::1]:0"), database, None, {}, without_tls=False) as urls:
        assert (urls.api or "").startswith("http://[::1]:")
        assert (await get(f"{urls.api}/healthz"))[0] == 200


@pytest.mark.parametrize("field", ["listen", "api_listen"])
def test_another_address_than_loopback_wants_tls(dsn: str, field: str) -> None:
    with pytest.raises(ValidationError, match=f"{field}: 0.0.0.0 is not this machine alone"):
        Listening(settings(dsn, **{field: "0.0.0.0:0"}))
