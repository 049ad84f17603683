"""New tasks: what is checked, what is answered, and many at once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.operations.conftest import ACTOR, add_agent, echo

from mainspring.errors import JobNotFound, NoAgents, TaskExists, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.operations.definitions import jobs
from mainspring.operations.requests import new_tasks
from mainspring.operations.requests.new_tasks import NewTask, Submitted
from mainspring.operations.work import batches, tasks
from mainspring.store.postgres.database import Connection, Database

BIG = 2**53


async def submit(conn: Connection, **options: Any) -> Submitted:
    return await tasks.submit(conn, ACTOR, NewTask(job="hello", **options))


@pytest.fixture
async def hello(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())


@pytest.mark.usefixtures("hello")
async def test_every_option_is_stored(conn: Connection) -> None:
    at = datetime(2199, 1, 1, tzinfo=UTC)
    first = await submit(conn, args={"day": "mon"}, priority="high", run_at=at, key="k", concurrency_key="c")
    assert (first.state, first.created) == ("pending", True)
    view = await tasks.status(conn, ACTOR, first.id)
    assert (view.args, view.priority, view.run_at, view.key, view.concurrency_key) == ({"day": "mon"}, 7, at, "k", "c")
    second = await submit(conn, delay="1h", after=[first.id])
    assert (second.state, second.created) == ("blocked", True)
    view = await tasks.status(conn, ACTOR, second.id)
    assert (view.waiting_for, view.run_at > view.created_at) == ([first.id], True)


@pytest.mark.usefixtures("hello")
async def test_a_number_is_refused_by_the_name_of_what_it_would_be_of(conn: Connection) -> None:
    with pytest.raises(ValidationError, match="batch: 0 is not the number of a batch"):
        await submit(conn, batch=0)
    with pytest.raises(ValidationError, match="batch: -1 is not the number of a batch"):
        await batches.show(conn, ACTOR, -1)
    with pytest.raises(ValidationError, match="after: 0 is not the number of a task"):
        await submit(conn, after=[0])


@pytest.mark.usefixtures("hello")
async def test_a_key_finds_the_task_that_has_it_in_whatever_state(conn: Connection) -> None:
    first = await submit(conn, key="k")
    assert await submit(conn, key="k") == Submitted(first.id, "pending", False)
    assert (await submit(conn, key="other")).created
    await tasks.cancel(conn, ACTOR, first.id)
    assert await submit(conn, key="k", args={"other": 1}) == Submitted(first.id, "cancelled", False)
    await conn.execute("delete from mainspring.task_history")
    assert await submit(conn, key="k") == Submitted(first.id, None, False)
    with pytest.raises(TaskExists) as refused:
        await submit(conn, key="k", if_exists="reject")
    assert (refused.value.field, refused.value.details) == ("key", {"id": first.id})
    assert (await submit(conn, key="new", if_exists="reject")).created


@pytest.mark.usefixtures("hello")
async def test_of_two_submissions_with_a_key_at_once_one_creates_the_task(conn: Connection, dsn: str) -> None:
    connections = [await Database(dsn).connect() for _ in range(4)]
    answers = await asyncio.gather(*(submit(each, key="k") for each in connections))
    assert [answer.created for answer in answers].count(True) == 1
    assert len({answer.id for answer in answers}) == 1
    for each in connections:
        await each.close()


@pytest.mark.usefixtures("hello")
async def test_a_task_that_nobody_can_run_is_refused_if_that_is_wanted(conn: Connection) -> None:
    with pytest.raises(NoAgents, match="no agent is connected") as refused:
        await submit(conn, require_agents=True, key="k")
    waits: Any = refused.value.details["waits"]
    assert waits["code"] == "no_agents"
    assert refused.value.details["retry_after"] == 5
    await add_agent(conn)
    assert (await submit(conn, require_agents=True, key="k")).created, "the refused one took no key"


async def test_a_job_that_does_not_exist_is_named(conn: Connection) -> None:
    with pytest.raises(JobNotFound, match="hello"):
        await submit(conn)
    with pytest.raises(JobNotFound, match="hello"):
        await submit(conn, require_agents=True)


@pytest.mark.usefixtures("hello")
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"job": "a\x00b"}, "job"),
        ({"args": [1]}, "args"),
        ({"args": {"a": float("nan")}}, "args"),
        ({"args": {"a": BIG}}, "args"),
        ({"args": {"a": [{"b": -BIG}]}}, "args"),
        ({"args": {"a": "\x00"}}, "args"),
        ({"priority": "urgent"}, "priority"),
        ({"run_at": datetime(2026, 11, 15)}, "run_at"),
        ({"run_at": datetime(2026, 11, 15, tzinfo=UTC), "delay": 1}, "run_at"),
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"key": ""}, "key"),
        ({"key_ttl": 0}, "key_ttl"),
        ({"if_exists": "replace"}, "if_exists"),
        ({"after": [0]}, "after"),
        ({"after": [BIG]}, "after"),
        ({"after": [7]}, "after"),
        ({"after": [1] * 1001}, "after"),
        ({"concurrency_key": "a\nb"}, "concurrency_key"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_written(
    conn: Connection, wrong: dict[str, Any], field: str
) -> None:
    task = NewTask(**{"job": "hello", **wrong})
    with pytest.raises(ValidationError) as refused:
        await tasks.submit(conn, ACTOR, task)
    assert refused.value.field == field
    [answer] = await new_tasks.submit_each(conn, ACTOR, [task])
    assert isinstance(answer, ValidationError)
    assert (answer.message, answer.field) == (refused.value.message, field)
    assert await conn.fetchval("select count(*) from mainspring.task") == 0


def test_members_that_are_not_known_are_refused() -> None:
    assert msgspec.convert({"job": "hello", "delay": "10m"}, NewTask).delay == "10m"
    with pytest.raises(msgspec.ValidationError, match="expire_in"):
        msgspec.convert({"job": "hello", "expire_in": 1}, NewTask)


# ── many at once ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("hello")
async def test_each_of_many_is_answered_for_itself(conn: Connection) -> None:
    known = await submit(conn, key="known")
    given = [
        NewTask(job="hello", args={"n": 1}),
        NewTask(job="none"),
        NewTask(job="hello", key="known"),
        NewTask(job="hello", key="new"),
        NewTask(job="hello", key="new"),
        NewTask(job="hello", key="known", if_exists="reject"),
        NewTask(job="hello", args={"n": BIG}),
        NewTask(job="hello", after=[known.id]),
        NewTask(job="hello", require_agents=True),
    ]
    answers = await new_tasks.submit_each(conn, ACTOR, given)
    told = [answer.created if isinstance(answer, Submitted) else type(answer) for answer in answers]
    assert told == [True, JobNotFound, False, True, False, TaskExists, ValidationError, True, NoAgents]
    first, twice, again = answers[0], answers[3], answers[4]
    assert isinstance(first, Submitted)
    assert isinstance(twice, Submitted)
    assert isinstance(again, Submitted)
    assert answers[2] == Submitted(known.id, "pending", False)
    assert twice.id == again.id
    assert (await tasks.status(conn, ACTOR, first.id)).args == {"n": 1}
    assert await conn.fetchval("select count(*) from mainspring.task") == 4


@pytest.mark.usefixtures("hello")
async def test_many_share_one_statement_and_keep_their_order(conn: Connection) -> None:
    given = [NewTask(job="hello", args={"n": n}, priority=n % 10) for n in range(100)]
    answers = await new_tasks.submit_each(conn, ACTOR, given)
    ids = [answer.id for answer in answers if isinstance(answer, Submitted)]
    rows = await conn.fetch("select id, (args->>'n')::integer as n, xmin::text from mainspring.task order by id")
    assert [(row["id"], row["n"]) for row in rows] == list(zip(ids, range(100), strict=True))


@pytest.mark.usefixtures("hello")
async def test_one_that_is_refused_within_a_transaction_leaves_the_others(conn: Connection) -> None:
    async with conn.transaction():
        answers = await new_tasks.submit_each(
            conn, ACTOR, [NewTask(job="hello"), NewTask(job="hello", after=[999]), NewTask(job="none")]
        )
    assert [type(answer) for answer in answers] == [Submitted, ValidationError, JobNotFound]
    assert await conn.fetchval("select count(*) from mainspring.task") == 1


@pytest.mark.usefixtures("hello")
async def test_jobs_that_an_actor_does_not_reach_are_not_found(conn: Connection) -> None:
    narrow = Actor("token:ci", jobs=("report-*",))
    [answer] = await new_tasks.submit_each(conn, narrow, [NewTask(job="hello")])
    assert isinstance(answer, JobNotFound)


async def test_too_many_at_once_are_refused(conn: Connection) -> None:
    with pytest.raises(ValidationError, match="at most 10,000"):
        await new_tasks.submit_each(conn, ACTOR, [NewTask(job="hello")] * 10_001)
