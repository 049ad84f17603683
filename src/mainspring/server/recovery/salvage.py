"""Salvage: verdicts of the rescuer, written in one transaction per batch; one bad row never holds up the others.

What PostgreSQL refuses is found by writing each by itself. The bad one ends as failed, if that can be written; if not,
it is told of once, and looked at again later and later.
Next: server/recording/recorder.py
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.server.recording.batch import UNFIT
from mainspring.server.recording.recorder import Recorder
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import rescue
from mainspring.store.tasks.rescue import Held, Order
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

FIRST_REST, LONGEST_REST = 5.0, 300.0  # seconds


class Verdicts(NamedTuple):
    """What is to become of a batch, and what is to be stopped for that."""

    verdicts: Sequence[Ending | Again]
    stops: Sequence[Order] = ()


class Moved(NamedTuple):
    """How many tasks were found in a batch, and how many of them moved."""

    found: int
    moved: int


Find = Callable[[Connection], Awaitable[list[Held]]]
Judge = Callable[[list[Held]], Verdicts]


class _Unfit(NamedTuple):
    session: int
    rest: float  # seconds
    until: float  # boot time


class Salvage:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._unfit: dict[int, _Unfit] = {}  # by task
        self._resting: dict[int, float] = {}  # by session that has nothing else, until when (boot time)

    async def move(self, conn: Connection, find: Find, judge: Judge) -> Moved:
        """Find a batch, give the verdicts and write them, in one transaction."""
        try:
            async with conn.transaction():
                held = await find(conn)
                if held:
                    await self._write(conn, judge(held))
            return Moved(len(held), len(held))
        except UNFIT as error:
            log.warning("a rescue does not fit into the database (%s); each is written by itself", _first_line(error))
        async with conn.transaction():
            held = await find(conn)
        return Moved(len(held), sum([await self._move_one(conn, judge, task) for task in held]))

    async def _move_one(self, conn: Connection, judge: Judge, task: Held) -> bool:
        """One by itself; False if it must wait."""
        for judged in (judge, lambda held: _as_failed(judge(held))):
            try:
                async with conn.transaction():
                    is_ours = await rescue.lock(conn, task)  # else somebody has moved it, or is about to
                    if is_ours:
                        await self._write(conn, judged([task]))
                self._unfit.pop(task.task, None)
                return is_ours
            except UNFIT as error:
                reason = error
        self._lay_aside(task, reason)
        return False

    async def _write(self, conn: Connection, given: Verdicts) -> None:
        ended = [verdict for verdict in given.verdicts if not isinstance(verdict, Again)]
        again = [verdict for verdict in given.verdicts if isinstance(verdict, Again)]
        await rescue.order_stops(conn, given.stops)
        await self._recorder.apply(conn, ended, again)

    # ── what cannot be written ──────────────────────────────────────────────────────────────────

    def _lay_aside(self, task: Held, error: Exception) -> None:
        before = self._unfit.get(task.task)
        if before is None:
            reason = _first_line(error)
            log.error("task %d cannot be rescued: %s; it is tried again from time to time", task.task, reason)
        rest = FIRST_REST if before is None else min(2 * before.rest, LONGEST_REST)
        self._unfit[task.task] = _Unfit(task.session, rest, boottime() + rest)

    def unfit(self) -> list[int]:
        """Tasks that are not looked at for now."""
        now = boottime()
        self._unfit = {task: unfit for task, unfit in self._unfit.items() if unfit.until + LONGEST_REST > now}
        return [task for task, unfit in self._unfit.items() if unfit.until > now]

    def rest(self, session: int) -> None:
        """Nothing more was found of this session: if there is something that waits, it waits."""
        until = [unfit.until for unfit in self._unfit.values() if unfit.session == session]
        if until:
            self._resting[session] = min(until)

    def resting(self) -> list[int]:
        """Sessions that are not looked at for now."""
        now = boottime()
        self._resting = {session: until for session, until in self._resting.items() if until > now}
        return list(self._resting)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]  # the rest is the row


def _as_failed(given: Verdicts) -> Verdicts:
    """Endings that can be stored in most cases, in place of those that cannot."""
    endings = [verdict.ending if isinstance(verdict, Again) else verdict for verdict in given.verdicts]
    error = "it could not be rescued: what would have become of it cannot be stored"
    return given._replace(
        verdicts=[replace(e, state=TaskState.FAILED, code="rescue_failed", error=error, result=None) for e in endings]
    )
