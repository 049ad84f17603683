"""Hooks: the application's functions that are told of failures, beside the attempts and in bounded time.

One failure after another, each hook at most HOOK_TIMEOUT seconds: an async one is cancelled then, a sync one is left in
its thread and told nothing more until it returns. Beyond QUEUE waiting failures the newest are dropped, and counted.
Next: agent/outbox.py
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mainspring.agent.failures import Failure

log = logging.getLogger("mainspring.job")

FailureHook = Callable[["Failure"], Any]  # or a coroutine function

QUEUE = 1000
HOOK_TIMEOUT = 10.0
CLOSE_TIMEOUT = 5.0
SAY_EVERY = 60.0  # seconds, while failures are dropped all the time


class Hooks:
    def __init__(self, timeout: float = HOOK_TIMEOUT) -> None:
        self._timeout = timeout
        self._waiting: deque[tuple[Sequence[FailureHook], Failure, Context]] = deque()
        self._working: asyncio.Task[None] | None = None
        self._stuck: set[FailureHook] = set()  # sync ones that have not returned
        self._dropped = 0

    def put(self, hooks: Sequence[FailureHook], failure: Failure) -> None:
        """Tell the hooks, soon."""
        if len(self._waiting) >= QUEUE:
            self._dropped += 1
            return
        self._waiting.append((hooks, failure, copy_context()))  # so that what they log has its job and task
        if self._working is None or self._working.done():
            # In a context of its own: it goes on for other attempts.
            self._working = asyncio.get_running_loop().create_task(self._work(), context=Context())

    async def _work(self) -> None:
        said = asyncio.get_running_loop().time()
        while self._waiting:
            hooks, failure, context = self._waiting.popleft()
            for hook in tuple(hooks):
                await self._call(hook, failure, context)
            if self._dropped and asyncio.get_running_loop().time() - said > SAY_EVERY:
                said = asyncio.get_running_loop().time()
                self._say_dropped()
        self._say_dropped()

    def _say_dropped(self) -> None:
        if self._dropped:
            log.error("on_failure: its hooks are too slow, %d failures were not told to them", self._dropped)
            self._dropped = 0

    async def _call(self, hook: FailureHook, failure: Failure, context: Context) -> None:
        if hook in self._stuck:
            self._dropped += 1
            return
        name = getattr(hook, "__qualname__", repr(hook))
        loop = asyncio.get_running_loop()
        context = context.copy()  # one that hangs stays in its own
        call: asyncio.Future[Any]
        if _is_async(hook):
            call = loop.create_task(hook(failure), context=context)
        else:
            call = _in_thread(loop, lambda: context.run(hook, failure))
        await asyncio.wait([call], timeout=self._timeout)
        if call.done():
            _tell(name, call)
            return
        log.error("on_failure: %s did not end within %g s", name, self._timeout)
        self._stuck.add(hook)
        call.add_done_callback(lambda _: self._stuck.discard(hook))
        if isinstance(call, asyncio.Task):
            call.cancel()

    async def close(self) -> None:
        """Let those that wait be told, within CLOSE_TIMEOUT."""
        if self._working is None:
            return
        await asyncio.wait([self._working], timeout=CLOSE_TIMEOUT)
        if not self._working.done():
            self._working.cancel()
            log.error("on_failure: %d failures were not told to the hooks any more", len(self._waiting))
            await asyncio.wait([self._working])


def _is_async(hook: Any) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)


def _in_thread(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> asyncio.Future[Any]:
    """In a daemon thread, so that one that hangs does not keep the process from ending."""
    ended: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def call() -> None:
        try:
            ended.set_result(function())
        except BaseException as error:
            ended.set_exception(RuntimeError("StopIteration") if isinstance(error, StopIteration) else error)

    future = asyncio.wrap_future(ended, loop=loop)
    threading.Thread(target=call, name="mainspring-on-failure", daemon=True).start()
    return future


def _tell(name: str, call: asyncio.Future[Any]) -> None:
    """Log what a hook raised."""
    if call.cancelled():
        log.error("on_failure: %s cancelled itself", name)
    elif (error := call.exception()) is not None:
        log.error("on_failure: %s raised", name, exc_info=error)
