"""Readers of output: how a follower looks for what its task has written, alone or together with others.

Next: operations/work/output.py
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from mainspring.operations import Connections
from mainspring.store.search import output_looks
from mainspring.store.search.output_looks import Look, Wanted

TICK = 0.05  # seconds for which looks are gathered
AT_ONCE = 32  # followers in one statement: each may get a megabyte
# A follower that has seen all there was looks at what was recorded since: PostgreSQL opens few partitions for that.
BACK = timedelta(days=1)


def _since(last: Look | None) -> datetime:
    return output_looks.EVER if last is None else last.at - BACK


class Reader(Protocol):
    async def look(self, wanted: Wanted, limit: int, last: Look | None) -> Look:
        """What is new. `last` is the look before, if that has seen all there was."""


class Alone:
    """Each look is a statement of its own, at once."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def look(self, wanted: Wanted, limit: int, last: Look | None) -> Look:
        async with self._connections.acquire() as conn:
            return (await output_looks.look(conn, [wanted], limit=limit, since=_since(last)))[0]


class _Asked(NamedTuple):
    wanted: Wanted
    limit: int
    last: Look
    answer: asyncio.Future[Look]


class Together:
    """Followers that have seen all there was share a statement, however many they are: one for each tick.

    A follower that has yet to catch up looks alone.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._alone = Alone(connections)
        self._asked: list[_Asked] = []
        self._looking: asyncio.Task[None] | None = None

    async def look(self, wanted: Wanted, limit: int, last: Look | None) -> Look:
        if last is None:
            return await self._alone.look(wanted, limit, last)
        asked = _Asked(wanted, limit, last, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="mainspring followed output")
        return await asked.answer

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    async def _look(self) -> None:
        while self._asked:
            await asyncio.sleep(TICK)
            waiting = [asked for asked in self._asked if not asked.answer.done()]  # others have left
            self._asked = []
            for start in range(0, len(waiting), AT_ONCE):
                await self._answer(waiting[start : start + AT_ONCE])

    async def _answer(self, asked: list[_Asked]) -> None:
        since = min(_since(one.last) for one in asked)
        try:
            async with self._connections.acquire() as conn:
                limit = max(one.limit for one in asked)
                found = await output_looks.look(conn, [one.wanted for one in asked], limit=limit, since=since)
        except Exception as error:  # each of them decides what that means for it
            for one in asked:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        for one, look in zip(asked, found, strict=True):
            if not one.answer.done():
                one.answer.set_result(look)
