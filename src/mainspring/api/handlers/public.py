"""What anybody may ask: whether this process lives and may act, and the description of the API."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring.api.answers import Answer
from mainspring.api.call import Call
from mainspring.api.openapi import document
from mainspring.api.table import Row
from mainspring.model.access.actors import Actor
from mainspring.store.postgres.connection import Connection


class Liveness(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    reason: str | None = None


async def healthz(conn: Connection, actor: Actor) -> Liveness:
    """Whether this process lives. Depends on nothing else: a restart would not end an outage of PostgreSQL."""
    raise NotImplementedError  # its handler needs neither connection nor actor


async def readyz(conn: Connection, actor: Actor) -> Liveness:
    """Whether this process may act; 503 while it may not."""
    raise NotImplementedError


async def openapi(conn: Connection, actor: Actor) -> dict[str, Any]:
    """This description."""
    raise NotImplementedError


async def handle_health(call: Call) -> Answer:
    reason = call.api.why_not_ready()
    if call.row.operation is readyz:
        told, status = Liveness("ready" if reason is None else "not_ready", reason), 200 if reason is None else 503
    else:
        told, status = Liveness("healthy" if reason is None else "degraded", reason), 200
    return Answer(status, msgspec.json.encode(told) + b"\n", [])


async def handle_openapi(call: Call) -> Answer:
    call.check_query()
    described = call.api.described.get(call.base)
    if described is None:
        described = await asyncio.to_thread(_describe, call.api.rows, call.base)  # it takes a tenth of a second
        call.api.described[call.base] = described
    return Answer(200, described, [("Cache-Control", "max-age=60")])


def _describe(rows: Sequence[Row], base: str) -> bytes:
    return msgspec.json.encode(document(rows) | {"servers": [{"url": base or "/"}]})
