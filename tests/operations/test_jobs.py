"""Jobs: list, show, put, edit, delete; which agents can run one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, add_agent, echo, same_in_json

from mainspring.errors import BadCursor, Forbidden, JobInUse, JobNotFound, NameTaken, StaleVersion, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.tasks.define_job import command, define
from mainspring.model.tasks.jobs import Definition
from mainspring.model.tasks.states import PENDING, RUNNING
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.definitions.jobs import JobChange, JobView
from mainspring.operations.pages import Page
from mainspring.operations.parts import by_name
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import tasks
from mainspring.store.figures import queues, stats
from mainspring.store.figures.queues import Count, Queue
from mainspring.store.postgres.database import Connection, Database

OF_SHOP = Actor("token:shop", jobs=("shop.*",))


async def test_a_job_is_created_once_and_changed_only_on_demand(conn: Connection) -> None:
    made = await jobs.put(conn, ACTOR, "hello", echo(), replace=False)
    assert (made.changed, made.created, made.job.version, made.job.namespace) == (True, True, 1, "default")
    again = await jobs.put(conn, ACTOR, "hello", echo())
    assert (again.changed, again.created, again.job.version) == (False, False, 1)
    for definition in (echo(), echo(retries=2)):
        with pytest.raises(NameTaken, match="there is a job named 'hello'"):
            await jobs.put(conn, ACTOR, "hello", definition, replace=False)
    change = await jobs.put(conn, ACTOR, "hello", echo(retries=2))
    assert (change.changed, change.created, change.job.version) == (True, False, 2)
    assert same_in_json(change, JobChange)
    view = await jobs.show(conn, ACTOR, "hello")
    assert (view.version, view.definition.retry.retries, view.live) == (2, 2, 0)
    assert same_in_json(view, JobView)


async def test_only_the_version_that_was_read_is_changed_or_deleted(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    await jobs.put(conn, ACTOR, "hello", echo(retries=2), version=1)
    for change in (
        jobs.put(conn, ACTOR, "hello", echo(retries=3), version=1),
        jobs.edit(conn, ACTOR, "hello", {"grace": 9}, version=1),
        jobs.delete(conn, ACTOR, "hello", version=1),
    ):
        with pytest.raises(StaleVersion) as caught:
            await change
        assert caught.value.details == {"version": 2}
    with pytest.raises(JobNotFound):
        await jobs.put(conn, ACTOR, "other", echo(), version=1)
    await jobs.delete(conn, ACTOR, "hello", version=2)


async def test_an_edit_is_a_merge_patch(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo(retries=2, requires={"zone": "eu"}, timeout=60))
    change: dict[str, Any] = {"timeout": None, "retry": {"delay": "10s"}, "requires": {"disk": "ssd"}}
    edited = (await jobs.edit(conn, ACTOR, "hello", change)).job
    definition = edited.definition
    assert (edited.version, definition.timeout, definition.retry.retries, definition.retry.delay) == (2, None, 2, 10.0)
    assert definition.requires == {"zone": "eu", "disk": "ssd"}
    assert not (await jobs.edit(conn, ACTOR, "hello", {"grace": 5})).changed
    for wrong, field in (({"timout": 1}, "timout"), ({"run": None}, "run"), ({"run": {"argv": []}}, "run.argv")):
        with pytest.raises(ValidationError) as caught:
            await jobs.edit(conn, ACTOR, "hello", wrong)
        assert caught.value.field == field


async def test_edits_at_once_are_all_kept(dsn: str, conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    database = Database(dsn)
    changes: list[dict[str, Any]] = [{"grace": 9}, {"timeout": 60}, {"description": "words"}]

    async def edit(change: dict[str, Any]) -> None:
        other = await database.connect()
        try:
            await jobs.edit(other, ACTOR, "hello", change)
        finally:
            await other.close()

    await asyncio.gather(*map(edit, changes))
    view = await jobs.show(conn, ACTOR, "hello")
    definition: Definition = view.definition
    assert (definition.grace, definition.timeout, definition.description, view.version) == (9.0, 60.0, "words", 4)


async def test_a_list_counts_live_tasks(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    await jobs.put(conn, ACTOR, "b", echo())
    await jobs.put(conn, ACTOR, "a", echo())
    await tasks.submit(conn, ACTOR, NewTask(job="b"))
    page = await jobs.listing(conn, ACTOR)
    assert [(view.name, view.live) for view in page.items] == [("a", 0), ("b", 1)]
    assert same_in_json(page, Page[JobView])
    assert [view.live_is_estimated for view in page.items] == [False, False]
    monkeypatch.setattr(stats, "FEW", 0)  # blocks: too many tasks to count them for each request
    [b] = [id for id, name in await conn.fetch("select id, name from mainspring.job") if name == "b"]
    now = await conn.fetchval("select mainspring.now()")
    counted = [Queue(b, PENDING, 700_000, 0, now), Queue(b, RUNNING, 300, 300, now)]
    await queues.write(conn, Count(counted, is_estimated=True), 0.1)
    found = [*(await jobs.listing(conn, ACTOR)).items, await jobs.show(conn, ACTOR, "b")]
    assert [(view.live, view.live_is_estimated) for view in found] == [(0, True), (700_300, True), (700_300, True)]


async def test_a_list_comes_in_pages_and_takes_patterns(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b_c", "bxc", "c%", "d"):
        await jobs.put(conn, ACTOR, name, echo())
    first = await jobs.listing(conn, ACTOR, limit=2)
    second = await jobs.listing(conn, ACTOR, limit=2, cursor=first.next)
    third = await jobs.listing(conn, ACTOR, limit=2, cursor=second.next)
    names = [[view.name for view in page.items] for page in (first, second, third)]
    assert sorted(name for page in names for name in page) == ["a", "b_c", "bxc", "c%", "d"]
    assert [len(page) for page in names] == [2, 2, 1]
    assert third.next is None
    for patterns, wanted in ((["b_*"], {"b_c"}), (["*%"], {"c%"}), (["a", "d*"], {"a", "d"}), (["x*"], set())):
        page = await jobs.listing(conn, ACTOR, name=patterns)
        assert {view.name for view in page.items} == wanted, patterns
    for actor, name in ((ACTOR, "x"), (Actor("x", jobs=("d",)), "a")):
        with pytest.raises(JobNotFound):
            await jobs.listing(conn, actor, name=["d", name])
    with pytest.raises(BadCursor):
        await jobs.listing(conn, ACTOR, name=["a*"], cursor=first.next)
    monkeypatch.setattr(by_name, "PATIENCE", -1)
    page = await jobs.listing(conn, Actor("x", jobs=("[d]",)), limit=1)
    assert (page.items, page.next is not None) == ([], True), "out of time: empty, and it goes on"
    found = []
    for _ in range(5):
        found += page.items
        if page.next is None:
            break
        page = await jobs.listing(conn, Actor("x", jobs=("[d]",)), limit=1, cursor=page.next)
    assert [view.name for view in found] == ["d"]


async def test_other_jobs_than_those_of_the_actor_are_not_there(conn: Connection) -> None:
    for name in ("shop.a", "bank.b"):
        await jobs.put(conn, ACTOR, name, echo())
    assert [view.name for view in (await jobs.listing(conn, OF_SHOP)).items] == ["shop.a"]
    for operation in (
        jobs.show(conn, OF_SHOP, "bank.b"),
        jobs.put(conn, OF_SHOP, "bank.b", echo(grace=9)),
        jobs.edit(conn, OF_SHOP, "bank.b", {"grace": 9}),
        jobs.delete(conn, OF_SHOP, "bank.b"),
    ):
        with pytest.raises(JobNotFound):
            await operation
    assert (await jobs.show(conn, ACTOR, "bank.b")).version == 1
    assert (await jobs.edit(conn, OF_SHOP, "shop.a", {"grace": 9})).changed


async def test_a_job_in_use_is_not_deleted(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    task = (await tasks.submit(conn, ACTOR, NewTask(job="hello"))).id
    with pytest.raises(JobInUse, match="has tasks that have not ended") as caught:
        await jobs.delete(conn, ACTOR, "hello")
    assert caught.value.details == {"schedules": 0, "tasks": 1}
    await schedules.put(conn, ACTOR, "hourly", ScheduleSpec(job="hello", every="1h"))
    with pytest.raises(JobInUse, match="has a schedule, 'hourly'") as caught:
        await jobs.delete(conn, ACTOR, "hello")
    assert caught.value.details == {"schedules": 1, "tasks": 1}
    await schedules.delete(conn, ACTOR, "hourly")
    await tasks.cancel(conn, ACTOR, task)
    await jobs.delete(conn, ACTOR, "hello")
    with pytest.raises(JobNotFound):
        await jobs.show(conn, ACTOR, "hello")


async def test_a_list_has_the_number_of_agents_that_can_run_each_job(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "anywhere", echo())
    await jobs.put(conn, ACTOR, "in the east", echo(requires={"zone": "eu"}))
    for session, name in enumerate(("eve", "ann"), 7):
        await add_agent(conn, name, session)
    listed = await jobs.listing(conn, ACTOR)
    assert {view.name: view.able for view in listed.items} == {"anywhere": 2, "in the east": 0}


async def test_agents_that_can_run_a_job_are_named_or_why_there_are_none(conn: Connection) -> None:
    async def able(definition: Definition) -> tuple[list[str], str | None]:
        await jobs.put(conn, ACTOR, "hello", definition)
        found = (await jobs.show(conn, ACTOR, "hello")).agents
        assert found is not None
        return found.names, None if found.wait is None else found.wait.code

    assert await able(echo()) == ([], "no_agents")
    await add_agent(conn)
    assert await able(echo()) == (["eve"], None)
    assert await able(echo(requires={"zone": "eu"})) == ([], "no_labels")


async def test_a_bad_name_is_refused(conn: Connection) -> None:
    for name in (BAD_NAME, "..", "."):
        for operation in (jobs.show, jobs.delete):
            with pytest.raises(ValidationError):
                await operation(conn, ACTOR, name)
        with pytest.raises(ValidationError):
            await jobs.put(conn, ACTOR, name, echo())


async def test_secrets_are_masked_unless_an_admin_reveals_them(conn: Connection) -> None:
    definition = define(command(["true"], env={"TOKEN": "hunter2", "REGION": "eu"}), {})
    made = await jobs.put(conn, ACTOR, "hello", definition)
    for view in (await jobs.show(conn, ACTOR, "hello"), *(await jobs.listing(conn, ACTOR)).items, made.job):
        assert view.definition.run.env == {"TOKEN": "***", "REGION": "eu"}  # type: ignore[union-attr]
    assert (await jobs.show(conn, ACTOR, "hello", reveal=True)).definition == definition
    for role in set(Role) - {Role.ADMIN}:
        with pytest.raises(Forbidden, match="takes the role admin"):
            await jobs.show(conn, Actor("token:x", role), "hello", reveal=True)


async def test_a_definition_that_was_read_with_masks_is_not_written_back(conn: Connection) -> None:
    definition = define(command(["true"], env={"TOKEN": "hunter2"}), {})
    await jobs.put(conn, ACTOR, "hello", definition)
    shown = (await jobs.show(conn, ACTOR, "hello")).definition
    with pytest.raises(ValidationError, match="run.env.TOKEN"):
        await jobs.put(conn, ACTOR, "hello", shown)
    assert (await jobs.show(conn, ACTOR, "hello", reveal=True)).definition == definition
