"""Idempotency keys: the same request again has the first answer and no second effect."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from mainspring.api.app import Api
from mainspring.model.access.actors import Role
from mainspring.operations import access
from mainspring.store.access import idempotency
from mainspring.store.postgres.database import Connection, Database
from tests.api.conftest import ACTOR, Caller, MakeCaller, over
from tests.api.test_app import assert_problem, submitted

KEY = {"Idempotency-Key": "k-1"}


async def test_the_same_request_again_has_the_first_answer(admin: Caller, conn: Connection) -> None:
    first = await admin.post("/api/v1/tokens", json={"name": "ci"}, headers=KEY)
    again = await admin.post("/api/v1/tokens", json={"name": "ci"}, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.headers["idempotency-replayed"] == "true"
    assert "idempotency-replayed" not in first.headers
    assert again.json()["id"] == first.json()["id"]
    assert await conn.fetchval("select count(*) from mainspring.token where name = 'ci'") == 1


async def test_a_secret_is_told_once_and_kept_nowhere(admin: Caller, conn: Connection) -> None:
    first = await admin.post("/api/v1/tokens", json={"name": "ci"}, headers=KEY)
    again = await admin.post("/api/v1/tokens", json={"name": "ci"}, headers=KEY)
    assert first.json()["token"].startswith("ms_")
    assert again.json()["token"] is None
    assert await conn.fetchval("select bool_or(position('ms_'::bytea in body) > 0) from mainspring.request") is False


async def test_another_request_with_the_key_is_refused(admin: Caller, conn: Connection, job: str) -> None:
    id, other = await submitted(conn, job), await submitted(conn, job)
    assert (await admin.post(f"/api/v1/tasks/{id}/cancel", headers=KEY)).status_code == 202
    assert_problem(await admin.post(f"/api/v1/tasks/{other}/cancel", headers=KEY), 422, "idempotency_mismatch")
    body = await admin.post(f"/api/v1/tasks/{id}/cancel", json={"kill": True}, headers=KEY)
    assert_problem(body, 422, "idempotency_mismatch")


async def test_keys_of_other_callers_do_not_matter(as_role: MakeCaller, conn: Connection, job: str) -> None:
    one, two = await as_role(Role.OPERATOR), await as_role(Role.OPERATOR)
    id, other = await submitted(conn, job), await submitted(conn, job)
    assert (await one.post(f"/api/v1/tasks/{id}/cancel", headers=KEY)).status_code == 202
    assert (await two.post(f"/api/v1/tasks/{other}/cancel", headers=KEY)).status_code == 202


async def test_what_failed_left_nothing_and_may_be_tried_again(admin: Caller, conn: Connection, job: str) -> None:
    assert_problem(await admin.post("/api/v1/tasks/1/cancel", headers=KEY), 404, "task_not_found")
    assert await conn.fetchval("select count(*) from mainspring.request") == 0


async def test_while_the_first_is_under_way_the_second_is_told(
    admin: Caller, conn: Connection, database: Database
) -> None:
    token = await conn.fetchval("select max(id) from mainspring.token")
    async with database.acquire() as other, other.transaction():
        assert await idempotency.lock(other, f"token/{token}", "k-1")
        refused = await admin.post("/api/v1/tokens", json={"name": "ci"}, headers=KEY)
    assert_problem(refused, 409, "idempotency_in_progress")
    assert (await admin.post("/api/v1/tokens", json={"name": "ci"}, headers=KEY)).status_code == 201


async def test_two_at_once_have_one_effect(admin: Caller, conn: Connection) -> None:
    answers = await asyncio.gather(*(admin.post("/api/v1/tokens", json={"name": "ci"}, headers=KEY) for _ in range(8)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert await conn.fetchval("select count(*) from mainspring.token where name = 'ci'") == 1


async def test_an_expired_key_is_free_again(admin: Caller, conn: Connection) -> None:
    await admin.post("/api/v1/tokens", json={"name": "ci"}, headers=KEY)
    await conn.execute("update mainspring.request set expires_at = mainspring.now()")
    again = await admin.post("/api/v1/tokens", json={"name": "other"}, headers=KEY)
    assert again.status_code == 201


@pytest.mark.parametrize("key", ["", "a b", "x" * 201])
async def test_a_key_is_short_and_visible(admin: Caller, key: str) -> None:
    answer = await admin.post("/api/v1/tokens", json={"name": "ci"}, headers={"Idempotency-Key": key})
    assert_problem(answer, 422, "validation")


async def test_a_repeated_submission_tells_where_its_task_is_however_long_it_waits(
    admin: Caller, conn: Connection, job: str
) -> None:
    first = await admin.post("/api/v1/tasks", json={"job": job}, headers=KEY)
    again = await admin.post("/api/v1/tasks", json={"job": job}, headers=KEY)
    waited = await admin.post("/api/v1/tasks?wait=0.01", json={"job": job}, headers=KEY)
    for answer in (first, again, waited):
        assert answer.status_code == 201
        assert answer.headers["location"] == f"/api/v1/tasks/{first.json()['id']}"
    assert [answer.headers.get("idempotency-replayed") for answer in (first, again, waited)] == [None, "true", "true"]
    assert await conn.fetchval("select count(*) from mainspring.task") == 1


async def test_a_login_refuses_a_malformed_key_and_is_not_replayed(api: Api, conn: Connection) -> None:
    code = (await access.create_login(conn, ACTOR)).code
    async with over(api) as browser:

        async def log_in(key: str) -> httpx2.Response:
            return await browser.post("/api/v1/session", json={"code": code}, headers={"Idempotency-Key": key})

        assert assert_problem(await log_in("k" * 201), 422, "validation")["field"] == "idempotency-key"
        assert (await log_in("k-1")).status_code == 200
        assert_problem(await log_in("k-1"), 401, "unauthorized")
