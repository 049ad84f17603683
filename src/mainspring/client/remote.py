"""Client: the operations of a server over HTTP.

    async with Client("https://mainspring.example:7070", token) as client:
        view = await client.call(operations.jobs.show, "backup")

The table says how a call is a request (api/table.py). What may be sent twice is sent again when the server does not
answer or asks for patience: reads always, changes by POST with an idempotency key of their own.
Next: api/parameters.py
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from time import monotonic
from types import TracebackType
from typing import Any, get_origin, get_type_hints
from urllib.parse import urlsplit
from uuid import uuid4

import aiohttp
import msgspec

from mainspring.api.problems import from_problem
from mainspring.api.rows import ROWS
from mainspring.api.table import BASE, LONGEST, Row
from mainspring.client import bulk, output, sse
from mainspring.client.interface import Operation, P, R
from mainspring.client.namespaces import (
    Access,
    Agents,
    Alerts,
    Batches,
    Calendars,
    Channels,
    Cluster,
    Daemons,
    Jobs,
    Manifests,
    Named,
    Namespace,
    Rules,
    Schedules,
    Secrets,
    Settings,
    Tasks,
    described,
)
from mainspring.client.reading import has_ended, read
from mainspring.client.sse import ServerEvent
from mainspring.client.written import written
from mainspring.errors import (
    MainspringError,
    NoAgents,
    ServerUnavailable,
    StoreUnavailable,
    Unauthorized,
    ValidationError,
    WaitTimeout,
    shown,
)
from mainspring.operations.parts.task_views import TaskDetail
from mainspring.operations.requests.bulk import Answer, OnError, Receive
from mainspring.operations.work import tasks
from mainspring.operations.work.output import Event
from mainspring.sync import SyncBridge
from mainspring.version import VERSION

TRIES = 3
FIRST_DELAY = 0.2  # seconds before the second try; doubled for the third
LONGEST_RETRY_AFTER = 30.0  # seconds that a server may ask a client to wait
REQUEST_TIMEOUT = 30.0
SILENCE = 45.0  # seconds without even a comment, after which a stream counts as lost
WAIT_AT_ONCE = 30.0  # seconds of one long poll
KEPT_IDLE = 4.0  # seconds that an unused connection is kept; a server closes it after five
AGAIN_AFTER = 0.5  # seconds before a server is asked again that went away while a task was waited for


class Client:
    """One server by its URL, or several behind a balancer. Belongs to one event loop; opens at its first call."""

    def __init__(
        self, url: str, token: str | None = None, *, timeout: float = REQUEST_TIMEOUT, tls: ssl.SSLContext | None = None
    ) -> None:
        self.url = check_url(url)
        self._token = token
        self.timeout = timeout
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self.without_token = "give one: Client(url, token)"  # what to do without one, if the server wants one
        self._has_answered = False  # ever: the URL is right, and the server comes back
        self.loop: asyncio.AbstractEventLoop | None = None  # on which it is open
        self.sync_loop: asyncio.AbstractEventLoop | None = None
        self.tasks, self.jobs, self.schedules = Tasks(self), Jobs(self), Schedules(self)
        self.calendars, self.daemons, self.agents = Calendars(self), Daemons(self), Agents(self)
        self.cluster, self.settings, self.access = Cluster(self), Settings(self), Access(self)
        self.alerts, self.channels, self.rules = Alerts(self), Channels(self), Rules(self)
        self.secrets = Secrets(self)
        self.batches, self.manifests = Batches(self), Manifests(self)
        self.sync = SyncClient(self)

    async def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`await client.call(operations.jobs.show, "backup")`"""
        row = row_of(operation)
        bound = inspect.signature(operation).bind(None, None, *args, **kwargs)
        request = written(row.shape, row.full_path, bound.arguments)
        headers = dict(request.headers)
        if row.method == "POST" and row.handler is None:
            headers["Idempotency-Key"] = uuid4().hex
        patience, answered = row.longest - LONGEST, row.answered
        body = await self.request(
            row.method, request.path, request.query, headers, request.body, patience=patience, answered=answered
        )
        return _decoded(row, body)  # type: ignore[no-any-return]

    async def wait(self, id: int, timeout: float | None = None) -> None:
        """Until the task has ended. WaitTimeout if it has not after `timeout` seconds."""
        await self.ended(id, timeout)

    async def ended(self, id: int, timeout: float | None = None) -> TaskDetail:
        """The task, once it has ended. A server that goes away meanwhile is waited for."""
        deadline = None if timeout is None else monotonic() + timeout
        row = row_of(tasks.show)
        request = written(row.shape, row.full_path, {"id": id})
        while True:
            left = WAIT_AT_ONCE if deadline is None else min(WAIT_AT_ONCE, max(0.0, deadline - monotonic()))
            try:
                body = await self.request("GET", request.path, [("wait", f"{left:.3f}")], {}, None, patience=left)
            except (ServerUnavailable, StoreUnavailable):
                if not self._has_answered:
                    raise
                await asyncio.sleep(min(left, AGAIN_AFTER))
            else:
                view: TaskDetail = _decoded(row, body)
                if has_ended(view) and (view.result_lost or not view.result_due):
                    return view
            if deadline is not None and monotonic() >= deadline:
                raise WaitTimeout(f"task {id} has not ended within {timeout:g} s; it goes on")

    def follow(self, id: int, *, wait: bool = True) -> AsyncIterator[Event]:
        """The output of a task in order and each piece once; with `wait` until the task has ended."""
        return output.follow(self, id) if wait else output.read(self, id)

    def submit_lines(
        self, receive: Receive, *, key: str | None = None, atomic: bool = False, on_error: OnError = "continue"
    ) -> AsyncIterator[Answer]:
        """Submit many tasks: each line is the JSON of a NewTask. Yields what became of them."""
        return bulk.submit_lines(self, receive, key=key, atomic=atomic, on_error=on_error)

    async def events(
        self, path: str, query: list[tuple[str, str]], headers: Mapping[str, str]
    ) -> AsyncIterator[ServerEvent]:
        """A stream of server-sent events, until either side ends it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout, sock_read=SILENCE)
        sent = {**self.headers(), **headers, "Accept": "text/event-stream"}
        try:
            async with self.session.get(
                self.address(path), params=query, headers=sent, timeout=timeout, allow_redirects=False
            ) as answer:
                if answer.status >= 300:
                    raise from_problem(await answer.read(), answer.status)
                async for event in sse.events(sse.lines(answer.content)):
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self.unreachable(error) from None

    async def request(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        patience: float = 0.0,
        answered: Collection[int] = (),
    ) -> bytes:
        """The body of the answer; what the server refuses is raised.

        `patience` is how long the server may wait; `answered` are statuses that are no refusal, though they look so.
        """
        may_repeat = method == "GET" or "Idempotency-Key" in headers
        delay = FIRST_DELAY
        for tries_left in reversed(range(TRIES if may_repeat else 1)):
            try:
                return await self._request_once(method, path, query, headers, body, patience, answered)
            except MainspringError as error:
                wait = _wait_before_retry(error, delay)
                if not tries_left or wait is None:
                    raise
            await asyncio.sleep(wait)
            delay *= 2
        raise AssertionError("the last try returns or raises")

    async def _request_once(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        headers: Mapping[str, str],
        body: bytes | None,
        patience: float,
        answered: Collection[int],
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=self.timeout + patience)
        sent = {**self.headers(), **headers, **({} if body is None else {"Content-Type": "application/json"})}
        url = self.address(path)
        try:
            async with self.session.request(
                method, url, params=query, headers=sent, data=body, timeout=timeout, allow_redirects=False
            ) as answer:
                data = await answer.read()
                self._has_answered = True
                is_told = answer.status in answered and answer.content_type == "application/json"
                if answer.status == 401 and self._token is None:
                    raise Unauthorized(f"no token for {self.url}; {self.without_token}")
                if answer.status >= 300 and not is_told:
                    raise _refusal(data, answer)
                return data
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self.unreachable(error) from None

    def unreachable(self, error: BaseException) -> ServerUnavailable:
        reason = str(error).partition("\n")[0] or type(error).__name__
        return ServerUnavailable(
            f"{self.url} cannot be reached ({reason}); check that a server runs there, and the URL"
        )

    def address(self, path: str) -> Any:
        """The whole URL; `path` is encoded already."""
        from yarl import URL

        return URL(self.url + path, encoded=True)

    def headers(self) -> dict[str, str]:
        given = {"User-Agent": f"mainspring/{VERSION}", "Accept": "application/json"}
        return given if self._token is None else given | {"Authorization": f"Bearer {self._token}"}

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            tls = self._tls if self._tls is not None else True
            connector = aiohttp.TCPConnector(limit=100, ssl=tls, keepalive_timeout=KEPT_IDLE)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
            self.loop = asyncio.get_running_loop()
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
        self._session = self.loop = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SyncClient:
    """The same for sync code: `client.sync.call(operations.jobs.show, "backup")`, `client.sync.tasks.show(17)`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._bridge = SyncBridge(client, sync="client.sync.{}", plain="client.{}")

    def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._named("call", operation, *args, **kwargs)

    def _named(self, name: str, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        make = lambda: self._client.call(operation, *args, **kwargs)  # noqa: E731
        return self._bridge.call(name, make, None)  # each request has its own timeout

    def wait(self, id: int, timeout: float | None = None) -> None:
        """Until the task has ended. WaitTimeout if it has not after `timeout` seconds."""
        self._bridge.call("wait", lambda: self._client.wait(id, timeout), None)

    def ended(self, id: int, timeout: float | None = None) -> TaskDetail:
        """The task, once it has ended. A server that goes away meanwhile is waited for."""
        return self._bridge.call("ended", lambda: self._client.ended(id, timeout), None)

    def follow(self, id: int, *, wait: bool = True) -> Iterator[Event]:
        """The output of a task in order and each piece once; with `wait` until the task has ended."""
        return self._each("follow", self._client.follow(id, wait=wait))

    def submit_lines(
        self, lines: Iterable[bytes], *, key: str | None = None, atomic: bool = False, on_error: OnError = "continue"
    ) -> Iterator[Answer]:
        """Submit many tasks: each line is the JSON of a NewTask. Yields what became of them."""
        coming = iter(lines)

        async def receive() -> bytes | None:
            line = await asyncio.to_thread(next, coming, None)
            return None if line is None else line.rstrip(b"\n") + b"\n"

        return self._each("submit_lines", self._client.submit_lines(receive, key=key, atomic=atomic, on_error=on_error))

    def _each(self, name: str, found: AsyncIterator[R]) -> Iterator[R]:
        """Items of an async iterator, each when it is asked for."""
        try:
            while (item := self._bridge.call(name, lambda: _next(found), None)) is not None:
                yield item
        finally:
            self._bridge.call(name, lambda: _close(found), None)

    def close(self) -> None:
        self._bridge.close()

    def __getattr__(self, name: str) -> _SyncNamespace:
        namespace = getattr(self._client, name)
        if not isinstance(namespace, Namespace):
            raise AttributeError(name)
        return _SyncNamespace(self._named, namespace, name)


class _SyncNamespace:
    def __init__(self, call: Callable[..., Any], namespace: Namespace, name: str) -> None:
        self._call = call
        self._namespace = namespace
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        named = vars(type(self._namespace)).get(name)
        if not isinstance(named, Named):
            raise AttributeError(f"client.sync.{self._name} has no {name!r}")
        call, operation, whole = self._call, named.operation, f"{self._name}.{name}"

        def method(*args: Any, **kwargs: Any) -> Any:
            return call(whole, operation, *args, **kwargs)

        made: Callable[..., Any] = described(method, named)
        return made

    def __dir__(self) -> list[str]:
        return [name for name, named in vars(type(self._namespace)).items() if isinstance(named, Named)]


async def _next(found: AsyncIterator[R]) -> R | None:
    """The next item; None: there is none. No stream of ours has None among its items."""
    return await anext(found, None)


async def _close(found: AsyncIterator[Any]) -> None:
    await found.aclose()  # type: ignore[attr-defined]


@cache
def row_of(operation: Any) -> Row:
    """The first row of the table with this operation."""
    for row in ROWS:
        if row.operation is operation:
            return row
    name = f"{operation.__module__.rpartition('.')[2]}.{operation.__name__}"
    raise ValidationError(
        f"server: {name} works on the database itself; run it there, with --dsn or --data", field="server"
    )


def _decoded(row: Row, body: bytes) -> Any:
    if row.shape.answer in (None, type(None)):
        return None
    try:
        answer = read(body, row.shape.answer)
        returns_list = get_origin(get_type_hints(row.operation)["return"]) is list
        return answer.items if returns_list else answer
    except msgspec.MsgspecError as error:
        raise ServerUnavailable(
            f"the server's answer cannot be read ({error}); is it another version than this one, {VERSION}?"
        ) from None


def _refusal(body: bytes, answer: aiohttp.ClientResponse) -> MainspringError:
    error = from_problem(body, answer.status)
    asked = answer.headers.get("Retry-After", "")
    if "retry_after" not in error.details and asked.isascii() and asked.isdigit():  # a proxy's
        error.details["retry_after"] = int(asked[:9])
    return error


def _wait_before_retry(error: MainspringError, delay: float) -> float | None:
    """Seconds to wait before the same request; None if another try would not help, or comes too late."""
    if isinstance(error, NoAgents):  # who asked for it wants to be told, not to wait
        return None
    after = error.details.get("retry_after")
    if isinstance(after, (int, float)):
        return float(after) if after <= LONGEST_RETRY_AFTER else None
    return delay if isinstance(error, ServerUnavailable) else None


def check_url(url: str) -> str:
    """http://HOST:PORT or https://…, with a path prefix if there is one; without a slash at its end."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or "@" in url:
        raise ValidationError(
            f"server: {shown(url)}; write http://127.0.0.1:7070 or https://mainspring.example", field="server"
        )
    return url.rstrip("/").removesuffix(BASE)
