"""HTTP jobs from the SDK to a server and back, with what their policies make of its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from mainspring import App, TaskFailed, ValidationError
from mainspring.model.secrets.references import Value
from mainspring.model.tasks.jobs import Http
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import jobs
from tests.conftest import Eventually


class Shop:
    """Gives its answers in turn, the last one for ever."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Callable[[], Awaitable[web.StreamResponse]]] = []
        self.requests: list[tuple[web.BaseRequest, bytes]] = []

    def answer(self, status: int, text: str = "", headers: dict[str, str] | None = None) -> None:
        async def respond() -> web.StreamResponse:
            return web.Response(status=status, text=text, headers=headers)

        self.answers.append(respond)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request, await request.read()))
        return await (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    shop = Shop()
    runner = web.ServerRunner(web.Server(shop.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    shop.url = f"http://127.0.0.1:{runner.addresses[0][1]}/ping"
    yield shop
    await runner.cleanup()


@pytest.fixture
def app(dsn: str) -> App:
    return App("test", dsn=dsn, poll=0.1, stop_patience=0.2, agent_name="tester", http_allow="127.0.0.1")


async def test_a_call_sends_its_arguments_and_gives_back_the_answer(app: App, shop: Shop) -> None:
    shop.answer(201, "made")
    ping = app.http("ping", "POST", shop.url, headers={"X-Shop": "7"})
    async with app.running():
        task = await ping.enqueue(day="mon")
        result = await task.result(timeout=20)
    assert (result["status"], result["body"]) == (201, "made")
    ((request, body),) = shop.requests
    assert json.loads(body) == {"day": "mon"}
    assert (request.headers["X-Shop"], request.headers["Mainspring-Task"]) == ("7", str(task.id))


async def test_the_answer_is_the_output_of_the_task(app: App, shop: Shop, conn: Connection) -> None:
    shop.answer(200, "words")
    ping = app.http("ping", "GET", shop.url)
    async with app.running():
        task = await ping.enqueue()
        await task.result(timeout=20)
    assert await conn.fetchval("select data from mainspring.output where task_id = $1", task.id) == b"words"


async def test_a_failed_call_is_tried_again_under_the_same_key(app: App, shop: Shop) -> None:
    shop.answer(500)
    shop.answer(502)
    shop.answer(200)
    ping = app.http("ping", "POST", shop.url, retries=5, retry_delay=0.001)
    async with app.running():
        await (await ping.enqueue()).result(timeout=20)
    headers = [request.headers for request, _ in shop.requests]
    assert [header["Mainspring-Attempt"] for header in headers] == ["1", "2", "3"]
    assert len({header["Idempotency-Key"] for header in headers}) == 1


@pytest.mark.parametrize(
    ("status", "options", "requests"),
    [
        (404, {"abort_on": ["4xx"]}, 1),
        (404, {"abort_on": [404]}, 1),
        (404, {"abort_on": ["5xx"]}, 3),
        (503, {"retry_on": ["5xx"]}, 3),
        (503, {"retry_on": [502]}, 1),
        (503, {"retry_on": ["http_unreachable"]}, 1),
    ],
)
async def test_policies_name_statuses_and_their_classes(
    app: App, shop: Shop, status: int, options: Any, requests: int
) -> None:
    shop.answer(status, headers={"Retry-After": "0"})
    ping = app.http("ping", "GET", shop.url, retries=2, retry_delay=0.001, **options)
    async with app.running():
        with pytest.raises(TaskFailed) as caught:
            await (await ping.enqueue()).result(timeout=20)
    assert caught.value.error_code == "http_status"
    assert len(shop.requests) == requests


async def test_a_busy_server_says_when_the_next_attempt_is(app: App, shop: Shop) -> None:
    shop.answer(429, headers={"Retry-After": "0"})
    shop.answer(200)
    ping = app.http("ping", "GET", shop.url, retry_delay="1h")  # by which alone it would not come again in time
    async with app.running():
        assert (await (await ping.enqueue()).result(timeout=20))["status"] == 200


async def test_a_call_that_hangs_ends_with_its_timeout(app: App, shop: Shop) -> None:
    async def hang() -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    shop.answers.append(hang)
    ping = app.http("ping", "GET", shop.url, timeout=0.2, retries=0)
    async with app.running():
        with pytest.raises(TaskFailed) as caught:
            await (await ping.enqueue()).result(timeout=20)
        assert caught.value.state == "timed_out"


async def test_a_call_can_be_cancelled_while_it_waits_for_the_answer(
    app: App, shop: Shop, eventually: Eventually
) -> None:
    async def hang() -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def asked() -> bool:
        return bool(shop.requests)

    shop.answers.append(hang)
    ping = app.http("ping", "GET", shop.url)
    async with app.running():
        task = await ping.enqueue()
        await eventually(asked)
        await task.cancel()
        with pytest.raises(TaskFailed) as caught:
            await task.result(timeout=20)
    assert caught.value.state == "cancelled"


async def test_a_private_address_ends_the_task_at_once(app: App, shop: Shop, dsn: str) -> None:
    strict = App("test", dsn=dsn, poll=0.1, stop_patience=0.2)
    ping = strict.http("ping", "GET", shop.url, retries=5)
    async with strict.running():
        with pytest.raises(TaskFailed, match="loopback address") as caught:
            await (await ping.enqueue()).result(timeout=20)
    assert caught.value.error_code == "address_refused"
    assert shop.requests == []


async def test_a_call_can_have_a_schedule(app: App, shop: Shop, eventually: Eventually) -> None:
    shop.answer(200)
    app.http("ping", "POST", shop.url, json={"a": 1}, every="1s", args={"day": "mon"})

    async def twice() -> bool:
        return len(shop.requests) >= 2

    async with app.running():
        await eventually(twice)
    request, body = shop.requests[0]
    assert body == b'{"a":1}'
    assert request.headers["Content-Type"] == "application/json"
    assert json.loads(request.headers["Mainspring-Args"]) == {"day": "mon"}


async def test_a_call_is_stored_as_defined(app: App, conn: Connection) -> None:
    app.http("ping", "put", "https://shop.example/", json=[1], expect=["204", "3xx"], redirects=0, timeout="5s")
    async with app:
        definition = (await jobs.find(conn, "ping")).definition
    headers: dict[str, Value] = {"Content-Type": "application/json"}
    assert definition.run == Http("PUT", "https://shop.example/", headers, "[1]", ("204", "3xx"), 0)
    assert (definition.timeout, definition.requires) == (5.0, {})


async def test_a_call_takes_named_arguments_only(app: App) -> None:
    ping = app.http("ping", "GET", "https://shop.example/")
    with pytest.raises(ValidationError, match="named arguments only"):
        await ping.enqueue(1)
    with pytest.raises(ValidationError, match="not a handler"):
        ping()
