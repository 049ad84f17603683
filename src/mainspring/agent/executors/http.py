"""HTTP jobs: send a request at the instant, follow redirects, judge the response by its status.

The task's arguments are the body as JSON, or the header Mainspring-Args where the job has a body. Cancelling closes the
connection; the other side may still act on the request, so it gets an idempotency key.
Sends   output, through the attempt
Next:   agent/executors/http_request.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from mainspring.agent.attempt import Attempt, AttemptFailed, Executor, Exhausted
from mainspring.agent.executors.http_body import Body
from mainspring.agent.executors.http_request import REDIRECTS, Request, first_request, next_request
from mainspring.model.tasks.addresses import Allowed
from mainspring.model.tasks.define_http import is_expected
from mainspring.model.tasks.jobs import Health, Http
from mainspring.model.tasks.payload import encode
from mainspring.model.tasks.retry import retry_after

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from mainspring.agent.executors.http_client import Client, Lookup

KEPT_HEADERS = ("content-type", "etag", "last-modified", "location", "retry-after", "x-request-id")
LONGEST_HEADER = 1000
LONGEST_MESSAGE = 500
ANYWHERE = ("0.0.0.0/0", "::/0")


class HttpExecutor(Executor):
    """Calls public addresses, and those of `allow`. `lookup` resolves names in place of the system."""

    def __init__(self, *, allow: Sequence[str] = (), lookup: Lookup | None = None) -> None:
        self._client = _LazyClient(Allowed(allow), lookup)
        # A daemon listens where its operator put it, mostly on loopback.
        self._health_client = _LazyClient(Allowed(ANYWHERE), lookup)

    def prepare(self, attempt: Attempt) -> None:
        """Load the client. Names are resolved at the instant: an earlier result may be outdated by then."""
        self._client.load()

    async def run(self, attempt: Attempt) -> str | None:
        http = attempt.job.definition.run
        assert isinstance(http, Http)
        request = first_request(attempt, http)
        try:
            client = await self._client.get()
        except OSError as error:  # no descriptor to read its modules
            raise Exhausted(f"{request.shown}: {error}") from None
        for followed in range(http.redirects + 1):
            try:
                async with client.send(request) as response:
                    location = response.headers.get("location")
                    is_final = is_expected(http.expect, response.status) or followed == http.redirects
                    if is_final or response.status not in REDIRECTS or not location:
                        return await _result(attempt, http, request, response)
                    request = next_request(request, response.status, location)
            except Exhausted as error:
                if followed:  # the first request has had its effect
                    raise AttemptFailed("http_unreachable", str(error)) from None
                raise
        raise AssertionError("the last response is final")

    async def check(self, attempt: Attempt, health: Health) -> str | None:
        """A health check: a GET; None if the response has a status of 2xx."""
        assert health.url is not None
        status = await (await self._health_client.get()).status_of(health.url)
        if status is None:
            return "no HTTP answer"
        return None if status // 100 == 2 else f"status {status}"

    async def close(self) -> None:
        await self._client.close()
        await self._health_client.close()


class _LazyClient:
    """A client that is loaded when it is first needed: aiohttp takes a quarter of a second."""

    def __init__(self, allowed: Allowed, lookup: Lookup | None) -> None:
        self._allowed = allowed
        self._lookup = lookup
        self._opening: asyncio.Task[Client] | None = None

    def load(self) -> asyncio.Task[Client]:
        if self._opening is None or _failed(self._opening):
            self._opening = asyncio.create_task(self._open(), name="mainspring http client")
        return self._opening

    async def get(self) -> Client:
        return await asyncio.shield(self.load())

    async def _open(self) -> Client:
        module = await asyncio.to_thread(import_module, "mainspring.agent.executors.http_client")
        client: Client = module.Client(self._allowed, self._lookup or module.system_lookup)
        return client

    async def close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.wait([opening])
            if not _failed(opening):
                await opening.result().close()


def _failed(task: asyncio.Task[Client]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


async def _result(attempt: Attempt, http: Http, request: Request, response: ClientResponse) -> str:
    """The result as JSON; raises AttemptFailed if the status is not expected."""
    body = Body(attempt.output, response.headers.get("content-encoding", ""), secrets=attempt.secrets)
    try:
        async for piece in response.content.iter_any():
            body.feed(piece)
            if body.enough:
                break
    finally:
        body.close()
    text = attempt.secrets.masked(body.text(response.charset))  # again: what the charset made of it
    if not is_expected(http.expect, response.status):
        raise _unexpected(attempt, request, response, text)
    result = {
        "status": response.status,
        "headers": {name: _clean(attempt, response.headers[name]) for name in KEPT_HEADERS if name in response.headers},
        "body": text,
        "truncated": body.truncated,
    }
    return encode(result, "result")


def _unexpected(attempt: Attempt, request: Request, response: ClientResponse, text: str) -> AttemptFailed:
    status, retry = response.status, attempt.job.definition.retry
    said = f": {text.strip()[:LONGEST_MESSAGE]}" if text.strip() else ""
    where = f" to {_clean(attempt, response.headers['location'])}" if "location" in response.headers else ""
    failure = AttemptFailed(
        "http_status",
        f"{request.shown} answered {status} {_clean(attempt, response.reason or '')}{where}".rstrip() + said,
        labels=(str(status), f"{status // 100}xx"),
    )
    if status in (429, 503):
        wanted = retry_after(response.headers)
        failure.retry_after = None if wanted is None else min(wanted, retry.max_delay)
    return failure


def _clean(attempt: Attempt, text: str) -> str:
    """A header as text that PostgreSQL can hold. Secrets are hidden before it is cut."""
    readable = text.encode(errors="surrogateescape").decode(errors="replace").replace("\x00", "\ufffd")
    return attempt.secrets.masked(readable)[:LONGEST_HEADER]
