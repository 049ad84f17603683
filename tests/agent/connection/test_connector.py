"""The connector: whatever happens while it dials, the agent may try again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import uvloop

from mainspring.agent.connection.connector import Connector
from mainspring.wire.channel import ChannelClosed


@pytest.fixture
def closing() -> Iterator[int]:
    """A port that closes each connection at once, as a balancer does whose servers are all down."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_close_all, args=(server,))
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def _close_all(server: socket.socket) -> None:
    with suppress(OSError):
        while True:
            client, _ = server.accept()
            client.close()


def test_a_server_that_closes_connections_at_once_is_one_that_cannot_be_reached(closing: int) -> None:
    """On uvloop, as agents run: there that may be known before the handshake begins."""

    async def dial() -> None:
        connector = Connector([f"ws://127.0.0.1:{closing}/agent"], "token")
        for _ in range(200):
            with pytest.raises(ChannelClosed):
                await connector(None)

    uvloop.run(dial())


@pytest.fixture
def redirecting() -> Iterator[tuple[int, list[bytes]]]:
    """A port that redirects each request to a place that is no URL, and what it was asked."""
    asked: list[bytes] = []

    def answer(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = server.accept()
                with client:
                    asked.append(client.recv(65_536))
                    client.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        yield server.getsockname()[1], asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


async def test_a_redirect_is_not_followed_wherever_it_leads(redirecting: tuple[int, list[bytes]]) -> None:
    port, asked = redirecting
    with pytest.raises(ChannelClosed, match="302"):
        await Connector([f"ws://127.0.0.1:{port}/agent"], "token")(None)
    assert len(asked) == 1
