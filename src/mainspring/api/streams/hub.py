"""Hub: one sample per topic and second on a server, however many listen; none while there is no listener.

A room belongs to each topic. It keeps its last samples, so that a listener who was cut off and returns with its cursor
misses nothing; where that is not possible it gets a `resync`. Positions are times of the database, which mean the
same on every server. While PostgreSQL does not answer there are no samples, and listeners get the event `away`.
Next: api/streams/topics.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil, floor
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from mainspring.api.streams.listener import Pending
from mainspring.api.streams.sse import event
from mainspring.api.streams.topics import Sample, Topic, Wants, make_topics
from mainspring.errors import MainspringError
from mainspring.operations import Connections
from mainspring.operations.parts.giving_way import GivingWay

log = logging.getLogger("mainspring.api")

EVERY = 1.0  # seconds between samples
SHARE = 4  # a sample is followed by at least so many times its own duration without one
KEPT = 30  # samples, for those who return
AT_ONCE = 2  # connections that samples take at most
AWAY_AFTER = 4.0  # seconds without an answer to a sample until listeners get `away`

TOPICS = ("stats", "tasks", "schedules", "agents", "servers", "alerts")


class Listener:
    """One stream: what it wants, how far it has heard each topic, and what it is yet to be sent."""

    def __init__(self, hub: Hub, topics: Sequence[str], wants: Wants, cursor: str | None) -> None:
        self._hub = hub
        self.topics = list(topics)
        self.wants = wants
        self.pending = Pending(topics)
        self.returns = cursor is not None
        self.positions = _positions(cursor or "")
        self.silent = {topic for topic in topics if topic in hub.rooms}  # not placed yet
        self.ready = False
        self.is_away = False

    @property
    def cursor(self) -> str:
        return ",".join(f"{topic}={at}" for topic, at in self.positions.items() if topic in self.topics)

    def place(self, topic: str, at: int) -> None:
        """From here on it misses nothing of the topic."""
        self.positions[topic] = at
        self.silent.discard(topic)
        if not self.silent and not self.ready:
            self.ready = True
            self.pending.put(event("ready", {"topics": self.topics}, self.cursor))

    def tell(self, topic: str, at: int, data: bytes) -> None:
        self.positions[topic] = at
        told = event(topic, data, self.cursor)
        self.pending.put(told, key=topic if topic == "stats" else None, id=self.cursor)

    def away(self, why: str) -> None:
        """Once for all topics; the `resync` of the first that is sampled again ends it."""
        if not self.is_away:
            self.is_away = True
            self.pending.put(event("away", {"message": why}))

    def resync(self, topic: str, at: int) -> None:
        self.is_away = False
        self.positions[topic] = at
        self.pending.put(event("resync", {"topics": [topic]}, self.cursor), id=self.cursor)

    async def next(self) -> bytes | None:
        return await self.pending.next()

    async def close(self) -> None:
        self._hub.leave(self)


def _positions(cursor: str) -> dict[str, int]:
    """tasks=1763198400123,agents=1763198400200; what is not that is no position."""
    found = {}
    for part in cursor[:500].split(","):
        topic, _, at = part.partition("=")
        if topic in TOPICS and at.isascii() and at.isdigit() and len(at) <= 15:
            found[topic] = int(at)
    return found


class Moment(NamedTuple):
    """When a sample was taken, in milliseconds: its snapshot is between the two. Listeners are told the first."""

    earliest: int
    latest: int

    @classmethod
    def of(cls, at: datetime, took: float) -> Moment:
        """The database told `at` at any point of a sample that took so many seconds."""
        seconds = at.timestamp()
        return cls(floor((seconds - took) * 1000), ceil((seconds + took) * 1000))


class Hub:
    def __init__(self, connections: Connections, giving_way: GivingWay | None) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)
        self.rooms = {topic.name: _Room(topic, connections, at_once, giving_way) for topic in make_topics()}
        self.listeners = 0

    def listen(self, topics: Sequence[str], wants: Wants, cursor: str | None = None) -> Listener:
        listener = Listener(self, topics, wants, cursor)
        self.listeners += 1
        for topic in listener.silent.copy():
            self.rooms[topic].enter(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        self.listeners -= 1
        for room in self.rooms.values():
            room.leave(listener)

    async def close(self) -> None:
        await asyncio.gather(*(room.close() for room in self.rooms.values()))


class _Room:
    def __init__(
        self, topic: Topic, connections: Connections, at_once: asyncio.Semaphore, giving_way: GivingWay | None
    ) -> None:
        self._topic = topic
        self._connections = connections
        self._at_once = at_once
        self._giving_way = giving_way
        self._listeners: dict[Listener, list[Any]] = {}  # each with what it was not told while it was away
        self._new: set[Listener] = set()  # placed by the next sample
        self._kept: deque[tuple[Moment, Moment, Any]] = deque(maxlen=KEPT)  # found between two samples
        self._last: Moment | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._doubt: asyncio.TimerHandle | None = None  # since the first sample that was not answered
        self._is_away = False
        self._why = "PostgreSQL does not answer"

    @property
    def _is_live(self) -> bool:
        return self._sampling is not None and not self._sampling.done()

    def enter(self, listener: Listener) -> None:
        since = listener.positions.get(self._topic.name)
        missed = None if since is None else self._since(since)
        self._listeners[listener] = missed or []
        if missed is not None and since is not None:
            listener.place(self._topic.name, since)
        elif self._is_live and self._last is not None and not listener.returns and self._topic.name != "stats":
            listener.place(self._topic.name, self._last.earliest)
        else:
            self._new.add(listener)
        if not self._is_live:
            self._sampling = asyncio.create_task(self._sample(), name=f"mainspring events {self._topic.name}")

    def _since(self, position: int) -> list[Any] | None:
        """What was found behind a position; None: it is not known any more.

        One that another server told lies at or before what that server saw, and may be inside of a sample of ours: what
        this sample found is told, although some of it is known.
        """
        first = self._kept[0][0] if self._kept else self._last
        ours = [first, *(moment for _, moment, _ in self._kept)]
        for place, moment in enumerate(ours):
            if moment is not None and moment.earliest == position:
                return [found for _, _, found in list(self._kept)[place:]]
        if first is None or position < first.latest:
            return None
        return [found for _, moment, found in self._kept if moment.latest > position]

    def leave(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)
        self._new.discard(listener)

    async def close(self) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])

    async def _sample(self) -> None:
        while self._listeners:
            began_at = monotonic()
            if self._doubt is None:
                self._doubt = asyncio.get_running_loop().call_later(AWAY_AFTER, self._tell_away)
            if self._giving_way is not None:
                await self._giving_way.wait()
            try:
                async with self._at_once, self._connections.acquire() as conn:
                    began_at, present = monotonic(), list(self._listeners)
                    sample = await self._topic.sample(conn)
                    moment = Moment.of(sample.at, monotonic() - began_at)
                    told, sample = await self._told_or_resync(conn, sample, present)
                if self._giving_way is not None:
                    await self._giving_way.wait()
                self._tell(moment, sample._replace(found=None) if self._is_away else sample, told, present)
                self._trust()
            except MainspringError as error:  # nothing was sampled: the next one finds what this one has not
                self._why = error.message
                log.debug("no sample of %s: %s", self._topic.name, error)
            except Exception:
                log.exception("no sample of %s", self._topic.name)
            taken = monotonic() - began_at
            await asyncio.sleep(max(EVERY - taken, SHARE * taken))
        self._trust()

    def _tell_away(self) -> None:
        self._is_away = True
        for listener in self._listeners:
            listener.away(self._why)

    def _trust(self) -> None:
        self._is_away = False
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None

    async def _told_or_resync(
        self, conn: Any, sample: Sample, present: Sequence[Listener]
    ) -> tuple[Mapping[Listener, bytes], Sample]:
        """What was sampled is not found again: if it cannot be told, all listeners are asked to look for themselves."""
        try:
            return await self._told(conn, sample, present), sample
        except MainspringError as error:
            log.debug("a sample of %s cannot be told: %s", self._topic.name, error)
            return {}, sample._replace(found=None)

    async def _told(self, conn: Any, sample: Sample, present: Sequence[Listener]) -> Mapping[Listener, bytes]:
        """What each listener is to be told, encoded once for all who want the same."""
        if sample.found is None:
            return {}
        missed = {one: self._listeners[one] for one in present if self._listeners.get(one)}
        others = [one for one in present if one not in missed and self._is_told(one)]
        data = await self._topic.told(conn, {one.wants: [sample.found] for one in others})
        if self._giving_way is not None:
            await self._giving_way.wait()
        encoded = {wants: msgspec.json.encode(found) for wants, found in data.items()}
        told = {one: encoded[one.wants] for one in others if one.wants in encoded}
        for one, found in missed.items():
            data = await self._topic.told(conn, {one.wants: [*found, sample.found]})
            if one.wants in data:
                told[one] = msgspec.json.encode(data[one.wants])
        return told

    def _is_told(self, listener: Listener) -> bool:
        return listener not in self._new or self._topic.name == "stats"

    def _tell(
        self, moment: Moment, sample: Sample, told: Mapping[Listener, bytes], present: Sequence[Listener]
    ) -> None:
        name, at = self._topic.name, moment.earliest
        before, self._last = self._last, moment
        if sample.found is None or name == "stats":
            self._kept.clear()
        elif before is not None:
            self._kept.append((before, moment, sample.found))
        for listener, missed in self._listeners.items():
            if listener not in present:  # it came meanwhile
                if listener not in self._new and sample.found is not None:
                    missed.append(sample.found)
            elif listener in self._new:
                self._new.discard(listener)
                listener.place(name, at)
                if listener.returns and name != "stats":
                    listener.resync(name, at)
            elif sample.found is None:
                listener.resync(name, at)
            else:
                listener.positions[name] = at
                self._listeners[listener] = []
            if listener in told:
                listener.tell(name, at, told[listener])
