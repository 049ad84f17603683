"""SyncBridge: sync code calls async code on the event loop of its owner, or on a loop in a thread of the bridge.

An owner is an application (sdk/lifecycle.py) or a client of a server (client/remote.py).
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from mainspring.errors import StoreUnavailable, ValidationError

R = TypeVar("R")
Make = Callable[[], Coroutine[Any, Any, R]]

SYNC_TIMEOUT = 60.0  # seconds, for calls that do not wait for a task


class Owner(Protocol):
    loop: asyncio.AbstractEventLoop | None  # on which it is open
    sync_loop: asyncio.AbstractEventLoop | None  # of the bridge

    async def close(self) -> None: ...


class SyncBridge:
    """`sync` and `plain` are what people call a method by its name: `enqueue_sync`, and `enqueue` in async code."""

    def __init__(self, owner: Owner, *, sync: str = "{}_sync", plain: str = "{}") -> None:
        self._owner = owner
        self._sync, self._plain = sync, plain
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(
        self,
        name: str,
        make: Make[R],
        timeout: float | None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> R:
        """Run the coroutine on the owner's loop or the one given, and block until it ends or times out."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            used, wanted = self._sync.format(name), self._plain.format(name)
            raise ValidationError(f"{used}: this is async code; use `await {wanted}()`", field=used)
        loop = loop or self._owner.loop
        if loop is None or loop.is_closed():
            loop = self._own_loop()
        future = asyncio.run_coroutine_threadsafe(make(), loop)
        try:
            concurrent.futures.wait([future], timeout)
        finally:
            future.cancel()  # no effect on one that is done: this is for a timeout or Ctrl-C
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            late = "" if timeout is None else f"no answer within {timeout:g} s, or "
            raise StoreUnavailable(
                f"{self._sync.format(name)}: {late}the event loop ended meanwhile; whether it was done is unknown"
            ) from None

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="mainspring sync", daemon=True)
                self._thread.start()
                self._owner.sync_loop = self._loop
                atexit.register(self.close)
            return self._loop

    def close(self) -> None:
        """Close what was opened for sync code. Registered with atexit."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
            self._owner.sync_loop = None
        if loop is not None and thread is not None:
            if self._owner.loop is loop:  # else it was opened on another loop since
                asyncio.run_coroutine_threadsafe(self._owner.close(), loop).result(SYNC_TIMEOUT)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
