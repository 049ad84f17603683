"""Define: a function, a program or a URL becomes a job of an application, with its schedule and its handler.

Next: sdk/job.py
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

import msgspec
from msgspec.structs import replace

from mainspring.agent.executors.python import Handler
from mainspring.errors import ValidationError, shown
from mainspring.model.tasks.define_job import define, handler
from mainspring.model.tasks.jobs import Definition, Run
from mainspring.model.tasks.payload import decode, encode
from mainspring.model.words.names import check_name
from mainspring.sdk.chunk_signature import ChunkSignature
from mainspring.sdk.job import ChunkJob, Job
from mainspring.sdk.schedules import JobOptions, Planned
from mainspring.sdk.signature import Signature, encode_result

if TYPE_CHECKING:
    from mainspring.sdk.app import App

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
K = TypeVar("K")


class EachTask:
    """A call of the handler for each task."""


class ManyTasks:
    """A call of the handler for a chunk of tasks."""


class Decorator(Generic[K]):
    """What `@app.job(…)` gives: the overloads take the result's type from an async or a sync handler. With `chunk` the
    handler takes and returns lists, and a task has one item of each.

    Its parameter is for type checkers alone. With options that they cannot look into, it is any, and they see a call
    for each task.
    """

    def __init__(self, register: Callable[[Callable[..., Any]], Job[..., Any]]) -> None:
        self._register = register

    @overload
    def __call__(self: Decorator[EachTask], function: Callable[P, Coroutine[Any, Any, R]]) -> Job[P, R]: ...
    @overload
    def __call__(self: Decorator[EachTask], function: Callable[P, R]) -> Job[P, R]: ...
    @overload
    def __call__(
        self: Decorator[ManyTasks], function: Callable[[list[A]], Coroutine[Any, Any, None]]
    ) -> ChunkJob[A, None]: ...
    @overload
    def __call__(
        self: Decorator[ManyTasks], function: Callable[[list[A]], Coroutine[Any, Any, Sequence[R | BaseException]]]
    ) -> ChunkJob[A, R]: ...
    @overload
    def __call__(self: Decorator[ManyTasks], function: Callable[[list[A]], None]) -> ChunkJob[A, None]: ...
    @overload
    def __call__(
        self: Decorator[ManyTasks], function: Callable[[list[A]], Sequence[R | BaseException]]
    ) -> ChunkJob[A, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Any:
        return self._register(function)


def add_handler(app: App, function: Callable[..., Any], name: str | None, options: Any) -> Job[..., Any]:
    """A job that runs a function of the application."""
    if not inspect.isfunction(function):
        raise ValidationError(f"{shown(function)} is not a function; @app.job goes above a def", field="handler")
    name = app.full_name(function.__name__ if name is None else name)
    if function.__doc__ and "description" not in options:
        options = {**options, "description": inspect.cleandoc(function.__doc__).partition("\n")[0]}
    options = dict(options)
    chunk, chunk_wait = options.pop("chunk", None), options.pop("chunk_wait", None)
    signature = Signature(name, function) if chunk is None else ChunkSignature(name, function)
    options, planned = app.schedules.take(name, options, signature.check)
    run = handler(name, signature.takes, chunk, chunk_wait, signature.arguments)
    definition = define(run, options, requires={"app": app.name})
    if definition.placement.sticky is not None:
        signature.check_parameter(definition.placement.sticky, field="sticky")
    if (gate := definition.gate) is not None:
        for argument in gate.arguments:
            signature.check_parameter(argument, field="concurrency_key")
        definition = replace(definition, gate=replace(gate, defaults=signature.defaults(gate.arguments)))
    is_async = inspect.iscoroutinefunction(function)
    # The result of a broadcast is a report on its runs, whatever the handler returns.
    decode = msgspec.json.decode if definition.placement.broadcast else signature.decode_result
    kind: type[Job[..., Any]] = Job if chunk is None else ChunkJob
    job = kind(app, name, signature.bind, function, decode, signature.check)
    ours = Handler(name, function, is_async, signature.decode, encode_result, chunk is not None, decode)
    _add(app, job, definition, planned, ours)
    return job


def add_call(app: App, name: str, run: Run, options: JobOptions) -> Job[..., Any]:
    """A job that runs a program or calls a URL. Its arguments go by name."""
    name = app.full_name(name)
    policies, planned = app.schedules.take(name, options, _check_command)
    job: Job[..., Any] = Job(app, name, _bind_command, None, msgspec.json.decode, _check_command)
    _add(app, job, define(run, policies), planned)
    return job


def _add(
    app: App, job: Job[..., Any], definition: Definition, planned: Planned | None, runs: Handler | None = None
) -> None:
    """Add what is checked: a definition that is refused leaves nothing behind."""
    name = job.name
    if name in app.definitions:
        raise ValidationError(
            f"a job named {shown(name)} is defined already; give one of them another name", field="name"
        )
    if planned is not None:
        app.schedules.check_limits(planned, definition)
    if runs is not None:
        app.handlers[name] = runs
    app.definitions[name], app.jobs[name] = definition, job
    if planned is not None:
        app.schedules.add(planned)
    app.changed()


def check_prefix(prefix: object) -> str:
    """Visible characters such as "shop.", or none."""
    if not isinstance(prefix, str) or prefix != prefix.lstrip():
        raise ValidationError(f'prefix: {shown(prefix)}; give text such as "shop."', field="prefix")
    if not prefix:
        return ""
    check_name(f"{prefix}x", field="prefix")
    return prefix


def check_version(version: object) -> int:
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version < 2**31:
        raise ValidationError(f"version: {shown(version)}; give a number from 0 to 2147483647", field="version")
    return version


def _bind_command(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A command finds its arguments as JSON in MAINSPRING_ARGS, an HTTP call sends them: by name."""
    if args:
        raise ValidationError("args: commands and HTTP calls take named arguments only", field="args")
    return encode(dict(kwargs), "args") if kwargs else "{}"


def _check_command(args: Mapping[str, Any], *, has_scopes: bool) -> dict[str, Any]:
    """The arguments of a schedule of a command or an HTTP call: any, by name."""
    plain: dict[str, Any] = decode(_bind_command((), args), "args")
    return plain
