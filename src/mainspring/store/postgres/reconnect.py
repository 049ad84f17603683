"""The entrance that new connections of a process pass: a few at a time, and while PostgreSQL is away, one.

A process has some twenty users of connections. When PostgreSQL goes, all of them lose theirs in the same moment. The
first who comes for a new one knocks, after a pause that grows from knock to knock; the others wait for what it finds.

Next: store/postgres/connect.py
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from mainspring.errors import MainspringError, StoreUnavailable
from mainspring.store.postgres.connection import Connection

AT_A_TIME = 4
SHORTEST_PAUSE = 0.05  # seconds between two knocks
LONGEST_PAUSE = 1.0
PAUSE_SHARE = 0.25  # of the time that it has been away: short outages are noticed soon, long ones are not hammered

Dial = Callable[[], Awaitable[Connection]]


class Entrance:
    def __init__(self) -> None:
        self._openings = asyncio.Semaphore(AT_A_TIME)
        self._away_since: float | None = None  # on the loop's clock; None: it was there when somebody looked last
        self._again_at = 0.0
        self._knock: asyncio.Future[StoreUnavailable | None] | None = None

    async def connect(self, dial: Dial) -> Connection:
        """A connection by `dial`, which raises StoreUnavailable if there is none to be had; then so do we."""
        while True:
            if self._away_since is None:
                async with self._openings:
                    if self._away_since is None:  # it may have gone while we waited
                        return await self._open(dial)
            elif self._knock is None:
                return await self._knocking(dial)
            elif (error := await asyncio.shield(self._knock)) is not None:
                raise StoreUnavailable(error.message) from error

    async def _open(self, dial: Dial) -> Connection:
        try:
            return await dial()
        except StoreUnavailable:
            if self._away_since is None:  # else others have found out in the same moment
                self._away()
            raise

    async def _knocking(self, dial: Dial) -> Connection:
        """Knock for all. Whoever is cancelled here leaves it to the next."""
        self._knock = knock = asyncio.get_running_loop().create_future()
        found: StoreUnavailable | None = None
        try:
            await asyncio.sleep(self._again_at - asyncio.get_running_loop().time())
            conn = await dial()
            self._away_since = None
            return conn
        except StoreUnavailable as error:
            found = error
            self._away()
            raise
        except MainspringError:
            self._away_since = None  # it answers, if only to refuse
            raise
        finally:
            self._knock = None
            knock.set_result(found)

    def _away(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._away_since is None:
            self._away_since = now
        pause = min(max((now - self._away_since) * PAUSE_SHARE, SHORTEST_PAUSE), LONGEST_PAUSE)
        self._again_at = now + pause * random.uniform(0.5, 1.5)
