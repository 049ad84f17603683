"""Reading: JSON of a server that may be newer than this client.

Within v1 answers only grow: a member that is not known here is ignored, and a word that an enumeration lacks here is
kept as it came. Almost every answer is read by msgspec alone; the rest is read again, member by member.
Next: operations/parts/task_views.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from mainspring.model.tasks.states import TERMINAL, TaskState
from mainspring.store.views.task_views import TaskView

_PLAIN: dict[type[inspect.Type], Any] = {
    inspect.AnyType: Any,
    inspect.NoneType: None,
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BytesType: bytes,
    inspect.DateTimeType: datetime,
    inspect.DateType: date,
    inspect.TimeType: time,
    inspect.TimeDeltaType: timedelta,
    inspect.UUIDType: UUID,
    inspect.DecimalType: Decimal,
    inspect.RawType: Any,
}


def read(body: bytes | str, kind: Any) -> Any:
    """JSON as this type. MsgspecError if it lacks a member, or has one of another type."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        return _read(msgspec.json.decode(body), _described(kind))


@cache
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)


def _read(value: Any, kind: inspect.Type) -> Any:
    reader = _READERS.get(type(kind))
    return _read_plain(value, kind) if reader is None else reader(value, kind)


def _read_plain(value: Any, kind: inspect.Type) -> Any:
    return msgspec.convert(value, _PLAIN[type(kind)])


def _read_literal(value: Any, kind: inspect.LiteralType) -> Any:
    if not isinstance(value, tuple(type(known) for known in kind.values)):
        raise msgspec.ValidationError(f"Expected one of {kind.values}")
    return value


def _read_enum(value: Any, kind: inspect.EnumType) -> Any:
    try:
        return kind.cls(value)
    except ValueError:
        if not issubclass(kind.cls, str) or not isinstance(value, str):
            raise msgspec.ValidationError(f"Invalid enum value {value!r}") from None
        return _unknown_member(kind.cls, value)


def _unknown_member(kind: type[Enum], word: str) -> Any:
    """A member that this version does not know: text with a `value`, and equal to none that it knows."""
    member: Any = str.__new__(kind, word)  # type: ignore[type-var]
    member._name_ = member._value_ = word
    return member


def _read_struct(value: Any, kind: inspect.StructType) -> Any:
    if not isinstance(value, dict) or (kind.tag_field is not None and value.get(kind.tag_field) != kind.tag):
        raise msgspec.ValidationError(f"Expected {kind.cls.__name__}")
    return kind.cls(**_members(value, kind.fields))


def _members(value: dict[str, Any], known: Iterable[inspect.Field]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in known:
        if field.encode_name in value:
            found[field.name] = _read(value[field.encode_name], field.type)
        elif field.required:
            raise msgspec.ValidationError(f"Object missing required field `{field.encode_name}`")
    return found


def _read_union(value: Any, kind: inspect.UnionType) -> Any:
    """As the first of its types that takes it. Of a kind that none of them is: as it came."""
    for one in kind.types:
        try:
            return _read(value, one)
        except msgspec.ValidationError as error:
            refused = error
    tags = [one for one in kind.types if isinstance(one, inspect.StructType) and one.tag_field is not None]
    if isinstance(value, dict) and any(one.tag_field in value for one in tags):
        return value
    raise refused


def _items(value: Any, of: type) -> Any:
    if not isinstance(value, of):
        raise msgspec.ValidationError(f"Expected {of.__name__}")
    return value


_READERS: dict[type[inspect.Type], Callable[[Any, Any], Any]] = {
    inspect.LiteralType: _read_literal,
    inspect.EnumType: _read_enum,
    inspect.StructType: _read_struct,
    inspect.UnionType: _read_union,
    inspect.TypedDictType: lambda value, kind: _members(_items(value, dict), kind.fields),
    inspect.ListType: lambda value, kind: [_read(item, kind.item_type) for item in _items(value, list)],
    inspect.VarTupleType: lambda value, kind: tuple(_read(item, kind.item_type) for item in _items(value, list)),
    inspect.TupleType: lambda value, kind: tuple(map(_read, _items(value, list), kind.item_types)),
    inspect.DictType: lambda value, kind: {
        _read(name, kind.key_type): _read(item, kind.value_type) for name, item in _items(value, dict).items()
    },
}


def state_of(view: TaskView) -> TaskState | None:
    """None: a state that this version does not know."""
    return TaskState.from_label(view.state) if view.state in _LABELS else None


def has_ended(view: TaskView) -> bool:
    """Of a state that is not known here its `finished_at` tells."""
    state = state_of(view)
    return view.finished_at is not None if state is None else state in TERMINAL


_LABELS = frozenset(state.label for state in TaskState)
