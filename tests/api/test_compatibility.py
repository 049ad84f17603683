"""What was removed or narrowed in a document is found; what was added is not a fault."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from mainspring.api.openapi.compatibility import breaking

Document = dict[str, Any]
TEXT = {"type": "string"}


def document() -> Document:
    task = {
        "type": "object",
        "properties": {
            "job": TEXT,
            "delay": {"type": ["number", "string"]},
            "if_exists": {"enum": ["return", "reject"]},
            "after": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["job"],
        "additionalProperties": False,
    }
    view = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "state": {"enum": ["pending", "running"]},
            "error": {"anyOf": [TEXT, {"type": "null"}]},
            "parent": {"anyOf": [{"$ref": "#/components/schemas/View"}, {"type": "null"}]},
        },
        "required": ["id", "state", "error", "parent"],
    }
    body = {"schema": {"$ref": "#/components/schemas/Task"}}
    answer = {"schema": {"$ref": "#/components/schemas/View"}}
    operation = {
        "operationId": "tasks_submit",
        "x-roles": ["admin", "submitter"],
        "parameters": [{"name": "wait", "in": "query", "schema": {"type": "number", "maximum": 60}}],
        "requestBody": {"required": False, "content": {"application/json": body}},
        "responses": {
            "201": {"headers": {"Location": {}}, "content": {"application/json": answer}},
            "409": {"description": "task_exists"},
        },
    }
    return {"paths": {"/tasks": {"post": operation}}, "components": {"schemas": {"Task": task, "View": view}}}


def operation(made: Document) -> Any:
    return made["paths"]["/tasks"]["post"]


def schema(made: Document, name: str) -> Any:
    return made["components"]["schemas"][name]


def members(made: Document, name: str) -> Any:
    return schema(made, name)["properties"]


CONTENT = "application/json"
NARROWED: dict[str, Callable[[Document], Any]] = {
    "a path": lambda made: made["paths"].clear(),
    "an operation": lambda made: made["paths"]["/tasks"].clear(),
    "its id": lambda made: operation(made).update(operationId="other"),
    "a role": lambda made: operation(made).update({"x-roles": ["admin"]}),
    "a parameter": lambda made: operation(made)["parameters"].clear(),
    "the bound of a parameter": lambda made: operation(made)["parameters"][0]["schema"].update(maximum=30),
    "a parameter that must be given": lambda made: operation(made)["parameters"][0].update(required=True),
    "a new one that must be": lambda made: operation(made)["parameters"].append(
        {"name": "name", "in": "query", "required": True, "schema": TEXT}
    ),
    "the body": lambda made: operation(made).pop("requestBody"),
    "a body that must be given": lambda made: operation(made)["requestBody"].update(required=True),
    "the type of the body": lambda made: operation(made)["requestBody"].update(content={}),
    "a member of a request": lambda made: members(made, "Task").pop("after"),
    "a member that must be given": lambda made: schema(made, "Task")["required"].append("delay"),
    "a new member that must be": lambda made: (
        schema(made, "Task")["properties"].update(note=TEXT),
        schema(made, "Task")["required"].append("note"),
    ),
    "a type of a member": lambda made: members(made, "Task")["delay"].update(type="number"),
    "a value of a member": lambda made: members(made, "Task")["if_exists"].update(enum=["return"]),
    "the type of items": lambda made: members(made, "Task")["after"].update(items=TEXT),
    "a status": lambda made: operation(made)["responses"].pop("409"),
    "a header": lambda made: operation(made)["responses"]["201"]["headers"].clear(),
    "the type of an answer": lambda made: operation(made)["responses"]["201"]["content"].clear(),
    "a member of an answer": lambda made: members(made, "View").pop("error"),
    "a member that may be left out": lambda made: schema(made, "View")["required"].remove("state"),
    "a value of an answer": lambda made: members(made, "View")["state"].update(enum=["pending"]),
    "another type of an answer": lambda made: members(made, "View")["id"].update(type="string"),
    "an answer that may be null": lambda made: members(made, "View").update(
        id={"anyOf": [{"type": "integer"}, {"type": "null"}]}
    ),
    "a free answer": lambda made: members(made, "View").update(id={}),
}
WIDENED: dict[str, Callable[[Document], Any]] = {
    "nothing": lambda made: None,
    "a path": lambda made: made["paths"].update({"/jobs": made["paths"]["/tasks"]}),
    "a role": lambda made: operation(made)["x-roles"].append("operator"),
    "a parameter": lambda made: operation(made)["parameters"].append({"name": "tag", "in": "query", "schema": TEXT}),
    "a looser bound": lambda made: operation(made)["parameters"][0]["schema"].update(maximum=120),
    "a member of a request": lambda made: members(made, "Task").update(note=TEXT),
    "a type of a member": lambda made: members(made, "Task").update(job={"type": ["string", "integer"]}),
    "a value of a member": lambda made: members(made, "Task")["if_exists"]["enum"].append("wait"),
    "a member that need not be given": lambda made: schema(made, "Task")["required"].clear(),
    "a status": lambda made: operation(made)["responses"].update({"429": {"description": "queue_full"}}),
    "a member of an answer": lambda made: members(made, "View").update(note=TEXT),
    "a value of an answer": lambda made: members(made, "View")["state"]["enum"].append("held"),
    "an answer that is never null": lambda made: members(made, "View").update(error=TEXT),
}


@pytest.mark.parametrize("what", NARROWED)
def test_what_is_removed_or_narrowed_is_found(what: str) -> None:
    changed = deepcopy(document())
    NARROWED[what](changed)
    assert breaking(document(), changed) != []


@pytest.mark.parametrize("what", WIDENED)
def test_additions_break_nothing(what: str) -> None:
    changed = deepcopy(document())
    WIDENED[what](changed)
    assert breaking(document(), changed) == []


def test_a_fault_says_where_it_is() -> None:
    changed = deepcopy(document())
    members(changed, "View").pop("error")
    assert breaking(document(), changed) == ["POST /tasks 201.error: removed"]


def test_a_parameter_that_may_be_repeated_now_takes_what_it_took() -> None:
    before, after = document(), document()
    operation(after)["parameters"][0]["schema"] = {"type": "array", "items": {"type": "number", "maximum": 60}}
    assert breaking(before, after) == []
    assert breaking(after, before) != []
    operation(after)["parameters"][0]["schema"]["items"]["maximum"] = 30
    assert breaking(before, after) != []
