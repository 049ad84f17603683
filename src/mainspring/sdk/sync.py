"""Submission from sync code: through the loop that the application is open on, or one of our own in a thread.

Next: sdk/app.py
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from mainspring.errors import ValidationError

if TYPE_CHECKING:
    from mainspring.sdk.app import App

TIMEOUT = 60.0


class SyncBridge:
    def __init__(self, app: App) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def call(self, make: Callable[[], Coroutine[Any, Any, Any]], loop: asyncio.AbstractEventLoop | None = None) -> Any:
        """Run the coroutine on the application's loop, or the one given, and wait for it here."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ValidationError("enqueue_sync: this is async code; use `await enqueue()`", field="enqueue_sync")
        loop = loop or self._app.loop or self._own_loop()
        return asyncio.run_coroutine_threadsafe(make(), loop).result(TIMEOUT)

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="mainspring sync", daemon=True)
                self._thread.start()
                atexit.register(self.close)
            return self._loop

    def close(self) -> None:
        """Close what was opened for sync code. Runs at exit by itself."""
        with self._lock:
            loop, self._loop = self._loop, None
            thread, self._thread = self._thread, None
        if loop is not None and thread is not None:
            asyncio.run_coroutine_threadsafe(self._app.close(), loop).result(TIMEOUT)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
