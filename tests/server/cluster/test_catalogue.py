"""Catalogue: reads jobs, pools, settings and holds again after each change, and only then."""

from __future__ import annotations

import pytest

from mainspring.model.tasks.jobs import Definition, Job, Python
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs

CHANGES = {
    "a new job": "insert into mainspring.job (name, pool, priority, definition) "
    "select 'other', pool, priority, definition from mainspring.job",
    "a changed job": "update mainspring.job set version = version + 1",
    "a deleted job": "delete from mainspring.job",
    "a new pool": """insert into mainspring.pool (requirements) values ('{"gpu": "yes"}')""",
    "a setting": "insert into mainspring.setting (name, value) values ('aging', '60')",
    "a hold": "insert into mainspring.hold (held_at, held_by, skips) values (mainspring.now(), 'ops', false)",
}


@pytest.fixture
async def catalogue(database: Database, conn: Connection) -> Catalogue:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    made = Catalogue(database)
    await made.refresh()
    return made


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs were read, each time that they were."""
    found: list[int] = []
    load = jobs.load

    async def noted(conn: Connection) -> tuple[list[Job], dict[str, str]]:
        loaded = await load(conn)
        found.append(len(loaded[0]))
        return loaded

    monkeypatch.setattr(jobs, "load", noted)
    return found


async def test_nothing_is_read_while_nothing_changes(catalogue: Catalogue, loads: list[int]) -> None:
    for _ in range(3):
        await catalogue.refresh()
    assert loads == []
    assert catalogue.named("job") is not None


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_each_change_is_read_once(catalogue: Catalogue, loads: list[int], conn: Connection, change: str) -> None:
    await conn.execute(change)
    await catalogue.refresh()
    await catalogue.refresh()
    assert len(loads) == 1


async def test_what_changes_while_it_reads_is_read_again(
    catalogue: Catalogue, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = jobs.load

    async def and_a_change(reader: Connection) -> tuple[list[Job], dict[str, str]]:
        loaded = await load(reader)
        monkeypatch.undo()
        await jobs.register(conn, {"late": Definition(Python("late"))})
        return loaded

    monkeypatch.setattr(jobs, "load", and_a_change)
    await jobs.register(conn, {"early": Definition(Python("early"))})
    await catalogue.refresh()
    assert catalogue.named("late") is None
    await catalogue.refresh()
    assert catalogue.named("late") is not None


async def test_many_jobs_are_read_in_pages(catalogue: Catalogue, conn: Connection) -> None:
    names = [f"job-{number}" for number in range(2 * jobs.PAGE)]
    await jobs.register(conn, {name: Definition(Python(name)) for name in names})
    await catalogue.refresh()
    assert {job.name for job in catalogue.jobs.values()} == {"job", *names}
