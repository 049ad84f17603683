"""ChunkSignature: how one task's arguments become JSON, and an item of the list that a handler with `chunk` takes.

    @app.job(chunk=100)
    async def load(rows: list[Row]) -> None: ...

An item that is an object, as a dataclass, a model or a dict, is the arguments of its task: `load.enqueue(row)`, or
`load.enqueue(id=1, name="x")`, stores its fields by name. Any other item is stored under the name of the parameter.
Next: sdk/define.py
"""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
from msgspec.inspect import AnyType, DataclassType, DictType, Field, StructType, TypedDictType, type_info

from mainspring.agent.executors.python import ITEM
from mainspring.errors import ValidationError, shown
from mainspring.model.schedules.schedules import FILLED
from mainspring.model.tasks.jobs import Argument
from mainspring.model.tasks.payload import encode
from mainspring.sdk.models import Model, model_of
from mainspring.sdk.signature import MOST_ARGUMENTS, foreign_type, hint_of, result_decoder

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_FIELDS = (StructType, DataclassType, TypedDictType)


class ChunkSignature:
    def __init__(self, job: str, function: Callable[..., Any]) -> None:
        self._job = job
        self._parameter = _only_parameter(job, function)
        hint = _item_hint(job, self._parameter, hint_of(function, self._parameter))
        self._model: Model | None = None
        self._fields: dict[str, Any] | None = None  # by name their defaults; None: they are not known
        self._is_object = True
        self._decoder = self._make_decoder(hint)
        self.decode_result = result_decoder(function, _result_hint(hint_of(function, "return")))

    def _make_decoder(self, hint: Any) -> msgspec.json.Decoder[Any]:
        """A decoder for one item; Pydantic reads its own types."""
        try:
            self._model = model_of(hint)
            if self._model is not None:
                self._is_object, self._fields = self._model.fields()
                return msgspec.json.Decoder(msgspec.Raw)
            info = type_info(hint)
            if (found := foreign_type(info)) is not None:
                raise TypeError(f"{shown(found)} is not JSON, nor a dataclass or another type that can be made of it")
            if isinstance(info, _FIELDS):
                self._fields = {field.encode_name: _default(field) for field in info.fields}
            self._is_object = isinstance(info, (*_FIELDS, DictType, AnyType))
            return msgspec.json.Decoder(hint)
        except TypeError as error:
            raise ValidationError(f"{self._job}: its arguments cannot cross JSON: {error}", field="handler") from None

    # ── at enqueue ──────────────────────────────────────────────────────────────────────────────

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The arguments of one task, as JSON by name; a ValidationError if the handler could not take them."""
        if len(args) + bool(kwargs) != 1 or (kwargs and not self._is_object and set(kwargs) != {self._parameter}):
            raise ValidationError(
                f"args: {self._job} takes one item of its list for each task: {self._usage()}", field="args"
            )
        item = args[0] if args else dict(kwargs)
        if kwargs and not self._is_object:
            item = kwargs[self._parameter]
        if self._model is not None:
            item = self._model.check(item, self._parameter)
        text = encode(item if self._is_object else {self._parameter: item}, "args")
        if self._is_object and not text.startswith("{"):
            raise ValidationError(
                f"args: {shown(item)} is not the arguments of a task of {self._job}: {self._usage()}", field="args"
            )
        if self._model is None:
            self._check_text(text, has_names=isinstance(item, Mapping))
        return text

    def _usage(self) -> str:
        if not self._is_object:
            return f"enqueue({self._parameter[:1]}) with a single value"
        known = "" if self._fields is None else f", of the fields {', '.join(self._fields)}"
        return f"give a dict or an object{known}"

    def _check_text(self, text: str, *, has_names: bool) -> None:
        try:
            self.decode(text)
        except ValueError as error:
            raise ValidationError(f"args: {self._job}: {error}", field="args") from None
        if has_names:
            self._check_names(msgspec.json.decode(text, type=dict[str, msgspec.Raw]))

    def _check_names(self, given: Iterable[str]) -> None:
        unknown = [] if self._names is None else sorted(set(given) - set(self._names))
        if unknown:
            raise ValidationError(
                f"args: {self._job}: there is no field {shown(unknown[0])}; {self._usage()}", field="args"
            )

    # ── for schedules and limits ────────────────────────────────────────────────────────────────

    @property
    def _names(self) -> Iterable[str] | None:
        """The names of a task's arguments; None: any."""
        if not self._is_object:
            return (self._parameter,)
        return self._fields

    def check_parameter(self, name: str, *, field: str) -> None:
        """ValidationError if a task has no argument of this name."""
        if self._names is not None and name not in self._names:
            raise ValidationError(f"{field}: a task of {self._job} has no argument {shown(name)}", field=field)

    def defaults(self, names: Iterable[str]) -> dict[str, str]:
        """Argument → its default as text, of those of `names` that have one."""
        found = {}
        for name in names:
            default = (self._fields or {}).get(name, msgspec.NODEFAULT)
            if default is not msgspec.NODEFAULT:
                text = encode(default, name)
                value = msgspec.json.decode(text)
                found[name] = value if isinstance(value, str) else text
        return found

    @property
    def takes(self) -> tuple[str, ...]:
        """The arguments that the planner fills."""
        return tuple(name for name in FILLED if self._names is not None and name in self._names)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """What a form asks for; nothing where the fields of an item are not known."""
        fields = self._fields or {}
        return tuple(
            Argument(name, "any", fields.get(name, msgspec.NODEFAULT) is msgspec.NODEFAULT)
            for name in list(self._names or ())[:MOST_ARGUMENTS]
        )

    def check(self, args: Mapping[str, Any], *, has_scopes: bool) -> dict[str, Any]:
        """The arguments of a schedule as JSON values; the planner adds those of `takes`, which are not checked."""
        text = encode(dict(args), "args")
        self._check_names(args)
        filled = [name for name in self.takes if name not in args and (name != "scope" or has_scopes)]
        if not filled:
            try:
                self.decode(text)
            except ValueError as error:
                raise ValidationError(
                    f"args: {self._job}: {error}; a schedule needs args={{…}} for a task's arguments", field="args"
                ) from None
        plain: dict[str, Any] = msgspec.json.decode(text)
        return plain

    # ── at the start ────────────────────────────────────────────────────────────────────────────

    def decode(self, text: str) -> dict[str, Any]:
        """One item of the handler's list. Raises ValueError if the arguments do not fit."""
        if self._is_object:
            item = self._decoder.decode(text)
        else:
            given = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            if given.keys() != {self._parameter}:
                raise ValueError(f"expected one argument, `{self._parameter}`")
            item = self._decoder.decode(given[self._parameter])
        if self._model is not None:
            item = self._model.decode(bytes(item), self._parameter)
        elif self._is_object and not text.startswith("{"):
            raise ValueError("expected an object")
        return {ITEM: item}


