"""What agents hold is read in time that grows with what they hold, on connections without settings of ours too."""

from __future__ import annotations

import pytest
from tests.query_plans import rows_read

from mainspring.store.cluster import registry
from mainspring.store.postgres.database import Connection, Database

pytestmark = pytest.mark.usefixtures("dsn")  # statistics of the test's own database

_CLAIM = """
    with made as (
        insert into mainspring.task (run_at, created_at, job_id, pool, state, priority, args, token, session)
        select mainspring.now(), mainspring.now(), 1, 1, 2, 5, '{}', 1, 1 from generate_series(1, 50) returning id
    )
    insert into mainspring.claim (session, batch, tasks)
    select 1, nextval('mainspring.claim_batch'), array_agg(id) from made
"""


STATEMENTS: dict[str, tuple[str, tuple[object, ...]]] = {
    "load": (registry._HELD, ()),
    "armed": (registry._ARMED, ("eve", None, 500)),
    "all armed": (registry._ALL_ARMED, (100, None, 500)),
}


@pytest.mark.parametrize("name", STATEMENTS)
async def test_ten_times_as_many_claims_cost_ten_times_as_much(conn: Connection, database: Database, name: str) -> None:
    statement, arguments = STATEMENTS[name]
    await conn.execute(
        "insert into mainspring.agent (session, name, slots, lease_until) values (1, 'eve', 9, 'infinity')"
    )
    requests = database.for_api()
    async with requests.acquire() as reading:
        await conn.execute(_CLAIM)
        few = await rows_read(reading, statement, *arguments)
        for _ in range(9):
            await conn.execute(_CLAIM)
        many = await rows_read(reading, statement, *arguments)
    await requests.close()
    assert few >= 50
    assert many < 20 * few
