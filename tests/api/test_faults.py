"""Several faults of one request: the answer is about the first, and tells the others too."""

from __future__ import annotations

from mainspring.errors import MOST_FAULTS
from tests.api.conftest import Caller
from tests.api.test_app import assert_problem


async def test_several_faults_of_one_body_are_told_together(admin: Caller) -> None:
    body = {"job": 5, "priority": [], "run_at": "tomorrow", "prioritty": 1, "tags": {}}
    answer = await admin.post("/api/v1/tasks", json=body)
    told = assert_problem(answer, 422, "validation")
    fields = [fault["field"] for fault in told["errors"]]
    assert sorted(fields) == ["job", "prioritty", "priority", "run_at", "tags"]
    assert told["errors"][0] == {"field": told["field"], "code": "validation", "message": told["message"]}
    one = assert_problem(await admin.post("/api/v1/tasks", json={"job": 5}), 422, "validation")
    assert "errors" not in one


async def test_wrong_values_are_told_beside_wrong_types(admin: Caller) -> None:
    values = {"job": "a", "delay": "soon", "priority": "urgent", "expires": "never", "tags": ["x"] * 20}
    told = assert_problem(await admin.post("/api/v1/tasks", json=values), 422, "validation")
    assert sorted(fault["field"] for fault in told["errors"]) == ["delay", "expires", "priority", "tags"]
    for also in ({"retries": "many"}, {"job": 5}, {"colour": "red"}):
        told = assert_problem(await admin.post("/api/v1/tasks", json=values | also), 422, "validation")
        assert sorted(fault["field"] for fault in told["errors"]) == sorted(
            [*also, "delay", "expires", "priority", "tags"]
        )
    times = {"job": "a", "run_at": "2026-01-01T00:00:00", "delay": "soon", "key": ""}
    told = assert_problem(await admin.post("/api/v1/tasks", json=times), 422, "validation")
    assert [fault["field"] for fault in told["errors"]] == ["run_at", "delay", "key"]
    assert "not both" in told["message"]
    one = assert_problem(await admin.post("/api/v1/tasks", json={"job": "a", "delay": "soon"}), 422, "validation")
    assert "errors" not in one


async def test_several_faults_of_a_definition_and_of_a_query_are_told_together(admin: Caller) -> None:
    definition = {"run": {"type": "command", "argv": ["true"]}, "timeout": "soon", "priority": "urgent", "retry": 3}
    told = assert_problem(await admin.put("/api/v1/jobs/a", json=definition), 422, "validation")
    assert {fault["field"].partition(".")[0] for fault in told["errors"]} == {"timeout", "priority", "retry"}
    answer = await admin.get("/api/v1/tasks?limit=many&colour=red&created_after=now&job=a")
    told = assert_problem(answer, 422, "validation")
    assert [fault["field"] for fault in told["errors"]] == ["limit", "colour", "created_after"]
    told = assert_problem(await admin.post("/api/v1/tokens", json={"role": 5}), 422, "validation")
    assert sorted(fault["field"] for fault in told["errors"]) == ["name", "role"]


async def test_of_very_many_faults_some_are_told(admin: Caller) -> None:
    told = assert_problem(
        await admin.post("/api/v1/tasks", json={f"x{number}": 1 for number in range(100)}), 422, "validation"
    )
    assert len(told["errors"]) == MOST_FAULTS


async def test_several_faults_of_a_change_of_settings_are_told_together(admin: Caller) -> None:
    change = {"aging": -1, "max_queued": "many", "colour": "red", "metrics_jobs": 5}
    told = assert_problem(await admin.patch("/api/v1/settings", json=change), 422, "validation")
    assert [fault["field"] for fault in told["errors"]] == ["aging", "max_queued", "colour"]
    assert (await admin.get("/api/v1/settings")).json()["metrics_jobs"] == 200, "nothing of it was done"


async def test_a_word_that_is_refused_deep_in_a_body_is_told_with_those_there_are(admin: Caller) -> None:
    told = assert_problem(
        await admin.post("/api/v1/actions/tasks", json={"action": "stop", "filter": {"job": ["a"]}}), 422, "validation"
    )
    assert (told["field"], told["message"]) == ("action", "action: use cancel, kill, skip, retry, change")
    told = assert_problem(
        await admin.post("/api/v1/actions/schedules", json={"action": "run", "filter": {"state": ["active"]}}),
        422,
        "validation",
    )
    assert told["message"].endswith(": use enabled, disabled, ended, problem")
