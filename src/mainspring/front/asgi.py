"""ASGI: a guard around the application that is served, an application that knows only health, and answers with a fault.

Next: front/http_connection.py
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from mainspring.api import problems
from mainspring.errors import MainspringError, NotFound, NotReady, Stopping
from mainspring.wire.health import HEALTH, READINESS, health

log = logging.getLogger("mainspring")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

REQUEST_ID = b"mainspring-request-id"
_GIVEN_ID = re.compile(rb"[!-~]{1,64}")


def guarded(app: App) -> App:
    """`app`, with an answer in our form to what it does not catch."""

    async def guard(scope: Any, receive: Receive, send: Send) -> None:
        has_started = False

        async def sending(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await app(scope, receive, sending)
        except asyncio.CancelledError:
            # The server stops. The task ends here in any case; raised again, it would be logged as a bug.
            if not has_started:
                await _send(send, *answer(STOPPING, request_id_of(scope["headers"])))
        except Exception:
            if has_started:
                raise  # it is logged, and the connection closed: half an answer must not look like a whole one
            request_id = request_id_of(scope["headers"])
            log.exception("request %s failed: %s %r", request_id, scope["method"], scope["path"])
            await _send(send, *answer(INTERNAL, request_id))

    return guard


STOPPING = Stopping("this server is stopping; send the request again, to another server if there is one")
INTERNAL = problems.Internal("the server has failed; its log tells more under the id of this request")
NOTHING = NotFound("there is nothing at this path")


def health_only(why_not_ready: Callable[[], str | None]) -> App:
    """Answers /healthz and /readyz. Any other request is sent away with the reason, or finds nothing."""

    async def app(scope: Any, receive: Receive, send: Send) -> None:
        path, reason = scope["path"], why_not_ready()
        if path in (HEALTH, READINESS):
            status, body = health(path, reason)
            headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
            await _send(send, status, headers, body.encode())
        else:
            error = NOTHING if reason is None else NotReady(f"{reason}; try again")
            await _send(send, *answer(error, request_id_of(scope["headers"])))

    return app


def answer(error: MainspringError, request_id: str) -> tuple[int, Headers, bytes]:
    """The status, the headers and the body that tell of an error."""
    headers = [
        (b"content-type", problems.MEDIA_TYPE.encode()),
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (REQUEST_ID, request_id.encode()),
    ]
    if (wait := problems.retry_after(error)) is not None:
        headers.append((b"retry-after", str(wait).encode()))
    return problems.status_of(error), headers, problems.encoded(error, request_id)


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The id that the caller gave its request, if it is one; else a new one."""
    given = next((value for name, value in headers if name == REQUEST_ID and _GIVEN_ID.fullmatch(value)), None)
    return secrets.token_hex(8) if given is None else given.decode()


async def _send(send: Send, status: int, headers: Headers, body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
