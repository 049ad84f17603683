"""Reconnect: a circuit breaker for the new connections of one process.

A process has some twenty users of connections, and an outage of PostgreSQL takes all of them at once. While PostgreSQL
is up, at most MAX_CONNECTING connections are opened at a time. While it is down, one caller probes with backoff; the
rest await its result.

Next: store/postgres/connecting/connect.py
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from mainspring.errors import MainspringError, StoreUnavailable
from mainspring.store.postgres.connection import Connection

MAX_CONNECTING = 4
MIN_BACKOFF = 0.05  # seconds between two probes
MAX_BACKOFF = 1.0
BACKOFF_SHARE = 0.25  # of the outage so far: a short one is noticed soon, a long one is not hammered

Connect = Callable[[], Awaitable[Connection]]


class CircuitBreaker:
    def __init__(self) -> None:
        self._connecting = asyncio.Semaphore(MAX_CONNECTING)
        self._down_since: float | None = None  # on the loop's clock; None: PostgreSQL answered last time
        self._why = ""
        self._probe_at = 0.0
        self._probe: asyncio.Future[StoreUnavailable | None] | None = None

    @property
    def why_down(self) -> str | None:
        """What the last attempt met with; None: PostgreSQL answered it."""
        return None if self._down_since is None else self._why

    async def connect(self, connect: Connect) -> Connection:
        """A connection by `connect`, which raises StoreUnavailable while PostgreSQL is down; then so does this."""
        while True:
            if self._down_since is None:
                async with self._connecting:
                    if self._down_since is None:  # it may have gone down while this caller waited
                        return await self._open(connect)
            elif self._probe is None:
                return await self._probing(connect)
            elif (error := await asyncio.shield(self._probe)) is not None:
                raise error.for_another_caller()

    async def _open(self, connect: Connect) -> Connection:
        try:
            return await connect()
        except StoreUnavailable as error:
            if self._down_since is None:  # else another caller has noticed the same outage
                self._back_off(error)
            raise

    async def _probing(self, connect: Connect) -> Connection:
        """Probe for all callers. If this one is cancelled, the next caller probes."""
        self._probe = probe = asyncio.get_running_loop().create_future()
        found: StoreUnavailable | None = None
        try:
            await asyncio.sleep(self._probe_at - asyncio.get_running_loop().time())
            conn = await connect()
            self._down_since = None
            return conn
        except StoreUnavailable as error:
            found = error
            self._back_off(error)
            raise
        except MainspringError:
            self._down_since = None  # PostgreSQL answers, if only to refuse
            raise
        finally:
            self._probe = None
            probe.set_result(found)

    def _back_off(self, error: StoreUnavailable) -> None:
        self._why = error.message
        now = asyncio.get_running_loop().time()
        if self._down_since is None:
            self._down_since = now
        backoff = min(max((now - self._down_since) * BACKOFF_SHARE, MIN_BACKOFF), MAX_BACKOFF)
        self._probe_at = now + backoff * random.uniform(0.5, 1.5)
