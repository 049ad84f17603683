"""Search: filters, windows of ids, and what it does when the time runs out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import UNSET
from tests.conftest import MakeTask

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import LIVE, TERMINAL, TaskState
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Connection
from mainspring.store.search import search
from mainspring.store.search.filters import Filters
from mainspring.store.tasks import jobs, transitions

EPOCH = datetime(2026, 9, 21, tzinfo=UTC)


async def ended(conn: Connection, make_task: MakeTask, state: TaskState, **fields: Any) -> int:
    task = await make_task(TaskState.RUNNING, token=5, session=1, attempt=1, created_at=EPOCH)
    await transitions.finish(conn, [Ending(task, 5, 1, 1, state, 1_790_000_000.0, 1_790_000_001.0, **fields)])
    return task


async def ids(conn: Connection, limit: int = 50, before: int | None = None, **filters: Any) -> list[int]:
    found = await search.search(conn, Filters(**filters), limit=limit, before=before)
    counted = await search.count(conn, Filters(**filters))
    if before is None and found.next is None:
        assert (counted.count, counted.is_exact) == (len(found.tasks), True)
    return [view.id for view in found.tasks]


async def test_the_newest_come_first_and_pages_follow_each_other(conn: Connection, make_task: MakeTask) -> None:
    made = []
    for number in range(6):
        made.append(await (make_task() if number % 2 else ended(conn, make_task, TaskState.FAILED)))
    await jobs.register(conn, {"other": Definition(Python("other"))})
    other = await conn.fetchval("select mainspring.enqueue('other')")
    job = await conn.fetchval("select id from mainspring.job where name = 'job'")

    newest = [other, *reversed(made)]
    assert await ids(conn) == newest
    assert await ids(conn, limit=3) == newest[:3]
    assert await ids(conn, limit=3, before=newest[2]) == newest[3:6]
    assert await ids(conn, jobs=[job]) == newest[1:]
    assert await ids(conn, jobs=[job], states=[TaskState.FAILED]) == made[4::-2]
    assert await ids(conn, states=[TaskState.PENDING, TaskState.FAILED]) == newest
    assert await ids(conn, jobs=[]) == []


async def test_every_state_is_found_whatever_table_it_is_in(conn: Connection, make_task: MakeTask) -> None:
    made = {state: await make_task(state) for state in sorted(LIVE)}
    made |= {state: await ended(conn, make_task, state) for state in sorted(TERMINAL)}
    for state, task in made.items():
        assert await ids(conn, states=[state]) == [task]
    assert await ids(conn, states=[TaskState.FAILED, TaskState.SUCCEEDED]) == [
        made[TaskState.FAILED],
        made[TaskState.SUCCEEDED],
    ]
    assert await ids(conn, states=list(TERMINAL)) == sorted((made[state] for state in TERMINAL), reverse=True)


async def test_values_of_a_filter_are_alternatives(conn: Connection, make_task: MakeTask) -> None:
    first = await make_task(priority=9, key="a", concurrency_key="tenant:1", scope="x")
    second = await make_task(priority=2, key="b", concurrency_key="tenant:2", scope="y")
    await make_task()
    for name, one, other in (
        ("priorities", 9, 2),
        ("keys", "a", "b"),
        ("concurrency_keys", "tenant:1", "tenant:2"),
        ("scopes", "x", "y"),
    ):
        only: dict[str, Any] = {name: [one]}
        either: dict[str, Any] = {name: [one, other]}
        assert (await ids(conn, **only), await ids(conn, **either)) == ([first], [second, first])
    assert await ids(conn, keys=["a"], scopes=["y"]) == []


async def test_errors_and_ends_are_those_of_finished_tasks(conn: Connection, make_task: MakeTask) -> None:
    task = await ended(conn, make_task, TaskState.FAILED, code="exit")
    await ended(conn, make_task, TaskState.FAILED, code="other")
    await make_task()
    assert await ids(conn, error_codes=["exit"]) == [task]
    at = datetime.fromtimestamp(1_790_000_001, UTC)
    assert len(await ids(conn, finished_after=at)) == 2
    assert await ids(conn, finished_after=at + timedelta(microseconds=1)) == []
    assert await ids(conn, finished_before=at) == []
    assert len(await ids(conn, finished_before=at + timedelta(seconds=1))) == 2


async def test_late_ones_are_those_that_started_late(conn: Connection, make_task: MakeTask) -> None:
    made = []
    for late in (0, 5):
        made.append(await make_task(TaskState.RUNNING, run_at=EPOCH, started_at=EPOCH + timedelta(seconds=late)))
    await make_task(run_at=EPOCH)
    assert await ids(conn, late_over=timedelta(seconds=4.9)) == made[1:]
    assert await ids(conn, late_over=timedelta(seconds=5)) == []


async def test_arguments_are_found_by_path(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(args='{"customer": {"id": 17, "vip": true}, "day": "mon", "list": [1, 2]}')
    await make_task(args='{"customer": {"id": 18}}')
    for path, value in (("customer.id", "17"), ("customer.vip", "true"), ("day", "mon"), ("list.1", "2")):
        assert await ids(conn, args={path: value}) == [task]
    assert await ids(conn, args={"customer.id": "17", "day": "tue"}) == []
    assert await ids(conn, args={"none.such": "17"}) == []


async def test_the_tasks_of_an_agent_are_those_that_it_has_had_or_will_have(
    conn: Connection, make_task: MakeTask
) -> None:
    session = await agents.begin(conn, agents.AgentInfo("alpha", 10, {}), 15.0)
    broadcast = await make_task()
    run = await make_task(TaskState.RUNNING, session=session, parent_id=broadcast)
    waits = await make_task(target="alpha")
    await make_task(TaskState.RUNNING, session=session + 1)
    assert await ids(conn, sessions=[session], agents=["alpha"]) == [waits, run]
    assert await ids(conn, parents=[broadcast]) == [run]
    assert run not in await ids(conn)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The windows of all searches, from and before."""
    windows: list[tuple[int, int]] = []
    advance = search._Walk.next

    async def spy(walk: search._Walk) -> tuple[int, int] | None:
        if (window := await advance(walk)) is not None:
            windows.append(window)
        return window

    monkeypatch.setattr(search._Walk, "next", spy)
    return windows


