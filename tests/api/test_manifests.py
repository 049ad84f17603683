"""Manifests over HTTP: larger bodies than others, a hash that may be stale, and answers that are written in turns."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from mainspring.api import answers
from mainspring.model.access.actors import Role
from mainspring.model.manifests.manifest import MOST_BYTES
from mainspring.operations.parts.slices import Slices
from mainspring.store.postgres.database import Connection
from tests.api.conftest import Caller, MakeCaller
from tests.api.test_app import assert_problem
from tests.api.test_large import turns_of_the_loop

SHOP: dict[str, Any] = {
    "mainspring": 1,
    "set": "shop",
    "jobs": {"report": {"command": ["./report.sh"], "timeout": "10m"}},
    "schedules": {"daily": {"job": "report", "daily": "09:00"}},
}


async def plan(caller: Caller, manifest: Any, **flags: Any) -> Any:
    answer = await caller.post("/api/v1/manifest/plan", json={"manifest": manifest, **flags})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_plan_is_applied_once_and_a_stale_one_is_412(admin: Caller) -> None:
    seen = await plan(admin, SHOP)
    assert (seen["created"], [one["action"] for one in seen["changes"]]) == (2, ["create", "create"])
    body = {"manifest": SHOP, "hash": seen["hash"]}
    done = await admin.post("/api/v1/manifest/apply", json=body)
    assert (done.status_code, done.json()["created"]) == (200, 2)
    assert_problem(await admin.post("/api/v1/manifest/apply", json=body), 412, "stale_version")
    assert (await admin.get("/api/v1/manifest?set=shop")).json()["jobs"] == {
        "report": {"command": ["./report.sh"], "timeout": "10m"}
    }
    assert_problem(await admin.get("/api/v1/manifest?set=other"), 404, "not_found")


async def test_a_request_that_is_sent_again_is_applied_once_and_a_plan_is_not_kept(
    admin: Caller, conn: Connection
) -> None:
    key = {"Idempotency-Key": "abc"}
    seen = (await admin.post("/api/v1/manifest/plan", json={"manifest": SHOP}, headers=key)).json()
    assert await conn.fetchval("select count(*) from mainspring.request") == 0
    body = {"manifest": SHOP, "hash": seen["hash"]}
    first, again = [await admin.post("/api/v1/manifest/apply", json=body, headers=key) for _ in range(2)]
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
    fresh = (await admin.post("/api/v1/manifest/plan", json={"manifest": SHOP}, headers=key)).json()
    assert fresh["changes"] == [], "as it is now"


async def test_a_manifest_may_be_larger_than_other_bodies(admin: Caller) -> None:
    padded = SHOP | {"jobs": {f"job-{n}": {"command": ["a"], "description": "é" * 9_000} for n in range(80)}}
    body = json.dumps({"manifest": padded | {"schedules": {}}}, ensure_ascii=False).encode()
    assert len(body) > 1024 * 1024
    headers = {"Content-Type": "application/json"}
    answer = await admin.post("/api/v1/manifest/plan", content=body, headers=headers)
    assert (answer.status_code, answer.json()["created"]) == (200, 80)
    assert_problem(await admin.put("/api/v1/jobs/a", content=body, headers=headers), 413, "too_large")
    whole = body + b" " * MOST_BYTES
    assert_problem(await admin.post("/api/v1/manifest/plan", content=whole, headers=headers), 413, "too_large")
    for broken in (body[:-1], body[:-2], body + b"]", body.replace(b'"job-7"', b"job-7"), body[1:]):
        refused = await admin.post("/api/v1/manifest/plan", content=broken, headers=headers)
        assert_problem(refused, 400, "malformed")
    twice = body.replace(b'"job-7"', b'"job-8"')
    assert_problem(await admin.post("/api/v1/manifest/plan", content=twice, headers=headers), 422, "validation")


async def test_several_faults_are_in_the_problem(admin: Caller) -> None:
    wrong = {"mainspring": 1, "jobs": {"a": {"comand": []}, "b": {}}}
    answer = await admin.post("/api/v1/manifest/plan", json={"manifest": wrong})
    assert_problem(answer, 422, "validation")
    assert [one["field"] for one in answer.json()["errors"]] == ["jobs.a.comand", "jobs.b.command"]
    answer = await admin.post("/api/v1/manifest/plan", json={"manifest": {"mainspring": 1, "job": {}}})
    assert_problem(answer, 422, "validation")
    assert "did you mean jobs?" in answer.json()["message"]


async def test_a_viewer_plans_and_an_operator_does_not_apply(as_role: MakeCaller) -> None:
    seen = await plan(await as_role(Role.VIEWER), SHOP)
    operator = await as_role(Role.OPERATOR)
    refused = await operator.post("/api/v1/manifest/apply", json={"manifest": SHOP, "hash": seen["hash"]})
    assert_problem(refused, 403, "forbidden")


class Long(msgspec.Struct):
    items: list[dict[str, Any]]
    named: dict[str, list[int]]
    name: str = "é"
    left_out: int | msgspec.UnsetType = msgspec.UNSET
    empty: None = None


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "Slices", lambda: Slices(0.0))


def long_view() -> Long:
    return Long([{"id": n, "text": "é\u2028"} for n in range(1000)], {f"key {n}": [n] for n in range(1000)})


@pytest.mark.usefixtures("short_slices")
async def test_a_long_view_is_written_in_turns_as_it_would_be_at_once() -> None:
    view = long_view()
    made: list[bytes] = []

    async def write() -> None:
        made.append(await answers.encode(view))

    assert await turns_of_the_loop(write()) > 1000
    assert made == [msgspec.json.encode(view)]


@pytest.mark.usefixtures("short_slices")
async def test_what_an_answer_was_made_of_is_freed_in_turns() -> None:
    view = long_view()
    given = asyncio.ensure_future(answers.answer(view, 200))
    assert await turns_of_the_loop(answers.letting_go((view, "text", None), given)) > 2000
    assert (view.items, view.named, view.name) == ([], {}, "é")
