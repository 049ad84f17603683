"""Start deadlines: what has not started by then ends as skipped, whoever has it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.server.planning.expiry import ExpiryLoop
from mainspring.store.cluster import settings
from mainspring.store.flows import expiry
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.submission.drivers import submit
from mainspring.store.submission.enqueue import submit_each
from mainspring.store.submission.submissions import BulkSubmission, Submission
from mainspring.store.tasks import dependencies, jobs, tasks, transitions

SOON = timedelta(milliseconds=1)


@pytest.fixture(autouse=True)
async def defined(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job")), "hasty": Definition(Python("hasty"), expires=60.0)})


async def later(conn: Connection) -> None:
    """All deadlines have passed."""
    await conn.execute(
        "update mainspring.task set expires_at = mainspring.now() - interval '1 second' where expires_at is not null"
    )


async def test_what_waits_beyond_its_deadline_is_skipped_and_its_children_follow(conn: Connection) -> None:
    lasting = await submit(conn, Submission("job", "{}"))
    task = await submit(conn, Submission("job", "{}", expires=SOON, key="k"))
    child = await submit(conn, Submission("job", "{}", after=[task]))
    held = await submit(conn, Submission("job", "{}", expires=SOON))
    await conn.execute("update mainspring.task set state = 2, token = 1, session = 1 where id = $1", held)
    await later(conn)
    assert await expiry.expire(conn, 10) == 1
    view = await tasks.get(conn, task)
    assert (view.state, view.error_code, view.key) == ("skipped", "expired", "k")
    assert str(view.error).startswith("it had not started by its deadline, 20")
    await dependencies.settle(conn, [task])
    assert (await tasks.get(conn, child)).state == "skipped"
    assert [(await tasks.get(conn, id)).state for id in (lasting, held)] == ["pending", "assigned"]
    assert await conn.fetchval("select sum(count) from mainspring.figure_note where outcome = 14") == 2


async def test_a_deadline_is_of_the_submission_the_job_or_a_setting(conn: Connection) -> None:
    await settings.put(conn, "default_expires", 3600)
    given = [
        await submit(conn, Submission("job", "{}")),
        await submit(conn, Submission("hasty", "{}")),
        await submit(conn, Submission("hasty", "{}", expires=timedelta(seconds=5), delay=timedelta(hours=1))),
        *await submit(conn, BulkSubmission("hasty", ["{}"], expires=timedelta(seconds=7))),
        *await submit_each(conn, [Submission("hasty", "{}"), Submission("job", "{}", expires=SOON)]),
    ]
    rows = await conn.fetch("select id, extract(epoch from expires_at - run_at)::float as left from mainspring.task")
    left = {row["id"]: row["left"] for row in rows}
    assert [left[id] for id in given] == [3600, 60, 5, 7, 60, 0.001]


async def test_a_retry_has_no_deadline_and_what_was_given_back_keeps_it(conn: Connection) -> None:
    task = await submit(conn, Submission("job", "{}", expires=timedelta(hours=1)))
    deadline = "select expires_at from mainspring.task where id = $1"
    for started in (0.0, 1.0):
        await conn.execute("update mainspring.task set state = 3, token = 1, session = 1 where id = $1", task)
        ending = Ending(task, 1, 1, 1, TaskState.FAILED, started, 2.0)
        await transitions.retry(conn, [Again(ending, 0.0, costs=bool(started))])
        assert (await conn.fetchval(deadline, task) is None) is bool(started)


async def test_many_expire_in_bounded_steps(conn: Connection, database: Database, monkeypatch: Any) -> None:
    monkeypatch.setattr("mainspring.server.planning.expiry.BATCH", 40)
    await submit(conn, BulkSubmission("job", ["{}"] * 100, expires=SOON))
    await later(conn)
    loop = ExpiryLoop(database)
    assert [await loop.step() for _ in range(4)] == [40, 40, 0, 0]
    assert (loop.expired, await conn.fetchval("select count(*) from mainspring.task")) == (100, 0)
