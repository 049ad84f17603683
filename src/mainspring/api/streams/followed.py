"""Followed tasks: one poll for all of them, at once when this process's own recorder gives a hint.

A task is read again when its row has another version, so an ending that another server recorded is sent within
LATEST. Why a task waits depends on agents and limits, not on its row: that is asked once a second.
Reads   store.figures.changes, store.limits.waits
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any

import msgspec

from mainspring.api.problems import problem
from mainspring.api.streams.listener import Pending
from mainspring.api.streams.sse import event
from mainspring.errors import MainspringError, TaskNotFound
from mainspring.model.tasks.states import ASSIGNED, PENDING, TERMINAL, TaskState
from mainspring.operations import Connections
from mainspring.store.figures import changes
from mainspring.store.figures.changes import ChangedTask
from mainspring.store.limits.waits import waits as find_waits
from mainspring.store.tasks import tasks

log = logging.getLogger("mainspring.api")

SOONEST, LATEST = 0.05, 0.3  # seconds between polls
WAITS_EVERY = 1.0  # seconds

_WAITING = (PENDING.label, ASSIGNED.label)


class Follower:
    """One stream of one task. A reader who has a state already, by its cursor, is not told it again."""

    def __init__(self, followed: Followed, id: int, cursor: str | None, request_id: str) -> None:
        self._followed = followed
        self.id = id
        self.known = cursor
        self._request_id = request_id
        self.pending = Pending(["task"])
        self.cursor = None

    def tell(self, cursor: str, data: bytes) -> None:
        if cursor != self.known:
            self.known = cursor
            self.pending.put(event("task", data, cursor), key="task")

    def end(self, error: MainspringError | None = None) -> None:
        if error is not None:
            self.pending.put(event("error", problem(error, self._request_id)))
        self.pending.put(event("bye", {"reason": "ended" if error is None else error.code}))
        self.pending.end()

    async def next(self) -> bytes | None:
        return await self.pending.next()

    async def close(self) -> None:
        self._followed.leave(self)


class _Known:
    """What the last poll found of a task."""

    def __init__(self) -> None:
        self.version = ""
        self.cursor = ""
        self.task: ChangedTask | None = None
        self.waits: Any = None
        self.data = b""
        self.followers: list[Follower] = []


class Followed:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._tasks: dict[int, _Known] = {}
        self._hint = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._waits_at = 0.0

    def follow(self, id: int, cursor: str | None, request_id: str) -> Follower:
        follower = Follower(self, id, cursor, request_id)
        known = self._tasks.setdefault(id, _Known())
        known.followers.append(follower)
        if known.data:
            follower.tell(known.cursor, known.data)
        self._hint.set()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll(), name="mainspring followed tasks")
        return follower

    def leave(self, follower: Follower) -> None:
        known = self._tasks.get(follower.id)
        if known is not None and follower in known.followers:
            known.followers.remove(follower)
            if not known.followers:
                del self._tasks[follower.id]

    def hint(self, changed: Iterable[int]) -> None:
        """These tasks have changed: poll now if one of them is followed."""
        if self._tasks and not self._tasks.keys().isdisjoint(changed):
            self._hint.set()

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])

    async def _poll(self) -> None:
        interval = SOONEST
        while self._tasks:
            self._hint.clear()
            try:
                if await self._poll_once():
                    interval = SOONEST
            except MainspringError as error:  # PostgreSQL is away: its followers wait for it
                log.debug("followed tasks: %s", error)
            except Exception:
                log.exception("followed tasks could not be read")
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._hint.wait()
            interval = min(interval * 1.3, LATEST)

    async def _poll_once(self) -> int:
        asked = {id: known.version for id, known in self._tasks.items()}
        async with self._connections.acquire() as conn:
            versions = await changes.versions(conn, list(asked))
            changed = [id for id, version in versions.items() if asked[id] != version]
            # It may have changed since: what is sent, and its version, come from one read.
            shown = await changes.shown(conn, changed, progress=True) if changed else {}
            waiting = self._waiting(shown)
            waits = await find_waits(conn, waiting) if waiting else {}
            due = [id for id, (_, task) in shown.items() if task.result_due]
            ended = await tasks.ended(conn, due) if due else {}
        for id, (version, task) in shown.items():
            if (known := self._tasks.get(id)) is not None:
                known.version, known.task = version, task
                if not task.result_due or id in ended:
                    self._tell(id, known, waits.get(id), changed=True)
                else:
                    known.version = ""  # its handler has not returned yet, and may never: look again
        for id in waiting:
            if id not in shown and (known := self._tasks.get(id)) is not None:
                self._tell(id, known, waits.get(id), changed=False)
        for id in asked.keys() - versions.keys():
            self._end(id, TaskNotFound(f"no task {id}; it never existed, or retention dropped it", field="task"))
        return len(shown.keys() - (set(due) - ended.keys()))

    def _waiting(self, shown: Mapping[int, tuple[str, ChangedTask]]) -> list[int]:
        """The tasks of which to ask why they wait: those that changed, and once a second all others."""
        waiting = [id for id, (_, task) in shown.items() if task.state in _WAITING]
        if monotonic() - self._waits_at >= WAITS_EVERY:
            self._waits_at = monotonic()
            rest = ((id, known.task) for id, known in self._tasks.items() if id not in shown)
            waiting += [id for id, task in rest if task is not None and task.state in _WAITING]
        return waiting

    def _tell(self, id: int, known: _Known, waits: Any, *, changed: bool) -> None:
        assert known.task is not None
        given = None if waits is None else {"code": waits.code, "reason": waits.reason}
        if not changed and given == known.waits:
            return
        known.waits = given
        body = msgspec.json.encode(known.task)
        known.data = body[:-1] + b',"waits":' + msgspec.json.encode(given) + b"}"
        known.cursor = known.version if given is None else f"{known.version}.{given['code']}"
        for follower in known.followers:
            follower.tell(known.cursor, known.data)
        if TaskState.from_label(known.task.state) in TERMINAL:
            self._end(id, None)

    def _end(self, id: int, error: MainspringError | None) -> None:
        known = self._tasks.pop(id, None)
        for follower in known.followers if known is not None else ():
            follower.end(error)
