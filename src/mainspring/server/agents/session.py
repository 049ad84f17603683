"""Seat: one agent's session as its server sees it: what it holds, how much room it has, which jobs it knows.

Next: server/agents/gateway.py
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from mainspring.model.messages import (
    AgentMessage,
    Armed,
    Cancel,
    Dispatch,
    Ending,
    Heartbeat,
    Held,
    Hello,
    Pause,
    Recall,
    ServerMessage,
)
from mainspring.model.placement.lead import Lead
from mainspring.model.placement.placement import copies
from mainspring.model.placement.strategies import Candidate
from mainspring.model.tasks.states import CancelMode, TaskState
from mainspring.server.agents.amounts import Amounts
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.batch import Report, about, items
from mainspring.store.cluster.agents import Vital
from mainspring.store.tasks.session_tasks import CancelRequest
from mainspring.wire.clock import boottime
from mainspring.wire.link import Link

Number = TypeVar("Number", int, float)

ARM_LIMIT = 20_000  # tasks armed ahead of their time on one agent
FRAME = 1 << 20  # bytes of arguments in one message
FAR = 1e9  # seconds: more than any clock is wrong
HORIZON = 0.1  # seconds of work that may lie ready at an agent, at the rate at which it finishes tasks


class Seat:
    """One agent's session, as its server sees it."""

    def __init__(
        self, session: int, hello: Hello, link: Link[ServerMessage, AgentMessage], *, instance: str, local: bool
    ) -> None:
        self.session = session
        self.name = hello.name
        self.instance = instance
        self.slots = hello.slots
        self.labels = hello.labels
        self.offers = hello.offers
        self.amounts = Amounts(hello.offers)
        self.link = link
        self.is_local = local  # in this very process: it ends with us
        self.heard_at = boottime()  # its last heartbeat
        self.pulse = Heartbeat(0)
        self.held: dict[int, int] = {}  # task → token, until its ending is recorded
        self.reported: set[int] = set()  # tokens of those that have ended and are not yet recorded
        self.batch = 0  # the last claim made for it
        self.cancelling: set[tuple[int, int | None]] = set()  # tokens it has been told to stop, and how
        # Tokens that may stand still: what it was told to pause, or has brought along from another server.
        self.paused: set[int] = set()  # tokens it has been told to hold still
        self._may_stand = {held.token for held in hello.held if held.state is TaskState.RUNNING}  # since before
        self.compacted: tuple[int, dict[int, int]] = (0, {})  # what is noted of it: see `Gateway.compact`
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

    def hear(self, beat: Heartbeat) -> None:
        """Its heartbeat. What it says of itself is kept within bounds: the database has no room for all numbers."""
        self.heard_at = boottime()
        self.pulse = replace(
            beat,
            running=_within(0, beat.running, self.slots),
            cpu=_within(0.0, beat.cpu, 1.0),
            memory=_within(0.0, beat.memory, 1.0),
            skew=_within(-FAR, beat.skew, FAR),
            round_trip=_within(0.0, beat.round_trip, FAR),
        )
        self.draining |= beat.draining

    def sift(self, report: Report) -> tuple[Report | None, Report | None]:
        """A report, parted into what is about attempts that it holds, and the rest. Most are whole."""
        held, told = self.held, items(report)
        own = [item for item in told if held.get(item.task) == item.token]
        if len(own) == len(told):
            return report, None
        others = [item for item in told if held.get(item.task) != item.token]
        return (about(report, own) if own else None), about(report, others)

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

    @property
    def load(self) -> float:
        """Of its slots, those that are taken by what is due, 0 to 1."""
        return min(1.0, max(0, len(self.held) - len(self._ahead)) / self.slots)

    def vital(self, lead: Lead) -> Vital:
        """What the database is told of it with each renewal."""
        pulse, link = self.pulse, self.link
        return Vital(
            session=self.session,
            silent=boottime() - self.heard_at,
            running=pulse.running,
            cpu=pulse.cpu,
            memory=pulse.memory,
            skew=pulse.skew,
            round_trip=pulse.round_trip,
            ack_time=link.ack_time,
            reliability=link.reliability,
            lead=lead.of(link.ack_time, self.load),
        )

    def is_there(self, lease: float) -> bool:
        """Whether we hear it, and it hears us: else its lease is left to end."""
        return boottime() - self.heard_at < lease / 2 and self.link.stalled_for < lease / 2

    def is_trusted(self, lease: float) -> bool:
        """Whether its lease still has some time, as far as we know, and it can be reached."""
        return boottime() - self.renewed_at < lease * 5 / 6 and self.link.stalled_for < lease / 5

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
            cpu=self.pulse.cpu,
            memory=self.pulse.memory,
            labels=self.labels,
            offers=self.offers,
        )

    def dispatches(self, catalogue: Catalogue, tasks: list[Armed]) -> Iterator[Dispatch]:
        """The messages that arm `tasks`: one, unless their arguments are large."""
        first = size = 0
        for number, armed in enumerate(tasks):
            size += len(armed.args) + len(armed.checkpoint or "")
            if size > FRAME and number > first:
                yield self._dispatch(catalogue, tasks[first:number])
                first, size = number, 0
        yield self._dispatch(catalogue, tasks[first:])

    def _dispatch(self, catalogue: Catalogue, tasks: list[Armed]) -> Dispatch:
        """The message that arms `tasks`, with the jobs it does not know yet."""
        jobs = []
        for id in {armed.job for armed in tasks}:
            job = catalogue.job(id)
            if job is not None and (id, job.version) not in self._told:
                self._told.add((id, job.version))
                jobs.append(job)
        return Dispatch(jobs, tasks, self.session)

    def pause(self, wanted: dict[int, int]) -> list[ServerMessage]:
        """What to tell it so that these stand still, by token the task, and all others go on."""
        stop = [Held(task, token) for token, task in wanted.items() if token not in self.paused]
        standing = (self.paused | self._may_stand) - wanted.keys()
        go_on = [Held(task, token) for task, token in self.held.items() if token in standing]
        self.paused = set(wanted)
        self._may_stand.clear()
        return [Pause(held, resume) for held, resume in ((stop, False), (go_on, True)) if held]


def _within(low: Number, value: Number, high: Number) -> Number:
    """What is no number is the lower bound."""
    return min(high, max(low, value))


def stop_message(attempt: CancelRequest) -> ServerMessage:
    """Stops an attempt in the way that somebody wants."""
    held = [Held(attempt.task, attempt.token)]
    if attempt.mode == CancelMode.RECALL:
        return Recall(held)
    return Cancel(held, kill=attempt.mode == CancelMode.KILL, restart=attempt.mode == CancelMode.RESTART)
