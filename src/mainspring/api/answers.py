"""Answers: views as JSON, with the headers that their version, their place and their age ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any, NamedTuple

import msgspec

from mainspring.operations.pages import Page
from mainspring.operations.parts.slices import Slices

LONG = 500  # items of a member, from which a view is written in slices
LARGE = 512 * 1024  # bytes of a page, to put together which is a step of its own
# Members of a change: the thing that was changed.
VERSIONED = ("job", "schedule", "calendar", "daemon", "rule", "channel", "secret")


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: list[tuple[str, str]]


async def answer(view: Any, status: int, *, headers: list[tuple[str, str]] | None = None) -> Answer:
    """A view as an answer. `created` in it decides between 200 and 201, nothing at all is 204."""
    given = list(headers or ())
    if view is None:
        return Answer(204, b"", given)
    created = getattr(view, "created", None)
    if isinstance(created, bool):
        status = 201 if created else 200
    if (version := version_of(view)) is not None:
        given.append(("ETag", etag(version)))
    return Answer(status, await encode(view), given)


async def encode(view: Any) -> bytes:
    if isinstance(view, list):
        view = Page(view)
    if isinstance(view, Page) and len(view.items) > 1:
        return await _encode_page(view)
    if isinstance(view, msgspec.Struct) and any(map(_is_long, msgspec.structs.astuple(view))):
        return await _encode_members(view)
    return msgspec.json.encode(view)


async def letting_go(views: Iterable[Any], made: Awaitable[Answer]) -> Answer:
    """An answer. What it was made of is freed bit by bit: all at once takes many milliseconds."""
    given, slices = await made, Slices()
    for view in views:
        for long in filter(_is_long, msgspec.structs.astuple(view) if isinstance(view, msgspec.Struct) else ()):
            while long:
                long.pop() if isinstance(long, list) else long.popitem()
                await slices.rest()
    return given


def _is_long(value: Any) -> bool:
    return isinstance(value, (list, dict)) and len(value) > LONG


async def _encode_members(view: msgspec.Struct) -> bytes:
    """The same for a struct with long lists or mappings in it."""
    slices, parts = Slices(), [b"{"]
    for field in msgspec.structs.fields(view):
        value = getattr(view, field.name)
        if value is msgspec.UNSET:
            continue
        if not _is_long(value):
            parts += (_encoder.encode({field.encode_name: value})[1:-1], b",")
            continue
        is_list = isinstance(value, list)
        parts += (_encoder.encode(field.encode_name), b":[" if is_list else b":{")
        for one in value:
            parts += (_encoder.encode(one) if is_list else _encoder.encode({one: value[one]})[1:-1], b",")
            await slices.rest()
        parts[-1] = b"]," if is_list else b"},"
    parts[-1] = parts[-1][:-1]  # the last comma
    parts.append(b"}")
    await asyncio.sleep(0)
    return b"".join(parts)  # once, as below


async def _encode_page(page: Page[Any]) -> bytes:
    """In slices: a page of 500 views must not make a fire late."""
    slices, parts = Slices(), [b'{"items":[']
    for item in page.items:
        parts += (_encoder.encode(item), b",")
        await slices.rest()
    parts[-1] = b"],"
    parts.append(_encoder.encode({"next": page.next, "searched_to": page.searched_to})[1:])
    if sum(map(len, parts)) > LARGE:
        await asyncio.sleep(0)
    return b"".join(parts)  # once: a second copy of a few megabytes takes milliseconds


_encoder = msgspec.json.Encoder()


def version_of(view: Any) -> int | None:
    """The version of what a view shows: its own, or that of the thing that it says was changed."""
    for name in (None, *VERSIONED):
        shown = view if name is None else getattr(view, name, None)
        version = getattr(shown, "version", None)
        if isinstance(version, int):
            return version
    return None


def etag(version: int) -> str:
    return f'"v{version}"'
