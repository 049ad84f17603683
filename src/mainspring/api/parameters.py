"""Parameters: the path, the query, the body and two headers of a request → the parameters of an operation.

The signature of the operation says it all: its names are those on the wire, its annotations the types. Two parameters
have headers of their own: `version` is If-Match, and `replace=False` is `If-None-Match: *`.
The client writes requests by the same rules: client/written.py.
Next: operations/work/tasks.py
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from mainspring.errors import MOST_FAULTS, ValidationError, shown, together
from mainspring.model.alerts.channels import ChannelSpec, read_channel
from mainspring.model.alerts.rules import AlertRuleSpec, read_rule
from mainspring.model.manifests.manifest import Manifest, read_manifest
from mainspring.model.schedules.schedule_spec import ScheduleSpec, read_spec
from mainspring.model.tasks.jobs import Definition
from mainspring.model.tasks.read_definition import read_definition
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.names import unknown
from mainspring.operations.pages import Page
from mainspring.operations.requests.new_tasks import NewTask, faults_of_values

MOST = 2**53 - 1  # of a whole number: beyond it, other languages lose digits
MOST_MEMBERS = 200  # of a body whose faults are looked for one after another
Place = Literal["path", "query", "body", "header"]

IN_HEADERS = {"version": "If-Match", "replace": "If-None-Match"}
_MEMBER = re.compile(r"(\w+)(?:\.(.+)|\[(.+)\])", re.DOTALL)  # args.PATH, or args[PATH] as generated clients write it
_MEMBER_OF_PATH = re.compile(r"[.\[]")
_WHOLE = re.compile(r"-?[0-9]{1,30}")
_SPACE_FOR_PLUS = re.compile(r" (?=\d\d:\d\d$)")


class Parameter(NamedTuple):
    name: str  # of the operation
    wire: str  # of the request
    place: Place
    type: Any  # without None, unless null is another thing than nothing: it resets
    required: bool

    @property
    def is_list(self) -> bool:
        return get_origin(self.type) in (list, tuple, Sequence)

    @property
    def is_nullable(self) -> bool:
        return type(None) in get_args(self.type)

    @property
    def is_mapping(self) -> bool:
        return get_origin(self.type) in (dict, Mapping) or self.type in (dict, Mapping)


@dataclass(frozen=True)
class Shape:
    """How a request carries the parameters of an operation."""

    parameters: tuple[Parameter, ...]
    body: Any  # the type of the body; None: there is none
    whole_body: str | None  # the parameter that is the whole body; None: each member is a parameter
    answer: Any  # the type of the answer; a list goes as a page, which is the last

    @cached_property
    def in_query(self) -> dict[str, Parameter]:
        """Those in the query, by their names there."""
        return {parameter.wire: parameter for parameter in self.parameters if parameter.place == "query"}

    @cached_property
    def mappings(self) -> dict[str, Parameter]:
        """Those of them that are mappings."""
        return {wire: parameter for wire, parameter in self.in_query.items() if parameter.is_mapping}


@cache
def shape_of(
    operation: Callable[..., Any],
    method: str,
    path: str,
    whole_body: str | None,
    names: tuple[tuple[str, str], ...],
    bound: tuple[str, ...],
) -> Shape:
    """`names` are those on the wire of parameters that have another name there; `bound` are known to the server."""
    hints = get_type_hints(operation, include_extras=True)
    renamed = dict(names)
    in_path = set(re.findall(r"{(\w+)}", path))
    parameters = []
    signature = inspect.signature(operation).parameters
    for name, given in list(signature.items())[2:]:  # behind the connection and the actor
        if name in bound:
            continue
        wire = renamed.get(name, name)
        is_beside = method in ("GET", "DELETE") or whole_body not in (None, name)
        place: Place = "query" if is_beside else "body"
        if wire in in_path:
            place = "path"
        elif name in IN_HEADERS:
            place = "header"
        required = given.default is inspect.Parameter.empty
        parameters.append(Parameter(name, wire, place, _without_none(hints[name]), required))
    answer = hints.get("return")
    if get_origin(answer) is list:
        answer = Page[get_args(answer)[0]]  # type: ignore[misc]
    return Shape(tuple(parameters), _body_type(operation, parameters, whole_body), whole_body, answer)


def _without_none(hint: Any) -> Any:
    """Distinguishes a parameter that is unset from one that is null."""
    if get_origin(hint) in (Union, types.UnionType) and hint != Duration:
        absent = msgspec.UnsetType if msgspec.UnsetType in get_args(hint) else type(None)
        kinds = [kind for kind in get_args(hint) if kind is not absent]
        if len(kinds) < len(get_args(hint)):
            joined: Any = Union[tuple(kinds)]  # noqa: UP007 - made at run time
            return joined
    return hint


def unwrapped(kind: Any) -> Any:
    """The type as a schema describes it: an abstract list or mapping as a concrete one."""
    return kind if kind == Duration or kind in READERS else _on_the_wire(kind)


def _body_type(operation: Callable[..., Any], parameters: list[Parameter], whole_body: str | None) -> Any:
    members = [parameter for parameter in parameters if parameter.place == "body"]
    if not members:
        return None
    if whole_body is not None:
        return next(parameter.type for parameter in members if parameter.name == whole_body)
    fields: list[Any] = []
    for member in sorted(members, key=lambda member: not member.required):
        kind = _on_the_wire(member.type)
        optional = (kind | msgspec.UnsetType, msgspec.UNSET)
        fields.append((member.wire, kind) if member.required else (member.wire, *optional))
    module = operation.__module__.rpartition(".")[2]
    name = "".join(word.capitalize() for word in f"{module}_{operation.__name__}_request".split("_"))
    return msgspec.defstruct(name, fields, forbid_unknown_fields=True)


def _on_the_wire(kind: Any) -> Any:
    """The type as msgspec reads it: a duration is a number or a text, a definition is checked by its own reader."""
    if kind == Duration or kind is timedelta:
        return float | str
    if kind in READERS:
        return dict[str, Any]
    if get_origin(kind) is Sequence:
        return list[get_args(kind)[0]]  # type: ignore[misc]
    if get_origin(kind) is Mapping:
        return dict[get_args(kind)]  # type: ignore[misc]
    return kind


# ── server: request → parameters ────────────────────────────────────────────────────────────────


def from_query(shape: Shape, pairs: Sequence[tuple[str, str]], *, also: Sequence[str] = ()) -> dict[str, Any]:
    """The parameters in a query; `also` are names that the caller reads itself."""
    found: dict[str, Any] = {}
    own = set[str]()
    faults: list[ValidationError] = []
    for wire, text in pairs:
        try:
            if wire in own:
                raise _twice(wire)
            if wire in also:
                own.add(wire)
            else:
                _read_pair(shape, wire, text, found, also)
        except ValidationError as error:
            faults.append(error)
    told = {fault.field for fault in faults}
    for parameter in shape.in_query.values():
        if parameter.required and parameter.name not in found and parameter.wire not in told:
            faults.append(ValidationError(f"{parameter.wire}: is missing", field=parameter.wire))
    if faults:
        raise together(faults)
    return found


def _read_pair(shape: Shape, wire: str, text: str, found: dict[str, Any], also: Sequence[str]) -> None:
    """Adds what one pair of a query says to what was found."""
    wanted, mappings = shape.in_query, shape.mappings
    member = _MEMBER.fullmatch(wire)
    if member is not None and member[1] in mappings:
        found.setdefault(mappings[member[1]].name, {})[member[2] or member[3]] = text
    elif wire not in wanted or wanted[wire].is_mapping:
        raise unknown(wire, [*wanted, *also], "parameter")
    elif wanted[wire].is_list:
        kind = get_args(wanted[wire].type)[0]
        found.setdefault(wanted[wire].name, []).append(from_text(text, kind, wire))
    elif wanted[wire].name in found:
        raise _twice(wire)
    else:
        found[wanted[wire].name] = from_text(text, wanted[wire].type, wire)


def _twice(wire: str) -> ValidationError:
    return ValidationError(f"{wire}: given twice; give it once", field=wire)


def from_text(text: str, kind: Any, field: str) -> Any:
    """One value of a path or a query."""
    if kind is timedelta:
        return timedelta(seconds=from_text(text, Duration, field))
    if kind == Duration:
        return seconds(float(text) if re.fullmatch(r"\d{1,18}(\.\d{1,18})?", text) else text, field=field)
    if kind is int and not _WHOLE.fullmatch(text):
        raise ValidationError(f"{field}: {shown(text)}; give a whole number", field=field)
    if kind is datetime:
        text = _SPACE_FOR_PLUS.sub("+", text)  # a plus that was not written as %2B
    return converted(text, kind, field, strict=kind is datetime)  # else a number would be seconds since 1970


def converted(value: Any, kind: Any, field: str, *, strict: bool = True) -> Any:
    """A value as its type; ValidationError says which part of it is wrong."""
    try:
        made = msgspec.convert(value, kind, strict=strict)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise _refused(error, field, value, kind) from None
    if isinstance(made, datetime) and made.tzinfo is None:
        raise ValidationError(f"{field}: {shown(value)} has no offset; write Z or +01:00 behind it", field=field)
    if isinstance(made, int) and not isinstance(made, bool) and abs(made) > MOST:
        raise ValidationError(f"{field}: {shown(made)} is too large; at most 2^53 - 1", field=field)
    return made


_VERSION = re.compile(r'(?:W/)?"v(\d{1,9})"')


def from_headers(shape: Shape, method: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """The preconditions of a change. One that cannot be checked is refused: its sender relies on it."""
    if method not in ("PUT", "PATCH", "DELETE"):
        return {}
    wanted = {parameter.name for parameter in shape.parameters if parameter.place == "header"}
    found: dict[str, Any] = {}
    if (match := headers.get("if-match")) is not None:
        if "version" not in wanted:
            raise ValidationError("if-match: this has no version; send the request without", field="if-match")
        found["version"] = _version(match)
    if "replace" in wanted and (none_match := headers.get("if-none-match")) is not None:
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


def from_body(shape: Shape, value: Any) -> dict[str, Any]:
    """The parameters in a body that was read as JSON. The error tells the faults of several members, where it can."""
    try:
        return _from_body(shape, value)
    except ValidationError as first:
        faults = [first]
    left = dict(value) if isinstance(value, dict) and len(value) <= MOST_MEMBERS else {}
    removed: set[str] = set()
    while len(faults) < MOST_FAULTS:
        wrong = _MEMBER_OF_PATH.split(faults[-1].field or "")[0]
        if wrong not in left:
            break
        del left[wrong]  # what is wrong with the others?
        removed.add(wrong)
        try:
            _from_body(shape, left)
        except ValidationError as error:
            if _MEMBER_OF_PATH.split(error.field or "")[0] in removed:
                break  # that it is missing is our doing
            faults.append(error)
        else:
            break
    if shape.body in VALUES and left:
        faults += VALUES[shape.body](left)
    raise together(faults)


def _from_body(shape: Shape, value: Any) -> dict[str, Any]:
    if shape.body is None:
        if value is not None and value != {}:  # many clients send an empty object with every POST
            raise ValidationError("body: this operation takes none; send it without", field="body")
        return {}
    if shape.whole_body is not None:
        reader = READERS.get(shape.body)
        return {shape.whole_body: converted(value, shape.body, "") if reader is None else reader(value)}
    members = converted({} if value is None else value, shape.body, "")
    wanted = (parameter for parameter in shape.parameters if parameter.place == "body")
    given = ((parameter, getattr(members, parameter.wire)) for parameter in wanted)
    return {one.name: _as_declared(one, member) for one, member in given if member is not msgspec.UNSET}


def _as_declared(parameter: Parameter, member: Any) -> Any:
    """What the operation expects of a member that is another type on the wire."""
    if parameter.type is timedelta:
        return timedelta(seconds=seconds(member, field=parameter.wire))
    reader = READERS.get(parameter.type)
    return member if reader is None else reader(member)


# Types with rules and errors of their own.
READERS: dict[Any, Callable[[Any], Any]] = {
    Definition: read_definition,
    ScheduleSpec: read_spec,
    AlertRuleSpec: read_rule,
    ChannelSpec: read_channel,
    Manifest: read_manifest,
}


# Types whose operation checks values: with a fault of another member it is not reached, so they are looked for here.
VALUES: dict[Any, Callable[[Mapping[str, Any]], list[ValidationError]]] = {NewTask: faults_of_values}


def _refused(error: Exception, field: str, value: Any, kind: Any) -> ValidationError:
    """msgspec's reason in our words: what, why, and what to write."""
    reason, _, path = str(error).partition(" - at `")
    at = path.removesuffix("`").removeprefix("$").removeprefix(".")
    name = ".".join(part for part in (field, at) if part) or "body"
    if reason.startswith("Object contains unknown field"):
        wrong = reason.split("`")[1]
        known = list(getattr(kind, "__struct_fields__", ()))
        return unknown(f"{at}.{wrong}" if at else wrong, known, "member")
    if reason.startswith("Object missing required field"):
        missing = reason.split("`")[1]
        return ValidationError(f"{missing}: is missing", field=f"{at}.{missing}" if at else missing)
    given = f"{shown(value)}; " if field and not at and isinstance(value, str) else ""  # a body may be a secret
    return ValidationError(f"{name}: {given}{_advice(reason, _kind_at(kind, at))}", field=name)


