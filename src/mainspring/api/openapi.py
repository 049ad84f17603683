"""OpenAPI 3.1 from the table: what is served at /openapi.json and committed as docs/openapi.json."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from mainspring import errors
from mainspring.api import problems
from mainspring.api.parameters import MOST, Parameter, unwrapped
from mainspring.api.table import Row
from mainspring.errors import MainspringError
from mainspring.model.words.durations import Duration
from mainspring.version import VERSION

_DESCRIPTION = (
    "Instants are RFC 3339 with an offset. Durations in answers are seconds; in requests seconds or text such as "
    "`10m`. Clients ignore members that they do not know; requests with unknown members are refused."
)
_ALWAYS = (errors.ValidationError, errors.Unauthorized, errors.Forbidden, errors.StoreUnavailable)
_DURATION = {"type": ["number", "string"], "description": "Seconds, or text such as 10m."}
_REF = "#/components/schemas/{name}"


def document(rows: Sequence[Row]) -> dict[str, Any]:
    kinds = _kinds(rows)
    schemas, components = msgspec.json.schema_components(kinds, schema_hook=_hook, ref_template=_REF)
    known = dict(zip((str(kind) for kind in kinds), schemas, strict=True))
    components["Problem"] = _problem()
    paths: dict[str, Any] = {}
    for row in (row for row in rows if row.handler != "site.page"):
        paths.setdefault(row.full_path, {})[row.method.lower()] = _operation(row, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mainspring", "version": VERSION, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "`mainspring token create`"},
                "session": {"type": "apiKey", "in": "cookie", "name": "mainspring"},
            },
        },
    }


def _kinds(rows: Sequence[Row]) -> list[Any]:
    """Every type of a body or an answer, once."""
    kinds = [kind for row in rows for kind in (row.shape.body, row.shape.answer)]
    return list({str(kind): kind for kind in kinds if kind not in (None, type(None), bytes)}.values())


def _hook(kind: type) -> dict[str, Any]:
    return {"description": kind.__name__}


def _operation(row: Row, known: dict[str, Any]) -> dict[str, Any]:
    summary, _, rest = inspect.cleandoc(row.operation.__doc__ or row.name).partition("\n\n")
    made: dict[str, Any] = {
        "operationId": row.name.replace(".", "_"),
        "tags": [row.name.partition(".")[0]],
        "summary": " ".join(summary.split()),
        "parameters": [_parameter(one) for one in row.shape.parameters if one.place in ("path", "query", "header")]
        + _common_parameters(row),
        "responses": _responses(row, known),
        "x-roles": sorted(row.roles),
    }
    if rest:
        made["description"] = rest
    if not row.roles:
        made["security"] = []
    if row.body_type is not None:
        made["requestBody"] = {"required": True, "content": {row.body_type: {"schema": {"type": "string"}}}}
    elif row.shape.body is not None:
        kind = "application/merge-patch+json" if row.method == "PATCH" else "application/json"
        required = row.shape.whole_body is not None or any(
            one.required for one in row.shape.parameters if one.place == "body"
        )
        content = {name: {"schema": known[str(row.shape.body)]} for name in {kind, "application/json"}}
        made["requestBody"] = {"required": required, "content": dict(sorted(content.items()))}
    return made


def _parameter(one: Parameter) -> dict[str, Any]:
    if one.place == "header":
        return _HEADERS[one.name]
    kind = unwrapped(one.type)
    schema = _DURATION if kind == Duration or kind == float | str else msgspec.json.schema(kind)
    if kind is int:
        schema = {**schema, "minimum": -MOST, "maximum": MOST}
    if one.is_mapping:
        return {
            "name": one.wire,
            "in": "query",
            "style": "deepObject",
            "schema": {"type": "object"},
            "description": f"Written `{one.wire}.NAME=VALUE`; repeatable.",
        }
    if one.is_list:
        return {"name": one.wire, "in": one.place, "schema": schema, "explode": True, "style": "form"}
    return {"name": one.wire, "in": one.place, "required": one.required or one.place == "path", "schema": schema}


_HEADERS: dict[str, dict[str, Any]] = {
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


def _common_parameters(row: Row) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if row.method == "POST" and row.roles and (row.handler is None or row.body_type is not None):
        found.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "schema": {"type": "string", "minLength": 1, "maxLength": 200},
                "description": "The same key and request again get the first answer, for a day.",
            }
        )
    if row.waits:
        found.append(
            {
                "name": "wait",
                "in": "query",
                "schema": {"type": "number", "minimum": 0, "maximum": 60},
                "description": "Answer once the task has ended, or after so many seconds.",
            }
        )
    return found


def _responses(row: Row, known: dict[str, Any]) -> dict[str, Any]:
    has_answer = row.shape.answer not in (None, type(None))
    schema = known.get(str(row.shape.answer), {"type": "string"})
    content = {row.media_type: {"schema": schema}} | {kind: {"schema": {"type": "string"}} for kind in row.also}
    found: dict[str, Any] = {}
    for status in _statuses(row) if has_answer else [204]:
        found[str(status)] = {"description": "Done" if status != 201 else "Created"}
        if has_answer:
            found[str(status)]["content"] = content
    kinds = {*(_ALWAYS if row.roles else ()), *row.errors}
    codes: dict[int, list[str]] = {}
    for kind in sorted(kinds, key=lambda kind: kind.code):
        codes.setdefault(problems.status_of_class(kind), []).append(kind.code)
    for status, named in sorted(codes.items()):
        found[str(status)] = _refusal(", ".join(named))
    for status in row.answered:
        found.setdefault(str(status), {"description": "Told, not refused", "content": {}})["content"] |= content
    found["default"] = _refusal("Any other problem")
    return found


def _statuses(row: Row) -> list[int]:
    """What says whether it was created answers with either status."""
    says_created = "created" in getattr(row.shape.answer, "__struct_fields__", ())
    return [201, 200] if row.status == 201 or says_created else [row.status]


def _refusal(description: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name="Problem")}
    return {"description": description, "content": {problems.MEDIA_TYPE: {"schema": schema}}}


def all_codes() -> list[str]:
    kinds = (kind for kind in errors.all_errors() if not issubclass(kind, problems.NEVER_ANSWERED))
    return sorted({kind.code for kind in kinds if kind is not MainspringError})


def _problem() -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "Why a request was refused (RFC 9457), with members that depend on the code.",
        "properties": {
            "type": text,
            "title": text,
            "status": {"type": "integer"},
            "code": {"type": "string", "enum": all_codes()},
            "detail": text,
            "message": text,
            "field": text,
            "retry_after": {"type": "integer"},
            "request_id": text,
        },
        "required": ["type", "title", "status", "code", "detail", "message", "request_id"],
        "additionalProperties": True,
    }
