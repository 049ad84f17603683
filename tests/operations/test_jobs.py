"""Jobs: list, show, create, delete; which agents can run one."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, add_agent, echo

from mainspring.errors import Conflict, Forbidden, JobNotFound, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.define_job import command, define
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


async def test_secrets_are_masked_unless_an_admin_reveals_them(conn: Connection) -> None:
    definition = define(command(["true"], env={"TOKEN": "hunter2", "REGION": "eu"}), {})
    await jobs.create(conn, ACTOR, "hello", definition)
    for view in (await jobs.show(conn, ACTOR, "hello"), *await jobs.listing(conn, ACTOR)):
        assert view.definition.run.env == {"TOKEN": "***", "REGION": "eu"}  # type: ignore[union-attr]
    assert (await jobs.show(conn, ACTOR, "hello", reveal=True)).definition == definition
    for role in set(Role) - {Role.ADMIN}:
        with pytest.raises(Forbidden, match="takes the role admin"):
            await jobs.show(conn, Actor("token:x", role), "hello", reveal=True)


async def test_a_definition_that_was_read_with_masks_is_not_written_back(conn: Connection) -> None:
    definition = define(command(["true"], env={"TOKEN": "hunter2"}), {})
    await jobs.create(conn, ACTOR, "hello", definition)
    shown = (await jobs.show(conn, ACTOR, "hello")).definition
    with pytest.raises(ValidationError, match="run.env.TOKEN"):
        await jobs.create(conn, ACTOR, "hello", shown, replace=True)
    assert (await jobs.show(conn, ACTOR, "hello", reveal=True)).definition == definition
