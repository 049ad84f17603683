"""The JSON Schema of manifests, for editors; from the same schemas as the OpenAPI document.

Next: model/manifests/manifest.py
"""

from __future__ import annotations

import json
from typing import Any

from mainspring.api.openapi.schemas import Schema, Schemas
from mainspring.api.rows import ROWS
from mainspring.model.manifests.manifest import Manifest

_OPENAPI, _HERE = "#/components/schemas/", "#/$defs/"


def schema() -> Schema:
    rows = [row for row in ROWS if row.name.startswith("manifest.")]
    described = Schemas(rows)
    root = described.of_body(Manifest)["$ref"].removeprefix(_OPENAPI)
    needed, left = {root}, [root]
    while left:
        found = set(_refs(described.components[left.pop()])) - needed
        needed |= found
        left += found
    parts = {name: _moved(described.components[name]) for name in sorted(needed)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A manifest of Mainspring",
        **parts.pop(root),
        "$defs": parts,
    }


def text() -> str:
    """As it is committed in docs/: the same text for the same types."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _refs(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"].removeprefix(_OPENAPI)] if isinstance(value.get("$ref"), str) else []
        return own + [name for one in value.values() for name in _refs(one)]
    return [name for one in value for name in _refs(one)] if isinstance(value, list) else []


def _moved(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _moved(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_moved(one) for one in value]
    return value.replace(_OPENAPI, _HERE) if isinstance(value, str) else value