async def test_times_of_creation_bound_the_walk(
    conn: Connection, make_task: MakeTask, searched: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One day each: the walk begins and ends a minute around what is asked for."""
    made = [await make_task(created_at=EPOCH + timedelta(days=day)) for day in range(8)]
    await conn.execute("delete from mainspring.task where id = $1", made.pop(3))
    monkeypatch.setattr(search, "WINDOW", 1)
    found = await ids(conn, created_after=EPOCH + timedelta(days=1), created_before=EPOCH + timedelta(days=5))
    assert found == [made[3], made[2], made[1]]
    assert {min(start for start, _ in searched), max(end for _, end in searched)} == {made[1], made[4] + 1}
    assert await ids(conn, created_after=EPOCH + timedelta(days=9)) == []
    assert await ids(conn, created_before=EPOCH) == []


async def test_a_search_that_runs_out_of_time_says_where_to_continue(
    conn: Connection, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "WINDOW", 2)
    made = [await ended(conn, make_task, TaskState.FAILED)]
    made += [await make_task(created_at=EPOCH + timedelta(days=day)) for day in range(6)]
    failed = Filters(states=[TaskState.FAILED])
    found = await search.search(conn, failed, limit=50, patience=0.0)
    assert (found.tasks, found.next) == ([], made[-2]), "two ids were searched"
    assert found.searched_to == EPOCH + timedelta(days=4)
    pages = [found]
    while (before := pages[-1].next) is not None:
        pages.append(await search.search(conn, failed, limit=50, before=before, patience=0.0))
    assert [view.id for page in pages for view in page.tasks] == made[:1]
    assert len(pages) == 4
    assert pages[-1].searched_to is None
    assert [view.id for view in (await search.search(conn, failed, limit=50)).tasks] == made[:1]
    assert await search.count(conn, Filters(), patience=0.0) == search.Count(2, False)


async def test_a_search_leaves_the_settings_of_its_connection_as_they_were(
    conn: Connection, make_task: MakeTask
) -> None:
    """The engine's connections must not prune where they lock rows."""
    await make_task()
    sql = "select current_setting('enable_partition_pruning'), current_setting('plan_cache_mode')"
    async with conn.transaction():
        before = await conn.fetchrow(sql)
        for filters in (Filters(), Filters(finished_after=EPOCH)):
            await search.search(conn, filters, limit=1)
            await search.count(conn, filters)
            assert await conn.fetchrow(sql) == before


async def test_a_count_is_capped(conn: Connection, make_task: MakeTask) -> None:
    for _ in range(4):
        await make_task()
    assert await search.count(conn, Filters(), most=3) == search.Count(3, False)
    assert await search.count(conn, Filters(), most=4) == search.Count(4, True)


async def test_a_summary_leaves_out_what_takes_room(conn: Connection, make_task: MakeTask) -> None:
    await ended(conn, make_task, TaskState.FAILED, result="[1]", code="c", error="e")
    [view] = (await search.search(conn, Filters(), limit=1)).tasks
    assert (view.args, view.result, view.error, view.error_code) == (UNSET, UNSET, UNSET, "c")
    [view] = (await search.search(conn, Filters(), limit=1, whole=True)).tasks
    assert (view.args, view.result, view.error, view.error_code) == ({}, [1], "e", "c")


async def test_a_blocked_task_names_what_it_waits_for(conn: Connection, make_task: MakeTask) -> None:
    first = await make_task()
    await conn.execute("select mainspring.enqueue('job', after => array[$1::bigint])", first)
    child, parent = (await search.search(conn, Filters(), limit=2)).tasks
    assert (child.waiting_for, parent.waiting_for) == ([first], [])


@pytest.mark.parametrize("table", ["task_history", "attempt"])
async def test_the_history_has_an_index_on_the_time_of_recording(conn: Connection, table: str) -> None:
    sql = "select indexdef from pg_indexes where schemaname = 'mainspring' and tablename = $1"
    assert any("USING brin (recorded_at)" in row[0] for row in await conn.fetch(sql, table))


async def test_behind_a_long_stretch_without_tasks_the_next_window_is_not_long(
    conn: Connection, make_task: MakeTask, searched: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is fast to find nothing, and says nothing of the ids before it."""
    first = await ended(conn, make_task, TaskState.FAILED)
    await conn.execute("select setval('mainspring.task_id', $1)", first + 1000)
    await make_task()
    monkeypatch.setattr(search, "WINDOW", 2)
    monkeypatch.setattr(search, "LONGEST", 100)
    found = await search.search(conn, Filters(states=[TaskState.FAILED]), limit=5, patience=30.0)
    assert [view.id for view in found.tasks] == [first]
    assert 2 < max(end - start for start, end in searched) <= 100
