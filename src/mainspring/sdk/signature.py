"""Signature: how the arguments of a handler become JSON at enqueue and Python values again at the start.

Next: sdk/job.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Literal, get_type_hints

import msgspec
import msgspec.inspect
from msgspec import UNSET, UnsetType

from mainspring.errors import ValidationError, shown
from mainspring.model.schedules.schedules import FILLED
from mainspring.model.tasks.jobs import Argument
from mainspring.model.tasks.payload import encode
from mainspring.sdk.models import HiddenValue, Model, model_of

MOST_ARGUMENTS = 50  # of a handler that its definition names
_JSON_TYPES: dict[type, Literal["string", "integer", "number", "boolean"]] = {
    msgspec.inspect.StrType: "string",
    msgspec.inspect.IntType: "integer",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.DateTimeType: "string",
    msgspec.inspect.DateType: "string",
    msgspec.inspect.UUIDType: "string",
}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature:
    def __init__(self, job: str, function: Callable[..., Any]) -> None:
        self._job = job
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        for parameter in parameters:
            if parameter.kind not in (*_NAMED, inspect.Parameter.VAR_KEYWORD):
                raise ValidationError(
                    f"{job}: parameter {parameter} cannot be named; arguments are stored by name",
                    field="handler",
                )
        self._names = tuple(p.name for p in parameters if p.kind in _NAMED)
        self._positional = tuple(p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._open = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._models: dict[str, Model] = {}  # parameters that Pydantic reads
        self._hints: dict[str, Any] = {}
        self._decoder = self._make_decoder(function)
        self.decode_result = result_decoder(function, hint_of(function, "return"))

    def _make_decoder(self, function: Callable[..., Any]) -> msgspec.json.Decoder[Any]:
        """A decoder for the annotated types; a parameter without annotation takes any JSON."""
        fields: list[tuple[str, Any, Any]] = []
        try:
            for name in self._names:
                self._hints[name] = hint = hint_of(function, name)
                if (model := model_of(hint)) is not None:
                    self._models[name] = model
                    hint = msgspec.Raw
                if self._signature.parameters[name].default is inspect.Parameter.empty:
                    fields.append((name, hint, msgspec.NODEFAULT))
                else:
                    fields.append((name, hint if hint in (Any, msgspec.Raw) else hint | UnsetType, UNSET))
            struct = msgspec.defstruct(
                f"{self._job} arguments", fields, kw_only=True, forbid_unknown_fields=not self._open
            )
            if (foreign := foreign_type(msgspec.inspect.type_info(struct))) is not None:
                raise TypeError(f"{shown(foreign)} is not JSON, nor a dataclass or another type that can be made of it")
            return msgspec.json.Decoder(struct)
        except TypeError as error:
            raise ValidationError(f"{self._job}: its arguments cannot cross JSON: {error}", field="handler") from None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The arguments of a call, as JSON by name; a ValidationError if the call would not be valid."""
        if not kwargs and len(args) == len(self._names) == len(self._positional):
            if not args:
                return "{}"
            return self._encode(dict(zip(self._names, args, strict=True)))
        return self._encode(self._bind(args, kwargs))

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, as Python would give them to the function."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ValidationError(f"args: {self._job}{self._signature}: {error}", field="args") from None
        given = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                given |= given.pop(parameter.name, {})
        return given

    def _encode(self, given: dict[str, Any]) -> str:
        for name, model in self._models.items():
            if name in given:
                given[name] = model.check(given[name], name)
        return encode(given, "args")

    def check_parameter(self, name: str, *, field: str) -> None:
        """ValidationError if the handler has no parameter of this name."""
        if name not in self._names and not self._open:
            raise ValidationError(f"{field}: {self._job}{self._signature} has no parameter {shown(name)}", field=field)

    def defaults(self, names: Iterable[str]) -> dict[str, str]:
        """Parameter → its default as text, of those of `names` that have one."""
        found = {}
        for name in names:
            parameter = self._signature.parameters.get(name)
            if parameter is not None and parameter.default is not inspect.Parameter.empty:
                text = encode(parameter.default, name)
                value = msgspec.json.decode(text)
                found[name] = value if isinstance(value, str) else text
        return found

    @property
    def takes(self) -> tuple[str, ...]:
        """The parameters that the planner fills."""
        return tuple(name for name in FILLED if name in self._names)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What a form asks for."""
        parameters = self._signature.parameters
        return tuple(
            Argument(name, json_type(hint), parameters[name].default is inspect.Parameter.empty)
            for name, hint in list(self._hints.items())[:MOST_ARGUMENTS]
        )

    def check(self, args: Mapping[str, Any], *, has_scopes: bool) -> dict[str, Any]:
        """The arguments of a schedule as JSON values; the planner adds those of `takes`."""
        filled = {name: "" for name in self.takes if name != "scope" or has_scopes}
        try:
            self._bind((), {**filled, **args})
        except ValidationError as error:
            raise ValidationError(
                f"{error.message}; a schedule needs args={{…}} for parameters without a default", field="args"
            ) from None
        plain: dict[str, Any] = msgspec.json.decode(self._encode(dict(args)))
        return plain

    def decode(self, text: str) -> dict[str, Any]:
        """The arguments for a call. Raises ValueError if they do not fit."""
        if text == "{}" and not self._names:
            return {}
        struct = self._decoder.decode(text)
        args = {name: value for name in self._names if (value := getattr(struct, name)) is not UNSET}
        for name, model in self._models.items():
            if name in args:
                args[name] = model.decode(bytes(args[name]), name)
        if self._open:
            args = {**msgspec.json.decode(text), **args}
        return args


def hint_of(function: Callable[..., Any], name: str) -> Any:
    """The annotation of one parameter; Any if it has none, or if its name exists for type checkers only."""
    if name not in function.__annotations__:
        return Any
    alone = SimpleNamespace(__annotations__={name: function.__annotations__[name]})
    try:
        return get_type_hints(alone, globalns=function.__globals__, include_extras=True)[name]
    except NameError:
        return Any


def json_type(hint: Any) -> Literal["any", "string", "integer", "number", "boolean"]:
    """The type of the JSON of plain annotations, with or without None; `any` of all others."""
    try:
        info = msgspec.inspect.type_info(hint)
    except TypeError:
        return "any"  # one of Pydantic's
    if isinstance(info, msgspec.inspect.UnionType):
        others = [one for one in info.types if not isinstance(one, msgspec.inspect.NoneType)]
        info = others[0] if len(others) == 1 else info
    for kind, word in _JSON_TYPES.items():
        if isinstance(info, kind):
            return word
    return "any"


def foreign_type(info: Any) -> type | None:
    """The first type within `info` that msgspec does not know."""
    seen: set[int] = set()
    left = [info]
    while left:
        node = left.pop()
        if isinstance(node, msgspec.inspect.CustomType):
            return node.cls
        if isinstance(node, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(node) not in seen:
            seen.add(id(node))
            for name in node.__struct_fields__:
                value = getattr(node, name)
                left += value if isinstance(value, tuple) else [value]
    return None


def result_decoder(function: Callable[..., Any], hint: Any) -> Callable[[str], Any]:
    """Decodes a result as the annotated type, or as plain JSON where msgspec cannot."""
    try:
        model = model_of(hint)
        return msgspec.json.Decoder(hint).decode if model is None else model.decode
    except HiddenValue as error:
        raise ValidationError(f"{function.__name__}: its result cannot cross JSON: {error}", field="handler") from None
    except TypeError:
        return msgspec.json.decode


def encode_result(value: Any) -> str:
    return encode(value, "result")
