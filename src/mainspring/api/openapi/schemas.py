"""Schemas of bodies and answers, with names that generators in any language take.

A type that is read and written may differ between the two. In a request a duration may also be text, and a member that
is not known is refused. In an answer every member is there, unless its struct leaves out defaults, and later versions
may have more. Where the schemas differ, the one of requests is named `…Input`.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from mainspring.api.openapi.descriptions import MEMBERS
from mainspring.api.parameters import READERS
from mainspring.api.table import Row
from mainspring.model.tasks.jobs import Definition, Health, ProcessLimits, Python
from mainspring.model.tasks.retry import Retry

Schema = dict[str, Any]

REF = "#/components/schemas/{name}"
DURATION: Schema = {"type": ["number", "string"], "description": "Seconds, or text such as 10m."}
PRIORITY: Schema = {"type": ["integer", "string"], "description": "low, normal, high, critical, or 0 to 9."}

_NO_DURATION: Schema = {**DURATION, "type": ["number", "string", "null"]}
_SIZE: Schema = {"type": ["integer", "string", "null"], "description": "Bytes, or text such as 64MB."}
_PREFIX = REF.format(name="")
_PAGE = re.compile(r"Page_(\w+)_")
# The members that a definition takes as text, too: model/tasks/read_definition.py reads them.
_READ: dict[type, dict[str, Schema]] = {
    Definition: {"grace": DURATION, "priority": PRIORITY}
    | dict.fromkeys(("timeout", "stalls_after", "expires", "keep_succeeded", "keep_failed"), _NO_DURATION),
    ProcessLimits: {"cpu": _NO_DURATION, "memory": _SIZE},
    Python: {"chunk_wait": DURATION},
    Retry: {"delay": DURATION, "max_delay": DURATION, "delays": {"type": "array", "items": DURATION}},
    Health: {"every": DURATION, "timeout": DURATION, "start": DURATION},
}


class Schemas:
    """The components, and the schema of each type that the rows take or answer with."""

    def __init__(self, rows: Sequence[Row], also: Sequence[Any] = ()) -> None:
        taken = _once([*(row.shape.body for row in rows), *READERS])
        given = _once([*(row.shape.answer for row in rows), *also])
        kinds = _once([*taken, *given])
        self._schemas, components = _described(kinds)
        structs = _structs(kinds)
        inputs = _used([self._schemas[str(kind)] for kind in taken], components)
        outputs = _used([self._schemas[str(kind)] for kind in given], components)
        _as_read(rows, inputs, structs)
        _as_written(outputs, structs)
        _without_defaults(inputs, are_read=True)
        _without_defaults(outputs, are_read=False)
        differing = _differing(inputs, outputs)
        self._renamed = {name: f"{name}Input" if name in differing else name for name in inputs}
        inputs = {self._renamed[name]: _with_refs(schema, self._renamed) for name, schema in inputs.items()}
        self.components = dict(sorted((inputs | outputs).items()))

    def of_body(self, kind: Any) -> Schema:
        schema: Schema = _with_refs(self._schemas[str(kind)], self._renamed)
        return schema

    def of_answer(self, kind: Any) -> Schema:
        return self._schemas[str(kind)]


def _once(kinds: Iterable[Any]) -> list[Any]:
    return list({str(kind): kind for kind in kinds if kind not in (None, type(None))}.values())


def _described(kinds: list[Any]) -> tuple[dict[str, Schema], dict[str, Schema]]:
    """The schema of each type, and the components that they refer to, by the names that they are to have."""
    found, components = msgspec.json.schema_components(kinds, ref_template=REF)
    names = {name: _plain(name) for name in components}
    assert len(set(names.values())) == len(names), "two types with one name"
    described = {names[name]: _with_refs(_tidy(schema), names) for name, schema in components.items()}
    for name, one in _structs(kinds).items():
        for field in one.fields:
            member = _with_format(described[name]["properties"][field.encode_name], field.type)
            if (meaning := MEMBERS.get(f"{name}.{field.encode_name}")) is not None:
                member["description"] = meaning
            described[name]["properties"][field.encode_name] = member
    schemas = (_with_refs(_tidy(schema), names) for schema in found)
    return dict(zip(map(str, kinds), schemas, strict=True)), described


def _with_format(schema: Schema, kind: msgspec.inspect.Type) -> Schema:
    """An instant by its format: msgspec does not tell it from other text."""
    if isinstance(kind, msgspec.inspect.DateTimeType):
        return {**schema, "format": "date-time"}
    if isinstance(kind, (msgspec.inspect.ListType, msgspec.inspect.VarTupleType)) and "items" in schema:
        return {**schema, "items": _with_format(schema["items"], kind.item_type)}
    kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else ()
    if "anyOf" in schema and any(isinstance(one, msgspec.inspect.DateTimeType) for one in kinds):
        text = {"type": "string"}
        parts = [{**one, "format": "date-time"} if one == text else one for one in schema["anyOf"]]
        return {**schema, "anyOf": parts}
    return dict(schema)


def _used(schemas: list[Schema], components: dict[str, Schema]) -> dict[str, Schema]:
    """A copy of the components that these schemas refer to."""
    names = set().union(*(_reached(name, components) for name in _refs(schemas)))
    return {name: deepcopy(components[name]) for name in sorted(names)}


def _refs(schema: Any) -> set[str]:
    return set(re.findall(rf'"{re.escape(_PREFIX)}(\w+)"', json.dumps(schema)))


def _plain(name: str) -> str:
    """Of msgspec's name: Page_JobView_ → JobViewPage, mainspring.operations.work.tasks.Skipped → TasksSkipped."""
    if found := _PAGE.fullmatch(name):
        return f"{found[1]}Page"
    if "." not in name:
        return name
    *_, module, kind = name.split(".")
    room = "".join(word.capitalize() for word in module.split("_"))
    return kind if room == kind else f"{room}{kind}"


