"""Api: the ASGI application. One request on its way:

    host → route → caller → role → rate → parameters → operation, with its idempotency key → answer

Every refusal is application/problem+json; whatever fails here is a bug of ours, `internal`, and is logged.
Next: api/table.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec

from mainspring.api import idempotency, parameters
from mainspring.api.access.bounds import Bounds
from mainspring.api.access.buckets import Buckets, limited
from mainspring.api.access.guard import Guard
from mainspring.api.access.origins import Origins
from mainspring.api.answers import Answer, answer, etag, letting_go, version_of
from mainspring.api.bodies import LARGE, Disconnected, check_json_type, read
from mainspring.api.call import (
    Call,
    Receive,
    Send,
    headers_of,
    in_time,
    path_within,
    query_of,
    raw_headers,
    request_id_of,
)
from mainspring.api.handlers import site
from mainspring.api.handlers.scrape import Scrape
from mainspring.api.problems import MEDIA_TYPE, Internal, encoded, retry_after, status_of
from mainspring.api.routing import Router
from mainspring.api.streams.followed import Followed
from mainspring.api.streams.hub import Hub
from mainspring.api.streams.sse import Streams
from mainspring.api.table import BASE, Row
from mainspring.errors import (
    Forbidden,
    MainspringError,
    NotFound,
    Unauthorized,
    ValidationError,
    shown,
)
from mainspring.model.access.actors import Role
from mainspring.model.words.durations import Duration
from mainspring.operations import Connections
from mainspring.operations.parts.giving_way import GivingWay
from mainspring.operations.parts.output_readers import Together
from mainspring.operations.requests.grouped import GroupedTasks
from mainspring.operations.work import tasks
from mainspring.operations.work.waiting import Waiting
from mainspring.store.access import audit
from mainspring.store.postgres.rows import long_json_as_text

log = logging.getLogger("mainspring.api")

LONGEST_WAIT = 60.0  # seconds of `wait`
PART = 256 * 1024  # bytes of an answer that are written at once
REFUSALS_PER_MINUTE = 10  # of one actor, in the audit


class Api:
    """`connections` are those of the API alone, `rows` is the table.

    `bindings` are the values of parameters that a server knows and a caller does not: `Row.bound`.
    """

    def __init__(
        self,
        connections: Connections,
        rows: Sequence[Row],
        *,
        guard: Guard,
        origins: Origins,
        scrape: Scrape,
        why_not_ready: Callable[[], str | None] = lambda: None,
        bindings: Mapping[str, Any],
        bounds: Bounds | None = None,
        server_name: str | None = None,
        environment: str | None = None,
        giving_way: GivingWay | None = None,
    ) -> None:
        bounds = bounds or Bounds()
        self.connections = connections
        self.guard = guard
        self.origins = origins
        self.rows = rows
        self.waiting = Waiting(connections)
        self.new_tasks = GroupedTasks(connections)
        self.streams = Streams(per_caller=bounds.streams_per_caller, per_server=bounds.streams)
        self.giving_way = giving_way  # None: no agent is on this event loop
        self.hub = Hub(connections, self.giving_way)
        self.followed = Followed(connections)
        self.outputs = Together(connections)  # those who follow output look together
        self._router = Router([_Absolute(row) for row in rows])
        self._rates = Buckets(bounds.rate, 2 * bounds.rate)
        self._refusals = Buckets(REFUSALS_PER_MINUTE / 60, REFUSALS_PER_MINUTE)
        self.scrape = scrape
        scrape.http.streams = lambda: self.streams.open
        self._bindings = bindings
        self.server_name = server_name
        self.environment = environment
        self.why_not_ready = why_not_ready
        self.described: dict[str, bytes] = {}  # /openapi.json by the path we are served below, once it was asked for
        self.stopping = asyncio.Event()  # streams end when it is set

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    async def close(self) -> None:
        """End the streams and those who wait."""
        self.stopping.set()
        await self.waiting.close()
        await self.scrape.close()
        await self.guard.close()
        await self.hub.close()
        await self.followed.close()
        await self.outputs.close()

    def hint(self, ended: Sequence[int]) -> None:
        """The recorder of this process has written the end of these tasks."""
        self.waiting.hint(ended)
        self.followed.hint(ended)

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        began_at = monotonic()
        self.scrape.start()
        if self.giving_way is not None:
            await self.giving_way.begin()
        headers = headers_of(scope)
        request_id = request_id_of(headers)
        watched = _Watched(send)
        name = "none"
        origin = self.origins.of(scope, headers)
        call = Call(
            self, NO_ROW, scope, receive, watched, scope["method"], {}, [], headers,
            origin, request_id, self.origins.base(scope, origin),
        )  # fmt: skip
        try:
            given = await self._route(call)
        except Disconnected:
            return
        except MainspringError as error:
            if isinstance(error, Forbidden):
                await self._note_refusal(call, error)
            given = self._refusal(call, error)
        except Exception:
            log.exception("request %s failed: %s %.200s", request_id, call.method, scope["path"])
            given = self._refusal(call, Internal("a bug of ours; the server's log tells more", request_id=request_id))
        finally:
            name = call.row.name if call.row is not NO_ROW else name
        if given is not None and not watched.status:
            await self._send(call, given)
        self.scrape.http.add(name, watched.status, monotonic() - began_at)
        await call.release()

    async def _route(self, call: Call) -> Answer | None:
        route = self._router.find(call.method, path_within(call.scope, call.base))
        call.row, call.names = route.row.row, route.names
        if call.row.guarded:
            self.origins.check_host(call.origin, call.scope.get("server"))
        call.query = query_of(call.scope)
        _check_namespace(call)
        if call.row.roles:
            async with in_time():
                call.caller = await self.guard.caller(
                    call.scope, call.headers, call.origin, call.request_id, offline=call.row.offline
                )
            self._check_role(call)
            self._check_rate(call)
        if call.row.handler is not None:
            handled: Answer | None = await call.row.handler(call)
            return handled
        return await self.carry_out(call, await self.parameters_of(call))

    async def carry_out(self, call: Call, given: dict[str, Any]) -> Answer:
        """The answer of the row's operation."""
        key = idempotency.key_of(call)
        wait = _wait(call)
        if self.giving_way is not None:
            await self.giving_way.wait()  # before it has a connection, of which there are few
        async with in_time(call.row.longest):
            view, replayed = await idempotency.once(call, key, given)
        if wait:
            await call.release()
            view = await self._after_end(call, view, given, wait)
        if self.giving_way is not None:
            await self.giving_way.wait()
        if replayed is None:
            made = self.as_answer(call, view)
            return await (letting_go((view, *given.values()), made) if call.row.frees else made)
        if not wait:
            return replayed
        again = await self.as_answer(call, view)
        return again._replace(headers=[*again.headers, idempotency.REPLAYED])

    def _check_role(self, call: Call) -> None:
        caller = call.caller
        assert caller is not None
        if caller.actor.role not in call.row.roles:
            roles = [role for role in Role if role in call.row.roles]
            needed = " or ".join(roles)
            raise Forbidden(
                f"{call.row.action} needs the role {needed}; yours is {caller.actor.role}", role=roles[0], roles=roles
            )
        self.guard.check_csrf(caller, call.method, call.headers, call.origin)

    async def _note_refusal(self, call: Call, error: Forbidden) -> None:
        """In the audit, so many a minute; where that fails, the caller still gets the refusal."""
        caller = call.caller
        if caller is not None and not self._refusals.take(caller.identity):
            subject = call.row.subject(call.names)
            with suppress(MainspringError):
                async with self.connections.acquire() as conn:
                    await audit.refused(conn, caller.actor, call.row.action, subject, error.message)

    def _check_rate(self, call: Call) -> None:
        caller = call.caller
        if caller is not None and caller.rate is not None:
            wait = self._rates.take(caller.identity, caller.rate, 2 * caller.rate)
            if wait:
                raise limited(f"more than {caller.rate:g} requests a second", wait)

    async def parameters_of(self, call: Call) -> dict[str, Any]:
        """What the operation is called with, from the path, the query, the headers and the body."""
        shape = call.row.shape
        also = ("namespace", "wait") if call.row.waits else ("namespace",)
        given = parameters.from_query(shape, call.query, also=also)
        for parameter in shape.parameters:
            if parameter.place == "path":
                text = call.names[parameter.wire]
                given[parameter.name] = parameters.from_text(text, parameter.type, parameter.wire)
        given |= parameters.from_headers(shape, call.method, call.headers)
        bound = self.bound(call.row)
        body = await self._body(call)
        if len(call.body) < LARGE:
            return given | parameters.from_body(shape, body) | bound
        return given | await asyncio.to_thread(parameters.from_body, shape, body) | bound

    def bound(self, row: Row) -> dict[str, Any]:
        return {name: self._bindings[name] for name in row.bound}

    async def _body(self, call: Call) -> Any:
        data = await read(call.receive, call.headers, call.row.most_bytes)
        call.body = data
        if not data and call.row.shape.whole_body is None:
            return None
        check_json_type(call.headers)
        return await call.as_json(data)

    async def _after_end(self, call: Call, view: Any, given: dict[str, Any], wait: float) -> Any:
        """The view again, once the task has ended or `wait` seconds have passed; never an error."""
        id: int = given.get("id") or view.id
        waiting = asyncio.ensure_future(self.waiting.wait(id, wait))
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait([waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            waiting.cancel()
        await asyncio.wait([waiting])
        if not waiting.cancelled():
            waiting.exception()  # a timeout; or it was dropped meanwhile, which the look tells
        if not await self._is_still_valid(call):
            if call.row.method == "GET":
                raise Unauthorized("the token or session was revoked")
            return view
        try:
            async with in_time(), self.connections.acquire() as conn:
                if call.row.method == "GET":
                    return await call.operate(conn, given)
                with long_json_as_text():
                    task = await tasks.status(conn, call.actor, id)
        except MainspringError:
            return view  # what was submitted is durable: an error would let the caller submit it again
        return msgspec.structs.replace(view, state=task.state, task=task)

    async def _is_still_valid(self, call: Call) -> bool:
        """Whether the caller may read what has become of it since it asked."""
        assert call.caller is not None
        return await self.guard.still_valid(call.caller, call.scope, call.headers, call.origin)

    async def as_answer(self, call: Call, view: Any) -> Answer:
        """With the headers that its version and its place ask for."""
        version = version_of(view)
        if call.method in ("GET", "HEAD") and version is not None:
            known = call.headers.get("if-none-match", "")
            if etag(version) in [one.strip().removeprefix("W/") for one in known.split(",")]:
                return Answer(304, b"", [("ETag", etag(version))])
        given = await answer(view, call.row.status)
        if given.status == 201 and call.method == "POST" and (id := getattr(view, "id", None)) is not None:
            given.headers.append(("Location", f"{call.base}{BASE}{call.row.path.partition('/{')[0]}/{id}"))
        return given

    def _refusal(self, call: Call, error: MainspringError) -> Answer:
        headers = [("Content-Type", MEDIA_TYPE)]
        if (wait := retry_after(error)) is not None:
            headers.append(("Retry-After", str(wait)))
        if isinstance(error, Unauthorized):
            headers.append(("WWW-Authenticate", 'Bearer realm="mainspring"'))
        allowed = error.details.get("allowed")
        if error.code == "method_not_allowed" and isinstance(allowed, list):
            headers.append(("Allow", ", ".join(allowed)))
        if call.method == "OPTIONS" and error.code == "method_not_allowed":
            return Answer(204, b"", [*headers[1:], *self.origins.preflight(call.headers)])
        if call.row is NO_ROW and error.code == "not_found" and site.is_for_a_browser(call):
            return site.no_such_page(call)
        return Answer(status_of(error), encoded(error, call.request_id), headers)

    async def _send(self, call: Call, given: Answer) -> None:
        headers, own = (
            raw_headers([*call.common_headers(), *self.origins.cors_headers(call.headers)]),
            raw_headers(given.headers),
        )
        names = {name for name, _ in own}
        if given.body and b"content-type" not in names:
            own.append((b"content-type", call.row.media_type.encode()))
        if given.status not in (204, 304):
            own.append((b"content-length", b"%d" % len(given.body)))
        body = b"" if call.method == "HEAD" else given.body
        raw = [header for header in headers if header[0] not in names] + own
        await call.send({"type": "http.response.start", "status": given.status, "headers": raw})
        start = 0
        while len(body) - start > PART:  # to copy megabytes to a socket takes longer than an event loop may be held
            part = body[start : start + PART]
            await call.send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(0)
            start += PART
        await call.send({"type": "http.response.body", "body": body[start:]})


class _Absolute:
    """A row with its whole path."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.method, self.path = row.method, row.full_path


class _Watched:
    """A `send` that remembers whether, and with which status, the answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Any) -> None:
        self.status = self.status or message.get("status", 0)
        await self._send(message)


async def _no_operation(conn: Any, actor: Any) -> None: ...


NO_ROW = Row(_no_operation, "GET", "", frozenset())


async def _live(receive: Receive, send: Send) -> None:
    """The life of the application that serves us; ours is that of its process."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _check_namespace(call: Call) -> None:
    """There is one as yet; the parameter is there so that more can come."""
    if (given := call.asked("namespace")) not in (None, "default"):
        raise NotFound(f"namespace: there is no {shown(given)}; only default", field="namespace")


def _wait(call: Call) -> float:
    text = call.asked("wait") if call.row.waits else None
    if text is None:
        return 0.0
    wait: float = parameters.from_text(text, Duration, "wait")
    if not wait >= 0:
        raise ValidationError(f"wait: {shown(wait)}; give 0 to {LONGEST_WAIT:g} seconds", field="wait")
    return min(wait, LONGEST_WAIT)