def _only_parameter(job: str, function: Callable[..., Any]) -> str:
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.POSITIONAL_ONLY,
    ):
        raise ValidationError(
            f"{job}: with chunk a handler takes one parameter, a list with the arguments of each task: "
            "def load(rows: list[Row])",
            field="handler",
        )
    return parameters[0].name


def _item_hint(job: str, parameter: str, hint: Any) -> Any:
    """What one item of the list is."""
    if hint in (Any, *_LISTS):
        return dict[str, Any]
    if get_origin(hint) in _LISTS:
        (item,) = get_args(hint)
        return dict[str, Any] if item is Any else item
    raise ValidationError(
        f"{job}: {parameter} is {shown(hint)}; with chunk it is a list, with an item for each task: list[Row]",
        field="handler",
    )


def _result_hint(hint: Any) -> Any:
    """What one task returns: an item of the list that the handler returns, without exceptions."""
    items = [item for part in _parts(hint) if get_origin(part) in (*_LISTS, tuple) for item in get_args(part)[:1]]
    kinds = [
        kind
        for item in items
        for kind in _parts(item)
        if not (isinstance(kind, type) and issubclass(kind, BaseException))
    ]
    if not kinds:
        return None if items else Any
    found = kinds[0]
    for kind in kinds[1:]:
        found = found | kind
    return found


def _parts(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _default(field: Field) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default
