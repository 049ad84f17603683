"""The reference of the HTTP API, written from its OpenAPI document; `python -m tests.docs.http_pages` writes the pages.

What people wrote stands above the line `<!-- … -->` of a page; all below it is made here, and a test compares it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mainspring.api import problems
from mainspring.api.openapi import document, manifest_schema
from mainspring.api.openapi.document import answered_errors, text
from mainspring.api.rows import ROWS
from mainspring.model.access.actors import Role
from tests.docs.client_page import client_page
from tests.docs.what_to_do import WHAT_TO_DO

DOCS = Path(__file__).parents[2] / "docs"
MARK = "<!-- Below this line the page is written from the table of operations: `make docs`. -->\n"
BASE = "/api/v1"
COMMON = ("namespace", "Idempotency-Key", "If-Match", "If-None-Match", "Last-Event-ID", "wait")  # the conventions tell
ALWAYS = {"validation", "unauthorized", "forbidden", "store_unavailable", "malformed", "too_large"}
ALWAYS |= {"unsupported_media_type", "idempotency_in_progress", "idempotency_mismatch"}


def operations_page() -> str:
    """The part of docs/reference/http-api.md that is written from the table."""
    described = document(ROWS)
    parts = []
    for tag in described["tags"]:
        title, _, _ = tag["description"].partition(":")
        rows = [
            _row(method.upper(), path, operation)
            for path, operations in described["paths"].items()
            for method, operation in operations.items()
            if operation["tags"] == [tag["name"]]
        ]
        heading = tag["name"].capitalize() if title == tag["description"] else title
        head = "| operation | what | roles | answer | parameters | errors |\n|---|---|---|---|---|---|\n"
        parts.append(f"\n## {heading}\n\n{tag['description']}\n\n{head}" + "".join(rows))
    return "".join(parts)


def _row(method: str, path: str, operation: dict[str, Any]) -> str:
    columns = [
        f"`{method} {path.removeprefix(BASE)}`",
        operation["summary"].replace("|", "\\|"),
        _roles(operation["x-roles"]),
        _answer(operation),
        _parameters(operation),
        ", ".join(f"`{code}`" for code in _codes(operation)),
    ]
    return "| " + " | ".join(columns) + " |\n"


def _roles(roles: list[str]) -> str:
    if not roles:
        return "none needed"
    if set(roles) == set(Role) - {Role.AGENT}:
        return "any"
    return ", ".join(role for role in Role if role in roles)


def _answer(operation: dict[str, Any]) -> str:
    done = [status for status in operation["responses"] if status.startswith("2")]
    last = operation["responses"][done[-1]]
    kinds = []
    for kind, content in last.get("content", {}).items():
        schema = content["schema"]
        kinds.append(f"`{schema['$ref'].rpartition('/')[2]}`" if "$ref" in schema else _kind(kind, schema))
    return f"{', '.join(done)} {', '.join(kinds)}".strip()


def _kind(kind: str, schema: dict[str, Any]) -> str:
    return str(schema.get("type", "any")) if kind == "application/json" else f"`{kind}`"


def _parameters(operation: dict[str, Any]) -> str:
    found = [one for one in operation["parameters"] if one["in"] != "path"]
    own = [_named(one) for one in found if one["name"] not in COMMON]
    shared = [f"`{one['name']}`" for one in found if one["name"] in COMMON and one["name"] != "namespace"]
    body = [_body(operation["requestBody"])] if "requestBody" in operation else []
    return "; ".join([*body, *filter(None, [", ".join(own), ", ".join(shared)])])


def _body(request: dict[str, Any]) -> str:
    kind, content = next(iter(request["content"].items()))
    if kind != "application/json":
        return f"body `{kind}`"
    named = content["schema"].get("$ref", "").rpartition("/")[2]
    return f"body `{named}`" if named else "body: a merge patch"


def _named(one: dict[str, Any]) -> str:
    return f"`{one['name']}`" + ("…" if one["schema"].get("type") == "array" else "")


def _codes(operation: dict[str, Any]) -> list[str]:
    found = {code for answer in operation["responses"].values() for code in answer.get("x-codes", ())}
    return sorted(found - ALWAYS)


def errors_page() -> str:
    """The part of docs/reference/http-errors.md that is written from the error classes."""
    kinds = {kind.code: kind for kind in answered_errors()}
    rows = sorted((problems.status_of_class(kind), code) for code, kind in kinds.items())
    lines = [f"| {status} | `{code}` | {WHAT_TO_DO[code]} |\n" for status, code in rows]
    return "\n| status | code | what it means, and what to do |\n|---|---|---|\n" + "".join(lines)


PAGES = {
    "reference/http-api.md": operations_page,
    "reference/http-errors.md": errors_page,
    "reference/client.md": client_page,
}


def written(page: str) -> str:
    """The page as it must be: what people wrote, and what is made."""
    kept, mark, _ = (DOCS / page).read_text(encoding="utf-8").partition(MARK)
    assert mark, f"{page} has lost its mark"
    return f"{kept}{MARK}{PAGES[page]()}"


if __name__ == "__main__":
    (DOCS / "openapi.json").write_text(text(ROWS), encoding="utf-8")
    (DOCS / "manifest.schema.json").write_text(manifest_schema.text(), encoding="utf-8")
    for name in PAGES:
        (DOCS / name).write_text(written(name), encoding="utf-8")
