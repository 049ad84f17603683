"""POST /tasks of many clients at once: they share statements, and each is answered for itself."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring.model.access.actors import Role
from mainspring.store.postgres.database import Connection
from tests.api.conftest import Caller, MakeCaller

# Tasks of one statement have one time.
_STATEMENTS = "select count(*) as tasks from mainspring.task group by created_at order by count(*)"


async def _submit(caller: Caller, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    answer = await caller.post("/api/v1/tasks", json=body)
    told: dict[str, Any] = answer.json()
    return answer.status_code, told


async def test_tasks_that_are_submitted_at_once_share_statements(admin: Caller, conn: Connection, job: str) -> None:
    await _submit(admin, {"job": job})  # the token is known, the connection open
    answers = await asyncio.gather(*(_submit(admin, {"job": job, "args": {"number": n}}) for n in range(40)))
    assert {status for status, _ in answers} == {201}
    ids = [told["id"] for _, told in answers]
    rows = await conn.fetch("select id, args->>'number' as number from mainspring.task where id = any($1)", ids)
    assert {row["id"]: int(row["number"]) for row in rows} == {id: n for n, id in enumerate(ids)}
    assert len(await conn.fetch(_STATEMENTS)) <= 5


async def test_of_tasks_that_are_submitted_at_once_each_fails_alone(
    admin: Caller, as_role: MakeCaller, conn: Connection, job: str
) -> None:
    narrow = await as_role(Role.SUBMITTER, jobs=["other*"])
    await asyncio.gather(_submit(admin, {"job": job}), _submit(narrow, {"job": "other"}))
    answers = await asyncio.gather(
        _submit(admin, {"job": job}),
        _submit(admin, {"job": "nothing"}),
        _submit(narrow, {"job": job}),
        _submit(admin, {"job": job, "delay": "no time"}),
        _submit(admin, {"job": job, "run_at": "2199-12-31T00:00:00Z", "priority": "high"}),
        _submit(admin, {"job": job, "after": [999_999]}),
        _submit(admin, {"job": job}),
    )
    codes = [told.get("code") or told["state"] for _, told in answers]
    assert codes == [
        "pending", "job_not_found", "job_not_found", "validation", "pending", "validation", "pending",
    ]  # fmt: skip
    assert await conn.fetchval("select count(*) from mainspring.task") == 4


async def test_of_requests_with_one_key_at_once_one_creates_the_task(admin: Caller, conn: Connection, job: str) -> None:
    answers = await asyncio.gather(*(_submit(admin, {"job": job, "key": "once"}) for _ in range(20)))
    assert sorted(status for status, _ in answers) == [200] * 19 + [201]
    assert len({told["id"] for _, told in answers}) == 1
    assert {told["state"] for _, told in answers} == {"pending"}
    rejected = await _submit(admin, {"job": job, "key": "once", "if_exists": "reject"})
    assert (rejected[0], rejected[1]["id"]) == (409, answers[0][1]["id"])
    assert await conn.fetchval("select count(*) from mainspring.task") == 1
