"""Jobs: list, show, create, delete; which agents can run one."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, add_agent, echo

from mainspring.errors import Conflict, JobNotFound, ValidationError
from mainspring.operations import jobs, tasks
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.store.postgres.database import Connection


async def test_a_job_is_created_once_and_changed_only_on_demand(conn: Connection) -> None:
    assert await jobs.create(conn, ACTOR, "hello", echo())
    assert not await jobs.create(conn, ACTOR, "hello", echo())
    with pytest.raises(Conflict, match="exists and is another one"):
        await jobs.create(conn, ACTOR, "hello", echo(retries=2))
    assert await jobs.create(conn, ACTOR, "hello", echo(retries=2), replace=True)
    view = await jobs.show(conn, ACTOR, "hello")
    assert (view.version, view.definition.retry.retries, view.live) == (2, 2, None)


async def test_a_list_counts_live_tasks(conn: Connection) -> None:
    await jobs.create(conn, ACTOR, "b", echo())
    await jobs.create(conn, ACTOR, "a", echo())
    await tasks.submit(conn, ACTOR, NewTask(job="b"))
    assert [(view.name, view.live) for view in await jobs.listing(conn, ACTOR)] == [("a", 0), ("b", 1)]


async def test_a_job_with_live_tasks_is_not_deleted(conn: Connection) -> None:
    await jobs.create(conn, ACTOR, "hello", echo())
    task = (await tasks.submit(conn, ACTOR, NewTask(job="hello"))).id
    with pytest.raises(Conflict, match="has tasks that have not ended"):
        await jobs.delete(conn, ACTOR, "hello")
    await tasks.cancel(conn, ACTOR, task)
    await jobs.delete(conn, ACTOR, "hello")
    with pytest.raises(JobNotFound):
        await jobs.show(conn, ACTOR, "hello")


async def test_agents_that_can_run_a_job_are_named_or_why_there_are_none(conn: Connection) -> None:
    able = await jobs.able_agents(conn, ACTOR, echo())
    assert (able.names, able.wait and able.wait.code) == ([], "no_agents")
    await add_agent(conn)
    able = await jobs.able_agents(conn, ACTOR, echo())
    assert (able.names, able.wait) == (["eve"], None)
    able = await jobs.able_agents(conn, ACTOR, echo(requires={"zone": "eu"}))
    assert (able.names, able.wait and able.wait.code) == ([], "no_labels")


async def test_a_bad_name_is_refused(conn: Connection) -> None:
    for operation in (jobs.show, jobs.delete):
        with pytest.raises(ValidationError):
            await operation(conn, ACTOR, BAD_NAME)
    with pytest.raises(ValidationError):
        await jobs.create(conn, ACTOR, BAD_NAME, echo())
