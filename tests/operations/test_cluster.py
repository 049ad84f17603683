"""Servers, segments and their moves, figures."""

from __future__ import annotations

import asyncpg
import pytest
from tests.cluster import add_server
from tests.conftest import MakeTask
from tests.operations.conftest import ACTOR, BAD_NAME

from mainspring.errors import NotFound, ValidationError
from mainspring.operations.condition import cluster
from mainspring.store.postgres.database import Connection


async def test_a_server_is_found_by_its_name_or_its_id(conn: Connection) -> None:
    id = await add_server(conn, "alpha")
    assert [view.name for view in (await cluster.servers(conn, ACTOR)).items if view.status == "active"] == ["alpha"]
    assert (await cluster.server(conn, ACTOR, "alpha")).server.id == id
    assert (await cluster.server(conn, ACTOR, str(id)[:8])).server.name == "alpha"
    with pytest.raises(NotFound):
        await cluster.server(conn, ACTOR, "beta")
    with pytest.raises(ValidationError):
        await cluster.server(conn, ACTOR, BAD_NAME)


async def test_all_segments_are_told_with_what_is_in_them(conn: Connection, make_task: MakeTask) -> None:
    await make_task()
    found = await cluster.segments(conn, ACTOR)
    assert len(found) == 100
    assert sum(view.due for view in found) == 1
    assert await cluster.moves(conn, ACTOR, 10) == []


async def test_postgresql_names_the_oldest_transaction(conn: Connection, dsn: str) -> None:
    other = await asyncpg.connect(dsn, server_settings={"application_name": "forgotten"})
    try:
        await other.execute("begin; select pg_current_xact_id()")
        found = await cluster.postgresql(conn, ACTOR)
        [open] = [one for one in found.transactions if one.name == "forgotten"]
        assert (open.state, open.waits_for) == ("idle in transaction", None)
        assert open.age >= 0
        [application] = [one for one in found.applications if one.name == "forgotten"]
        assert (application.connections, application.idle_in_transaction) == (1, 1)
        assert 0 < found.here <= found.connections <= found.max_connections
    finally:
        await other.close()


async def test_figures_count_live_tasks(conn: Connection, make_task: MakeTask) -> None:
    await make_task()
    found = await cluster.stats(conn, ACTOR)
    assert found.live == {"blocked": 0, "pending": 1, "assigned": 0, "running": 0}
    assert (found.pending_tasks, found.running_tasks, found.completed_tasks) == (1, 0, 0)
    assert found.total_workers == found.agents_total == 0
