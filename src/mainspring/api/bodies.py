"""Bodies: read a request's body within its limits, and as JSON under the rules of model/tasks/payload.py."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from mainspring.api.problems import Malformed, TooLarge, UnsupportedMediaType
from mainspring.errors import ValidationError, shown
from mainspring.model.tasks.payload import UNREADABLE, decode

MOST_BYTES = 1024 * 1024
IN_A_THREAD = 32 * 1024  # bytes from which JSON is read beside the event loop
JSON_TYPES = ("application/json", "application/merge-patch+json")

Receive = Callable[[], Awaitable[Any]]


class Disconnected(Exception):
    """The client has hung up and waits for no answer."""


async def read(receive: Receive, headers: dict[str, str]) -> bytes:
    """The whole body, of at most MOST_BYTES."""
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMediaType(
            f"content-encoding: {shown(headers['content-encoding'])}; send the body as it is", field="content-encoding"
        )
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) > MOST_BYTES:
        raise _too_large()
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size > MOST_BYTES:
            raise _too_large()
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _too_large() -> TooLarge:
    return TooLarge(f"body: over {MOST_BYTES:,} bytes; store the data elsewhere and pass a reference", field="body")


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
    return as_json_now(data) if len(data) < IN_A_THREAD else await asyncio.to_thread(as_json_now, data)


def as_json_now(data: bytes) -> Any:
    try:
        text = data.decode()
        msgspec.json.decode(text)
    except UNREADABLE as error:
        _check_surrogates(data)
        raise Malformed(f"body: not JSON ({str(error)[:200]})", field="body") from None
    return decode(text, "body")


_HALF = re.compile(r"[\ud800-\udfff]")


def _check_surrogates(data: bytes) -> None:
    """JSON can spell half a character (`\\ud800`), which is no text; the decoder only says that it cannot read it."""
    if b"\\ud" not in data.lower():
        return
    with suppress(ValueError, RecursionError):
        if _HALF.search(json.dumps(json.loads(data), ensure_ascii=False)):
            raise ValidationError("body: text must not hold half a surrogate pair; it is no character", field="body")
