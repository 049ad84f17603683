"""Attempt: one try at a task while the agent holds it; ChunkCall: attempts that one call of a handler runs; Executor:
the contract of whatever runs them.

Next: agent/run/runner.py
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import MappingProxyType
from typing import Any, Literal, Protocol

from msgspec import Struct

from mainspring.agent.timing.wheel import Timer
from mainspring.model.flows.options import TaskOptions, read_options
from mainspring.model.messages import Armed, Submit
from mainspring.model.secrets.references import Value
from mainspring.model.secrets.values import NO_SECRETS, SecretValues, SecretWithheld
from mainspring.model.tasks.jobs import Job
from mainspring.model.tasks.verdict import starts_durably
from mainspring.wire.clock import boottime

NO_DECODERS: Mapping[str, Callable[[str], Any]] = MappingProxyType({})  # one for all: a dict would be made for each
AHEAD = 0.1  # seconds before its time from which on an attempt counts as armed ahead

Transactions = Callable[[Sequence["Attempt"]], AbstractAsyncContextManager[Any]]
Outcome = str | BaseException | None  # of one member of a chunk: its result as JSON, or what it failed with
StopReason = Literal["stalled", "timeout", "cancelled", "lost", "shutdown", "restart", "unhealthy", "neighbour"]


class Reports(Protocol):
    """Where an attempt reports to while it runs (the outbox)."""

    def output(self, attempt: Attempt, stream: int, data: bytes) -> None: ...

    def note(
        self, attempt: Attempt, progress: str | None, checkpoint: str | None, healthy: bool | None = None
    ) -> None: ...


class Submitter(Protocol):
    """Submits tasks through the server (connection/submissions.py)."""

    loop: asyncio.AbstractEventLoop

    async def submit(self, request: Submit) -> list[int]: ...


_NO_EXECUTOR: Any = None  # of an attempt that no runner holds


class Attempt(Struct, eq=False):
    """`stopping` is set once, before the executor's coroutine is cancelled."""

    armed: Armed
    job: Job
    reports: Reports
    database: str = ""  # its id: task 1 of another database is another task
    agent: str = ""  # the name of the agent that runs it
    submissions: Submitter | None = None
    executor: Executor = _NO_EXECUTOR  # that runs it
    transactions: Transactions | None = None
    prepared: Any = None  # set by Executor.prepare, read by Executor.run
    args: dict[str, Any] = {}  # of a handler
    decoders: Mapping[str, Callable[[str], Any]] = NO_DECODERS  # of results, by job, if its task ran after others
    lead: float = 0.0  # seconds from arming to its instant
    timeout_left: float | None = None  # seconds, while it is paused
    paused: bool = False
    committed: bool = False  # by transaction(): the task has succeeded, whatever its handler does afterwards
    waiting_since: float = 0.0  # for a slot, in boot time
    started_at: float = 0.0  # zero until it runs
    stopping: StopReason | None = None
    handle: asyncio.Task[None] | None = None  # the worker that runs it
    timer: Timer | None = None  # of its instant, then of its timeout
    chunks: int = 0  # of output, so far
    chunk: int = 0  # how many attempts one call of its handler takes, set by Executor.prepare; 0: it takes no list
    call: ChunkCall | None = None  # that it is a member of
    grace: float = 5.0  # of its job: seconds between the request to stop and the kill
    stall_timer: Timer | None = None
    active_at: float = 0.0  # boot time of its last output, progress or heartbeat
    secrets: SecretValues = NO_SECRETS

    @property
    def name(self) -> str:
        return f"task {self.armed.task}"

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its instant or for a slot."""
        return self.handle is None

    @property
    def options(self) -> TaskOptions:
        """What its submission gave for this task alone."""
        return read_options(self.armed.options)

    @property
    def timeout(self) -> float | None:
        """Seconds that it may run: by its submission, its job, or the cluster, which has none for daemons."""
        if self.armed.options is not None and (own := self.options.timeout) is not None:
            return own
        of_job = self.job.definition.timeout
        return of_job if of_job is not None or self.armed.daemon else self.job.default_timeout

    @property
    def stalls_after(self) -> float | None:
        """Seconds without output, progress or a heartbeat after which it is stopped."""
        if self.armed.options is not None and (own := self.options.stalls_after) is not None:
            return own
        return self.job.definition.stalls_after

    def has_expired(self, now: float) -> bool:
        """Whether its start deadline has passed."""
        return self.armed.expires_at is not None and now > self.armed.expires_at

    @property
    def idempotency_key(self) -> str:
        """Stable across the attempts of a task, unique across tasks and databases."""
        return f"mainspring-{self.database}-{self.armed.task}"

    @property
    def starts_durably(self) -> bool:
        """Whether its start must be recorded before it runs, so that a crash is counted."""
        return self.armed.careful or starts_durably(self.job.definition)

    @property
    def ending_can_wait(self) -> bool:
        """Whether its success may wait for others (decision 38): it was armed before its time, under no limit, and is
        delivered at least once."""
        definition = self.job.definition
        return self.lead > AHEAD and definition.gate is None and definition.delivery == "at_least_once"

    def resolved(self, value: Value) -> str:
        """The value, or that of the secret which it refers to."""
        try:
            return self.secrets.resolved(value)
        except SecretWithheld as error:
            raise AttemptFailed("secret_unavailable", str(error)) from None

    def stop(self, reason: StopReason) -> None:
        """Cancel the executor. The first reason stands."""
        if self.stopping is None:
            self.stopping = reason
            if self.handle is not None and self.started_at:  # the runner checks `stopping` before the first step
                self.handle.cancel()

    def heartbeat(self) -> None:
        """It lives, whatever else it says."""
        self.active_at = boottime()

    def output(self, stream: int, data: bytes) -> None:
        self.heartbeat()
        self.reports.output(self, stream, data)

    def note(self, progress: str | None, checkpoint: str | None, healthy: bool | None = None) -> None:
        self.heartbeat()
        self.reports.note(self, progress, checkpoint, healthy)


class ChunkCall:
    """The attempts that one call of a handler runs, in one slot. To the workers it is an attempt.

    It takes members until it is full or begins. It is stopped only when all of its members are.
    """

    __slots__ = ("_handle", "armed", "members", "paused", "stall_timer", "timeout_left", "timer", "waiting_since")

    def __init__(self, first: Attempt) -> None:
        self.members = [first]
        self.armed = first.armed  # of the most important member, once it waits for a slot
        self.timer: Timer | None = None  # of its wait for more members, then of its timeout
        self.stall_timer: Timer | None = None
        self.waiting_since = 0.0
        self.paused = False  # only commands can be
        self.timeout_left: float | None = None
        self._handle: asyncio.Task[None] | None = None
        first.call = self

    def add(self, attempt: Attempt) -> None:
        attempt.call = self
        self.members.append(attempt)

    @property
    def name(self) -> str:
        return f"the call for tasks {[attempt.armed.task for attempt in self.members]}"

    @property
    def timeout(self) -> float | None:
        return self.members[0].timeout  # all have the same limits

    @property
    def stalls_after(self) -> float | None:
        return self.members[0].stalls_after

    @property
    def active_at(self) -> float:
        """Boot time of the last sign of life of any of its members."""
        return max(attempt.active_at for attempt in self.members)

    @active_at.setter
    def active_at(self, at: float) -> None:
        for attempt in self.members:
            attempt.active_at = at

    @property
    def handle(self) -> asyncio.Task[None] | None:
        return self._handle

    @handle.setter
    def handle(self, worker: asyncio.Task[None] | None) -> None:
        self._handle = worker
        for attempt in self.members:
            attempt.handle = worker

    @property
    def stopping(self) -> StopReason | None:
        """Why it is stopped; None as long as one of its members is not."""
        reasons = [attempt.stopping for attempt in self.members]
        return None if None in reasons else reasons[0]

    @stopping.setter
    def stopping(self, reason: StopReason) -> None:
        for attempt in self.members:
            attempt.stopping = attempt.stopping or reason

    @property
    def grace(self) -> float:
        return max(attempt.grace for attempt in self.members)


class AttemptFailed(Exception):
    """The attempt failed; `code` names the cause, `labels` are matched by retry_on and abort_on."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        labels: tuple[str, ...] = (),
        final: bool = False,
        retry_after: float | None = None,  # seconds, in place of the delay of the job's retry policy
        exit_code: int | None = None,  # of a command; negative: the signal that ended it
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.labels = (code, *labels)
        self.final = final
        self.retry_after = retry_after
        self.exit_code = exit_code


