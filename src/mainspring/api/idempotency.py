"""Idempotency keys: a request that is sent again gets the first answer, and has no second effect.

The record is written in the transaction of the effect, so neither is there without the other. An advisory lock on the
key tells a second request that the first is still under way; it ends with its transaction, however that ends.
Writes  store.access.idempotency
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Any, NamedTuple

import msgspec

from mainspring.api.answers import Answer
from mainspring.api.call import Call
from mainspring.api.problems import IdempotencyInProgress, IdempotencyMismatch
from mainspring.errors import ValidationError
from mainspring.operations.work import tasks
from mainspring.store.access import idempotency

REPLAYED = ("Idempotency-Replayed", "true")
LARGE = 256 * 1024  # bytes of a body, which takes a millisecond and more
_KEY = re.compile(r"[!-~]{1,200}")


def key_of(call: Call) -> str | None:
    """The key of a POST; None if it has none. Other methods have the same effect twice by themselves."""
    given = call.headers.get("idempotency-key") if call.method == "POST" else None
    if given is not None and not _KEY.fullmatch(given):
        raise ValidationError("idempotency-key: give 1 to 200 visible characters", field="idempotency-key")
    return None if call.row.reads else given


class Outcome(NamedTuple):
    view: Any
    replayed: Answer | None = None  # the first answer, if this request came again


async def once(call: Call, key: str | None, given: dict[str, Any]) -> Outcome:
    """What the operation returns, or what it has returned to an earlier request with this key."""
    if key is None and call.row.operation is tasks.submit:
        return Outcome(await call.api.new_tasks.submit(call.actor, **given))
    if key is None:
        async with call.connection() as conn:
            return Outcome(await call.operate(conn, given))
    caller = call.caller
    assert caller is not None
    digest = _digest(call) if len(call.body) < LARGE else await asyncio.to_thread(_digest, call)
    async with call.api.connections.acquire() as conn, conn.transaction():
        if not await idempotency.lock(conn, caller.identity, key):
            raise IdempotencyInProgress(
                "idempotency-key: the first request with this key is still under way; ask again in a moment",
                field="idempotency-key",
            )
        found = await idempotency.find(conn, caller.identity, key)
        if found is not None:
            return _replayed(call, found, digest)
        view = await call.operate(conn, given)
        told = await call.api.as_answer(call, _without_secret(call, view))
        record = idempotency.Record(digest, told.status, told.body, [list(pair) for pair in told.headers])
        await idempotency.keep(conn, caller.identity, key, record)
        return Outcome(view)


def _without_secret(call: Call, view: Any) -> Any:
    """A secret is shown once, and stored nowhere."""
    return view if call.row.secret is None else msgspec.structs.replace(view, **{call.row.secret: None})


def _replayed(call: Call, found: idempotency.Record, digest: bytes) -> Outcome:
    if found.digest != digest:
        raise IdempotencyMismatch(
            "idempotency-key: it was used for another request; use a new key for each", field="idempotency-key"
        )
    headers = [(name, value) for name, value in found.headers]
    view = msgspec.json.decode(found.body, type=call.row.shape.answer) if call.row.waits else None
    return Outcome(view, Answer(found.status, found.body, [*headers, REPLAYED]))


def _digest(call: Call) -> bytes:
    """What makes two requests the same: method, path, query and body; not how long they wait for the end."""
    path = call.scope.get("raw_path") or call.scope["path"].encode()
    query = msgspec.json.encode([pair for pair in call.query if pair[0] != "wait"])
    found = hashlib.sha256(b"\0".join((call.method.encode(), path, query, b"")))
    found.update(call.body)  # others run meanwhile, if it is large
    return found.digest()
