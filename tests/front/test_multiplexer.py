"""Agents and HTTP on one port."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.front.served import Client, Served

Serve = Callable[..., Served]


@pytest.fixture(params=["asyncio", "uvloop"])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    started: list[Served] = []

    def start(**options: Any) -> Served:
        started.append(Served(request.param, **options))
        return started[-1]

    yield start
    for served in started:
        served.ask_to_stop()
        assert served.ended()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl; scripts/debian-network installs it")
    both = tmp_path_factory.mktemp("tls") / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", both, "-out", both.with_suffix(".cert")],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_text(both.read_text() + both.with_suffix(".cert").read_text())
    return both


async def test_an_agent_talks_while_requests_are_answered(serve: Serve) -> None:
    served = serve()
    async with connect(f"ws://127.0.0.1:{served.port}/agent?keep", compression=None) as agent:
        for number in range(20):
            message = bytes([number]) * 100_000
            await agent.send(message)
            with served.client() as client:
                assert (await asyncio.to_thread(client.get().answer)).status == 200
            assert await agent.recv() == message


async def test_a_request_line_in_pieces_finds_its_protocol(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        for byte in b"GET /agent HTTP/1.1\r\nHost: here\r\n\r\n":
            client.send(bytes([byte]))
        assert (await asyncio.to_thread(client.until, b"\r\n")).startswith(b"HTTP/1.1 426")
    with served.client() as client:
        for byte in b"\r\nGET /agents HTTP/1.1\r\nHost: here\r\n\r\n":
            client.send(bytes([byte]))
        assert (await asyncio.to_thread(client.answer)).status == 404


async def test_a_browser_is_refused_where_agents_connect(serve: Serve) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"ws://127.0.0.1:{serve().port}/agent", origin="http://127.0.0.1"):  # type: ignore[arg-type]
            pass
    assert refused.value.response.status_code == 403


async def test_tls_ends_before_both(serve: Serve, certificate: Path) -> None:
    here = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    here.load_cert_chain(certificate)
    served = serve(tls=here, linger=0.2)
    there = ssl.create_default_context(cafile=str(certificate))
    async with connect(f"wss://127.0.0.1:{served.port}/agent", ssl=there, compression=None) as agent:
        await agent.send(b"x" * 100_000)
        assert await agent.recv() == b"x" * 100_000

        def request() -> tuple[int, int, bool]:
            plain = served.client().socket
            with Client(there.wrap_socket(plain, server_hostname="127.0.0.1")) as client:
                first = client.get().answer().status
                second = client.send(b"nonsense\r\n\r\n").answer().status
                return first, second, client.is_closed()

        assert await asyncio.to_thread(request) == (200, 400, True)


async def test_a_stop_closes_agents_and_requests(serve: Serve) -> None:
    served = serve()
    async with connect(f"ws://127.0.0.1:{served.port}/agent") as agent:
        with served.client() as client:
            client.get("/stream").until(b"hello")
            served.ask_to_stop()
            await agent.wait_closed()
            assert agent.close_code == 1001
            await asyncio.to_thread(client.until, b"event: bye")
    assert await asyncio.to_thread(served.ended)