class Expired(Exception):
    """Its start deadline has passed. Nothing of it has run."""


class Exhausted(Exception):
    """The agent has no descriptor, process or memory left to start the attempt. Nothing of it has run: it is given
    back, at no cost."""


# Of the machine or the agent, whatever the job is.
EXHAUSTED = frozenset([errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS])


class Executor(Protocol):
    def prepare(self, attempt: Attempt) -> None:
        """Do ahead of time what need not wait for the instant, which is `attempt.lead` seconds away."""

    async def run(self, attempt: Attempt) -> str | None:
        """Run the attempt; returns its result as JSON. Raises AttemptFailed, Exhausted, or a `Control` of the handler.

        When cancelled: stop what runs, wait until it has ended, then let CancelledError propagate.
        """

    async def run_chunk(self, call: ChunkCall) -> Sequence[Outcome]:
        """Run the members of a call, which `prepare` has marked; returns an outcome for each, in their order.

        Raises what `run` does if the call failed as a whole.
        """
        raise AttemptFailed("executor_error", "jobs of this kind take no chunks")

    def forget(self, attempt: Attempt) -> None:
        """Undo `prepare` for an attempt that will not run, or has ended."""
        return

    def pause(self, attempt: Attempt, *, resume: bool) -> bool:
        """Pause or resume a running attempt; False if this kind of job cannot be paused."""
        return False
