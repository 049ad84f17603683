"""Call: one request that has found its row and its caller, for those that answer it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mainspring.api.access.guard import Caller
from mainspring.api.access.origins import Origin
from mainspring.api.table import Row
from mainspring.model.access.actors import Actor

if TYPE_CHECKING:
    from mainspring.api.app import Api

Send = Callable[[Any], Awaitable[None]]
Receive = Callable[[], Awaitable[Any]]


@dataclass
class Call:
    api: Api
    row: Row
    scope: Any
    receive: Receive
    send: Send
    method: str
    names: dict[str, str]  # from the path
    query: list[tuple[str, str]]
    headers: dict[str, str]
    origin: Origin
    request_id: str
    base: str  # the path below which we are mounted; usually empty
    caller: Caller | None = None  # None: the row wants none
    body: bytes = b""  # once it was read

    @property
    def actor(self) -> Actor:
        assert self.caller is not None
        return self.caller.actor

    def asked(self, name: str) -> str | None:
        """A query parameter that the handler reads itself."""
        return next((value for wire, value in self.query if wire == name), None)

    def common_headers(self) -> list[tuple[str, str]]:
        """On every answer of ours."""
        return [
            ("Mainspring-Request-Id", self.request_id),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
