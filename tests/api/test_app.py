"""A request on its way: route, caller, role, parameters, answer; and every refusal as a problem."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mainspring.api.app import Api
from mainspring.errors import Busy
from mainspring.model.access.actors import Role
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import schedules
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import tasks
from mainspring.store.postgres.database import Connection
from tests.api.conftest import ACTOR, Caller, MakeCaller


async def submitted(conn: Connection, job: str) -> int:
    return (await tasks.submit(conn, ACTOR, NewTask(job=job))).id


def assert_problem(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    told: dict[str, Any] = answer.json()
    assert (told["status"], told["code"], told["type"]) == (status, code, f"urn:mainspring:problem:{code}")
    assert told["message"] == told["detail"]
    assert told["request_id"] == answer.headers["mainspring-request-id"]
    return told


async def test_a_task_is_shown_and_cancelled(admin: Caller, conn: Connection, job: str) -> None:
    id = await submitted(conn, job)
    shown = await admin.get(f"/api/v1/tasks/{id}")
    assert shown.status_code == 200
    assert shown.headers["cache-control"] == "no-store"
    cancelled = await admin.post(f"/api/v1/tasks/{id}/cancel", json={"kill": True})
    assert cancelled.status_code == 202
    again = await admin.post(f"/api/v1/tasks/{id}/cancel")
    assert_problem(again, 409, "invalid_transition")


async def test_without_a_token_nothing_is_told(anybody: Caller, conn: Connection, job: str) -> None:
    id = await submitted(conn, job)
    assert_problem(await anybody.get(f"/api/v1/tasks/{id}"), 401, "unauthorized")
    refused = await anybody.get(f"/api/v1/tasks/{id}", headers={"Authorization": "Bearer ms_wrong"})
    assert_problem(refused, 401, "unauthorized")
    assert refused.headers["www-authenticate"].startswith("Bearer")


async def test_a_role_that_is_too_low_is_told_which_is_needed(as_role: MakeCaller, conn: Connection, job: str) -> None:
    id = await submitted(conn, job)
    viewer = await as_role(Role.VIEWER)
    told = assert_problem(await viewer.post(f"/api/v1/tasks/{id}/retry"), 403, "forbidden")
    assert "operator" in told["message"]


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b'{"kil": true}', 422, "validation", "kil"),
        (b'{"kill": "yes"}', 422, "validation", "kill"),
        (b'{"kill": true', 400, "malformed", "body"),
        (b'{"kill": true, "kill": false}', 422, "validation", "body"),
        (b"[]", 422, "validation", "body"),
        (b"\xff", 400, "malformed", "body"),
        (b'{"kill": NaN}', 400, "malformed", "body"),
        (b"[" * 5000, 422, "validation", "body"),
    ],
)
async def test_a_bad_body_is_refused_and_changes_nothing(
    admin: Caller, conn: Connection, job: str, body: bytes, status: int, code: str, field: str
) -> None:
    id = await submitted(conn, job)
    headers = {"Content-Type": "application/json"}
    answer = await admin.post(f"/api/v1/tasks/{id}/cancel", content=body, headers=headers)
    told = assert_problem(answer, status, code)
    assert told["field"] == field
    assert (await tasks.status(conn, ACTOR, id)).state == "pending"


async def test_an_operation_without_members_takes_an_empty_object(admin: Caller, conn: Connection, job: str) -> None:
    assert (await admin.post("/api/v1/agents/none/drain", json={})).status_code == 404
    told = assert_problem(await admin.post("/api/v1/agents/none/drain", json={"x": 1}), 422, "validation")
    assert told["field"] == "body"


async def test_other_media_types_and_encodings_are_refused(admin: Caller, conn: Connection, job: str) -> None:
    path = f"/api/v1/tasks/{await submitted(conn, job)}/cancel"
    plain = await admin.post(path, content=b"{}", headers={"Content-Type": "text/plain"})
    assert_problem(plain, 415, "unsupported_media_type")
    packed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert_problem(await admin.post(path, content=b"{}", headers=packed), 415, "unsupported_media_type")
    big = await admin.post(path, content=b" " * (1024 * 1024 + 1), headers={"Content-Type": "application/json"})
    assert_problem(big, 413, "too_large")


async def test_unknown_parameters_paths_and_methods_are_told(admin: Caller) -> None:
    told = assert_problem(await admin.get("/api/v1/servers?everythin=true"), 422, "validation")
    assert "did you mean everything?" in told["message"]
    assert_problem(await admin.get("/api/v1/nothing"), 404, "not_found")
    wrong = await admin.patch("/api/v1/servers")
    assert_problem(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", "/api/v1/health"), ("GET", "/metrics"), ("GET", "/openapi.json")),
        *(("GET", "/api/v1/session"), ("POST", "/api/v1/session"), ("DELETE", "/api/v1/session")),
    ],
)
async def test_unknown_parameters_are_refused_where_there_are_none(admin: Caller, method: str, path: str) -> None:
    told = assert_problem(await admin.request(method, f"{path}?verbose=1", json={}), 422, "validation")
    assert told["field"] == "verbose"
    assert_problem(await admin.request(method, f"{path}?namespace=other", json={}), 404, "not_found")


async def test_a_request_id_is_taken_over_if_it_is_one(admin: Caller) -> None:
    ours = await admin.get("/api/v1/servers", headers={"Mainspring-Request-Id": "mine-7"})
    assert ours.headers["mainspring-request-id"] == "mine-7"
    other = await admin.get("/api/v1/servers", headers={"Mainspring-Request-Id": "x" * 65})
    assert other.headers["mainspring-request-id"] != "x" * 65


async def test_health_needs_no_token_and_openapi_neither(anybody: Caller) -> None:
    assert (await anybody.get("/healthz")).json() == {"status": "healthy"}
    assert (await anybody.get("/readyz")).json() == {"status": "ready"}
    assert (await anybody.get("/openapi.json")).json()["openapi"] == "3.1.0"


async def test_a_check_of_all_schedules_comes_as_a_page_or_as_lines(admin: Caller, conn: Connection, job: str) -> None:
    for number in range(3):
        await schedules.put(conn, ACTOR, f"s{number}", ScheduleSpec(job=job, every="1h", enabled=True))
    page = (await admin.get("/api/v1/check?since=1h&limit=2")).json()
    assert [item["schedule"] for item in page["items"]] == ["s0", "s1"]
    answer = await admin.get("/api/v1/check?since=1h&limit=2", headers={"Accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line)["schedule"] for line in answer.text.splitlines()] == ["s0", "s1", "s2"]


async def test_a_wait_is_had_by_every_method_and_never_fails_after_the_commit(
    admin: Caller, api: Api, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await admin.post("/api/v1/tasks?wait=10ms", json={"job": job})
    assert made.status_code == 201
    assert made.json()["task"]["state"] == "pending"
    head = await admin.head(f"/api/v1/tasks/{made.json()['id']}?wait=0.01")
    assert (head.status_code, head.content) == (200, b"")

    async def fails(*_: object) -> None:
        raise Busy("all connections are in use")

    monkeypatch.setattr("mainspring.operations.work.tasks.status", fails)
    durable = await admin.post("/api/v1/tasks?wait=0.01", json={"job": job})
    assert durable.status_code == 201, "else its caller would submit it again"
    assert "task" not in durable.json()
