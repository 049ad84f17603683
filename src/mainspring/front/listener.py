"""Listener: an address that serves HTTP and no agents.

Next: front/http_server.py
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence

from mainspring.front.http_server import HttpServer
from mainspring.front.sockets import close

HANDSHAKE_WITHIN = 10.0  # seconds for TLS


class Listener:
    def __init__(self, http_server: HttpServer, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None) -> None:
        self._http_server = http_server
        self._sockets = sockets
        self._tls = tls
        self._servers: list[asyncio.Server] = []

    async def open(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        within = None if self._tls is None else HANDSHAKE_WITHIN
        for each in self._sockets:
            server = await loop.create_server(
                self._http_server.connect, sock=each, ssl=self._tls, ssl_handshake_timeout=within
            )
            self._servers.append(server)

    async def close(self) -> None:
        """Accept no more, and end what is open."""
        for server in self._servers:
            server.close()
        await self._http_server.stop()
        for server in self._servers:
            await server.wait_closed()
        close(self._sockets)
