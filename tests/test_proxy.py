"""The fault proxies themselves, between an echoing server and a client."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from http import HTTPStatus

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response

from tests.conftest import eventually
from tests.proxy import Proxy
from tests.stream_proxy import StreamProxy


class Echo:
    """Answers each message with itself, and keeps what it heard."""

    def __init__(self) -> None:
        self.heard: list[str | bytes] = []
        self.requests: list[Request] = []
        self.closed_with: list[int | None] = []
        self.connections: list[ServerConnection] = []
        self.url = ""
        self.port = 0

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if request.headers.get("Authorization") == "Bearer wrong":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "this token is not known\n")
        return None

    async def __call__(self, connection: ServerConnection) -> None:
        self.connections.append(connection)
        try:
            while True:
                message = await connection.recv()
                self.heard.append(message)
                await connection.send(message)
        except ConnectionClosed:
            self.closed_with.append(connection.close_code)


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    async with serve(echo, "127.0.0.1", 0, process_request=echo.check, max_size=None, close_timeout=1) as server:
        echo.port = next(iter(server.sockets)).getsockname()[1]
        echo.url = f"ws://127.0.0.1:{echo.port}"
        yield echo


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    async with Proxy(echo.url) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[ClientConnection]:
    async with connect(proxy.url, max_size=None, proxy=None, close_timeout=1) as client:
        yield client


async def answers(client: ClientConnection, count: int) -> list[str | bytes]:
    async with asyncio.timeout(10):
        return [await client.recv() for _ in range(count)]


async def heard(echo: Echo, count: int) -> list[str | bytes]:
    async def there() -> bool:
        return len(echo.heard) >= count

    await eventually(there)
    return echo.heard


def numbers(count: int) -> list[bytes]:
    return [bytes([number]) for number in range(count)]


async def send_all(client: ClientConnection, messages: list[bytes]) -> None:
    for message in messages:
        await client.send(message)


async def test_messages_path_and_headers_pass_as_they_are(echo: Echo, proxy: Proxy) -> None:
    large = bytes(range(256)) * 20_000
    headers = {"Authorization": "Bearer secret"}
    async with connect(f"{proxy.url}/agent?x=1", additional_headers=headers, max_size=None, proxy=None) as client:
        for message in (b"\x00\xff", b"", "text", large):
            await client.send(message)
            assert await answers(client, 1) == [message]
        await client.close(4001, "enough")
    [request] = echo.requests
    assert request.path == "/agent?x=1"
    assert request.headers.get_all("Authorization") == ["Bearer secret"]

    async def closed() -> bool:
        return echo.closed_with == [4001]

    await eventually(closed)


async def test_the_client_is_told_what_the_target_says_to_its_handshake(proxy: Proxy) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(proxy.url, additional_headers={"Authorization": "Bearer wrong"}, proxy=None)
    assert refused.value.response.status_code == 401
    assert b"not known" in (refused.value.response.body or b"")


async def test_when_the_target_closes_the_client_sees_its_code(echo: Echo, client: ClientConnection) -> None:
    await echo.connections[0].close(1008, "a flood")
    await asyncio.wait_for(client.wait_closed(), 20)
    assert (client.close_code, client.close_reason) == (1008, "a flood")


async def test_new_connections_are_refused_while_the_old_ones_live(proxy: Proxy, client: ClientConnection) -> None:
    proxy.refuse = True
    with pytest.raises(InvalidStatus):
        await connect(proxy.url, proxy=None)
    await client.send(b"still here")
    assert await answers(client, 1) == [b"still here"]


async def test_a_target_that_is_not_there_is_a_bad_gateway() -> None:
    async with Proxy("ws://127.0.0.1:1") as proxy:
        with pytest.raises(InvalidStatus) as refused:
            await connect(proxy.url, proxy=None)
        assert refused.value.response.status_code == 502


async def test_a_delay_in_one_direction_holds_messages_and_keeps_their_order(
    echo: Echo, proxy: Proxy, client: ClientConnection
) -> None:
    proxy.down.delay, proxy.down.jitter = 0.2, 0.1
    loop = asyncio.get_running_loop()
    began = loop.time()
    await send_all(client, numbers(20))
    assert await heard(echo, 20) == numbers(20)
    assert await answers(client, 20) == numbers(20)
    assert loop.time() - began >= 0.2


async def test_a_one_way_partition_lets_the_other_way_pass(echo: Echo, proxy: Proxy, client: ClientConnection) -> None:
    proxy.up.drop = 1.0
    await client.send(b"lost")
    await echo.connections[0].send(b"down")
    assert await answers(client, 1) == [b"down"]
    proxy.up.drop, proxy.down.drop = 0.0, 1.0
    await client.send(b"heard")
    assert await heard(echo, 1) == [b"heard"]

    async def dropped() -> bool:
        return (proxy.up.dropped, proxy.down.dropped) == (1, 1)

    await eventually(dropped)
    proxy.heal()
    await client.send(b"again")
    assert await answers(client, 1) == [b"again"]


async def test_behind_a_partition_the_end_of_a_connection_is_not_seen_until_it_heals(
    echo: Echo, proxy: Proxy, client: ClientConnection
) -> None:
    proxy.partition()
    await client.close(4002)
    await echo.connections[0].send(b"are you there")
    assert echo.closed_with == []
    proxy.heal()

    async def closed() -> bool:
        return echo.closed_with == [4002] and proxy.connections == 0

    await eventually(closed)


async def test_messages_are_repeated(echo: Echo, proxy: Proxy, client: ClientConnection) -> None:
    proxy.up.duplicate = 1.0
    await send_all(client, numbers(2))
    assert await heard(echo, 4) == [b"\x00", b"\x00", b"\x01", b"\x01"]


async def test_messages_pass_after_later_ones(echo: Echo, proxy: Proxy, client: ClientConnection) -> None:
    proxy.up.reorder = 1.0
    await send_all(client, numbers(4))
    assert await heard(echo, 4) == [b"\x01", b"\x00", b"\x03", b"\x02"]


async def test_faults_by_probability_strike_some_messages(echo: Echo, proxy: Proxy, client: ClientConnection) -> None:
    proxy.up.drop, proxy.up.duplicate, proxy.up.reorder = 0.2, 0.2, 0.2
    proxy.up.recording = True
    await send_all(client, numbers(200))

    async def all_taken() -> bool:
        return len(proxy.up.recorded) == 200

    await eventually(all_taken)
    proxy.heal()
    await client.send(b"last")

    async def last() -> bool:
        return b"last" in echo.heard

    await eventually(last)
    first_heard = list(dict.fromkeys(message for message in echo.heard if message != b"last"))
    assert 0 < proxy.up.dropped < 100
    assert len(first_heard) == 200 - proxy.up.dropped
    assert len(echo.heard) > len(set(echo.heard)), "some twice"
    assert first_heard != [message for message in numbers(200) if message in first_heard], "some out of order"


async def test_a_stalled_direction_loses_nothing(echo: Echo, proxy: Proxy, client: ClientConnection) -> None:
    proxy.up.stall()
    await send_all(client, numbers(10))
    await echo.connections[0].send(b"down")
    assert await answers(client, 1) == [b"down"]
    assert echo.heard == []
    proxy.heal()
    assert await heard(echo, 10) == numbers(10)


async def test_a_narrow_line_takes_its_time(echo: Echo, proxy: Proxy, client: ClientConnection) -> None:
    proxy.up.bytes_per_second = 10_000
    loop = asyncio.get_running_loop()
    began = loop.time()
    await send_all(client, [b"x" * 1_000] * 3)
    assert len(await heard(echo, 3)) == 3
    assert loop.time() - began >= 0.25


async def test_a_cut_is_seen_by_both_sides(echo: Echo, proxy: Proxy, client: ClientConnection) -> None:
    await proxy.cut()
    await asyncio.wait_for(client.wait_closed(), 20)
    assert client.close_code == 1006

    async def closed() -> bool:
        return echo.closed_with == [1006] and proxy.connections == 0

    await eventually(closed)


async def test_old_messages_are_replayed_into_a_later_connection(
    echo: Echo, proxy: Proxy, client: ClientConnection
) -> None:
    proxy.up.recording = proxy.down.recording = True
    await send_all(client, numbers(3))
    await answers(client, 3)
    assert proxy.up.recorded == proxy.down.recorded == numbers(3)
    proxy.up.recording = False
    await proxy.cut()
    async with connect(proxy.url, proxy=None) as later:
        await proxy.replay(proxy.up, proxy.up.recorded[1:])
        assert await answers(later, 2) == numbers(3)[1:]
        await proxy.replay(proxy.down, [b"old"])
        assert await answers(later, 1) == [b"old"]


# ── bytes ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_black_hole_resets_nothing_and_goes_on_when_it_heals(echo: Echo) -> None:
    line = StreamProxy("127.0.0.1", echo.port)
    async with line, connect(f"ws://127.0.0.1:{line.port}", proxy=None, close_timeout=1) as client:
        await client.send(b"before")
        assert await answers(client, 1) == [b"before"]
        line.black_hole()
        await client.send(b"into the hole")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.recv(), 0.1)
        assert echo.heard == [b"before"]
        line.heal()
        assert await answers(client, 1) == [b"into the hole"]


async def test_bytes_are_delayed_and_a_cut_resets(echo: Echo) -> None:
    async with StreamProxy("127.0.0.1", echo.port) as line:
        client = await connect(f"ws://127.0.0.1:{line.port}", proxy=None)
        line.up.delay = line.down.delay = 0.1
        loop = asyncio.get_running_loop()
        began = loop.time()
        await client.send(b"slow")
        assert await answers(client, 1) == [b"slow"]
        assert loop.time() - began >= 0.2
        line.cut()
        await asyncio.wait_for(client.wait_closed(), 20)
        assert client.close_code == 1006


async def test_a_reset_of_one_end_is_seen_at_the_other() -> None:
    """Also by who only listens: the server died, and nobody waits for it until a timeout."""

    def keep(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(writer)

    kept: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(keep, "127.0.0.1", 0)
    async with server, StreamProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as line:
        reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
        await eventually(lambda: asyncio.sleep(0, kept))
        kept[0].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        kept[0].transport.abort()
        with suppress(ConnectionResetError):
            async with asyncio.timeout(20):
                assert await reader.read() == b""
        writer.transport.abort()
