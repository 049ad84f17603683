"""Lifecycle: the database and resources that an application has open, on one event loop at a time.

Opens are counted: `async with app:` inside another one, or inside `app.running()`, shares what is open, and the last
close closes it. A running engine holds it separately, so that one `close()` too many cannot close its database.
The first submission opens it without a count: the next close closes it, or the end of its event loop.
What the application defines while it is open is registered soon, and before its next submission.
Next: compose/local.py
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from mainspring.compose import local, stores
from mainspring.errors import StoreUnavailable, ValidationError
from mainspring.operations.requests.group_commit import Send, Submissions
from mainspring.operations.work.waiting import Waiting
from mainspring.store.postgres.database import Database

log = logging.getLogger("mainspring")

RETRY_AFTER = 1.0  # seconds, if PostgreSQL does not answer a registration

Resource = Callable[[], AbstractAsyncContextManager[Any]]


class Lifecycle:
    """`settings` makes settings of overrides; `register` writes the application's jobs; `send` submits tasks."""

    def __init__(
        self, settings: Callable[..., local.Settings], register: Callable[[Database], Awaitable[None]], send: Send[int]
    ) -> None:
        self._make_settings = settings
        self._register = register
        self._send = send
        self.resources: list[Resource] = []  # of the application, open as long as the database
        self.loop: asyncio.AbstractEventLoop | None = None  # on which it is open, opening or closing
        self.sync_loop: asyncio.AbstractEventLoop | None = None  # of sync.py
        self.database: Database | None = None
        self.waiting: Waiting | None = None
        self.submissions: Submissions[int] | None = None
        self._settings: local.Settings | None = None
        self._stack: AsyncExitStack | None = None
        self._opens = 0
        self._holds = 0
        self._changes = 0  # of what the application defines
        self._registered = 0  # of them
        self._owns_jobs = False  # it registers; on an agent's database its servers do
        self._registering: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._lock_loop: asyncio.AbstractEventLoop | None = None

    async def open(self, overrides: Mapping[str, Any]) -> None:
        """Open it, or count one more open. A failed open is not counted."""
        async with self._changing():
            await self._open(overrides)
            self._opens += 1

    @property
    def is_open(self) -> bool:
        return self.database is not None

    def opened(self) -> Database:
        """Its database. ValidationError if it is not open, or open on another event loop."""
        if self.database is None:
            if stores.lacks_database():
                raise stores.no_database()
            raise ValidationError("the application is not open; use `async with app:` or `app.running()`", field="app")
        self.check_loop()
        return self.database

    async def ensure(self) -> None:
        """Open it if it is not, for a caller that will not close it."""
        if self.sync_loop is not None:
            await self._leave_sync_loop()
        self.check_loop()
        if not self.is_open:
            async with self._changing():
                await self._open({})

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call it before the database closes, which is open."""
        assert self._stack is not None
        self._stack.push_async_callback(close)

    @asynccontextmanager
    async def held(self, overrides: Mapping[str, Any]) -> AsyncIterator[Database]:
        """Open until the block ends, whatever `close()` is called."""
        async with self._changing():
            await self._open(overrides)
            self._holds += 1
        async with self._release_at_end():
            assert self.database is not None
            yield self.database

    @asynccontextmanager
    async def attached(self, database: Database | None) -> AsyncIterator[None]:
        """Open until the block ends on the database of an agent, if it has one. Nothing is registered."""
        async with self._changing(), AsyncExitStack() as stack:
            self.loop = asyncio.get_running_loop()
            self._owns_jobs = False
            await self._take(stack, database)
            self._holds += 1
        async with self._release_at_end():
            yield

    # ── what is defined while it is open ────────────────────────────────────────────────────────

    @property
    def is_stale(self) -> bool:
        """Whether it is open and its database lacks something that the application has defined since."""
        return self._registered != self._changes and self._owns_jobs and self.database is not None

    def changed(self) -> None:
        """The application has defined more. Called from any thread."""
        self._changes += 1
        if self.is_stale and self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._start_registering)

    async def register_more(self) -> None:
        """Register what was defined since the last registration. Raises what is wrong with it."""
        self.check_loop()
        while self.is_stale:
            await asyncio.shield(self._start_registering())

    def _start_registering(self) -> asyncio.Task[None]:
        running = self._registering
        if running is None or running.done() or running.get_loop() is not self.loop:
            running = self._registering = asyncio.create_task(self._register_now(), name="mainspring register")
            running.add_done_callback(self._ended_registering)
        return running

    async def _register_now(self) -> None:
        if self.database is not None:
            changes = self._changes
            await self._register(self.database)
            self._registered = changes

    def _ended_registering(self, registering: asyncio.Task[None]) -> None:
        if registering.cancelled() or (error := registering.exception()) is None or not self.is_stale:
            return
        log.warning("what the application has defined since it opened is not registered: %s", error)
        if isinstance(error, StoreUnavailable):
            registering.get_loop().call_later(RETRY_AFTER, self._retry_registering)

    def _retry_registering(self) -> None:
        if self.is_stale:
            self._start_registering()

    @asynccontextmanager
    async def _release_at_end(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            self._holds -= 1
            async with self._changing():
                await self._close_if_unused()

    async def close(self) -> None:
        """Undo one open; the last one closes. No effect if nothing is open."""
        await self._leave_sync_loop()
        self.check_loop()
        self._opens = max(0, self._opens - 1)
        async with self._changing():
            await self._close_if_unused()

    def check_loop(self) -> None:
        """ValidationError if it is open on another event loop. What was left open on a closed loop is dropped."""
        if self.loop is None or self.loop is asyncio.get_running_loop():
            return
        if self.loop.is_closed():
            self._forget()
            self._stack = self.loop = None
            self._opens = self._holds = 0
            return
        raise ValidationError(
            "the application is open on another event loop; use it there, or enqueue_sync() from threads", field="app"
        )

    async def _leave_sync_loop(self) -> None:
        """Close, for async code, what only sync submissions have opened on their loop."""
        if self.loop is None or self.loop is not self.sync_loop or self.loop is asyncio.get_running_loop():
            return
        if not self._opens and not self._holds:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.close(), self.loop))

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """One caller at a time opens or closes."""
        await self._leave_sync_loop()
        self.check_loop()
        loop = asyncio.get_running_loop()
        if self._lock_loop is not loop:
            self._lock, self._lock_loop = asyncio.Lock(), loop
        async with self._lock:
            self.check_loop()  # while this waited, it may have been closed and opened on another loop
            yield

    async def _open(self, overrides: Mapping[str, Any]) -> None:
        if self.is_open:
            self._check_database(overrides)
            return
        loop_before, self.loop = self.loop, asyncio.get_running_loop()
        try:
            async with AsyncExitStack() as stack:
                await self._connect(stack, overrides)
        except BaseException:
            self.loop = loop_before
            raise

    async def _connect(self, stack: AsyncExitStack, overrides: Mapping[str, Any]) -> None:
        self._settings = self._make_settings(**overrides)
        database = await stack.enter_async_context(stores.open_database(self._settings))
        self._owns_jobs, changes = True, self._changes
        await self._register(database)
        self._registered = changes
        await self._take(stack, database)

    async def _take(self, stack: AsyncExitStack, database: Database | None) -> None:
        """Keep what the stack holds, and open the resources inside it: they may use the database to the end."""
        if database is not None:
            self.database, self.waiting = database, Waiting(database)
            self.submissions = Submissions(self._send)
            stack.push_async_callback(self.waiting.close)
            stack.callback(self._forget)
        for resource in self.resources:
            await stack.enter_async_context(resource())
        self._stack = stack.pop_all()

    def _forget(self) -> None:
        self.database = self.waiting = self.submissions = None

    def _check_database(self, overrides: Mapping[str, Any]) -> None:
        """Refuse overrides that name another database than the one that is open."""
        for name in ("dsn", "data_directory"):
            asked = overrides.get(name)
            if asked is not None and asked != getattr(self._settings, name):
                raise ValidationError(
                    f"{name}: the application is open on another database already; close it first", field=name
                )

    async def _close_if_unused(self) -> None:
        if self._opens or self._holds or self._stack is None:
            return
        stack, self._stack = self._stack, None
        try:
            await stack.aclose()
        finally:
            self.loop = None