def _kind_at(kind: Any, path: str) -> Any:
    """The type of a part, by msgspec's name for it, such as `filter.state[...]`; None where there are several."""
    for part in re.findall(r"\[[^\]]*\]|\w+", path):
        kinds = [one for one in get_args(kind) if one not in (type(None), msgspec.UnsetType)]
        if get_origin(kind) in (Union, types.UnionType):
            kind, kinds = (kinds[0], list(get_args(kinds[0]))) if len(kinds) == 1 else (None, [])
        if part.startswith("["):
            kind = kinds[0] if get_origin(kind) in (list, Sequence) else None
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            kind = next((field.type for field in msgspec.structs.fields(kind) if field.encode_name == part), None)
        else:
            return None
    return kind


_ADVICE = {
    "Expected `int`": "give a whole number",
    "Expected `float`": "give a number",
    "Expected `bool`": "give true or false",
    "Expected `str`": "give text",
    "Expected `array`": "give a list",
    "Expected `object`": "give a JSON object",
    "Invalid RFC3339 encoded datetime": "write an instant with its offset, such as 2026-11-15T09:00:00+01:00",
}


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _advice(reason: str, kind: Any) -> str:
    """What to write in place of what msgspec refuses. `kind` is None where it is not known."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next((one for one in get_args(kind) if get_origin(one) is Literal or _is_enum(one)), kind)
    allowed = [str(one) for one in get_args(kind)] if get_origin(kind) is Literal else []
    if _is_enum(kind):
        allowed = [str(one.value) for one in kind]
    if allowed:
        return f"use {', '.join(allowed)}"
    start = next((start for start in _ADVICE if reason.startswith(start)), None)
    return reason[:1].lower() + reason[1:] if start is None else _ADVICE[start]
