"""Servers, segments and their moves, figures."""

from __future__ import annotations

import re

import asyncpg
import pytest
from tests.cluster import add_server
from tests.conftest import MakeTask
from tests.operations.conftest import ACTOR, BAD_NAME

from mainspring.errors import BadCursor, NotFound, ValidationError
from mainspring.operations.condition import cluster
from mainspring.store.cluster import cluster_views
from mainspring.store.figures import queues
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
    assert not any(view.is_estimated for view in found)
    assert (await cluster.moves(conn, ACTOR, 10)).items == []


@pytest.mark.usefixtures("dsn")  # a share of the blocks, of which a transaction that is rolled back leaves some
async def test_segments_of_many_tasks_are_estimated_from_a_bounded_part_of_them(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await conn.execute("""
        insert into mainspring.task (id, run_at, created_at, job_id, pool, state, priority, args)
        select nextval('mainspring.task_id'), mainspring.now() - interval '1 s', mainspring.now(), 1, 1, 1, 5, '{}'
          from generate_series(1, 30000)
    """)
    monkeypatch.setattr(cluster_views, "MOST_BLOCKS", 100)
    found = await cluster.segments(conn, ACTOR)
    assert (len(found), {view.is_estimated for view in found}) == (100, {True})
    assert 15_000 < sum(view.due for view in found) < 60_000
    plan = "\n".join(
        row[0] for row in await conn.fetch(f"explain (analyze, buffers) {cluster_views._segments(0.1, 1.0)}", 0.1, 1.0)
    )
    [sample] = re.findall(r"Sample Scan on task.*?shared hit=(\d+)", plan, re.DOTALL)
    assert int(sample) < 0.5 * await queues.blocks(conn)


async def test_the_moves_of_segments_come_in_pages(conn: Connection) -> None:
    await conn.execute("""
        insert into mainspring.segment_move (term, reason, segments)
        select 1, 'free', array[n] from generate_series(1, 5) n
    """)
    pages = [await cluster.moves(conn, ACTOR, 2)]
    while pages[-1].next:
        pages.append(await cluster.moves(conn, ACTOR, 2, cursor=pages[-1].next))
    assert [[move.segments for move in page.items] for page in pages] == [[[5], [4]], [[3], [2]], [[1]]]
    with pytest.raises(BadCursor):
        await cluster.queues(conn, ACTOR, cursor=pages[0].next)


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
