"""Bodies: read a request's body within its limits, and as JSON under the rules of model/tasks/payload.py."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from mainspring.api.problems import UnsupportedMediaType
from mainspring.api.table import MOST_BYTES
from mainspring.errors import MainspringError, Malformed, TooLarge, ValidationError, shown
from mainspring.model.tasks.payload import UNREADABLE, decode, too_deep
from mainspring.operations.parts.slices import in_slices
from mainspring.operations.requests.large_json import Steps, at_once, check_unreadable, decode_in_steps

PART = 1024 * 1024  # bytes that are made text at once: up to 1 ms
LARGE = 16 * 1024  # bytes from which JSON is read in steps, between which others have their turn
JSON_TYPES = ("application/json", "application/merge-patch+json")

Receive = Callable[[], Awaitable[Any]]


class Disconnected(Exception):
    """The client has hung up and waits for no answer."""


async def read(receive: Receive, headers: dict[str, str], most: int = MOST_BYTES) -> bytes:
    """The whole body, of at most so many bytes."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"content-encoding: {shown(headers['content-encoding'])}; send the body as it is", field="content-encoding"
        )
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) > most:
        raise _too_large(most)
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise _too_large(most)
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"body: over {most:,} bytes; store the data elsewhere and pass a reference", field="body")


def check_json_type(headers: dict[str, str]) -> None:
    given = headers.get("content-type", "")
    media_type, _, parameters = given.partition(";")
    charset = parameters.strip().lower()
    if media_type.strip().lower() not in JSON_TYPES or charset not in ("", "charset=utf-8", 'charset="utf-8"'):
        raise UnsupportedMediaType(
            f"content-type: {shown(given)}; send application/json in UTF-8", field="content-type"
        )


async def as_json(data: bytes) -> Any:
    """Malformed if it is not JSON; ValidationError for duplicate keys, NUL, great depth or numbers that lose digits."""
    return as_json_now(data) if len(data) < LARGE else await in_slices(_as_json_in_steps(data))


def as_json_now(data: bytes) -> Any:
    try:
        text = data.decode()
        msgspec.json.decode(text)
    except RecursionError:
        raise too_deep("body") from None
    except UNREADABLE as error:
        raise _unreadable(data, error) from None
    return decode(text, "body")


def _as_json_in_steps(data: bytes) -> Steps[Any]:
    try:
        text = yield from _text_in_steps(data)
        return (yield from decode_in_steps(text, "body"))
    except UNREADABLE as error:
        raise _malformed(error) from None


def _text_in_steps(data: bytes) -> Steps[str]:
    reader, parts = getincrementaldecoder("utf-8")(), []
    for start in range(0, len(data), PART):
        parts.append(reader.decode(data[start : start + PART]))
        yield
    parts.append(reader.decode(b"", final=True))
    return "".join(parts)


def _unreadable(data: bytes, error: Exception) -> MainspringError:
    """Why a small body cannot be read: a rule that it breaks, or else that it is not JSON."""
    with suppress(UnicodeError):
        text = data.decode()
        try:
            at_once(check_unreadable(text, "body"))
        except ValidationError as refused:
            return refused
    return _malformed(error)


def _malformed(error: Exception) -> Malformed:
    return Malformed(f"body: not JSON ({str(error)[:200]})", field="body")
