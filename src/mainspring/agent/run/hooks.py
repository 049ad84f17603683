"""Hooks: calls the application's on_failure hooks, beside the attempts and in bounded time.

Each hook has its own queue: a slow one delays no other. A call has HOOK_TIMEOUT seconds: then an async one is
cancelled; a sync one is left in its thread, and its hook is not called again until it has returned. Beyond QUEUE
waiting failures the newest are dropped, and counted.
Next: agent/connection/outbox.py
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

import msgspec

from mainspring.loops import in_thread

log = logging.getLogger("mainspring.job")

QUEUE = 1000
HOOK_TIMEOUT = 10.0
CLOSE_TIMEOUT = 5.0
LOG_DROPPED_EVERY = 60.0  # seconds


class Failure(msgspec.Struct, frozen=True):
    """An attempt that failed, as `@app.on_failure` is given it."""

    job: str
    task_id: int
    attempt: int  # from 1
    attempts: int  # that its job allows
    error_code: str  # handler_error, timeout, exit_code, http_status, …
    message: str  # the first line says what happened
    exception: BaseException | None  # what a handler raised, with its traceback
    args: dict[str, Any]
    final: bool  # False: by its job's policy another attempt follows


FailureHook = Callable[[Failure], Any]  # or a coroutine function


class HookQueue:
    """The failures that wait for one hook."""

    def __init__(self, hook: FailureHook) -> None:
        self._hook = hook
        self._name = getattr(hook, "__qualname__", repr(hook))
        self._waiting: deque[tuple[Failure, Context]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._stuck: asyncio.Future[Any] | None = None  # a call that has exceeded its timeout
        self._dropped = 0

    def put(self, failure: Failure, context: Context) -> None:
        if len(self._waiting) >= QUEUE:
            self._dropped += 1
            return
        self._waiting.append((failure, context))
        if self._working is None or self._working.done():
            # In an empty context: it outlives the attempt that starts it.
            self._working = asyncio.get_running_loop().create_task(self._work(), context=Context())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        logged_at = loop.time()
        while self._waiting:
            await self._call(*self._waiting.popleft())
            if loop.time() - logged_at > LOG_DROPPED_EVERY:
                logged_at = loop.time()
                self._log_dropped()
        self._log_dropped()

    def _log_dropped(self) -> None:
        if self._dropped:
            log.error("on_failure: %s is too slow, it was not told of %d failures", self._name, self._dropped)
            self._dropped = 0

    async def _call(self, failure: Failure, context: Context) -> None:
        if self._stuck is not None and not self._stuck.done():
            self._dropped += 1
            return
        call: asyncio.Future[Any]
        context = context.copy()  # the original is shared with the other hooks
        if _is_async(self._hook):
            call = asyncio.get_running_loop().create_task(self._hook(failure), context=context)
        else:
            call = in_thread(partial(context.run, self._hook, failure), "mainspring-on-failure")
        try:
            await asyncio.wait([call], timeout=HOOK_TIMEOUT)
        except asyncio.CancelledError:
            call.cancel()
            raise
        if call.done():
            _log_error(self._name, call)
            return
        log.error("on_failure: %s did not end within %g s", self._name, HOOK_TIMEOUT)
        self._stuck = call
        if isinstance(call, asyncio.Task):
            call.cancel()

    async def close(self) -> None:
        """Finish the queue within CLOSE_TIMEOUT; log how many failures are left."""
        if self._working is None:
            return
        await asyncio.wait([self._working], timeout=CLOSE_TIMEOUT)
        if not self._working.done():
            left = len(self._waiting) + 1
            self._working.cancel()
            await asyncio.wait([self._working])
            log.error("on_failure: %s was not told of the last %d failures", self._name, left + self._dropped)
            self._waiting.clear()


def _is_async(hook: Any) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)


def _log_error(name: str, call: asyncio.Future[Any]) -> None:
    if call.cancelled():
        log.error("on_failure: %s cancelled itself", name)
    elif (error := call.exception()) is not None:
        log.error("on_failure: %s raised", name, exc_info=error)
