"""Secrets over HTTP: versions as of other things, and no value in any answer or record."""

from __future__ import annotations

from mainspring.store.postgres.database import Connection
from tests.api.conftest import Caller
from tests.api.test_app import assert_problem

VALUE = "hunter2-hunter2"
URL = "/api/v1/secrets/db"


async def test_a_secret_is_put_read_and_deleted_by_version(admin: Caller, conn: Connection) -> None:
    made = await admin.put(URL, json={"value": VALUE}, headers={"If-None-Match": "*", "Idempotency-Key": "k"})
    assert (made.status_code, made.headers["etag"]) == (201, '"v1"')
    assert_problem(await admin.put(URL, json={"value": VALUE}, headers={"If-None-Match": "*"}), 409, "name_taken")
    changed = await admin.put(URL, json={"value": VALUE, "labels": {"zone": "eu"}}, headers={"If-Match": '"v1"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"v2"')
    stale = await admin.put(URL, json={"value": VALUE}, headers={"If-Match": '"v1"'})
    assert_problem(stale, 412, "stale_version")
    rotated = await admin.post("/api/v1/actions/secrets/rotate", headers={"Idempotency-Key": "k"})
    assert rotated.json() == {"key_id": "1", "rotated": 0, "secrets": 1}
    job = {"run": {"type": "command", "argv": ["id"], "env": {"P": {"$secret": "db"}}}, "requires": {"zone": "eu"}}
    assert (await admin.put("/api/v1/jobs/dump", json=job)).status_code == 201
    in_use = await admin.delete(URL)
    assert_problem(in_use, 409, "conflict")
    assert in_use.json()["jobs"] == ["dump"]
    answers = [made, changed, stale, rotated, in_use]
    for path in ("secrets", "secrets/db", "jobs", "jobs/dump", "jobs/dump?reveal=true", "audit", "manifest"):
        answers.append(await admin.get(f"/api/v1/{path}"))
    assert all(VALUE not in answer.text for answer in answers)
    for table in ("request", "audit", "secret", "job"):
        rows = await conn.fetch(f"select * from mainspring.{table}")
        assert "hunter2" not in repr([tuple(row) for row in rows])
    assert (await admin.delete("/api/v1/jobs/dump")).status_code in (200, 204)
    assert (await admin.delete(URL)).status_code in (200, 204)
    assert_problem(await admin.get(URL), 404, "secret_not_found")


async def test_a_bad_value_is_refused_and_not_quoted(admin: Caller) -> None:
    for body in ({"value": 4711471147}, {"value": ["hunter2"]}, {}, {"value": VALUE, "lables": {}}, VALUE):
        refused = await admin.put(URL, json=body)
        assert_problem(refused, 422, "validation")
        assert "hunter2" not in refused.text
        assert "4711471147" not in refused.text
