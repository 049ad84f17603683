"""Written: the parameters of an operation as a request, by the rules that a server reads it by.

Next: client/remote.py
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from mainspring.api.parameters import Parameter, Shape
from mainspring.errors import ValidationError


class Written(NamedTuple):
    path: str
    query: list[tuple[str, str]]
    headers: dict[str, str]
    body: bytes | None


def written(shape: Shape, path: str, given: Mapping[str, Any]) -> Written:
    """The request that carries these parameters. What cannot be sent is refused as the operation would refuse it."""
    try:
        return _written(shape, path, given)
    except UnicodeEncodeError:
        field = next((name for name, value in given.items() if not _is_text(value)), "request")
        raise ValidationError(f"{field}: holds a lone surrogate, which is not text", field=field) from None


def _is_text(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        return False
    return True


def _written(shape: Shape, path: str, given: Mapping[str, Any]) -> Written:
    query: list[tuple[str, str]] = []
    headers: dict[str, str] = {}
    members: dict[str, Any] = {}
    for parameter in shape.parameters:
        value = given.get(parameter.name)
        is_nothing = value is msgspec.UNSET or (value is None and not parameter.is_nullable)
        if parameter.name not in given or (is_nothing and not parameter.required):
            continue
        match parameter.place:
            case "path":
                path = path.replace(f"{{{parameter.wire}}}", quote(to_text(value), safe=""))
            case "query":
                query += _as_query(parameter, value)
            case "header" if parameter.name == "version":
                headers["If-Match"] = f'"v{value}"'
            case "header":
                if value is False:
                    headers["If-None-Match"] = "*"
            case "body":
                members[parameter.wire] = value
    if shape.body is None:
        return Written(path, query, headers, None)
    body = members[shape.whole_body] if shape.whole_body is not None else members
    return Written(path, query, headers, msgspec.json.encode(body))


def _as_query(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    if parameter.is_mapping:
        return [(f"{parameter.wire}.{name}", to_text(one)) for name, one in value.items()]
    if parameter.is_list:
        return [(parameter.wire, to_text(one)) for one in ([value] if isinstance(value, str) else value)]
    return [(parameter.wire, to_text(value))]


def to_text(value: Any) -> str:
    """A value in a path or a query."""
    plain = value.total_seconds() if isinstance(value, timedelta) else msgspec.to_builtins(value)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    text = str(plain)
    text.encode()  # a lone surrogate cannot be sent
    return text
