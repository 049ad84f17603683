"""Jobs that fail now: since when, with what, and what their last tasks came to; how late schedules fired."""

from __future__ import annotations

from uuid import uuid4

from tests.operations.conftest import ACTOR, echo

from mainspring.model.access.actors import Actor, Role
from mainspring.model.figures.buckets import LATENESS
from mainspring.model.tasks.states import TaskState
from mainspring.operations.condition import cluster, failing
from mainspring.operations.definitions import jobs
from mainspring.store.postgres.database import Connection


async def counted(
    conn: Connection, job: str, outcome: TaskState, ago: str, *, planned: list[int] | None = None
) -> None:
    await conn.execute(
        """
        insert into mainspring.figure (minute, writer, job_id, count, outcome, again, planned)
        select date_trunc('minute', mainspring.now() - $2::text::interval), $3, ids.id, 1, $4, false, $5::integer[]
          from (select j.id from mainspring.job j where j.name = $1 union all select 0) ids
        """,
        job, ago, uuid4(), int(outcome), planned,
    )  # fmt: skip


async def ended(conn: Connection, job: str, state: TaskState, ago: str, error: str | None = None) -> int:
    id: int = await conn.fetchval("select nextval('mainspring.task_id')")
    await conn.execute(
        """
        insert into mainspring.task_history
            (id, run_at, created_at, started_at, finished_at, recorded_at, job_id, pool, state, priority, attempt,
             crashes, args, error_code, error)
        select $1, at, at, at, at, at, j.id, j.pool, $4, 5, 1, 0, '{}', $5, $6
          from mainspring.job j, (select mainspring.now() - $3::text::interval as at) t where j.name = $2
        """,
        id, job, ago, int(state), None if error is None else "failed", error,
    )  # fmt: skip
    return id


async def test_a_job_fails_until_one_task_of_it_succeeds(conn: Connection) -> None:
    for name in ("bad", "good"):
        await jobs.put(conn, ACTOR, name, echo())
    first = await ended(conn, "bad", TaskState.SUCCEEDED, "50 min")
    last = await ended(
        conn, "bad", TaskState.FAILED, "20 min", "RuntimeError: no shop\nsince noon\n\nTraceback:\n  x\n"
    )
    await counted(conn, "bad", TaskState.SUCCEEDED, "50 min")
    await counted(conn, "bad", TaskState.FAILED, "20 min")
    await counted(conn, "good", TaskState.FAILED, "20 min")
    await counted(conn, "good", TaskState.SUCCEEDED, "10 min")
    [found] = await failing.failing(conn, ACTOR)
    assert (found.job, found.failures, found.task_id, found.error) == ("bad", 1, last, "RuntimeError: no shop")
    assert [(run.id, run.state) for run in found.last] == [(first, "succeeded"), (last, "failed")]
    assert await failing.failing(conn, Actor(name="narrowed", role=Role.VIEWER, jobs=("other*",))) == []
    await counted(conn, "bad", TaskState.SUCCEEDED, "5 min")
    assert await failing.failing(conn, ACTOR) == []


async def test_lateness_is_told_by_its_buckets(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    planned = [0] * (len(LATENESS) + 1)
    planned[3], planned[LATENESS.index(1.0)], planned[-1] = 7, 2, 1
    await counted(conn, "hello", TaskState.SUCCEEDED, "20 min", planned=planned)
    found = await cluster.punctuality(conn, ACTOR, last="1h")
    assert (found.starts, found.on_time, found.slo) == (10, 9, None)
    assert [one.starts for one in found.buckets] == planned
    assert found.buckets[-1].up_to_ms is None
    narrowed = await cluster.punctuality(conn, Actor(name="n", role=Role.VIEWER, jobs=("hello",)), last="24h")
    assert narrowed.starts == 10
    points = (await cluster.figures(conn, ACTOR)).points
    assert sum(point.fired for point in points) == 10
