"""Topics: what each samples, and what of a sample a listener sees.

A sample is taken once for all listeners; the filters of each, and the jobs that its actor reaches, are applied to it in
memory. Listeners that want the same share the encoded event.
Next: store/figures/changes.py
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, Protocol

from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.globs import matches
from mainspring.operations.condition import cluster
from mainspring.store.alerts import alerts
from mainspring.store.cluster import cluster_views, registry
from mainspring.store.figures import changes
from mainspring.store.figures.changes import LEAD, Group, Look, ScheduleLook
from mainspring.store.postgres.connection import Connection

MOST = 100  # tasks or names in one event
MOST_SHOWN = 500  # tasks that are read for one sample, whatever the filters of all listeners
OVERLAP = timedelta(seconds=10)  # by which a change of an alert may be seen later than it was made
LONGEST_GAP = 30.0  # seconds without a look after which changes are not searched: `resync`


class Wants(NamedTuple):
    """What a listener wants to hear of; listeners with equal wants get the same event."""

    jobs: tuple[str, ...] = ()  # patterns as in filters of lists; empty: all
    states: frozenset[TaskState] = frozenset()  # empty: all
    reach: tuple[str, ...] = ()  # the patterns of its actor, which are those of the shell; empty: all

    def job(self, name: str) -> bool:
        is_wanted = not self.jobs or matches(name, self.jobs)
        return is_wanted and (not self.reach or any(fnmatchcase(name, pattern) for pattern in self.reach))

    def state(self, state: TaskState) -> bool:
        return not self.states or state in self.states


class Sample(NamedTuple):
    at: datetime
    found: Any  # what the topic's own `told` reads. None: what has changed since the last sample cannot be said


class Topic(Protocol):
    """What was found in samples that follow each other can be told as one."""

    name: str

    async def sample(self, conn: Connection) -> Sample:
        """What has changed since the last sample."""

    async def told(self, conn: Connection, wanted: Mapping[Wants, Sequence[Any]]) -> dict[Wants, Any]:
        """The data of an event for each of those wants, from what was found for it. Left out: nothing."""


def _gap(since: datetime, now: datetime) -> float:
    return abs((now - since).total_seconds())


class Tasks:
    name = "tasks"

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()

    async def sample(self, conn: Connection) -> Sample:
        if not self._looks:
            self._looks.append(await changes.look(conn))
            return Sample(self._looks[0].at, None)
        last, base = self._looks[-1], self._base()
        look, found = await changes.changed_tasks(
            conn, last, back_to=base.at, first=base.task, batch=self._looks[0].batch
        )
        lost = _gap(last.at, look.at) > LONGEST_GAP or look.snapshot.following < last.snapshot.following
        if lost:
            self._looks.clear()
        self._looks.append(look)
        while len(self._looks) > 2 and look.at - self._looks[1].at > LEAD:
            self._looks.popleft()
        return Sample(look.at, None if lost else found)

    def _base(self) -> Look:
        """The last look but one before the oldest transaction that was open at the last: all it writes is behind it."""
        open = self._looks[-1].snapshot.open
        oldest = min(open) if open else self._looks[-1].snapshot.following
        before = [place for place, look in enumerate(self._looks) if look.snapshot.following <= oldest]
        return self._looks[max(0, before[-1] - 1) if before else 0]

    async def told(self, conn: Connection, wanted: Mapping[Wants, Sequence[list[Group]]]) -> dict[Wants, Any]:
        chosen: dict[Wants, tuple[list[int], int]] = {}
        read: dict[int, None] = {}
        for wants, found in wanted.items():
            groups = [g for part in found for g in part if wants.job(g.job) and wants.state(g.state)]
            newest = sorted({id for group in groups for id in group.ids}, reverse=True)[:MOST]
            ids = [id for id in newest if id in read or len(read) < MOST_SHOWN]
            read |= dict.fromkeys(ids)
            if groups:
                chosen[wants] = ids, sum(group.total for group in groups)
        tasks = await changes.shown(conn, list(read)) if read else {}
        told = {}
        for wants, (ids, count) in chosen.items():
            shown = [tasks[id][1] for id in ids if id in tasks]
            told[wants] = {"changed": shown, "more": max(0, count - len(ids))}
        return told


class Names(NamedTuple):
    names: list[tuple[str, str | None]]  # with the job that each belongs to; None: to none
    gone: int = 0


class _Named:
    """A topic that tells names; the client asks for what it shows."""

    name: str

    async def told(self, conn: Connection, wanted: Mapping[Wants, Sequence[Names]]) -> dict[Wants, Any]:
        told = {}
        for wants, found in wanted.items():
            names = list(
                dict.fromkeys(name for part in found for name, job in part.names if job is None or wants.job(job))
            )
            gone = sum(part.gone for part in found)
            if names or gone:
                told[wants] = {"changed": names[:MOST], "more": max(0, len(names) - MOST), "gone": gone}
        return told


class Schedules(_Named):
    name = "schedules"

    def __init__(self) -> None:
        self._last: ScheduleLook | None = None

    async def sample(self, conn: Connection) -> Sample:
        last, (look, found) = self._last, await changes.changed_schedules(conn, self._last)
        self._last = look
        if last is None or _gap(last.at, look.at) > LONGEST_GAP or look.snapshot.following < last.snapshot.following:
            return Sample(look.at, None)
        return Sample(look.at, Names([*found.names], found.gone))


class _Compared(_Named):
    """Few enough to compare all of them with the last look."""

    def __init__(self) -> None:
        self._last: dict[str, Any] | None = None

    async def sample(self, conn: Connection) -> Sample:
        now: datetime = await conn.fetchval("select mainspring.now()")
        last, self._last = self._last, await self._marks(conn)
        marks = self._last
        if last is None:
            return Sample(now, None)
        changed = [name for name in last.keys() | marks.keys() if last.get(name) != marks.get(name)]
        return Sample(now, Names([(name, None) for name in sorted(changed)]))

    async def _marks(self, conn: Connection) -> dict[str, Any]:
        raise NotImplementedError


class Agents(_Compared):
    name = "agents"

    async def _marks(self, conn: Connection) -> dict[str, Any]:
        """Without their load and their heartbeats, which change all the time: `stats` has them."""
        marks: dict[str, list[Any]] = {name: [] for name in await registry.drained(conn)}
        for name, *mark in await registry.statuses(conn):
            marks.setdefault(name, []).append(mark)
        return marks


class Servers(_Compared):
    name = "servers"

    async def _marks(self, conn: Connection) -> dict[str, Any]:
        marks: dict[str, list[Any]] = {}
        for server in await cluster_views.servers(conn):
            term = None if server.leadership is None else server.leadership.term
            mark = (server.id, server.status, server.version, server.url, server.incarnation, server.segments, term)
            marks.setdefault(server.name, []).append(mark)
        return marks


class Alerts(_Named):
    """The numbers of alerts that changed, as text."""

    name = "alerts"

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._seen: dict[int, datetime] = {}

    async def sample(self, conn: Connection) -> Sample:
        now: datetime = await conn.fetchval("select mainspring.now()")
        last, self._at = self._at, now
        changed = await alerts.changed(conn, min(last or now, now) - OVERLAP)
        news = [(str(id), job) for id, at, job in changed if self._seen.get(id) != at]
        self._seen = {id: at for id, at, _ in changed}
        if last is None or _gap(last, now) > LONGEST_GAP:
            return Sample(now, None)
        return Sample(now, Names(news))


class Stats:
    """The figures of `mainspring stats`, of the jobs that each actor reaches. The first sample tells them too."""

    name = "stats"

    async def sample(self, conn: Connection) -> Sample:
        now: datetime = await conn.fetchval("select mainspring.now()")
        return Sample(now, True)

    async def told(self, conn: Connection, wanted: Mapping[Wants, Sequence[Any]]) -> dict[Wants, Any]:
        figures = {}
        for reach in {wants.reach for wants in wanted}:
            figures[reach] = await cluster.stats(conn, Actor("streams", Role.VIEWER, reach))
        return {wants: figures[wants.reach] for wants in wanted}


def make_topics() -> Iterable[Topic]:
    return Stats(), Tasks(), Schedules(), Agents(), Servers(), Alerts()
