"""The parameters of an operation as OpenAPI has them: those of its signature, and the headers that many share."""

from __future__ import annotations

import inspect
from datetime import datetime, timedelta
from typing import Any

import msgspec

from mainspring.api.openapi.descriptions import OF_OPERATIONS, PARAMETERS
from mainspring.api.openapi.schemas import DURATION, Schema
from mainspring.api.parameters import MOST, Parameter, unwrapped
from mainspring.api.table import BASE, Row
from mainspring.model.words.durations import Duration

LONGEST_WAIT = 60

IDEMPOTENCY_KEY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
    "description": "The same key and request again get the first answer, for a day.",
}
_VALUES: Schema = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
_WAIT: Schema = {
    "name": "wait",
    "in": "query",
    "schema": {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT},
    "description": "Answer once the task has ended, or after so many seconds with the state that it has then.",
}
_NAMESPACE: Schema = {
    "name": "namespace",
    "in": "query",
    "schema": {"type": "string", "default": "default"},
    "description": "Reserved; there is one, `default`.",
}
_LAST_EVENT: Schema = {
    "name": "Last-Event-ID",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The `id` of the last event that was received: continue behind it.",
}
_KNOWN_VERSION: Schema = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The ETag of what the caller has; 304 if it is still that.",
}
_HEADERS: dict[str, Schema] = {
    "version": {
        "name": "If-Match",
        "in": "header",
        "schema": {"type": "string"},
        "description": 'The ETag of what was read, such as `"v7"`; 412 if it was changed since.',
    },
    "replace": {
        "name": "If-None-Match",
        "in": "header",
        "schema": {"type": "string", "enum": ["*"]},
        "description": "`*`: create only; 409 if there is another one of this name.",
    },
}


def arguments(row: Row, operation: str, *, is_versioned: bool) -> list[Schema]:
    """`is_versioned`: its answer has an ETag."""
    found = [_argument(row, one, operation) for one in row.shape.parameters if one.place != "body"]
    if row.waits:
        found.append(_WAIT)
    if row.roles and row.base == BASE and row.name not in ("session.show", "session.logout", "health.health"):
        found.append(_NAMESPACE)
    if takes_key(row):
        found.append(IDEMPOTENCY_KEY)
    if row.method == "GET" and is_versioned:
        found.append(_KNOWN_VERSION)
    if "text/event-stream" in (row.media_type, *row.other_types):
        found.append(_LAST_EVENT)
    return found


def takes_key(row: Row) -> bool:
    return row.method == "POST" and bool(row.roles) and (row.handler is None or row.body_type is not None)


def _argument(row: Row, one: Parameter, operation: str) -> Schema:
    if one.place == "header":
        return _HEADERS[one.name]
    meaning = OF_OPERATIONS.get(f"{operation}.{one.wire}", PARAMETERS[one.wire])
    made: Schema = {"name": one.wire, "in": one.place, "description": meaning}
    if one.required or one.place == "path":
        made["required"] = True
    if one.is_mapping:
        return {**made, "style": "deepObject", "explode": True, "schema": _VALUES}
    if one.is_list:
        made |= {"style": "form", "explode": True}
    return {**made, "schema": _schema(row, one)}


def _schema(row: Row, one: Parameter) -> Schema:
    kind = unwrapped(one.type)
    schema = dict(DURATION) if kind == Duration or kind == float | str else msgspec.json.schema(kind)
    if kind is int:
        schema |= {"format": "int64", "minimum": 1 if one.wire in ("limit", "n") else -MOST, "maximum": MOST}
    if kind is datetime:
        schema["format"] = "date-time"
    default: Any = inspect.signature(row.operation).parameters[one.name].default
    if isinstance(default, timedelta):
        default = default.total_seconds()
    if isinstance(default, (bool, int, float, str)):
        schema["default"] = default
    return schema
