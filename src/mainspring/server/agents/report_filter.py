"""ReportFilter: which of an agent's reports reach the recorder.

Each is checked by model/reports.py. Items on attempts that the agent's process neither holds nor held are refused and
audited. The output of an attempt is bounded. What needs the database is asked here, on a connection of the pool, while
the agent's own next frame waits: it never delays the reports of another.
Reads   store.tasks.session_tasks   whose attempts these are, the output that is stored
Next:   server/recording/flush.py
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from mainspring.errors import StoreUnavailable
from mainspring.model.access.actors import Actor, Role
from mainspring.model.messages import Chunk, Output, Refused
from mainspring.model.reports import Report, about, checked, items
from mainspring.server.agents.refusals import Recent
from mainspring.server.recording.flush import ServerLink
from mainspring.store.access import audit
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import session_tasks
from mainspring.wire.channel import ChannelClosed
from mainspring.wire.clock import boottime

log = logging.getLogger("mainspring")

AGENTS_AT_ONCE = 2  # of the eight connections of the pool
ASKED_AT_ONCE = 1000  # attempts in one statement
AUDIT_EVERY = 1.0  # seconds between two entries about one agent: it must not fill the audit
RETRY_AFTER = 0.5  # seconds, while PostgreSQL is down

# An agent keeps 2 MiB of a command's output, and sends 256 KiB a second of a daemon's. Each chunk counts a little more
# than its data: even a command that writes single bytes stays within the limit.
OUTPUT_LIMIT = 6 << 20  # bytes of one attempt
CHUNK = 3  # bytes that a chunk counts beside its data
DAEMON_RATE = 512 << 10  # bytes a second
REMARK = 0  # a stream
LEFT_OUT = f"… the server keeps {OUTPUT_LIMIT >> 20} MiB of output; the rest is left out …\n".encode()

Answer = TypeVar("Answer")


class Reporter(Protocol):
    """An agent's session."""

    name: str
    instance: str
    link: ServerLink
    output: OutputQuota

    def split(self, report: Report) -> tuple[Report | None, Report | None]: ...


