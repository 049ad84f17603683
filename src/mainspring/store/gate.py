"""The gate that new connections of a process pass: a few at a time, and while PostgreSQL is away, one.

A process has some twenty users of connections. When PostgreSQL goes, all of them lose theirs in the same moment. The
first who comes for a new one knocks, after a pause that grows from knock to knock; the others wait for what it finds.

Next: store/dial.py
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from mainspring.errors import MainspringError, StoreUnavailable
from mainspring.store.connection import Connection

AT_A_TIME = 4
FIRST_PAUSE = 0.05  # seconds
LONGEST_PAUSE = 1.0

Dial = Callable[[], Awaitable[Connection]]


class Gate:
    def __init__(self) -> None:
        self._openings = asyncio.Semaphore(AT_A_TIME)
        self._faults = 0  # in a row; 0: PostgreSQL was there when somebody looked last
        self._again_at = 0.0  # on the loop's clock
        self._knock: asyncio.Future[StoreUnavailable | None] | None = None

    async def connect(self, dial: Dial) -> Connection:
        """A connection by `dial`, which raises StoreUnavailable if there is none to be had; then so do we."""
        while True:
            if not self._faults:
                async with self._openings:
                    if not self._faults:  # it may have gone while we waited
                        return await self._open(dial)
            elif self._knock is None:
                return await self._knocking(dial)
            elif (error := await asyncio.shield(self._knock)) is not None:
                raise StoreUnavailable(error.message) from error

    async def _open(self, dial: Dial) -> Connection:
        try:
            return await dial()
        except StoreUnavailable:
            if not self._faults:  # else others have found out in the same moment
                self._fault()
            raise

    async def _knocking(self, dial: Dial) -> Connection:
        """Knock for all. Whoever is cancelled here leaves it to the next."""
        self._knock = knock = asyncio.get_running_loop().create_future()
        found: StoreUnavailable | None = None
        try:
            await asyncio.sleep(self._again_at - asyncio.get_running_loop().time())
            conn = await dial()
            self._faults = 0
            return conn
        except StoreUnavailable as error:
            found = error
            self._fault()
            raise
        except MainspringError:
            self._faults = 0  # it answers, if only to refuse
            raise
        finally:
            self._knock = None
            knock.set_result(found)

    def _fault(self) -> None:
        self._faults += 1
        pause = min(FIRST_PAUSE * 2 ** min(self._faults, 10), LONGEST_PAUSE)
        self._again_at = asyncio.get_running_loop().time() + pause * random.uniform(0.5, 1.5)
