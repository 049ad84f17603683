"""Preconditions: If-Match and If-None-Match of a request that changes something → `version` and `replace`.

A precondition that cannot be checked is refused: whoever sent it counts on it.
Next: api/parameters.py
"""

from __future__ import annotations

import re
from typing import Any

from mainspring.api.call import Call
from mainspring.errors import ValidationError, shown

_VERSION = re.compile(r'(?:W/)?"v(\d{1,9})"')


def given(call: Call) -> dict[str, Any]:
    """The parameters of the operation that have a header of their own."""
    if call.method not in ("PUT", "PATCH", "DELETE"):
        return {}
    wanted = {parameter.name for parameter in call.row.shape.parameters if parameter.place == "header"}
    found: dict[str, Any] = {}
    if (match := call.headers.get("if-match")) is not None:
        if "version" not in wanted:
            raise ValidationError("if-match: this has no version; send the request without", field="if-match")
        found["version"] = _version(match)
    if "replace" in wanted and (none_match := call.headers.get("if-none-match")) is not None:
        found["replace"] = _replaces(none_match)
    return found


def _version(given: str) -> int:
    found = _VERSION.fullmatch(given.strip())
    if found is None:
        raise ValidationError(f'if-match: {shown(given)}; send the ETag of an answer, such as "v7"', field="if-match")
    return int(found[1])


def _replaces(given: str) -> bool:
    if given.strip() != "*":
        raise ValidationError(
            f"if-none-match: {shown(given)}; send * to create only, or If-Match to change what was read",
            field="if-none-match",
        )
    return False
