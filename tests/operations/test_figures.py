"""`stats`, `figures` and `queues`: typed, narrowed to what the actor may see, and without a look at the history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID

import msgspec
import pytest
from tests.operations.conftest import ACTOR, echo

from mainspring.errors import JobNotFound, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.figures.buckets import DURATION, LATENESS, empty
from mainspring.model.figures.counts import Counts
from mainspring.model.tasks.states import TaskState
from mainspring.operations.condition import cluster
from mainspring.operations.condition.cluster import Step
from mainspring.operations.definitions import jobs as jobs_operations
from mainspring.operations.parts import reach
from mainspring.store.figures import queues, rollups
from mainspring.store.figures.queues import Queues
from mainspring.store.figures.rollups import ALL_JOBS, Rollup
from mainspring.store.figures.series import Series
from mainspring.store.figures.stats import Stats
from mainspring.store.postgres import roles
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs

NARROW = Actor("token:shop", jobs=("shop.*",))


@pytest.fixture
async def counted(conn: Connection) -> None:
    """Two jobs with a live task each and 3 and 5 ended ones in this minute."""
    await jobs.register(conn, {"shop.mail": echo(), "bank.pay": echo()})
    ids = {row["name"]: row["id"] for row in await conn.fetch("select id, name from mainspring.job")}
    for name in ids:
        await conn.execute("select mainspring.enqueue($1)", name)
    minute = int((await conn.fetchval("select mainspring.now()")).timestamp()) // 60 * 60
    buckets = ((1, *empty(DURATION)[1:]), (1, *empty(LATENESS)[1:]), None)
    await rollups.write(
        conn,
        [
            Rollup(
                minute, UUID(int=1), job, TaskState.SUCCEEDED, False,
                Counts(count, 0.0, 0.0, 0.0, 0.5, 0.25, 0.0, *buckets),
            )
            for job, count in ((ids["shop.mail"], 3), (ids["bank.pay"], 5), (ALL_JOBS, 8))
        ],
    )  # fmt: skip
    await queues.write(conn, await queues.count(conn, 1.0), 0.0)


@pytest.mark.usefixtures("counted")
async def test_an_actor_with_patterns_sees_the_figures_of_its_jobs(conn: Connection) -> None:
    every, own = await cluster.stats(conn, ACTOR), await cluster.stats(conn, NARROW)
    assert (every.pending_tasks, every.last_hour, every.due) == (2, {"succeeded": 8}, 2)
    assert (own.pending_tasks, own.last_hour, own.due, own.arrivals) == (1, {"succeeded": 3}, 1, None)
    assert own.completed_tasks == 3
    assert every.last_minute.ended_per_second > own.last_minute.ended_per_second > 0
    assert [each.jobs for each in own.waiting] == [["shop.mail"]]
    assert [each.tasks for each in own.waiting] == [1]
    totals = [
        sum(point.ended.get("succeeded", 0) for point in (await cluster.figures(conn, actor)).points)
        for actor in (ACTOR, NARROW)
    ]
    assert totals == [8, 3]
    assert [queue.job for queue in (await cluster.queues(conn, ACTOR)).items] == ["bank.pay", "shop.mail"]
    assert [queue.job for queue in (await cluster.queues(conn, NARROW)).items] == ["shop.mail"]
    for name in ("bank.pay", "nothing"):
        with pytest.raises(JobNotFound):
            await cluster.figures(conn, NARROW, job=name)


@pytest.mark.usefixtures("counted")
async def test_answers_are_read_back_from_json_as_they_were(conn: Connection) -> None:
    answers: list[tuple[Any, Any]] = [
        (await cluster.stats(conn, ACTOR), Stats),
        (await cluster.figures(conn, ACTOR, step="5m"), Series),
        (await cluster.queues(conn, ACTOR), Queues),
    ]
    for answer, kind in answers:
        assert msgspec.json.decode(msgspec.json.encode(answer), type=kind) == answer


@pytest.mark.usefixtures("counted")
async def test_queues_tell_what_finished_per_second(conn: Connection) -> None:
    found = await cluster.queues(conn, ACTOR)
    rates = {queue.job: queue.finished_per_second for queue in found.items}
    assert 0 < rates["shop.mail"] <= 3 / 60
    assert rates["bank.pay"] > rates["shop.mail"]
    assert (found.is_estimated, found.counted_at is None) == (False, False)


async def test_queues_come_in_pages_by_name(conn: Connection) -> None:
    names = [f"{group}.{number:03}" for group in ("bank", "shop") for number in range(300)]
    await jobs.register(conn, dict.fromkeys(names, echo()))
    await conn.execute("""
        insert into mainspring.queue_figure (job_id, state, tasks, due, oldest)
        select id, state, 2, 1, mainspring.now() from mainspring.job, unnest('{1, 3}'::smallint[]) as state
         where name <> 'shop.299'
    """)
    assert len((await cluster.queues(conn, ACTOR)).items) == 50
    pages = [await cluster.queues(conn, ACTOR, limit=500)]
    pages.append(await cluster.queues(conn, ACTOR, limit=500, cursor=pages[0].next))
    assert [len(page.items) for page in pages] == [500, 99]
    assert [queue.job for page in pages for queue in page.items] == names[:-1]
    assert (pages[1].next, pages[1].items[0].waiting, pages[1].items[0].active) == (None, 2, 2)
    assert len((await cluster.queues(conn, NARROW, limit=500)).items) == 299
    for limit in (0, 501):
        with pytest.raises(ValidationError):
            await cluster.queues(conn, ACTOR, limit=limit)


class Counting:
    """A connection that notes how many rows each answer has."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self.rows: list[int] = []

    async def fetch(self, *args: Any) -> Any:
        found = await self._conn.fetch(*args)
        self.rows.append(len(found))
        return found


