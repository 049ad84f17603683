"""The document describes what the table has, in a way that generators take, and what is really answered."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from mainspring.api.openapi import document
from mainspring.api.openapi.compatibility import breaking
from mainspring.api.openapi.document import text
from mainspring.api.openapi.schemas import DURATION, REF
from mainspring.api.rows import ROWS
from mainspring.model.tasks.read_definition import read_definition
from tests.api.conftest import Caller
from tests.docs.test_pages import DOCS

DOCUMENT = document(ROWS)
OPERATIONS = {
    f"{method.upper()} {path}": operation
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
}
COMPONENTS = DOCUMENT["components"]["schemas"]


def names_of(operation: str) -> set[str]:
    return {parameter["name"] for parameter in OPERATIONS[operation]["parameters"]}


def test_the_committed_document_is_that_of_the_table() -> None:
    committed = (DOCS / "openapi.json").read_text(encoding="utf-8")
    assert committed == text(ROWS), "write it anew: make docs"


def test_nothing_of_the_last_release_was_removed_or_narrowed() -> None:
    released = json.loads((DOCS / "openapi-released.json").read_text(encoding="utf-8"))
    assert breaking(released, DOCUMENT) == []


def test_every_row_is_an_operation_with_a_name_of_its_own_and_a_summary() -> None:
    rows = {f"{row.method} {row.full_path}": row for row in ROWS if not row.name.startswith("site.")}
    assert OPERATIONS.keys() == rows.keys()
    counted = Counter(operation["operationId"] for operation in OPERATIONS.values())
    assert {name for name, count in counted.items() if count > 1} == set()
    for name, operation in OPERATIONS.items():
        assert re.fullmatch(r"[A-Z].{10,}", operation["summary"]), name
        assert operation["x-roles"] == sorted(rows[name].roles)


def test_every_reference_leads_to_a_component_with_a_plain_name_and_every_component_is_used() -> None:
    used = set(re.findall(rf'"{REF.format(name="")}([^"]+)"', json.dumps(DOCUMENT)))
    assert used == COMPONENTS.keys()
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", name) for name in COMPONENTS)
    assert "$defs" not in json.dumps(DOCUMENT)


def schemas_within(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from schemas_within(part)


def test_generators_that_know_less_than_the_standard_take_the_document() -> None:
    """openapi-python-client refuses a document with `"items": false`, and leaves out what has a list of anything."""
    for schema in schemas_within(DOCUMENT):
        assert "prefixItems" not in schema
        assert schema.get("type") != "array" or isinstance(schema.get("items"), dict), schema
    for name, operation in OPERATIONS.items():
        for kind, body in operation.get("requestBody", {}).get("content", {}).items():
            assert "$ref" in body["schema"] or kind.endswith("ndjson"), f"{name}: the type of its body has no name"


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_component_is_a_valid_schema(name: str) -> None:
    jsonschema_rs.Draft202012Validator(schema_of(name))


def schema_of(name: str) -> dict[str, Any]:
    return {"$ref": REF.format(name=name), "components": DOCUMENT["components"]}


def test_headers_and_common_parameters_stand_where_they_work() -> None:
    assert {"wait", "namespace", "Idempotency-Key"} <= names_of("POST /api/v1/tasks")
    assert {"wait", "namespace"} <= names_of("GET /api/v1/tasks/{id}")
    assert {"If-Match", "If-None-Match"} <= names_of("PUT /api/v1/jobs/{name}")
    assert "If-None-Match" in names_of("GET /api/v1/jobs/{name}")
    assert "If-Match" in names_of("DELETE /api/v1/schedules/{name}")
    assert "Last-Event-ID" in names_of("GET /api/v1/events")
    assert "Idempotency-Key" not in names_of("POST /api/v1/session")
    assert "wait" not in names_of("POST /api/v1/tasks/{id}/cancel")
    listing = {one["name"]: one for one in OPERATIONS["GET /api/v1/tasks"]["parameters"]}
    assert listing["state"]["explode"] is True
    assert listing["args"]["style"] == "deepObject"


@pytest.mark.parametrize(
    "name",
    [
        *("JobView", "ScheduleView", "CalendarView", "Daemon", "TaskView", "TaskSummary", "TaskDetail", "BatchView"),
        *("BatchDetail", "RuleView", "AlertRuleView", "ChannelView", "SecretView"),
    ],
)
def test_views_say_in_which_namespace_they_are(name: str) -> None:
    assert "namespace" in COMPONENTS[name]["required"]


def test_statuses_are_those_that_occur() -> None:
    def answered(name: str) -> set[str]:
        return {status for status in OPERATIONS[name]["responses"] if status < "4"}

    assert answered("POST /api/v1/tasks") == answered("PUT /api/v1/jobs/{name}") == {"200", "201"}
    assert answered("POST /api/v1/tokens") == {"201"}
    assert answered("POST /api/v1/tasks/{id}/cancel") == {"202"}
    assert answered("DELETE /api/v1/jobs/{name}") == {"204"}
    assert answered("GET /api/v1/schedules/{name}") == {"200", "304"}
    assert answered("POST /api/v1/daemons/{name}/start") == {"200"}
    for name, operation in OPERATIONS.items():
        if operation["x-roles"]:
            assert {"401", "403", "422", "503"} <= operation["responses"].keys(), name


def test_streams_have_their_media_types() -> None:
    output = OPERATIONS["GET /api/v1/tasks/{id}/output"]["responses"]["200"]["content"]
    assert output.keys() == {"application/json", "text/event-stream", "text/plain", "application/octet-stream"}
    bulk = OPERATIONS["POST /api/v1/tasks/bulk"]
    assert bulk["requestBody"]["content"].keys() == {"application/x-ndjson"}
    assert bulk["responses"]["200"]["content"].keys() == {"application/x-ndjson"}
    check = OPERATIONS["GET /api/v1/check"]["responses"]
    assert check["200"]["content"].keys() == {"application/json", "application/x-ndjson"}
    assert "429" in check, "its lines are a stream too"


def test_a_definition_takes_text_wherever_its_schema_says_so() -> None:
    """And the schema says so wherever there are seconds."""
    given: dict[str, Any] = {
        "run": {"type": "command", "argv": ["true"], "limits": {"cpu": "10m", "memory": "64MB"}},
        "timeout": "10m",
        "stalls_after": "10m",
        "grace": "10m",
        "priority": "high",
        "expires": "10m",
        "keep_succeeded": "10d",
        "keep_failed": "10d",
        "retry": {"delay": "10m", "max_delay": "20m"},
        "health": {"argv": ["true"], "every": "10m", "timeout": "10m", "start": "10m"},
    }
    chunked = {"run": {"type": "python", "handler": "send", "chunk": 10, "chunk_wait": "1s"}}
    for one in (given, chunked):
        read_definition(one)
        jsonschema_rs.Draft202012Validator(schema_of("DefinitionInput")).validate(one)
    is_duration = [
        f"{component}.{member}"
        for component in ("DefinitionInput", "RetryInput", "JobsHealthInput", "ProcessLimitsInput", "PythonInput")
        for member, schema in COMPONENTS[component]["properties"].items()
        if DURATION["description"] in schema.get("description", "")
    ]
    assert is_duration == [
        "DefinitionInput.timeout", "DefinitionInput.stalls_after", "DefinitionInput.grace", "DefinitionInput.expires",
        "DefinitionInput.keep_succeeded", "DefinitionInput.keep_failed", "RetryInput.delay", "RetryInput.max_delay",
        "JobsHealthInput.every", "JobsHealthInput.timeout", "JobsHealthInput.start", "ProcessLimitsInput.cpu",
        "PythonInput.chunk_wait",
    ]  # fmt: skip


async def test_answers_are_as_described(admin: Caller, job: str) -> None:
    spec = {"job": job, "every": "1h", "jitter": "5s"}
    definition = {"run": {"type": "http", "method": "GET", "url": "http://127.0.0.1:9/"}, "timeout": "10s"}
    asked = [
        await admin.post("/api/v1/tasks", json={"job": job, "delay": "1h"}),
        await admin.get("/api/v1/tasks?fields=all"),
        await admin.get("/api/v1/tasks/count"),
        await admin.get("/api/v1/tasks/1"),
        await admin.get("/api/v1/tasks/1/output"),
        await admin.put("/api/v1/jobs/ping", json=definition),
        await admin.get("/api/v1/jobs"),
        await admin.put("/api/v1/schedules/hourly", json=spec),
        await admin.get("/api/v1/schedules"),
        await admin.get("/api/v1/schedules/hourly"),
        await admin.get("/api/v1/schedules/hourly/next"),
        await admin.post("/api/v1/preview", json=spec),
        await admin.put("/api/v1/calendars/free", json={"days": ["2026-12-25"]}),
        await admin.get("/api/v1/calendars/free"),
        await admin.get("/api/v1/stats"),
        await admin.get("/api/v1/queues"),
        await admin.get("/api/v1/figures"),
        await admin.get("/api/v1/segments/moves"),
        await admin.get("/api/v1/health"),
        await admin.get("/api/v1/session"),
        await admin.post("/api/v1/tokens", json={"name": "ci", "role": "submitter"}),
        await admin.get("/api/v1/audit"),
        await admin.get("/api/v1/tasks/9"),
        await admin.post("/api/v1/tasks/1/cancel"),
    ]
    templates = {path: re.compile(re.sub(r"{\w+}", "[^/]+", path)) for path in DOCUMENT["paths"]}
    for answer in asked:
        path = answer.request.url.path
        fitting = (one for one, template in templates.items() if template.fullmatch(path))
        template = path if path in templates else next(fitting)
        told = DOCUMENT["paths"][template][answer.request.method.lower()]["responses"][str(answer.status_code)]
        schema = told["content"][answer.headers["content-type"]]["schema"]
        whole = {**schema, "components": DOCUMENT["components"]}
        jsonschema_rs.Draft202012Validator(whole).validate(answer.json())


async def test_arguments_are_filters_in_both_notations(admin: Caller, job: str) -> None:
    for number in (1, 2):
        await admin.post("/api/v1/tasks", json={"job": job, "args": {"order": {"id": number}}, "delay": "1h"})
    for query in ("args.order.id=2", "args[order.id]=2"):
        found = (await admin.get(f"/api/v1/tasks?{query}")).json()["items"]
        assert [task["id"] for task in found] == [2]


async def test_another_namespace_is_not_found(admin: Caller) -> None:
    assert (await admin.get("/api/v1/jobs?namespace=default")).status_code == 200
    refused = await admin.get("/api/v1/jobs?namespace=other")
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
