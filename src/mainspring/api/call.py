"""Call: one request that has found its row and its caller, for those that answer it."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, quote

from mainspring.api import bodies, parameters
from mainspring.api.access.guard import Caller
from mainspring.api.access.origins import Origin
from mainspring.api.lent import LentConnection
from mainspring.api.table import LONGEST, Row
from mainspring.errors import Malformed, StoreUnavailable
from mainspring.model.access.actors import Actor
from mainspring.operations.requests.large_values import HUGE, LargeValue
from mainspring.store.postgres.connection import Connection
from mainspring.store.postgres.rows import long_json_as_text

if TYPE_CHECKING:
    from mainspring.api.app import Api

MOST_PARAMETERS = 200
HSTS = ("Strict-Transport-Security", "max-age=31536000")  # under TLS
_REQUEST_ID = re.compile(r"[!-~]{1,64}")

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
    large: LargeValue | None = None  # what a large body became

    async def as_json(self, data: bytes) -> Any:
        """The body as JSON. What a large one becomes, or one that asks for much, is held until `release`."""
        if len(data) < HUGE and not self.row.frees:
            return await bodies.as_json(data)
        self.large = LargeValue()
        self.large.value = await bodies.as_json(data)
        return self.large.value

    async def release(self) -> None:
        """Nothing needs the body any more: free it in slices, if it is large."""
        if self.large is not None:
            large, self.large = self.large, None
            await large.release()

    @property
    def actor(self) -> Actor:
        assert self.caller is not None
        return self.caller.actor

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """One for the operation of its row."""
        connections = self.api.connections
        if not self.row.computes:
            return connections.acquire()
        return nullcontext(cast(Connection, LentConnection(connections.acquire)))

    async def operate(self, conn: Connection, given: dict[str, Any]) -> Any:
        """What the operation of its row returns; long JSON in it stays text, because it is written as JSON again."""
        with long_json_as_text():
            return await self.row.operation(conn, self.actor, **given)

    def asked(self, name: str) -> str | None:
        """A query parameter that the handler reads itself."""
        return next((value for wire, value in self.query if wire == name), None)

    def check_query(self) -> None:
        """Refuse parameters that its row does not have, where a handler needs none."""
        parameters.from_query(self.row.shape, self.query, also=("namespace",))

    def common_headers(self) -> list[tuple[str, str]]:
        """On every answer of ours."""
        headers = [
            ("Mainspring-Request-Id", self.request_id),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        return [*headers, HSTS] if self.origin.is_secure else headers


def raw_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in headers]


# ── what a request says ─────────────────────────────────────────────────────────────────────────


def headers_of(scope: Any) -> dict[str, str]:
    """By lower-case name. Of one that is sent twice both values count, as HTTP says."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        key = name.decode("latin-1").lower()
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found


def request_id_of(headers: dict[str, str]) -> str:
    """That of the caller, if it is one; else a new one."""
    given = headers.get("mainspring-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def path_within(scope: Any, base: str) -> bytes:
    """The raw path below the one where we are mounted.

    A proxy may have cut off all of that already, or the part below which the application around us is served: Starlette
    keeps that part in `app_root_path`.
    """
    raw: bytes = scope.get("raw_path") or quote(scope["path"]).encode()
    raw = raw.partition(b"?")[0]
    for prefix in (base, base.removeprefix(scope.get("app_root_path", "").rstrip("/"))):
        cut = quote(prefix).encode()
        if cut and raw.startswith(cut + b"/"):
            return raw.removeprefix(cut)
    return raw


def query_of(scope: Any) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            scope.get("query_string", b"").decode("ascii"),
            keep_blank_values=True,
            strict_parsing=False,
            errors="strict",
            max_num_fields=MOST_PARAMETERS,
        )
    except ValueError:  # among them what is not UTF-8
        raise Malformed("the query is not percent-encoded UTF-8, or has too many parameters") from None


class in_time:
    """A bound for what waits for PostgreSQL: a caller gets an error and never hangs."""

    def __init__(self, longest: float = LONGEST) -> None:
        self._longest = longest
        self._timeout = asyncio.timeout(longest)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self._timeout.__aexit__(*raised)
        except TimeoutError:
            raise StoreUnavailable(f"PostgreSQL has not answered within {self._longest:g} s; try again") from None