async def test_the_figures_and_names_of_many_jobs_are_read_in_steps(conn: Connection) -> None:
    await jobs.register(conn, {"other": echo()})
    await conn.execute("""
        with made as (
            insert into mainspring.job (name, pool, priority, definition)
            select 'shop.' || n, pool, priority, definition from mainspring.job, generate_series(1, 1200) n
            returning id
        )
        insert into mainspring.queue_figure (job_id, state, tasks, due, oldest)
        select id, 1, 2, 1, mainspring.now() from made
    """)
    counting = Counting(conn)
    found = await queues.counted(counting, None)  # type: ignore[arg-type]
    assert (len({queue.job for queue in found}), counting.rows) == (1200, [500, 500, 200])
    ids = await reach.job_ids(counting, NARROW)  # type: ignore[arg-type]
    assert ids is not None
    assert (len(set(ids)), counting.rows[3:]) == (1200, [500, 500, 200])
    [every] = await queues.in_each_state(conn, ids)
    assert (every.tasks, every.due) == (2400, 1200)
    assert await queues.in_each_state(conn, ids[:1]) == [every._replace(tasks=2, due=1)]


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("field", "given", "step"),
    [
        ("from", {"start": NOW.replace(tzinfo=None)}, "1m"),
        ("to", {"end": NOW.replace(tzinfo=None)}, "1m"),
        ("from", {"start": NOW, "end": NOW - timedelta(hours=1)}, "1h"),
        ("from", {"start": NOW + timedelta(days=5)}, "1h"),
        ("step", {"start": NOW - timedelta(days=3)}, "5m"),
        ("step", {"start": NOW - timedelta(days=300)}, "1h"),
        ("step", {"start": datetime(1, 1, 1, tzinfo=UTC)}, "1d"),
    ],
)
async def test_a_range_that_cannot_be_shown_is_refused(conn: Connection, field: str, given: Any, step: Step) -> None:
    with pytest.raises(ValidationError) as refused:
        await cluster.figures(conn, ACTOR, step=step, **given)
    assert refused.value.field == field


