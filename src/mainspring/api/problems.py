"""Problems: every error as application/problem+json (RFC 9457), and its status.

`code`, `message` and `field` are those of the SDK and the command line. Knows no Starlette: the client reads it too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from mainspring import errors
from mainspring.errors import MainspringError

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:mainspring:problem:"
RETRY_SOON = 1  # seconds: for what passes by itself


class MethodNotAllowed(MainspringError):
    code = "method_not_allowed"


class NotAcceptable(MainspringError):
    code = "not_acceptable"


class TooSlow(MainspringError):
    """The request did not arrive in time."""

    code = "too_slow"


class UnsupportedMediaType(MainspringError):
    code = "unsupported_media_type"


class WrongHost(MainspringError):
    """The Host header names another server: a page of another site may have been tricked into calling this one."""

    code = "wrong_host"


class HeadersTooLarge(MainspringError):
    code = "headers_too_large"


class IdempotencyMismatch(errors.ValidationError):
    """The idempotency key was used for another request."""

    code = "idempotency_mismatch"


class IdempotencyInProgress(errors.Conflict):
    """The first request with this idempotency key is still under way."""

    code = "idempotency_in_progress"


class Internal(MainspringError):
    """A bug of ours; the log of the server tells more under the request's id."""

    code = "internal"


# The status of an error is that of the nearest class here. `docs/reference/http-errors.md` is made from it.
STATUS: dict[type[MainspringError], int] = {
    errors.Malformed: 400,
    errors.Unauthorized: 401,
    errors.AccessDenied: 403,
    errors.NotFound: 404,
    MethodNotAllowed: 405,
    NotAcceptable: 406,
    TooSlow: 408,
    errors.Conflict: 409,
    errors.StaleVersion: 412,
    errors.TooLarge: 413,
    UnsupportedMediaType: 415,
    WrongHost: 421,
    errors.ValidationError: 422,
    errors.RateLimited: 429,
    errors.QueueFull: 429,
    HeadersTooLarge: 431,
    MainspringError: 500,
    errors.StoreUnavailable: 503,
    errors.ServerUnavailable: 503,
    errors.SchemaMismatch: 503,
    errors.NoAgents: 503,
}
# Of the tree, but never the answer to a request: they are about a task that was waited for, or about a process.
NEVER_ANSWERED = (
    errors.TaskFailed,
    errors.BatchFailed,
    errors.ResultLost,
    errors.WaitTimeout,
    errors.BackupFailed,
    errors.EmbeddedUnavailable,
    errors.SessionSuperseded,
    errors.StaleAttempt,
)


def status_of(error: MainspringError) -> int:
    return status_of_class(type(error))


def status_of_class(kind: type[MainspringError]) -> int:
    return next(STATUS[one] for one in kind.__mro__ if one in STATUS)


def retry_after(error: MainspringError) -> int | None:
    """Seconds after which the same request may succeed; None where only another one will."""
    if status_of(error) not in (429, 503):
        return None
    given = error.details.get("retry_after", RETRY_SOON)
    return max(1, int(given)) if isinstance(given, (int, float)) else RETRY_SOON


def title(code: str) -> str:
    return code.replace("_", " ").capitalize()


def problem(error: MainspringError, request_id: str) -> dict[str, Any]:
    """The members of the answer."""
    wait = retry_after(error)
    return {
        "type": f"{TYPE}{error.code}",
        "title": title(error.code),
        "status": status_of(error),
        "code": error.code,
        "detail": error.message,
        "message": error.message,
        **({} if error.field is None else {"field": error.field}),
        **error.details,
        **({} if wait is None else {"retry_after": wait}),
        "request_id": request_id,
    }


def encoded(error: MainspringError, request_id: str) -> bytes:
    return msgspec.json.encode(problem(error, request_id))


def from_problem(body: bytes, status: int) -> MainspringError:
    """The error behind an answer, for a client. What is not a problem of ours becomes one of the nearest class."""
    try:
        members = msgspec.json.decode(body, type=dict[str, Any])
        code, message = str(members["code"]), str(members["message"])
    except (msgspec.MsgspecError, KeyError, UnicodeError):
        text = body[:200].decode(errors="replace")
        unavailable = status in (408, 429) or status >= 500
        kind = errors.ServerUnavailable if unavailable else MainspringError
        return kind(f"the server answered {status} without a reason of ours: {text!r}")
    field = members.get("field")
    told = {"type", "title", "status", "code", "detail", "message", "field"}
    details = {name: value for name, value in members.items() if name not in told}
    return errors.from_code(code, message, field if isinstance(field, str) else None, **details)
