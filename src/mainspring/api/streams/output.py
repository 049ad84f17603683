"""Output of a task by `Accept`: server-sent events, its bytes as they are, or a page of JSON.

Events have the cursor TOKEN.NUMBER, from which any server continues without gap or repetition. Nothing is read ahead:
the next pieces are read once the last have been sent.
Next: operations/work/output.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from mainspring.api import parameters
from mainspring.api.answers import Answer, answer
from mainspring.api.call import Call
from mainspring.api.problems import NotAcceptable
from mainspring.api.streams.sse import MEDIA_TYPE, event, stream
from mainspring.errors import ValidationError
from mainspring.operations.work import output
from mainspring.operations.work.output import Event, Interrupted, NewAttempt, Range

if TYPE_CHECKING:
    from mainspring.api.app import Api

AT_ONCE = 16  # pieces that are read at once

JSON, PLAIN, BYTES = "application/json", "text/plain", "application/octet-stream"


class _Source:
    """What the follower finds, piece by piece."""

    cursor = None

    def __init__(self, api: Api, id: int, wanted: Range, *, wait: bool) -> None:
        self._events: AsyncIterator[Event] = output.follow(
            api.connections,
            id,
            wait=wait,
            after=wanted.after,
            only=wanted.only,
            limit=AT_ONCE,
            patient=wait,
            reader=api.outputs,
        )

    async def next(self) -> bytes | None:
        async for found in self._events:
            if data := self._told(found):
                return data
        return self._last()

    def _told(self, found: Event) -> bytes:
        raise NotImplementedError

    def _last(self) -> bytes | None:
        return None

    async def close(self) -> None:
        await self._events.aclose()  # type: ignore[attr-defined]


class _Events(_Source):
    _said_bye = False

    def _told(self, found: Event) -> bytes:
        if isinstance(found, NewAttempt):
            return event("attempt", found)
        if isinstance(found, Interrupted):
            return b": PostgreSQL does not answer; waiting for it\n\n"
        return event("output", msgspec.json.encode(output.piece_view(found)), f"{found.token}.{found.number}")

    def _last(self) -> bytes | None:
        """A client that hears it need not come again."""
        first, self._said_bye = not self._said_bye, True
        return event("bye", {"reason": "ended"}) if first else None


class _Bytes(_Source):
    """What the task wrote, without our remarks."""

    def __init__(self, api: Api, id: int, wanted: Range, *, wait: bool) -> None:
        super().__init__(api, id, wanted, wait=wait)
        self._skip = wanted.skip

    def _told(self, found: Event) -> bytes:
        if isinstance(found, (NewAttempt, Interrupted)) or found.stream == 0:
            return b""
        skip, self._skip = self._skip, 0
        return found.data[skip:]


async def handle(call: Call) -> Answer | None:
    given: dict[str, Any] = parameters.from_query(call.row.shape, call.query, also=("namespace",))
    id: int = parameters.from_text(call.names["id"], int, "id")
    follows, downloads = given.pop("follow", False), given.pop("download", False)
    kind = _accepted(call.headers.get("accept", "*/*"), follows=follows, downloads=downloads)
    resumed = call.headers.get("last-event-id") if kind == MEDIA_TYPE else None
    if resumed:
        given["after"] = resumed
    if "tail" in given and "after" in given and not resumed:
        raise ValidationError("tail, after: give one of them, not both", field="tail")
    if "before" in given and kind != JSON:
        raise ValidationError(f"before: gives a page, with Accept: {JSON}", field="before")
    async with call.api.connections.acquire() as conn:
        if kind == JSON:
            return await answer(await output.read(conn, call.actor, id, **given), 200)
        part = {name: given.get(name) for name in ("after", "attempt", "tail")}
        wanted = await output.resolve(conn, call.actor, id, **part)
    if kind == MEDIA_TYPE:
        await stream(call, lambda: _Events(call.api, id, wanted, wait=True))
        return None
    headers = [("Content-Disposition", f'attachment; filename="task-{id}.log"')] if downloads else []
    media_type = f"{PLAIN}; charset=utf-8" if kind == PLAIN else kind
    opened = partial(_Bytes, call.api, id, wanted, wait=follows)
    await stream(call, opened, media_type=media_type, headers=headers)
    return None


def _accepted(given: str, *, follows: bool, downloads: bool) -> str:
    """The best of what the client takes. Whoever takes anything gets a page, unless it asks for what a page is not."""
    anything = BYTES if downloads else PLAIN if follows else JSON
    known = {MEDIA_TYPE: MEDIA_TYPE, JSON: anything if downloads or follows else JSON, PLAIN: PLAIN, BYTES: BYTES}
    known |= {"*/*": anything, "text/*": PLAIN, "application/*": BYTES if downloads else JSON}
    best, weight = None, 0.0
    for part in given.split(","):
        kind, *rest = (text.strip().lower() for text in part.split(";"))
        quality = next((_quality(text[2:]) for text in rest if text.startswith("q=")), 1.0)
        if kind in known and quality > weight:
            best, weight = known[kind], quality
    if best is None:
        raise NotAcceptable(f"accept: give {MEDIA_TYPE}, {PLAIN}, {BYTES} or {JSON}", field="accept")
    return best


def _quality(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0