class OutputQuota:
    """How much output of each attempt of a session was taken. Pure: the caller gives the time."""

    def __init__(self) -> None:
        self._taken: dict[int, float] = {}  # by token
        self._unknown: set[int] = set()  # tokens of attempts that an earlier session may have written about
        self._daemons: dict[int, float] = {}  # by token, when its output was last counted

    def held_daemon(self, token: int, now: float) -> None:
        self._daemons[token] = now

    def kept(self, tokens: Iterable[int]) -> None:
        """Attempts from the session before: their output is counted in the database."""
        self._unknown.update(tokens)

    def unknown(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        return [chunk for chunk in chunks if chunk.token in self._unknown] if self._unknown else []

    def count(self, taken: dict[int, int], tokens: Iterable[int]) -> None:
        """Take what the database knows of these attempts."""
        for token in tokens:
            self._unknown.discard(token)
            self._taken[token] = taken.get(token, 0)

    def forget(self, token: int) -> None:
        if self._taken or self._unknown or self._daemons:  # most sessions have no output
            self._taken.pop(token, None)
            self._unknown.discard(token)
            self._daemons.pop(token, None)

    def within(self, chunks: Sequence[Chunk], now: float) -> list[Chunk]:
        """The chunks that are kept; of an attempt that exceeds its limit the first one left out becomes a remark."""
        kept = []
        for chunk in chunks:
            taken = self._taken.get(chunk.token, 0.0)
            if chunk.token in self._daemons:
                taken = max(0.0, taken - (now - self._daemons[chunk.token]) * DAEMON_RATE)
                self._daemons[chunk.token] = now
            if taken + len(chunk.data) + CHUNK <= OUTPUT_LIMIT:
                kept.append(chunk)
                self._taken[chunk.token] = taken + len(chunk.data) + CHUNK
            elif chunk.token in self._daemons:
                self._taken[chunk.token] = taken
            elif taken < math.inf:
                kept.append(replace(chunk, stream=REMARK, data=LEFT_OUT))
                self._taken[chunk.token] = math.inf
        return kept


class ReportFilter:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._places = asyncio.Semaphore(AGENTS_AT_ONCE)
        self._audited = Recent(AUDIT_EVERY)  # by agent

    async def admit(self, session: Reporter, report: Report) -> tuple[Report | None, Report | None]:
        """What is to be recorded of a report: on attempts that the session holds, and on those its process held."""
        own, others = session.split(checked(report))
        if isinstance(own, Output):
            own = await self._bounded(session, own)
        return own, None if others is None else await self._resolved(session, others)

    async def _bounded(self, session: Reporter, report: Output) -> Output | None:
        if unknown := session.output.unknown(report.chunks):
            await self._count(session, session.output, unknown)
        chunks = session.output.within(report.chunks, boottime())
        return Output(chunks) if chunks else None

    async def _count(self, session: Reporter, limit: OutputQuota, chunks: Sequence[Chunk]) -> None:
        attempts = list({(chunk.task, chunk.token) for chunk in chunks})
        taken = await self._ask(session, attempts, session_tasks.output_sizes)
        limit.count(dict(taken), (token for _, token in attempts))

    async def _resolved(self, session: Reporter, report: Report) -> Report | None:
        """The items of a foreign report on attempts of the agent's own process; the rest is refused.

        An agent may repeat a report, or send it late in another session. A report on another agent's attempt changes
        nothing, and the connection stays open.
        """
        attempts = list({(item.task, item.token) for item in items(report)})
        own = set(
            await self._ask(session, attempts, lambda conn, part: session_tasks.own(conn, session.instance, part))
        )
        others = [attempt for attempt in attempts if attempt not in own]
        if others and not isinstance(report, Refused):  # giving back what it does not hold does no harm
            await self._audit(session, report, others)
        kept = [item for item in items(report) if (item.task, item.token) in own]
        if not kept:
            return None
        if isinstance(report, Output):
            limit = OutputQuota()
            await self._count(session, limit, kept)
            kept = limit.within(kept, boottime())
        return about(report, kept)

    async def _audit(self, session: Reporter, report: Report, others: list[tuple[int, int]]) -> None:
        if not self._audited.is_first(session.name):
            return
        task, token = others[0]
        kind = type(report).__name__.lower()
        log.warning("agent %s reported (%s) on task %d, which it does not own; refused", session.name, kind, task)
        tasks = [str(task) for task, _ in others[:20]]
        detail = {"report": kind, "token": str(token), "tasks": tasks, "count": len(others)}

        async def write(conn: Connection, _: object) -> list[None]:
            actor = Actor(f"agent:{session.name}", Role.AGENT)
            await audit.refused(conn, actor, "task.report", f"task:{task}", "not a task of this agent", detail)
            return []

        await self._ask(session, others[:1], write)

    async def _ask(
        self,
        session: Reporter,
        attempts: Sequence[tuple[int, int]],
        query: Callable[[Connection, Sequence[tuple[int, int]]], Awaitable[Iterable[Answer]]],
    ) -> list[Answer]:
        """All answers for these attempts. While PostgreSQL is down it is asked again, until the connection closes."""
        rest, answers = iter(attempts), list[Answer]()
        part: list[Any] = list(islice(rest, ASKED_AT_ONCE))
        while part:
            try:
                async with self._places, self._database.acquire() as conn:
                    answers += await query(conn, part)
            except StoreUnavailable:
                if session.link.is_closed:
                    raise ChannelClosed("the connection closed while PostgreSQL did not answer") from None
                await asyncio.sleep(RETRY_AFTER)
                continue
            part = list(islice(rest, ASKED_AT_ONCE))
        return answers
