"""Lender: pools that nobody here has room for are open to others, whatever becomes of what was written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest
from tests.cluster import add_server

from mainspring.server import lender as lender_module
from mainspring.server.lender import Lender
from mainspring.server.standing import Standing
from mainspring.store.database import Connection, Database

NOBODY, FULL, ROOM = (0, 0), (0, 10), (5, 10)  # free places, and the windows they are part of


class Pools:
    """What the dispatcher tells of rooms, and what the others see."""

    def __init__(self, database: Database, conn: Connection) -> None:
        self.standing = Standing(uuid4(), trusted_until=float("inf"))
        self.rooms: dict[int, tuple[int, int]] = {}
        self.lender = Lender(database, self.standing, cast(Any, SimpleNamespace(rooms=self.rooms)))
        self._conn = conn

    async def open(self) -> list[int]:
        await self.lender.step()
        rows = await self._conn.fetch("select pool from mainspring.open_pool where server = $1", self.standing.id)
        return sorted(row["pool"] for row in rows)


@pytest.fixture
async def pools(database: Database, conn: Connection) -> AsyncIterator[Pools]:
    pools = Pools(database, conn)
    await add_server(conn, "a", id=pools.standing.id)
    yield pools
    await pools.lender.close()


async def test_a_pool_that_nobody_here_can_serve_is_opened_and_closed_again(
    pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools.rooms.update({1: NOBODY, 2: ROOM, 3: FULL})
    assert await pools.open() == [1]
    monkeypatch.setattr(lender_module, "FULL_FOR", -1.0)
    assert await pools.open() == [1, 3]
    monkeypatch.setattr(lender_module, "ROOM_FOR", 0.0)
    pools.rooms.update({1: ROOM, 3: ROOM})
    assert await pools.open() == []


async def test_what_was_told_is_told_again_under_a_new_number_and_after_a_loss(
    pools: Pools, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else tasks that nobody here can run would wait beside idle agents of others."""
    pools.rooms[1] = NOBODY
    assert await pools.open() == [1]
    monkeypatch.setattr(lender_module, "TELL_EVERY", 0.0)
    await conn.execute("delete from mainspring.open_pool")
    assert await pools.open() == [1]
    pools.standing.id = uuid4()
    assert await pools.open() == [], "it has not joined yet"
    await add_server(conn, "a", id=pools.standing.id)
    assert await pools.open() == [1]
