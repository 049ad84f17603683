"""Flush: what the recorder writes at once, and the frames that it settles. Reports: what waits for a flush.

A flush takes frames from the sessions in turn, from each its share: an agent that reports much waits for the others,
not they for it. It takes no more items than the event loop carries out in a millisecond or two: while it does, nothing
fires. Of successes, which are carried out in slices, it takes four times as many: a larger flush costs less for each
of them. A second flush takes only frames that hold nothing else. PostgreSQL may refuse a report. That must not hold up
the others either: then each frame is written by itself, and a refused one in halves, until the bad report is alone.
Next: server/recording/recorder.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import asyncpg

from mainspring.model.messages import (
    AgentMessage,
    AttemptId,
    Chunk,
    Ending,
    Finished,
    Note,
    Output,
    Progress,
    Refused,
    ServerMessage,
    Start,
    Started,
)
from mainspring.model.reports import Report, about, bad_report, items
from mainspring.model.tasks.states import SUCCEEDED
from mainspring.wire.channel import ChannelClosed
from mainspring.wire.link import Link

log = logging.getLogger("mainspring")

ServerLink = Link[ServerMessage, AgentMessage]
INVALID_DATA = (  # raised by PostgreSQL for the values of a row, not for the state of the connection
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.exceptions.ProgramLimitExceededError,
)

ITEM = 200  # bytes that a report takes beside its content, and an empty frame
SHARE = 1 << 20  # bytes of one session in each round of a flush; the last frame may exceed it
FLUSH_BYTES = 8 << 20  # bytes of one flush
FLUSH_ITEMS = 1000  # of one flush; a larger frame goes alone
SUCCESSES = 4  # that count as one item
SLOW_DOWN_FROM = 2 << 20  # bytes that wait of one session, from which on its agent is slowed down
STOP_READING_FROM = 8 << 20  # bytes, from which on its socket is not read: an agent that ignores the window
REFUSALS = 200  # statements that PostgreSQL may refuse for one frame
CLOSED_EVERY = 0.5  # seconds between two looks whether a waiting connection has closed


class Written(NamedTuple):
    """What a write came to. `moved` and `again` have each attempt once, however often it was reported."""

    ended: Sequence[Ending] = ()  # reports by which a task is over, now or before
    requeued: int = 0  # tasks that are pending again
    moved: Sequence[Ending] = ()  # attempts whose task was ended by this write
    again: Sequence[Ending] = ()  # attempts whose task was requeued by this write

    def plus(self, other: Written) -> Written:
        return Written(
            [*self.ended, *other.ended],
            self.requeued + other.requeued,
            [*self.moved, *other.moved],
            [*self.again, *other.again],
        )


class ReportFrame(NamedTuple):
    """The reports of one frame of a session."""

    sequence: int
    reports: Sequence[Report]
    size: int
    weight: float  # in items of a flush
    endings: int
    has_only_successes: bool  # or nothing


class Flush:
    def __init__(self, reports: Sequence[Report] = ()) -> None:
        self.starts: list[Start] = []
        self.endings: list[Ending] = []
        self.notes: list[Note] = []
        self.chunks: list[Chunk] = []
        self.refused: list[AttemptId] = []
        self.frames: list[Sequence[Report]] = []
        self.settles: dict[ServerLink, int] = {}
        self.has_only_successes = True  # or nothing
        self.is_under_way = False
        self.has_failed = False  # PostgreSQL did not answer, or could not be reached: it is to be repeated
        self.may_be_written = False  # it was sent and not answered: none, some or all of it is written
        self.is_written = False
        self._weight = 0.0
        self._add(reports)

    def has_room_for(self, frame: ReportFrame) -> bool:
        return not self._weight or self._weight + frame.weight <= FLUSH_ITEMS

    def add(self, link: ServerLink, frame: ReportFrame) -> None:
        self._add(frame.reports)
        self._weight += frame.weight
        self.has_only_successes &= frame.has_only_successes
        if frame.reports:
            self.frames.append(frame.reports)
        self.settles[link] = frame.sequence

    def _add(self, reports: Sequence[Report]) -> None:
        for report in reports:
            match report:
                case Finished(endings):
                    self.endings += endings
                case Started(starts):
                    self.starts += starts
                case Progress(notes):
                    self.notes += notes
                case Output(chunks):
                    self.chunks += chunks
                case Refused(attempts):
                    self.refused += attempts

    def drop_ended_starts(self) -> None:
        """A start whose ending is in the same flush is not written."""
        if self.starts and self.endings:
            ended = {ending.token for ending in self.endings}
            self.starts = [start for start in self.starts if start.token not in ended]


class _Queue:
    """The frames of one session that wait for a flush."""

    def __init__(self) -> None:
        self.frames: deque[ReportFrame] = deque()
        self.size = 0
        self.has_room = asyncio.Event()
        self.has_room.set()


class Reports:
    """The frames of all sessions that wait for a flush."""

    def __init__(self) -> None:
        self._queues: dict[ServerLink, _Queue] = {}  # in turn
        self.endings = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, link: ServerLink, sequence: int, reports: Sequence[Report]) -> None:
        """`link.received_bytes` are those of this frame; within one process it has none, and its items count."""
        count = sum(len(items(report)) for report in reports)
        size = ITEM + (link.received_bytes or ITEM * count)
        endings = sum(len(report.endings) for report in reports if isinstance(report, Finished))
        self.endings += endings
        queue = self._queues.setdefault(link, _Queue())
        weights = [_weight(report) for report in reports]
        weight, has_only_successes = sum(weight for weight, _ in weights), all(is_so for _, is_so in weights)
        queue.frames.append(ReportFrame(sequence, reports, size, weight, endings, has_only_successes))
        queue.size += size
        if queue.size > SLOW_DOWN_FROM:
            link.is_congested = True
            if queue.size > STOP_READING_FROM:
                queue.has_room.clear()

    async def room(self, link: ServerLink) -> None:
        """Wait while too much of this session waits. Raises ChannelClosed if its connection closes meanwhile."""
        while (queue := self._queues.get(link)) is not None and not queue.has_room.is_set():
            if link.is_closed:
                raise ChannelClosed("the connection closed while its reports waited")
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSED_EVERY):
                    await queue.has_room.wait()

    def take(self, *, only_successes: bool = False) -> Flush:
        """The next flush. It has a frame of every session that fits; the sessions left out are first in the next.

        With `only_successes` what a session reports after something else stays, in its order.
        """
        flush, left = Flush(), FLUSH_BYTES
        while (links := self._links(only_successes)) and left > 0:
            for link in links:
                if left <= 0 or not flush.has_room_for(self._queues[link].frames[0]):
                    return flush
                left -= self._take_share(flush, link, only_successes)
        return flush

    def _links(self, only_successes: bool) -> list[ServerLink]:
        return [
            link for link, queue in self._queues.items() if queue.frames[0].has_only_successes or not only_successes
        ]

    def _take_share(self, flush: Flush, link: ServerLink, only_successes: bool) -> int:
        queue = self._queues.pop(link)
        taken = 0
        while (
            queue.frames
            and taken < SHARE
            and flush.has_room_for(queue.frames[0])
            and (queue.frames[0].has_only_successes or not only_successes)
        ):
            frame = queue.frames.popleft()
            flush.add(link, frame)
            taken += frame.size
            self.endings -= frame.endings
        queue.size -= taken
        if queue.frames:
            self._queues[link] = queue  # behind the others
        if queue.size <= STOP_READING_FROM:
            queue.has_room.set()
        if link.is_congested and queue.size <= SLOW_DOWN_FROM:
            link.relieve()
        return taken


def _weight(report: Report) -> tuple[float, bool]:
    """In items of a flush; and whether it has only successes."""
    if isinstance(report, Finished):
        successes = [ending.state for ending in report.endings].count(SUCCEEDED)
        others = len(report.endings) - successes
        return others + successes / SUCCESSES, not others
    return len(items(report)), False


async def in_parts(flush: Flush, write: Callable[[Flush], Awaitable[Written]]) -> Written:
    """Write a flush; if PostgreSQL refuses something in it, write each frame by itself."""
    try:
        return await write(flush)
    except INVALID_DATA as error:
        log.warning("PostgreSQL refuses a report (%.200s); the frames of the flush are written one by one", error)
    written = Written()
    for reports in flush.frames:
        written = written.plus(await _Halving(write).write(reports))
    return written


class _Halving:
    """Writes the reports of one frame, in halves while PostgreSQL refuses them.

    The attempt of a refused ending ends as failed; other refused reports are dropped. After REFUSALS statements the
    rest is not divided further: the recorder has other sessions to serve.
    """

    def __init__(self, write: Callable[[Flush], Awaitable[Written]]) -> None:
        self._write = write
        self._left = REFUSALS

    async def write(self, reports: Sequence[Report]) -> Written:
        try:
            return await self._write(Flush(reports))
        except INVALID_DATA as error:
            self._left -= 1
            if self._left > 0 and (halves := _halves(reports)):
                first, second = [await self.write(half) for half in halves]
                return first.plus(second)
            bad = [bad_report(ending, error) for ending in Flush(reports).endings]
            return await self._write(Flush([Finished(bad)])) if bad else Written()


# The order in which a flush is written: output and checkpoints of an attempt before its ending.
_ORDER = (Progress, Output, Started, Refused, Finished)
Item = TypeVar("Item")


def _halves(reports: Sequence[Report]) -> list[list[Report]]:
    """Two halves in the order of writing; empty for a single item."""
    ordered = sorted(reports, key=lambda report: _ORDER.index(type(report)))
    flat = [(number, item) for number, report in enumerate(ordered) for item in items(report)]
    if len(flat) < 2:
        return []
    return [_together(ordered, part) for part in (flat[: len(flat) // 2], flat[len(flat) // 2 :])]


def _together(reports: Sequence[Report], flat: Sequence[tuple[int, Item]]) -> list[Report]:
    chosen: dict[int, list[Item]] = {}
    for number, item in flat:
        chosen.setdefault(number, []).append(item)
    return [about(reports[number], found) for number, found in chosen.items()]
