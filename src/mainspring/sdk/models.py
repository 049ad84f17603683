"""Models: Pydantic types among the annotations of a handler. Checked at enqueue, stored as JSON, decoded at the start.

Pydantic is imported only if the application has imported it. Where an annotation mentions a Pydantic type at any depth,
Pydantic reads the whole parameter: models in lists, unions and dataclasses, constraints, URLs.
Next: sdk/signature.py
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, get_args, get_type_hints

from msgspec import NODEFAULT

from mainspring.errors import ValidationError

_PACKAGES = {"pydantic", "pydantic_core", "annotated_types"}
_MARKS = ("__pydantic_core_schema__", "__get_pydantic_core_schema__")


class HiddenValue(TypeError):
    """A type whose JSON is not what it holds."""


class Model:
    """One annotation, as Pydantic reads it."""

    def __init__(self, hint: Any) -> None:
        """Raises TypeError if values of it cannot be stored and come back."""
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError

        try:
            self._adapter: Any = TypeAdapter(hint)
        except PydanticUserError as error:
            raise TypeError(error.message.partition("\n")[0]) from None
        if _hides(self._adapter):
            raise HiddenValue(f"{hint} holds a secret, which Pydantic writes as asterisks; pass a reference to it")

    def check(self, value: Any, what: str) -> Any:
        """The value as the annotated type; ValidationError if Pydantic refuses it or its JSON.

        The JSON is checked too, because Pydantic accepts an instance that was changed after its validation.
        """
        from pydantic_core import to_json

        try:
            checked = self._adapter.validate_python(value, by_alias=True, by_name=True)
            stored = to_json(checked, by_alias=False, round_trip=True)
            self._adapter.validate_json(stored, by_alias=True, by_name=True)
        except ValueError as error:
            raise ValidationError(f"args: {_told(error, what)}", field="args") from None
        return checked

    def fields(self) -> tuple[bool, dict[str, Any] | None]:
        """Whether its JSON is an object, and by name the defaults of its fields, if they are known."""
        try:
            schema = self._adapter.json_schema(by_alias=False)
        except Exception:  # a type without a JSON schema, which may still have JSON
            return False, None
        if (reference := schema.get("$ref", "")).startswith("#/$defs/"):
            schema = schema["$defs"][reference.removeprefix("#/$defs/")]
        if schema.get("type") != "object":
            return False, None
        named = schema.get("properties")
        return True, named and {name: field.get("default", NODEFAULT) for name, field in named.items()}

    def decode(self, data: str | bytes, what: str = "") -> Any:
        """The value that JSON stands for. Raises ValueError if it does not fit."""
        try:
            return self._adapter.validate_json(data, by_alias=True, by_name=True)
        except ValueError as error:
            raise ValueError(_told(error, what)) from None


def model_of(hint: Any) -> Model | None:
    """How Pydantic reads this annotation; None if it has no Pydantic type. Raises TypeError if it cannot be stored."""
    return Model(hint) if "pydantic" in sys.modules and _mentions(hint) else None


def _mentions(hint: Any) -> bool:
    """Whether the annotation has a Pydantic type at any depth."""
    seen: list[Any] = []
    left = [hint]
    while left:
        node = left.pop()
        if any(node is other for other in seen):
            continue
        seen.append(node)
        kind = node if isinstance(node, type) else type(node)
        if kind.__module__.partition(".")[0] in _PACKAGES or any(mark in kind.__dict__ for mark in _MARKS):
            return True
        left += [*get_args(node), *_fields(node)]
    return False


def _fields(node: Any) -> Iterable[Any]:
    """The annotations of the fields of a dataclass, a TypedDict or a named tuple; the value of a type alias."""
    if hasattr(node, "__value__"):  # of Python 3.12's `type X = …`
        return [node.__value__]
    if isinstance(node, type) and (
        dataclasses.is_dataclass(node) or hasattr(node, "__required_keys__") or hasattr(node, "_field_defaults")
    ):
        with suppress(NameError, TypeError):  # annotations that only a type checker can see
            return get_type_hints(node, include_extras=True).values()
    return ()


def _hides(adapter: Any) -> bool:
    """Whether its JSON hides the value, as that of SecretStr does."""
    try:
        left = [adapter.json_schema(mode="serialization")]
    except Exception:  # a type without a JSON schema, which may still have JSON
        return False
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if node.get("writeOnly") is True and node.get("format") == "password":
                return True
            left += node.values()
        elif isinstance(node, list):
            left += node
    return False


def _told(error: ValueError, what: str) -> str:
    """Pydantic's errors in one line: where, and what is wrong."""
    errors: Callable[..., list[dict[str, Any]]] | None = getattr(error, "errors", None)
    if errors is None:
        return f"{what}: {error}"
    return "; ".join(
        f"{'.'.join(str(step) for step in (what, *one['loc']) if step != '')}: {one['msg']}"
        for one in errors(include_url=False, include_context=False, include_input=False)
    )
