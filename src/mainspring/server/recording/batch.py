"""Batch: what one flush of the recorder writes, and which frames it settles.

One report that PostgreSQL refuses, such as a text that holds NUL, must not hold up the others: then each is
written by itself, and the attempt that the bad one tells of ends as failed.
Next: server/recording/recorder.py
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import asyncpg
from msgspec.structs import replace

from mainspring.model.messages import (
    AgentMessage,
    Chunk,
    Ending,
    Finished,
    Held,
    Note,
    Output,
    Progress,
    Refused,
    ServerMessage,
    Start,
    Started,
)
from mainspring.model.tasks.states import TaskState
from mainspring.wire.link import Link

log = logging.getLogger("mainspring")

Report = Started | Finished | Progress | Output | Refused
ServerLink = Link[ServerMessage, AgentMessage]
Written = tuple[list[Ending], int]  # what ended, and how many tasks are pending again

LATEST = 7_258_118_400.0  # the year 2200, in seconds since 1970
_NO_TIME = ValueError("a time that no clock shows")

UNFIT = (  # what PostgreSQL refuses for what is in it
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.exceptions.ProgramLimitExceededError,
)


def items(report: Report) -> list[Any]:
    """What a report is made of, each with its task and token: its first field."""
    found: list[Any] = getattr(report, report.__struct_fields__[0])
    return found


def about(report: Report, chosen: list[Any]) -> Report:
    """The same report, about these of its items."""
    return replace(report, **{report.__struct_fields__[0]: chosen})


class Reporter(Protocol):
    """Who reports: an agent's session."""

    name: str
    instance: str


class Batch:
    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.endings: list[Ending] = []
        self.notes: list[Note] = []
        self.chunks: list[Chunk] = []
        self.refused: list[Held] = []
        self.foreign: list[tuple[Reporter, Report]] = []  # about attempts that the reporter does not seem to hold
        self.settles: dict[ServerLink, int] = {}

    def add(self, report: Report) -> None:
        """A time that no clock shows is not written: PostgreSQL can keep some that nobody can read again."""
        match report:
            case Finished(endings):
                self.endings += [
                    e if 0 <= e.started_at < LATEST and 0 <= e.finished_at < LATEST else _unfit(e, _NO_TIME)
                    for e in endings
                ]
            case Started(starts):
                self.starts += [s if 0 <= s.at < LATEST else replace(s, at=0.0) for s in starts]
            case Progress(notes):
                self.notes += notes
            case Output(chunks):
                self.chunks += [c if 0 <= c.at < LATEST else replace(c, at=0.0) for c in chunks]
            case Refused(attempts):
                self.refused += attempts

    def drop_ended_starts(self) -> None:
        """A start whose finish is in the same batch is not written apart."""
        if self.starts and self.endings:
            ended = {ending.token for ending in self.endings}
            self.starts = [start for start in self.starts if start.token not in ended]

    def single(self) -> Iterator[Batch]:
        """Each report in a batch of its own, in the order in which they are written."""
        for name in ("notes", "chunks", "starts", "refused", "endings"):
            for report in getattr(self, name):
                part = Batch()
                getattr(part, name).append(report)
                yield part


async def in_parts(batch: Batch, write: Callable[[Batch], Awaitable[Written]]) -> Written:
    """Write a batch; if something in it does not fit into the database, write each report by itself."""
    try:
        return await write(batch)
    except UNFIT as error:
        log.warning("a report does not fit into the database (%s); the others are written one by one", error)
    ended: list[Ending] = []
    again = 0
    for part in batch.single():
        try:
            more_ended, more_again = await write(part)
        except UNFIT as error:
            part.endings = [_unfit(ending, error) for ending in part.endings]
            more_ended, more_again = await write(part) if part.endings else ([], 0)
        ended += more_ended
        again += more_again
    return ended, again


def _unfit(ending: Ending, error: Exception) -> Ending:
    """An ending that can be stored in any case, in place of one that cannot."""
    reason = f"what its agent reported cannot be stored: {error}".replace("\0", "")
    plain = reason.encode(errors="replace").decode()[:1000]
    return replace(
        ending, state=TaskState.FAILED, started_at=0.0, finished_at=0.0, result=None, code="bad_report", error=plain,
        labels=("bad_report",), retry_after=None, snooze=None, final=True,
    )  # fmt: skip