def _tidy(schema: Any) -> Any:
    """Whole numbers as 64 bits: ids do not fit 32. An object of free members says so. A tuple is a list of so many
    items: `"items": false` behind `prefixItems` makes some generators refuse the whole document. Texts are not
    indented: of a docstring they are, before Python 3.13."""
    if isinstance(schema, list):
        return [_tidy(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    # A member may be named `title`, too.
    tidy = {name: _tidy(one) for name, one in schema.items() if name != "title" or isinstance(one, dict)}
    if isinstance(text := tidy.get("description"), str):
        tidy["description"] = inspect.cleandoc(text)
    if tidy.get("type") == "object" and not {"properties", "additionalProperties"} & set(tidy):
        tidy["additionalProperties"] = True
    if (parts := tidy.pop("prefixItems", None)) is not None:
        items = [one for place, one in enumerate(parts) if one not in parts[:place]]
        tidy["items"] = items[0] if len(items) == 1 else {"anyOf": items}
    if tidy.get("type") == "array":
        tidy.setdefault("items", {})
    return {**tidy, "format": "int64"} if tidy.get("type") == "integer" else tidy


def _with_refs(schema: Any, names: dict[str, str]) -> Any:
    """The schema with other names of components."""
    if isinstance(schema, list):
        return [_with_refs(one, names) for one in schema]
    if isinstance(schema, dict):
        return {name: _with_refs(one, names) for name, one in schema.items()}
    if isinstance(schema, str) and schema.startswith(_PREFIX):
        name = schema.removeprefix(_PREFIX)
        return REF.format(name=names.get(name, name))
    return schema


def _structs(kinds: Sequence[Any]) -> dict[str, msgspec.inspect.StructType]:
    """Every struct within the types, by the name of its component."""
    found: dict[str, msgspec.inspect.StructType] = {}
    classes: dict[str, list[msgspec.inspect.StructType]] = {}
    for one in _within(msgspec.inspect.multi_type_info(kinds), set()):
        classes.setdefault(_class_name(one.cls), []).append(one)
    for name, several in classes.items():
        for one in several:
            long = f"{one.cls.__module__}.{one.cls.__qualname__}" if len(several) > 1 else name
            found[_plain(long)] = one
    return found


def _class_name(kind: Any) -> str:
    args = getattr(kind, "__args__", ())
    return f"{kind.__name__}_{args[0].__name__}_" if args else str(kind.__name__)


def _within(value: Any, seen: set[Any]) -> Iterator[msgspec.inspect.StructType]:
    if isinstance(value, msgspec.inspect.StructType):
        if value.cls in seen:
            return
        seen.add(value.cls)
        yield value
        parts: Iterable[Any] = (field.type for field in value.fields)
    elif isinstance(value, (tuple, list)):
        parts = value
    elif isinstance(value, msgspec.inspect.Type):
        parts = (getattr(value, name) for name in value.__struct_fields__)
    else:
        return
    for part in parts:
        yield from _within(part, seen)


def _as_read(rows: Sequence[Row], inputs: dict[str, Schema], structs: dict[str, msgspec.inspect.StructType]) -> None:
    named = {one.cls: name for name, one in structs.items()}
    for kind, members in _READ.items():
        known = inputs[named[kind]]["properties"]
        for name, schema in members.items():
            known[name] = {**schema, "default": known[name].get("default")}
    for name in _reached(named[Definition], inputs):
        if "properties" in inputs[name]:
            inputs[name]["additionalProperties"] = False
    for row in rows:  # a member with a reader of its own is an object on the wire
        for one in row.shape.parameters:
            if one.place == "body" and row.shape.whole_body is None and one.type in READERS:
                inputs[named[row.shape.body]]["properties"][one.wire] = {"$ref": REF.format(name=named[one.type])}


def _as_written(outputs: dict[str, Schema], structs: dict[str, msgspec.inspect.StructType]) -> None:
    for name, schema in outputs.items():
        schema.pop("additionalProperties", None) if "properties" in schema else None
        one = structs.get(name)
        if one is None or getattr(one.cls, "__struct_config__", Page).omit_defaults:
            continue
        written = [field.encode_name for field in one.fields if not _may_be_unset(field)]
        tag = [] if one.tag_field is None else [one.tag_field]
        schema["required"] = [*tag, *written]


def _may_be_unset(field: msgspec.inspect.Field) -> bool:
    return not field.required and field.default is msgspec.NODEFAULT is field.default_factory


def _without_defaults(components: dict[str, Schema], *, are_read: bool) -> None:
    """Defaults in words, of requests alone: some generators make members that have one required."""
    for schema in components.values():
        for member in schema.get("properties", {}).values():
            default = member.pop("default", None)
            if are_read and default not in (None, {}, [], ""):
                said = f"Default: {json.dumps(default)}."
                member["description"] = f"{member['description']} {said}" if "description" in member else said


class Page:
    omit_defaults = False  # of the generic struct, whose alias has no configuration


def _reached(name: str, components: dict[str, Schema]) -> set[str]:
    """A component and all that it refers to."""
    reached, left = {name}, [name]
    while left:
        found = _refs(components[left.pop()]) - reached
        reached |= found
        left += found
    return reached


def _differing(inputs: dict[str, Schema], outputs: dict[str, Schema]) -> set[str]:
    """The components of both sides that are not the same, by themselves or by what they refer to."""
    both = inputs.keys() & outputs.keys()
    unequal = {name for name in both if inputs[name] != outputs[name]}
    return {name for name in both if _reached(name, inputs) & unequal}
