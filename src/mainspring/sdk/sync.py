"""Sync code: submits and waits through the loop that the application is open on, or one of our own in a thread.

Next: sdk/app.py
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.errors import StoreUnavailable, ValidationError

if TYPE_CHECKING:
    from mainspring.sdk.opening import Opening

R = TypeVar("R")
Make = Callable[[], Coroutine[Any, Any, R]]

SYNC_TIMEOUT = 60.0  # seconds for what does not wait for a task


class SyncBridge:
    def __init__(self, opening: Opening) -> None:
        self._opening = opening
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
        """Run the coroutine on the application's loop, or the one given, and wait for it here: `timeout` seconds, or to
        its end."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ValidationError(f"{name}_sync: this is async code; use `await {name}()`", field=f"{name}_sync")
        loop = loop or self._opening.loop
        if loop is None or loop.is_closed():
            loop = self._own_loop()
        future = asyncio.run_coroutine_threadsafe(make(), loop)
        try:
            concurrent.futures.wait([future], timeout)
        finally:
            future.cancel()  # if it goes on: too long, or Ctrl-C while we wait
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise StoreUnavailable(
                f"{name}_sync: no answer within {SYNC_TIMEOUT:g} s, or the application's event loop ended meanwhile; "
                "whether it was done is unknown"
            ) from None

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="mainspring sync", daemon=True)
                self._thread.start()
                self._opening.sync_loop = self._loop
                atexit.register(self.close)
            return self._loop

    def close(self) -> None:
        """Close what was opened for sync code. Runs at exit by itself."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
            self._opening.sync_loop = None
        if loop is not None and thread is not None:
            if self._opening.loop is loop:  # it may have been opened elsewhere since
                asyncio.run_coroutine_threadsafe(self._opening.close(), loop).result(SYNC_TIMEOUT)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
