"""AgentSession: one agent's session as its server sees it: what it holds, its room, the jobs it knows.

Next: wire/link.py
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import TypeVar

from msgspec.structs import replace

from mainspring.model.messages import (
    AgentMessage,
    Armed,
    AttemptId,
    Cancel,
    Dispatch,
    Ending,
    Heartbeat,
    Hello,
    JobSecrets,
    Pause,
    Recall,
    ServerMessage,
)
from mainspring.model.placement.chunk_slots import ChunkSlots
from mainspring.model.placement.lead import Lead
from mainspring.model.placement.placement import Candidate, copies
from mainspring.model.reports import Report, about, items
from mainspring.model.tasks.states import CancelMode, TaskState
from mainspring.server.agents.report_filter import OutputQuota
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.store.cluster.agents import Vital
from mainspring.store.tasks.session_tasks import CancelRequest
from mainspring.wire.clock import boottime
from mainspring.wire.link import Link

Number = TypeVar("Number", int, float)

MANY_HELD = 500  # tasks, from which on they are not written again whenever one has ended
ARM_LIMIT = 20_000  # tasks armed ahead of their time on one agent
FRAME = 1 << 20  # bytes of arguments in one message
FAR = 1e9  # seconds: more than any clock is wrong
MANY = 2**31 - 1  # of what is counted
NO_CHUNKS: Mapping[int, int] = {}
NO_SECRETS: Mapping[int, JobSecrets] = {}
HORIZON = 0.1  # seconds of due work that may queue at an agent, at the rate at which it finishes tasks


class Amounts:
    """What an agent offers, such as GPUs, and how much of it the tasks that it holds use.

    A task takes its amounts when it is armed, not when it starts: no other task may take them in between.
    """

    def __init__(self, offers: Mapping[str, float]) -> None:
        self._offers = offers
        self.free = dict(offers)
        self.in_use: dict[int, Mapping[str, float]] = {}  # by task

    def take(self, task: int, needs: Mapping[str, float]) -> None:
        """A task that already has its amounts, under an older token, does not take them twice."""
        self.release(task)
        self.in_use[task] = needs
        for name, amount in needs.items():
            self.free[name] = self.free.get(name, 0.0) - amount

    def share_of(self, needs: Mapping[str, float]) -> float:
        """How much of what a task needs is free, 0 to 1: the scarcest counts."""
        return min(min(1.0, self.free.get(name, 0.0) / amount) for name, amount in needs.items() if amount > 0)

    def release(self, task: int) -> None:
        needs = self.in_use.pop(task, None)
        if needs is None:
            return
        if not self.in_use:
            self.free = dict(self._offers)  # rounding errors of fractions do not add up
            return
        for name, amount in needs.items():
            self.free[name] += amount


class AgentSession:
    def __init__(
        self, id: int, hello: Hello, link: Link[ServerMessage, AgentMessage], *, instance: str, local: bool
    ) -> None:
        self.id = id
        self.name = hello.name
        self.instance = instance
        self.slots = hello.slots
        self.labels = hello.labels
        self.offers = hello.offers
        self.amounts = Amounts(hello.offers)
        self.link = link
        self.is_local = local  # in this process: it ends with the server
        self.heard_at = boottime()  # its last heartbeat
        self.heartbeat = Heartbeat(0)
        self.held: dict[int, int] = {}  # task → token, until its ending is recorded
        self.output = OutputQuota()
        self.reported: set[int] = set()  # tokens of attempts that have ended and are not yet recorded
        self._chunk_slots = ChunkSlots()  # of those that have not ended, where one call takes several
        self.promised = 0  # tasks that a statement under way may claim for it
        self.batch = 0  # the last claim made for it
        self.cancelling: set[tuple[int, int | None]] = set()  # tokens of Cancel and Recall messages sent, with mode
        self.paused: set[int] = set()  # tokens of Pause messages sent
        # Tokens that another server may have paused in a session before this one.
        self._paused_before = {held.token for held in hello.held if held.state is TaskState.RUNNING}
        self.compacted: tuple[int, list[int]] = (0, [])  # batch and tasks, last written by `Gateway.compact`
        self.noted = 0  # tasks in its rows of claims, those that have ended among them
        self.draining = False
        self.renewed_at = boottime()  # just before the last renewal of its lease that the database confirmed
        self._ahead: list[float] = []  # a heap: instants of the tasks armed ahead of time
        self._known_jobs: dict[int, tuple[int, float | None, int]] = {}  # sent to it: version, default timeout, retries
        self._finished = 0.0  # slots that became free
        self._rate = 0.0
        self._rated_at = boottime()

    def arm(
        self,
        tasks: list[Armed],
        now: float,
        needs: Mapping[int, Mapping[str, float]],
        chunks: Mapping[int, int] = NO_CHUNKS,
    ) -> None:
        """Hold what was claimed for it. `needs` are amounts by job, for the jobs that need any; `chunks` how many tasks
        one call takes, for the jobs of which it takes several."""
        self.noted += len(tasks)
        if chunks:
            for armed in tasks:
                if armed.job in chunks:
                    ahead_until = armed.fire_at if armed.fire_at > now else None
                    self._chunk_slots.take(armed.task, armed.job, chunks[armed.job], ahead_until)
        for armed in tasks:
            self.held[armed.task] = armed.token
            if armed.job in needs:
                self.amounts.take(armed.task, needs[armed.job])
            if armed.fire_at > now:
                heapq.heappush(self._ahead, armed.fire_at)
            if armed.daemon:
                self.output.held_daemon(armed.token, boottime())

    def hear(self, beat: Heartbeat) -> None:
        """Take its heartbeat, with its numbers clamped to what the database can store."""
        self.heard_at = boottime()
        self.heartbeat = replace(
            beat,
            running=_within(0, beat.running, self.slots),
            cpu=_within(0.0, beat.cpu, 1.0),
            memory=_within(0.0, beat.memory, 1.0),
            skew=_within(-FAR, beat.skew, FAR),
            round_trip=_within(0.0, beat.round_trip, FAR),
            blocked=_within(0, beat.blocked, MANY),
            blocked_seconds=_within(0.0, beat.blocked_seconds, FAR),
        )
        self.draining |= beat.draining

    def split(self, report: Report) -> tuple[Report | None, Report | None]:
        """Split a report into items on attempts that it holds, and the rest. Most need no split."""
        held, reported = self.held, items(report)
        own = [item for item in reported if held.get(item.task) == item.token]
        if len(own) == len(reported):
            return report, None
        others = [item for item in reported if held.get(item.task) != item.token]
        return (about(report, own) if own else None), about(report, others)

    def ended(self, endings: list[Ending]) -> None:
        self.reported.update(ending.token for ending in endings if self.held.get(ending.task) == ending.token)
        if self.amounts.in_use:
            for ending in endings:
                if self.held.get(ending.task) == ending.token:
                    self.amounts.release(ending.task)
        self._finished += len(endings)
        if self._chunk_slots.job_of:
            for ending in endings:
                if self.held.get(ending.task) == ending.token and (share := self._chunk_slots.release(ending.task)):
                    self._finished += share - 1.0
        elapsed = boottime() - self._rated_at
        if elapsed >= 0.02:
            self._rate += (self._finished / elapsed - self._rate) * min(1.0, elapsed / HORIZON)
            self._finished = 0.0
            self._rated_at = boottime()

    def release(self, task: int) -> None:
        token = self.held.pop(task, 0)
        self.reported.discard(token)
        self.output.forget(token)
        if self.amounts.in_use:
            self.amounts.release(task)
        if self._chunk_slots.job_of:
            self._chunk_slots.release(task)

    def is_worth_compacting(self, batch: int) -> bool:
        """Whether its rows of claims differ from what it holds; if it holds many, whether most tasks in them ended."""
        if len(self.held) > MANY_HELD:
            return self.noted > 2 * len(self.held)
        return self.compacted != (batch, list(self.held))

    def ahead(self, now: float) -> int:
        instants = self._ahead
        while instants and instants[0] <= now:
            heapq.heappop(instants)
        return min(len(instants), len(self.held)) if instants else 0

    @property
    def window(self) -> int:
        """How many slots due tasks may take: its own, plus those that become free within the horizon."""
        return self.slots + int(self._rate * HORIZON)

    @property
    def load(self) -> float:
        """The share of its slots that due tasks take, 0 to 1."""
        saved = self._chunk_slots.saved(0.0) if self._chunk_slots.job_of else 0
        return min(1.0, max(0, len(self.held) - len(self._ahead) - saved) / self.slots)

    def vital(self, lead: Lead) -> Vital:
        """What each renewal of its lease writes about it."""
        beat, link = self.heartbeat, self.link
        return Vital(
            session=self.id,
            silent=boottime() - self.heard_at,
            running=beat.running,
            cpu=beat.cpu,
            memory=beat.memory,
            skew=beat.skew,
            round_trip=beat.round_trip,
            ack_time=link.ack_time,
            reliability=link.reliability,
            lead=lead.of(link.ack_time, self.load),
            blocked=beat.blocked,
            blocked_seconds=beat.blocked_seconds,
        )

    def is_responsive(self, lease: float) -> bool:
        """Whether messages pass both ways. If not, only its watchdog (`Keep`) renews its lease."""
        oldest = boottime() - lease / 2
        return min(self.heard_at, self.link.stalled_since) > oldest

    def is_trusted(self, now: float, lease: float) -> bool:
        """Whether it can be reached and its lease is not about to expire: then it may get new tasks. `now` is boot
        time."""
        oldest = now - lease * 5 / 6  # a watchdog renews the lease of an agent that is blocked, and hears nothing
        return min(self.renewed_at, self.heard_at) > oldest and self.link.stalled_since > now - lease / 5

    def window_for(self, needs: Mapping[str, float], chunk: int = 1) -> int:
        """How many due tasks with these needs it may hold, if `chunk` of them share a slot."""
        return min(self.window * chunk, copies(needs, self.offers)) if needs else self.window * chunk

    def used(self, now: float) -> int:
        """How many slots its due tasks take; more than it has while some wait for one."""
        used = len(self.held) - len(self.reported) - self.ahead(now)
        return used - self._chunk_slots.saved(now) if self._chunk_slots.job_of else used

    def room(self, now: float, needs: Mapping[str, float], chunk: int = 1) -> int:
        """How many due tasks with these needs it can take, if `chunk` of them share a slot."""
        if self.draining:
            return 0
        free = (self.window - self.used(now) - self.promised) * chunk
        return min(free, copies(needs, self.amounts.free)) if needs else free

    def room_ahead(self, now: float, needs: Mapping[str, float]) -> int:
        """How many tasks with these needs can be armed on it ahead of their time."""
        if self.draining:
            return 0
        free = ARM_LIMIT - self.ahead(now)
        return min(free, copies(needs, self.amounts.free)) if needs else free

    def candidate(self, free: int) -> Candidate:
        """The input of a placement strategy."""
        return Candidate(
            session=self.id,
            name=self.name,
            free=free,
            busy=len(self.held)
            - len(self.reported)
            - (self._chunk_slots.saved(0.0) if self._chunk_slots.job_of else 0),
            slots=self.slots,
            cpu=self.heartbeat.cpu,
            memory=self.heartbeat.memory,
            labels=self.labels,
            offers=self.offers,
        )

    def dispatches(
        self, catalogue: Catalogue, tasks: list[Armed], secrets: Mapping[int, JobSecrets] = NO_SECRETS
    ) -> Iterator[Dispatch]:
        """The messages that arm `tasks`: one, unless their arguments are large. `secrets`: by job, for this agent."""
        first = size = 0
        for number, armed in enumerate(tasks):
            size += len(armed.args) + len(armed.checkpoint or "")
            if armed.parents is not None:
                size += len(armed.parents)
            if armed.job in secrets:
                size += sum(map(len, secrets[armed.job].values.values()))
            if size > FRAME and number > first:
                yield self._dispatch(catalogue, tasks[first:number], secrets)
                first, size = number, 0
        yield self._dispatch(catalogue, tasks[first:], secrets)

    def _dispatch(self, catalogue: Catalogue, tasks: list[Armed], secrets: Mapping[int, JobSecrets]) -> Dispatch:
        """The message that arms `tasks`, with the jobs that the agent does not know yet."""
        jobs = []
        ids = {armed.job for armed in tasks}
        for id in ids:
            if (job := catalogue.jobs.get(id)) is None:
                continue
            known = job.version, job.default_timeout, job.definition.retry.retries  # the settings change the last two
            if self._known_jobs.get(id) != known:
                self._known_jobs[id] = known
                jobs.append(job)
        return Dispatch(jobs, tasks, self.id, [secrets[id] for id in ids & secrets.keys()] if secrets else [])

    def pause(self, wanted: dict[int, int]) -> list[ServerMessage]:
        """The messages that pause the attempts `wanted` (token → task) and resume all others."""
        pause = [AttemptId(task, token) for token, task in wanted.items() if token not in self.paused]
        may_be_paused = (self.paused | self._paused_before) - wanted.keys()
        resume = [AttemptId(task, token) for task, token in self.held.items() if token in may_be_paused]
        self.paused = set(wanted)
        self._paused_before.clear()
        return [Pause(held, resumes) for held, resumes in ((pause, False), (resume, True)) if held]


def _within(low: Number, value: Number, high: Number) -> Number:
    """NaN becomes the lower bound."""
    return min(high, max(low, value))


def stop_message(attempt: CancelRequest) -> ServerMessage:
    """The message that cancels or recalls an attempt."""
    held = [AttemptId(attempt.task, attempt.token)]
    if attempt.mode == CancelMode.RECALL:
        return Recall(held)
    return Cancel(held, kill=attempt.mode == CancelMode.KILL, restart=attempt.mode == CancelMode.RESTART)
