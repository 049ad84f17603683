"""Python handlers: async ones on the event loop, sync ones in threads; for one task, or for a chunk of them.

Next: agent/run/endings.py
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec

from mainspring.agent.attempt import Attempt, AttemptFailed, ChunkCall, Executor, Exhausted, Outcome, Transactions
from mainspring.agent.context import Control, TaskCancelled, running, running_chunk
from mainspring.errors import ValidationError
from mainspring.model.tasks.jobs import Python


class Handler(msgspec.Struct, frozen=True):
    """A function of the application, and how its arguments and its result are converted from and to JSON."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    decode: Callable[[str], dict[str, Any]]  # raises ValueError
    encode: Callable[[Any], str]  # raises ValidationError
    takes_chunks: bool = False  # it takes a list, with an item for each task; `decode` gives {ITEM: item}
    decode_result: Callable[[str], Any] = msgspec.json.decode


ITEM = "item"


class PythonExecutor(Executor):
    def __init__(self, handlers: Mapping[str, Handler], transactions: Transactions | None, threads: int) -> None:
        self._handlers = handlers
        self._transactions = transactions
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="mainspring-handler")

    def prepare(self, attempt: Attempt) -> None:
        """Find the handler and decode its arguments before the instant."""
        spec = attempt.job.definition.run
        assert type(spec) is Python  # isinstance takes a microsecond with these
        handler = self._handlers.get(spec.handler)
        if handler is None:
            message = f"this agent's application has no handler {spec.handler!r}"
            attempt.prepared = AttemptFailed("unknown_handler", message)
            return
        try:
            attempt.args = handler.decode(attempt.armed.args)
        except ValueError as error:
            attempt.prepared = AttemptFailed("bad_arguments", f"{handler.name}: {error}", final=True)
            return
        attempt.transactions = self._transactions
        attempt.prepared = handler
        if attempt.armed.parents is not None:
            attempt.decoders = {name: each.decode_result for name, each in self._handlers.items()}
        if handler.takes_chunks:  # what its job says may be older or newer than this application
            attempt.chunk = spec.chunk or 1

    async def run(self, attempt: Attempt) -> str | None:
        handler = attempt.prepared
        if type(handler) is not Handler:
            raise handler
        running.set(attempt)
        try:
            if handler.is_async:
                value = await handler.function(**attempt.args)
            else:
                value = await _Thread(partial(handler.function, **attempt.args), attempt).run(self._threads)
        except (Control, Exhausted):
            raise
        except (asyncio.CancelledError, TaskCancelled) as error:
            if attempt.stopping is not None:
                raise
            raise _failed(error) from error  # raised by the handler itself: the agent did not stop it
        except BaseException as error:  # KeyboardInterrupt too: a real one comes as a signal, not from a handler
            raise _failed(error) from error
        if value is None:
            return None
        if isinstance(value, Control):
            raise value
        try:
            return handler.encode(value)
        except ValidationError as error:
            raise _bad_result(handler, value, error) from None

    async def run_chunk(self, call: ChunkCall) -> Sequence[Outcome]:
        members = call.members
        handler: Handler = members[0].prepared
        items = [attempt.args[ITEM] for attempt in members]
        running_chunk.set(tuple(members))
        try:
            if handler.is_async:
                values = await handler.function(items)
            else:
                values = await _Thread(partial(handler.function, items), call).run(self._threads)
        except (Control, Exhausted):
            raise
        except (asyncio.CancelledError, TaskCancelled) as error:
            if call.stopping is not None:
                raise
            raise _failed(error) from error
        except BaseException as error:
            raise _failed(error) from error
        return _outcomes(handler, values, len(members))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Thread:
    """One call in a thread, which can be interrupted between two bytecodes."""

    def __init__(self, function: Callable[[], Any], attempt: Attempt | ChunkCall) -> None:
        self._function = function
        self._attempt = attempt
        self._lock = threading.Lock()
        self._thread: int | None = None  # while the function runs
        self._stopped = False

    async def run(self, threads: ThreadPoolExecutor) -> Any:
        context = copy_context()
        try:
            future = asyncio.get_running_loop().run_in_executor(threads, context.run, self._call)
        except RuntimeError as error:  # the system starts no more threads, or the agent stops
            raise Exhausted(f"no thread for a sync handler: {error}") from None
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self._interrupt()
            # A thread in a blocking call cannot be stopped: after the grace the agent no longer waits for it.
            await asyncio.wait([future], timeout=self._attempt.grace)
            if future.done() and not future.cancelled():
                future.exception()  # retrieved, so that asyncio does not log it
            raise

    def _call(self) -> Any:
        with self._lock:
            if self._stopped:
                raise TaskCancelled
            self._thread = threading.get_ident()
        try:
            return self._function()
        except StopIteration as error:  # no future can hold one
            raise RuntimeError("the handler raised StopIteration") from error
        finally:
            with self._lock:
                self._thread = None

    def _interrupt(self) -> None:
        with self._lock:
            self._stopped = True
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(TaskCancelled)
                )


def _outcomes(handler: Handler, values: Any, tasks: int) -> list[Outcome]:
    """What a handler returned for a chunk: a result or an exception for each task, or nothing at all."""
    if values is None:
        return [None] * tasks
    if isinstance(values, Control):
        raise values
    if not isinstance(values, (list, tuple)):
        wanted = f"a list of {tasks} results, one for each task, or None"
        message = f"{handler.name} returned {type(values).__name__} for a chunk; it must return {wanted}"
        raise AttemptFailed("bad_result", message, final=True)
    if len(values) != tasks:
        message = f"{handler.name} returned {len(values)} results for {tasks} tasks; which is whose cannot be known"
        raise AttemptFailed("bad_result", message, final=True)
    return [_outcome(handler, value) for value in values]


def _outcome(handler: Handler, value: Any) -> Outcome:
    if value is None or isinstance(value, Control):
        return value
    if isinstance(value, BaseException):
        failure = _failed(value, first=0)
        failure.__cause__ = value
        return failure
    try:
        return handler.encode(value)
    except ValidationError as error:
        return _bad_result(handler, value, error)


def _bad_result(handler: Handler, value: Any, error: ValidationError) -> AttemptFailed:
    reason = error.message.removeprefix("result: ")
    message = f"{handler.name} returned {type(value).__name__}, which cannot be stored: {reason}"
    return AttemptFailed("bad_result", message, final=True)


def _failed(error: BaseException, first: int = 1) -> AttemptFailed:
    """The failure as it is stored: the last line of the traceback first, then all of it from frame `first` on: that
    before it is this module's."""
    kinds = [kind for kind in type(error).__mro__ if kind not in (object, BaseException)]
    labels = tuple(label for kind in kinds for label in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}"))
    trace = error.__traceback__.tb_next if first and error.__traceback__ else error.__traceback__
    try:
        trace_text = "".join(traceback.format_exception(type(error), error, trace))
        headline = "".join(traceback.format_exception_only(error)).strip()
    except Exception:  # the __str__ of a user's exception
        headline, trace_text = type(error).__name__, "(it cannot be printed)"
    return AttemptFailed("handler_error", f"{headline}\n\n{trace_text}", labels=labels)
