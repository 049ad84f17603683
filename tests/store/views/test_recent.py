"""Recent: what is found by a look at the last day is what is found by a look at everything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
from tests.conftest import MakeTask

from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.search import search, whole
from mainspring.store.search.filters import Conditions, Filters
from mainspring.store.tasks import partitions, tasks, transitions
from mainspring.store.views import recent

DAYS = 6


async def history_of_days(conn: Connection, make_task: MakeTask) -> list[int]:
    """Tasks of six days, the newest first: some wait, the others ended soon after their creation or much later."""
    now = datetime.now(UTC)
    for parent, days in product(("task_history_succeeded", "task_history_failed", "attempt"), range(2, DAYS + 2)):
        await partitions._make(conn, parent, (now - timedelta(days=days)).date())
    made = []
    for hours in range(24 * DAYS, 0, -8):
        at = now - timedelta(hours=hours)
        live, soon, late = [await make_task(TaskState.RUNNING, token=5, session=1, created_at=at) for _ in range(3)]
        for task in (soon, late):
            await transitions.finish(conn, [Ending(task, 5, 1, 1, TaskState.SUCCEEDED, 1.0, 2.0)])
        await conn.execute("update mainspring.task_history set recorded_at = $2 where id = $1", soon, at)
        made += [live, soon, late]
    return made[::-1]


@pytest.mark.parametrize("within", [timedelta(), timedelta(days=1), timedelta(days=DAYS + 1)])
async def test_a_list_is_the_same_however_much_of_it_is_recent(
    conn: Connection, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch, within: timedelta
) -> None:
    made = await history_of_days(conn, make_task)
    monkeypatch.setattr(recent, "WITHIN", within)
    for limit in (1, 7, len(made)):
        found: list[int] = []
        before = None
        while not found or before is not None:
            page = await search.search(conn, Filters(), limit=limit, before=before)
            found += [task.id for task in page.tasks]
            before = page.next
        assert found == made, limit
    assert (await search.ids(conn, Filters(), limit=500)).ids == made


async def test_a_task_is_found_whole_whenever_it_was_recorded(conn: Connection, make_task: MakeTask) -> None:
    """Its attempts may be older than its end."""
    made = await history_of_days(conn, make_task)
    long_ago = datetime.now(UTC) - timedelta(days=3)
    for task in made:
        await conn.execute(
            "insert into mainspring.attempt (task_id, token, number, state, finished_at, recorded_at, run_at)"
            " values ($1, 1, 1, 11, $2, $2, $2)",
            task,
            long_ago,
        )
    for task in made:
        assert (await tasks.get(conn, task)).id == task
        found = await whole.whole(conn, task)
        is_older = found.task.created_at < long_ago
        assert not is_older or [attempt.token for attempt in found.attempts] == [1, 5]


async def test_a_look_at_what_is_recent_opens_few_partitions(database: Database, make_task: MakeTask) -> None:
    """In the connections of the API; the statements on the whole history would need as many plans as searches."""
    pool = database.for_api()
    since = recent.since()
    conditions = Conditions(Filters(), window=10, since=since)
    sql = search._newest(None, conditions, search._SUMMARIES)  # type: ignore[arg-type]
    async with database.acquire() as conn:
        for days in range(2, 20):
            await partitions._make(conn, "task_history_succeeded", (since - timedelta(days=days)).date())
    try:
        async with pool.acquire() as conn:
            await conn.execute(f"prepare look (bigint, bigint, bigint, timestamptz) as {sql}")
            plan = await conn.fetch(f"explain execute look (null, 100, 10, '{since.isoformat()}')")
            await conn.execute(f"prepare show (bigint, timestamptz) as {whole._RECENT}")
            plan += await conn.fetch(f"explain execute show (7, '{since.isoformat()}')")
        removed = [int(line[0].rpartition(" ")[2]) for line in plan if "Subplans Removed" in line[0]]
        assert len(removed) >= 2, "one for each statement at least"
        assert all(number >= 18 for number in removed[:2])
    finally:
        await pool.close()
