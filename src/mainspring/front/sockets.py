"""Sockets: bound before anything is served on them, so that a process that cannot listen does not start.

Next: front/listener.py
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

BACKLOG = 128


def bind(host: str, port: int, last_port: int | None = None) -> list[socket.socket]:
    """Sockets for every address of a host, on one port. OSError if it cannot be.

    With `last_port`, on the first free one of the range. These sockets listen at once, because that decides who has
    the port; no connection is accepted before the caller does so.
    """
    for candidate in range(port, (last_port or port) + 1):
        try:
            return _bind(host, candidate, listen=last_port is not None)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or candidate == (last_port or port):
                raise
    raise AssertionError("the range has a port")


def _bind(host: str, port: int, *, listen: bool) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            bound = socket.socket(family, socket.SOCK_STREAM)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((address[0], port, *address[2:]))
            port = bound.getsockname()[1]  # port 0 is any, the same for all addresses
            if listen:
                bound.listen(BACKLOG)
    except BaseException:
        close(sockets)
        raise
    return sockets


def close(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()


def url_of(scheme: str, host: str, sockets: Sequence[socket.socket]) -> str:
    """How others reach these sockets."""
    port = sockets[0].getsockname()[1]
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"
