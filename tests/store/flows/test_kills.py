"""A bound holds over processes that are killed at any moment, and what was counted is what waits."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest
from tests.store.flows.submitters import JOB, SUBMITTERS

from mainspring.model.tasks.jobs import Definition, Python
from mainspring.server.cluster.bounds_keeper import BoundsKeeper
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.submission.drivers import submit
from mainspring.store.submission.submissions import BulkSubmission
from mainspring.store.tasks import jobs

KILLS = 40

_WAITING = "select count(*) from mainspring.task where state < 2"
# As agents do.
_TAKE = """
    with taken as (
        update mainspring.task set state = 3, token = 1, session = 1 where id = any (array(
            select id from mainspring.task where state = 1 order by id limit $1 for update skip locked))
        returning id
    )
    insert into mainspring.claim (session, batch, tasks)
    select 1, nextval('mainspring.claim_batch'), array_agg(id) from taken having count(*) > 0
"""


@pytest.mark.parametrize("bound", [60, 10_300], ids=["counted by each", "counted by the leader"])
async def test_sixteen_submitters_that_are_killed_at_random_keep_to_the_bound(
    conn: Connection, database: Database, dsn: str, tmp_path: Path, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.cluster.bounds_keeper.REST", 0)
    await jobs.register(conn, {JOB: Definition(Python(JOB), max_queued=bound)})
    await submit(conn, BulkSubmission(JOB, ["{}"] * (bound - 60)))
    keeper = BoundsKeeper(database, Catalogue(database))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.store.flows.submitters", dsn, str(tmp_path), str(KILLS), str(bound)),
        stdin=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    chance, most = random.Random(bound), 0
    async with asyncio.timeout(120):
        while process.returncode is None:
            await keeper.step()
            most = max(most, await conn.fetchval(_WAITING))
            if most >= bound:  # it was full once, however slow the machine: from here on tasks are taken out of it
                await conn.execute(_TAKE, chance.randrange(40))
            if most >= bound and len(_noted(tmp_path)) > 200:
                process.stdin.close()
            await asyncio.sleep(0.01)
    assert process.returncode == 0
    await _without_others(conn)
    waiting = await conn.fetchval(_WAITING)
    most = max(most, waiting)
    assert bound <= most <= bound + SUBMITTERS, "passed only by what was under way at one moment"
    job = (await jobs.find(conn, JOB)).id
    assert await conn.fetchval("select mainspring.count_waiting($1, 1000000)", job) == waiting
    for _ in range(3):
        await keeper.step()
    live, held = await conn.fetchrow("select live, held from mainspring.queue_bound where job_id = $1", job)
    assert live - held == waiting
    there = {row["id"] for row in await conn.fetch("select id from mainspring.task")}
    assert _noted(tmp_path) <= there, "what was accepted is there, whoever died"


def _noted(directory: Path) -> set[int]:
    """The tasks that submitters saw accepted; a killed one may have left half a line, which has no end."""
    return {
        int(line) for file in directory.iterdir() for line in file.read_text().splitlines(True) if line.endswith("\n")
    }


async def _without_others(conn: Connection) -> None:
    """What was under way for processes that were killed has ended."""
    others = "select count(*) from pg_stat_activity where datname = current_database() and state <> 'idle'"
    while await conn.fetchval(others) > 1:
        await asyncio.sleep(0.01)
