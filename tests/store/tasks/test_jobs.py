"""Job definitions in the database."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.errors import JobNotFound
from mainspring.model.placement.placement import Requirements
from mainspring.model.tasks.define_job import command
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.retry import Retry
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs

REPORT = Definition(Python("report"))


async def versions(conn: Connection) -> dict[str, int]:
    return {job.name: job.version for job in (await jobs.load(conn))[0]}


async def test_registering_the_same_again_changes_nothing(conn: Connection) -> None:
    await jobs.register(conn, {"report": REPORT})
    before = await conn.fetchrow("select * from mainspring.job")
    heard = []
    await conn.add_listener("mainspring", lambda *hint: heard.append(hint[-1]))
    await jobs.register(conn, {"report": REPORT})
    assert await conn.fetchrow("select * from mainspring.job") == before
    assert heard == []


@pytest.mark.parametrize(
    "changed",
    [
        Definition(Python("other")),
        Definition(Python("report"), priority=9),
        Definition(Python("report"), requires={"zone": "a"}),
        Definition(Python("report"), Retry(retries=1)),
        Definition(command(["true"])),
    ],
)
async def test_a_changed_definition_is_a_new_version(conn: Connection, changed: Definition) -> None:
    await jobs.register(conn, {"report": REPORT, "other": REPORT})
    await jobs.register(conn, {"report": changed, "other": REPORT})
    assert await versions(conn) == {"report": 2, "other": 1}
    job = await jobs.find(conn, "report")
    assert job.definition == changed
    assert (await jobs.pools(conn))[job.pool] == Requirements(changed.requires)


async def test_jobs_with_the_same_requirements_share_a_pool(conn: Connection) -> None:
    zone = Definition(Python("x"), requires={"zone": "a", "gpu": "yes"})
    same = Definition(Python("y"), requires={"gpu": "yes", "zone": "a"})
    await jobs.register(conn, {"a": REPORT, "b": zone, "c": same, "d": REPORT})
    pools = {job.name: job.pool for job in (await jobs.load(conn))[0]}
    assert pools["a"] == pools["d"] != pools["b"] == pools["c"]


async def test_a_hundred_replicas_that_register_at_once_make_one_version(dsn: str, conn: Connection) -> None:
    names = [f"job{number}" for number in range(20)]
    given = {name: Definition(Python(name), requires={"zone": name}) for name in names}
    turned = dict(reversed(given.items()))
    connections = [await Database(dsn).connect() for _ in range(6)]
    for changed in (given, {name: Definition(Python(name), priority=1) for name in names}):
        await asyncio.gather(
            *(
                jobs.register(c, changed if number % 2 else {**turned, **changed})
                for number, c in enumerate(connections)
            )
        )
    for connection in connections:
        await connection.close()
    assert await versions(conn) == dict.fromkeys(names, 2)


async def test_the_same_name_in_another_namespace_is_another_job(conn: Connection) -> None:
    await jobs.register(conn, {"report": REPORT})
    await jobs.register(conn, {"report": REPORT}, namespace="shop")
    assert (await jobs.find(conn, "report")).id != (await jobs.find(conn, "report", namespace="shop")).id


async def test_a_job_that_is_not_there_is_named(conn: Connection) -> None:
    for call in (jobs.find, jobs.delete):
        with pytest.raises(JobNotFound, match="'nightly'"):
            await call(conn, "nightly")


async def test_a_job_with_live_tasks_is_not_deleted(conn: Connection) -> None:
    await jobs.register(conn, {"report": REPORT})
    await conn.execute("select mainspring.enqueue('report')")
    [job], last = await jobs.listing(conn)
    assert (job.name, last) == ("report", None)
    assert not await jobs.delete(conn, "report")
    await conn.execute("delete from mainspring.task")
    assert await jobs.delete(conn, "report")
    assert await jobs.load(conn) == ([], {})


async def test_nothing_to_register_is_nothing(conn: Connection) -> None:
    await jobs.register(conn, {})
    assert await jobs.load(conn) == ([], {})