@pytest.mark.usefixtures("counted")
async def test_no_figure_reads_the_history(conn: Connection, dsn: str) -> None:
    """A role that may read everything else gets all answers."""
    role = f"figures_{dsn.rpartition('/')[2].partition('?')[0]}"
    await conn.execute(f"create role {role}")
    try:
        await roles.run(conn, await roles.grant_statements(conn, "viewer", role))
        await conn.execute(f"revoke all on mainspring.task_history, mainspring.attempt, mainspring.output from {role}")
        other = await Database(dsn).connect()
        await other.execute(f"set role {role}")
        assert (await cluster.stats(other, ACTOR)).last_hour == {"succeeded": 8}
        assert (await cluster.stats(other, NARROW)).last_hour == {"succeeded": 3}
        for step in get_args(Step):
            assert (await cluster.figures(other, ACTOR, step=step)).points
        assert len((await cluster.queues(other, ACTOR)).items) == 2
        await other.close()
    finally:
        await conn.execute(f"drop owned by {role}; drop role {role}")


async def test_a_job_says_how_its_tasks_ended_last(conn: Connection, counted: None) -> None:
    async def last(name: str) -> Any:
        [view] = (await jobs_operations.listing(conn, ACTOR, name=[name])).items
        assert (await jobs_operations.show(conn, ACTOR, name)).last_ended == view.last_ended
        return view.last_ended

    found = await last("shop.mail")
    assert (found.within, found.outcomes) == (60.0, {"succeeded": 3})
    job = await conn.fetchval("select id from mainspring.job where name = 'shop.mail'")
    later = int(found.at.timestamp()) + 60
    counts = Counts(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, None, None, None)
    await rollups.write(
        conn,
        [
            Rollup(later, UUID(int=1), job, TaskState.FAILED, False, counts),
            Rollup(later, UUID(int=2), job, TaskState.FAILED, False, counts),
            Rollup(later, UUID(int=2), job, TaskState.SUCCEEDED, False, counts),
            Rollup(later + 60, UUID(int=2), job, TaskState.FAILED, True, counts),
        ],
    )
    found = await last("shop.mail")
    assert found.at.timestamp() == later, "what ran again has not ended"
    assert found.outcomes == {"succeeded": 1, "failed": 2}
    await jobs.register(conn, {"shop.new": echo()})
    assert await last("shop.new") is None


async def test_of_what_ended_days_ago_the_hour_is_known(conn: Connection) -> None:
    await jobs.register(conn, {"old": echo()})
    await conn.execute(
        """insert into mainspring.figure_hour
               (hour, duration_sum, planned_sum, due_sum, job_id, count, duration_max, planned_max, due_max, outcome,
                again)
           select '2026-01-05 09:00Z', 0, 0, 0, id, 7, 0, 0, 0, 11, false from mainspring.job where name = 'old'"""
    )
    [view] = (await jobs_operations.listing(conn, ACTOR, name=["old"])).items
    assert view.last_ended is not None
    assert (view.last_ended.within, view.last_ended.outcomes) == (3600.0, {"failed": 7})
    assert view.last_ended.at == datetime(2026, 1, 5, 9, tzinfo=UTC)


@pytest.mark.usefixtures("counted")
async def test_the_last_hour_of_some_jobs(conn: Connection) -> None:
    found = await cluster.job_figures(conn, ACTOR, job=["shop.mail", "bank.*"])
    assert [(one.job, one.ended, one.retried) for one in found] == [
        ("bank.pay", {"succeeded": 5}, 0),
        ("shop.mail", {"succeeded": 3}, 0),
    ]
    assert all(one.duration is not None and one.duration.max == 0.5 for one in found)
    assert [one.job for one in await cluster.job_figures(conn, NARROW, job=["*"])] == ["shop.mail"]
    for actor, name in ((ACTOR, "no-such-job"), (NARROW, "bank.pay")):
        with pytest.raises(JobNotFound):
            await cluster.job_figures(conn, actor, job=["shop.mail", name])
    for names in ([], ["job"] * 101):
        with pytest.raises(ValidationError, match="give 1 to 100"):
            await cluster.job_figures(conn, ACTOR, job=names)


async def test_an_answer_about_the_whole_takes_few_statements(database: Database) -> None:
    """Each costs the event loop of a server as much as its answer; consoles ask for it all the time."""

    def asked() -> int:
        return sum(histogram.count for histogram in database.tally.statements.values())

    async with database.acquire() as conn:
        before = asked()
        await cluster.stats(conn, ACTOR)
        assert asked() - before <= 10
