"""The document: one operation of OpenAPI for each row of the table."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Sequence
from typing import Any, get_type_hints

import msgspec

from mainspring import errors
from mainspring.api import problems
from mainspring.api.answers import VERSIONED
from mainspring.api.openapi.arguments import arguments, takes_key
from mainspring.api.openapi.schemas import REF, Schema, Schemas
from mainspring.api.table import Row
from mainspring.errors import MainspringError
from mainspring.operations.requests.bulk import Committed, Done, RefusedLine
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.version import VERSION

_DESCRIPTION = (
    "Instants are RFC 3339 with an offset. Durations in answers are seconds; in requests seconds or text such as "
    "`10m`. Clients ignore members that they do not know; requests with unknown members are refused. Every answer has "
    "the header `Mainspring-Request-Id`."
)
_TAGS = {
    "tasks": "Tasks: submit, await, list, read their output, act on them.",
    "jobs": "Jobs: what to run.",
    "schedules": "Schedules: when to run it, what was planned and what came of it.",
    "calendars": "Calendars: days that schedules leave out.",
    "daemons": "Daemons: processes that are kept running.",
    "manifest": "Manifests: all of a set of jobs, schedules and calendars at once.",
    "fleet": "Agents and servers.",
    "figures": "Health, figures, queues, settings.",
    "alerts": "Alerts: what is wrong, the rules that find it, and the channels that tell it.",
    "access": "Sessions, tokens, the audit.",
    "process": "The process that answers; without the prefix of the API.",
}
_TAG_OF = {
    "bulk": "tasks", "events": "tasks", "output": "tasks", "plan_times": "schedules", "backfill": "schedules",
    "coming": "schedules", "failing": "jobs",
    "forecast": "schedules", "timeline": "schedules", "settings": "figures", "health": "figures", "session": "access",
    "herds": "schedules", "fired": "schedules",
    "scrape": "process", "public": "process", "alert_rules": "alerts", "channels": "alerts", "mutes": "alerts",
}  # fmt: skip
_FIGURES = ("stats", "figures", "job_figures", "punctuality", "queues")
_ALWAYS = (errors.ValidationError, errors.Unauthorized, errors.Forbidden, errors.StoreUnavailable)
_OF_A_BODY = (errors.Malformed, errors.TooLarge, problems.UnsupportedMediaType)
_OF_A_KEY = (problems.IdempotencyInProgress, problems.IdempotencyMismatch)
_LINES = (Committed, RefusedLine, Done)


def text(rows: Sequence[Row]) -> str:
    """The document as it is committed: the same text for the same table."""
    return json.dumps(document(rows), indent=1, ensure_ascii=False) + "\n"


def document(rows: Sequence[Row]) -> dict[str, Any]:
    rows = [row for row in rows if not row.name.startswith("site.")]
    schemas = Schemas(rows, also=_LINES)
    paths: dict[str, Any] = {}
    used: set[str] = set()
    for row in rows:
        name = row.name.replace(".", "_")
        name = f"{name}_{row.method.lower()}" if name in used else name
        used.add(name)
        paths.setdefault(row.full_path, {})[row.method.lower()] = _operation(row, name, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Mainspring",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {"session": []}],
        "tags": [{"name": name, "description": meaning} for name, meaning in _TAGS.items()],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {"MergePatch": _MERGE_PATCH, "Problem": _problem(), **schemas.components},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "`mainspring token create`"},
                "session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "mainspring",
                    "description": "Of the console; under TLS its name begins with `__Host-` or `__Secure-`. What "
                    "changes something needs the header `Mainspring-CSRF` besides, with `csrf` of `GET /session`.",
                },
            },
        },
    }


def _operation(row: Row, name: str, schemas: Schemas) -> Schema:
    summary, _, rest = inspect.cleandoc(row.operation.__doc__ or "").partition("\n\n")
    assert summary, f"{row.name} has no docstring"
    made: Schema = {
        "operationId": name,
        "tags": [_tag(row)],
        "summary": " ".join(summary.split()),
        "parameters": arguments(row, name, is_versioned=_is_versioned(row.shape.answer)),
        "responses": _responses(row, schemas),
        "x-roles": sorted(row.roles),
    }
    if rest:
        made["description"] = rest
    if not row.roles:
        made["security"] = []
    if (body := _body(row, schemas)) is not None:
        made["requestBody"] = body
    return made


def _tag(row: Row) -> str:
    room, _, name = row.name.partition(".")
    if room == "cluster":
        return "figures" if name in _FIGURES else "fleet"
    if room == "holds":
        return "jobs" if name.endswith("_job") else "fleet"
    return _TAG_OF.get(room, room)


# By name: generators make a type of their own for each media type of an object that has none.
_MERGE_PATCH: Schema = {
    "type": "object",
    "description": "A merge patch (RFC 7396): null resets a member to its default.",
    "additionalProperties": True,
}


def _body(row: Row, schemas: Schemas) -> Schema | None:
    if row.body_type is not None:
        return {"required": True, "content": {row.body_type: {"schema": _lines((NewTask,))}}}
    if row.shape.body is None:
        return None
    members = [one for one in row.shape.parameters if one.place == "body"]
    required = row.shape.whole_body is not None or any(one.required for one in members)
    schema = schemas.of_body(row.shape.body)
    kinds = ["application/json"]
    if row.method == "PATCH":
        kinds.append("application/merge-patch+json")
        if schema.get("type") == "object":
            schema = {"$ref": REF.format(name="MergePatch")}
    return {"required": required, "content": {kind: {"schema": schema} for kind in kinds}}


def _lines(kinds: Iterable[type]) -> Schema:
    """A stream of lines. OpenAPI 3.1 has no word for it; `contentSchema` describes one of them."""
    refs = [{"$ref": REF.format(name=kind.__name__)} for kind in kinds]
    return {
        "type": "string",
        "description": "Lines of JSON; `contentSchema` is that of each.",
        "contentMediaType": "application/json",
        "contentSchema": refs[0] if len(refs) == 1 else {"anyOf": refs},
    }


# ── answers ─────────────────────────────────────────────────────────────────────────────────────


def _responses(row: Row, schemas: Schemas) -> Schema:
    found: Schema = {str(status): _answer(row, status, schemas) for status in _statuses(row)}
    if row.method == "GET" and _is_versioned(row.shape.answer):
        found["304"] = {"description": "Not changed", "headers": _etag()}
    for status, codes in sorted(_codes(row).items()):
        found[str(status)] = _refusal(", ".join(codes), codes, status)
    for status in row.answered:
        refused = found.get(str(status), {}).get("content", {})
        told = _answer(row, status, schemas)
        found[str(status)] = {**told, "content": {**told["content"], **refused}}
    found["default"] = _refusal("Any other problem")
    return found


def _statuses(row: Row) -> list[int]:
    """`created` in an answer decides between 200 and 201: api/answers.py."""
    if row.shape.answer in (None, type(None)):
        return [204]
    if row.method in ("PUT", "POST") and "created" in _members(row.shape.answer) and row.status in (200, 201):
        is_new = row.method == "PUT" or row.status == 201
        return [200, 201] if is_new else [200]
    return [row.status]


def _members(kind: Any) -> dict[str, Any]:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return get_type_hints(kind) if is_struct else {}


def _is_versioned(kind: Any) -> bool:
    members = _members(kind)
    inner = (members[name] for name in VERSIONED if name in members)
    return members.get("version") is int or any("version" in _members(one) for one in inner)


def _answer(row: Row, status: int, schemas: Schemas) -> Schema:
    words = {201: "Created", 202: "Accepted", 503: "It is not well"}
    made: Schema = {"description": words.get(status, "Done")}
    headers: Schema = _etag() if _is_versioned(row.shape.answer) else {}
    if takes_key(row) and row.body_type is None:
        headers |= {"Idempotency-Replayed": _header("`true` if this is the answer to an earlier request.")}
    if status == 201 and row.method == "POST" and "id" in _members(row.shape.answer):
        headers |= {"Location": _header("Where it is.")}
    if headers:
        made["headers"] = headers
    if status != 204:
        made["content"] = {
            kind: {"schema": _of_type(row, kind, schemas)} for kind in (row.media_type, *row.other_types)
        }
    return made


def _of_type(row: Row, kind: str, schemas: Schemas) -> Schema:
    if kind == "application/json":
        return schemas.of_answer(row.shape.answer)
    if kind == row.body_type:
        return _lines(_LINES)
    return {"type": "string"}


def _etag() -> Schema:
    return {"ETag": _header('Its version, such as `"v7"`.')}


def _header(meaning: str) -> Schema:
    return {"description": meaning, "schema": {"type": "string"}}


def _codes(row: Row) -> dict[int, list[str]]:
    """The codes of the errors that a row may answer with, by status."""
    kinds = {*(_ALWAYS if row.roles else ()), *row.errors}
    if row.shape.body is not None or row.body_type is not None:
        kinds |= {errors.ValidationError, *_OF_A_BODY}
    if takes_key(row):
        kinds |= set(_OF_A_KEY)
    codes: dict[int, list[str]] = {}
    for kind in sorted(kinds, key=lambda kind: kind.code):
        codes.setdefault(problems.status_of_class(kind), []).append(kind.code)
    return codes


def _refusal(description: str, codes: Sequence[str] = (), status: int = 0) -> Schema:
    made: Schema = {
        "description": description,
        "content": {problems.MEDIA_TYPE: {"schema": {"$ref": REF.format(name="Problem")}}},
    }
    if status in (429, 503):
        made["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return {**made, "x-codes": list(codes)} if codes else made


def answered_errors() -> list[type[MainspringError]]:
    """Every error that a request may be answered with; those of other modules have the code of one of these."""
    modules = (errors.__name__, problems.__name__)
    return [
        kind
        for kind in errors.all_errors()
        if kind.__module__ in modules and not issubclass(kind, problems.NEVER_ANSWERED) and kind is not MainspringError
    ]


def _problem() -> Schema:
    text = {"type": "string"}
    return {
        "type": "object",
        "description": "Why a request was refused (RFC 9457), with members that depend on the code.",
        "properties": {
            "type": text,
            "title": text,
            "status": {"type": "integer"},
            "code": {"type": "string", "enum": sorted({kind.code for kind in answered_errors()})},
            "detail": text,
            "message": text,
            "field": text,
            "retry_after": {"type": "integer", "description": "Seconds."},
            "errors": {
                "type": "array",
                "description": "Several faults of one body.",
                "items": {
                    "type": "object",
                    "properties": {"field": text, "code": text, "message": text},
                },
            },
            "request_id": text,
        },
        "required": ["type", "title", "status", "code", "detail", "message", "request_id"],
        "additionalProperties": True,
    }
