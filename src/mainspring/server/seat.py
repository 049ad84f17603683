"""Seat: one agent's session as its server sees it: what it holds, how much room it has, which jobs it knows.

Next: server/gateway.py
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from mainspring.model.messages import AgentMessage, Armed, Dispatch, Ending, Hello, ServerMessage
from mainspring.model.placement import copies
from mainspring.model.strategies import Candidate
from mainspring.server.amounts import Amounts
from mainspring.server.catalogue import Catalogue
from mainspring.wire.clock import boottime
from mainspring.wire.link import Link

ARM_LIMIT = 20_000  # tasks armed ahead of their time on one agent
HORIZON = 0.1  # seconds of work that may lie ready at an agent, at the rate at which it finishes tasks


class Seat:
    """One agent's session, as its server sees it."""

    def __init__(self, session: int, hello: Hello, link: Link[ServerMessage, AgentMessage]) -> None:
        self.session = session
        self.name = hello.name
        self.slots = hello.slots
        self.labels = hello.labels
        self.offers = hello.offers
        self.cpu = 0.0  # this and the next: as its heartbeats tell
        self.memory = 0.0
        self.running = 0
        self.skew = 0.0
        self.amounts = Amounts(hello.offers)
        self.link = link
        self.held: dict[int, int] = {}  # task → token, until its ending is recorded
        self.reported: set[int] = set()  # tokens of those that have ended and are not yet recorded
        self.batch = 0  # the last claim made for it
        self.cancelling: set[tuple[int, int | None]] = set()  # tokens it has been told to stop, and how
        self.draining = False
        self.renewed_at = boottime()  # just before the last renewal of its lease that the database confirmed
        self._ahead: list[float] = []  # instants of what it holds ahead of time
        self._told: set[tuple[int, int]] = set()  # jobs it knows, with version
        self._finished = 0
        self._rate = 0.0
        self._rated_at = boottime()

    def arm(self, tasks: list[Armed], now: float, needs: Mapping[int, Mapping[str, float]]) -> None:
        """Take what was claimed for it; `needs` are the amounts by job, of those who need any."""
        for armed in tasks:
            self.held[armed.task] = armed.token
            if armed.job in needs:
                self.amounts.take(armed.task, needs[armed.job])
            if armed.fire_at > now:
                heapq.heappush(self._ahead, armed.fire_at)

    def ended(self, endings: list[Ending]) -> None:
        self.reported.update(ending.token for ending in endings if self.held.get(ending.task) == ending.token)
        if self.amounts.in_use:
            for ending in endings:
                if self.held.get(ending.task) == ending.token:
                    self.amounts.release(ending.task)
        self._finished += len(endings)
        elapsed = boottime() - self._rated_at
        if elapsed >= 0.02:
            self._rate += (self._finished / elapsed - self._rate) * min(1.0, elapsed / HORIZON)
            self._finished = 0
            self._rated_at = boottime()

    def release(self, task: int) -> None:
        self.reported.discard(self.held.pop(task, 0))
        if self.amounts.in_use:
            self.amounts.release(task)

    def ahead(self, now: float) -> int:
        while self._ahead and self._ahead[0] <= now:
            heapq.heappop(self._ahead)
        return min(len(self._ahead), len(self.held))

    @property
    def window(self) -> int:
        """How many due tasks it may hold: its slots, and what it finishes within the horizon."""
        return self.slots + int(self._rate * HORIZON)

    def is_trusted(self, lease: float) -> bool:
        """Whether its lease still has some time, as far as we know."""
        return boottime() - self.renewed_at < lease * 5 / 6

    def window_for(self, needs: Mapping[str, float]) -> int:
        """How many due tasks with these needs it may hold."""
        return min(self.window, copies(needs, self.offers)) if needs else self.window

    def room(self, now: float, needs: Mapping[str, float]) -> int:
        """How many due tasks with these needs it can take."""
        if self.draining:
            return 0
        free = self.window - (len(self.held) - len(self.reported) - self.ahead(now))
        return min(free, copies(needs, self.amounts.free)) if needs else free

    def room_ahead(self, now: float, needs: Mapping[str, float]) -> int:
        """How many tasks with these needs it can take ahead of their time."""
        if self.draining:
            return 0
        free = ARM_LIMIT - self.ahead(now)
        return min(free, copies(needs, self.amounts.free)) if needs else free

    def candidate(self, free: int) -> Candidate:
        """What a strategy of placement wants to know of it."""
        return Candidate(
            session=self.session,
            name=self.name,
            free=free,
            busy=len(self.held) - len(self.reported),
            slots=self.slots,
            cpu=self.cpu,
            memory=self.memory,
            labels=self.labels,
            offers=self.offers,
        )

    def dispatch(self, catalogue: Catalogue, tasks: list[Armed]) -> Dispatch:
        """The message that arms `tasks`, with the jobs it does not know yet."""
        jobs = []
        for id in {armed.job for armed in tasks}:
            job = catalogue.job(id)
            if job is not None and (id, job.version) not in self._told:
                self._told.add((id, job.version))
                jobs.append(job)
        return Dispatch(jobs, tasks)
