"""OverflowLoop: a pool is shared with other servers while no agent here has room for it, and for a moment longer."""

from __future__ import annotations

from typing import cast
from uuid import UUID, uuid4

import pytest
from tests.cluster import OWNER, add_server, server_lease

from mainspring.server.dispatch import overflow as module
from mainspring.server.dispatch.dispatcher import Dispatcher
from mainspring.server.dispatch.overflow import FULL_FOR, ROOM_FOR, WRITE_EVERY, OverflowLoop
from mainspring.store.postgres.database import Connection, Database

POOL = 7
NOBODY, FULL, ROOM = (0, 0), (0, 10), (3, 10)  # free places, and the windows


class Rooms:
    """What the overflow sees of a dispatcher."""

    def __init__(self) -> None:
        self.rooms: dict[int, tuple[int, int]] = {}


class Here:
    """A overflow whose clock and whose dispatcher's rooms are the test's."""

    def __init__(self, database: Database, conn: Connection) -> None:
        self.server_lease = server_lease()
        self.now = 100.0
        self._conn = conn
        self._rooms = Rooms()
        self.overflow = OverflowLoop(database, self.server_lease, cast(Dispatcher, self._rooms))

    async def look(self, room: tuple[int, int], after: float = 0.0) -> set[UUID]:
        """The servers that the pool is open for, when the overflow has met this room."""
        self.now += after
        self._rooms.rooms[POOL] = room
        await self.overflow.step()
        rows = await self._conn.fetch("select server from mainspring.shared_pool where pool = $1", POOL)
        return {row["server"] for row in rows}


@pytest.fixture
async def here(database: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> Here:
    here = Here(database, conn)
    monkeypatch.setattr(module, "boottime", lambda: here.now)
    return here


async def test_a_pool_that_nobody_here_can_run_is_opened_at_once(here: Here) -> None:
    assert await here.look(NOBODY) == {OWNER}


async def test_a_pool_is_opened_when_all_have_been_full_for_a_while(here: Here) -> None:
    assert await here.look(FULL) == set()
    assert await here.look(FULL, after=FULL_FOR / 2) == set()
    assert await here.look(FULL, after=FULL_FOR) == {OWNER}


async def test_a_pool_is_closed_some_time_after_somebody_has_room_again(here: Here) -> None:
    assert await here.look(NOBODY) == {OWNER}
    assert await here.look(ROOM) == {OWNER}
    assert await here.look(ROOM, after=ROOM_FOR / 2) == {OWNER}
    assert await here.look(ROOM, after=ROOM_FOR) == set()


async def test_what_a_life_before_has_opened_is_closed(here: Here, conn: Connection) -> None:
    await conn.execute("insert into mainspring.shared_pool (server, pool) values ($1, $2)", OWNER, POOL)
    assert await here.look(ROOM) == set()


async def test_who_has_become_another_server_opens_its_pools_anew(here: Here, conn: Connection) -> None:
    """Another process has its id (a directory was copied): the tasks of its new segments are not to wait."""
    assert await here.look(NOBODY) == {OWNER}
    here.server_lease.id = await add_server(conn, "new", id=uuid4())
    assert await here.look(NOBODY) == {OWNER, here.server_lease.id}


async def test_what_was_told_is_told_again_after_a_loss(here: Here, conn: Connection) -> None:
    """As in a failover that lost it: tasks that nobody here can run would wait beside idle agents of others."""
    assert await here.look(NOBODY) == {OWNER}
    await conn.execute("delete from mainspring.shared_pool")
    assert await here.look(NOBODY, after=WRITE_EVERY + 1) == {OWNER}


async def test_a_server_that_nobody_knows_opens_nothing_and_does_not_end_by_it(here: Here) -> None:
    here.server_lease.id = uuid4()
    assert await here.look(NOBODY) == set()


async def test_who_may_not_act_opens_nothing(here: Here) -> None:
    here.server_lease.is_draining = True
    assert await here.look(NOBODY) == set()
