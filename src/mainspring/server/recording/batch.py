"""Batch: what one flush of the recorder writes, and the frames that it settles.

PostgreSQL may refuse a report, such as one that is no JSON. It must not hold up the others: then each is written by
itself, and the attempt of a refused ending ends as failed.
Next: server/recording/recorder.py
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

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
from mainspring.model.reports import Report, bad_report
from mainspring.wire.link import Link

log = logging.getLogger("mainspring")

ServerLink = Link[ServerMessage, AgentMessage]
Written = tuple[list[Ending], int]  # what ended, and how many tasks are pending again

INVALID_DATA = (  # raised by PostgreSQL for the values of a row, not for the state of the connection
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.exceptions.ProgramLimitExceededError,
)


class Reporter(Protocol):
    """An agent's session."""

    name: str
    instance: str


class Batch:
    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.endings: list[Ending] = []
        self.notes: list[Note] = []
        self.chunks: list[Chunk] = []
        self.refused: list[AttemptId] = []
        self.foreign: list[tuple[Reporter, Report]] = []  # on attempts that the reporter's session does not hold
        self.settles: dict[ServerLink, int] = {}

    def add(self, report: Report) -> None:
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
        """A start whose ending is in the same batch is not written."""
        if self.starts and self.endings:
            ended = {ending.token for ending in self.endings}
            self.starts = [start for start in self.starts if start.token not in ended]

    def single(self) -> Iterator[Batch]:
        """A batch for each report, in the order in which they are written."""
        for name in ("notes", "chunks", "starts", "refused", "endings"):
            for report in getattr(self, name):
                part = Batch()
                getattr(part, name).append(report)
                yield part


async def in_parts(batch: Batch, write: Callable[[Batch], Awaitable[Written]]) -> Written:
    """Write a batch; if PostgreSQL refuses something in it, write each report by itself."""
    try:
        return await write(batch)
    except INVALID_DATA as error:
        log.warning("PostgreSQL refuses a report (%s); all reports of the batch are written one by one", error)
    ended: list[Ending] = []
    requeued = 0
    for part in batch.single():
        try:
            more_ended, more_requeued = await write(part)
        except INVALID_DATA as error:
            part.endings = [bad_report(ending, error) for ending in part.endings]
            more_ended, more_requeued = await write(part) if part.endings else ([], 0)
        ended += more_ended
        requeued += more_requeued
    return ended, requeued
