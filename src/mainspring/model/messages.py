"""The agent protocol: typed messages in numbered frames, the same over memory and network.

A frame carries a sequence number and acknowledges all frames up to `ack` of the other side, so a
lost frame is sent again and a repeated one changes nothing. Times are seconds since 1970 on the
database's clock. Tasks are named with their token everywhere: (task, token) is one attempt.
Next: wire/channel.py
"""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

from mainspring.model.jobs import Job
from mainspring.model.states import TaskState

PROTOCOL = 1


class Held(Struct, array_like=True, gc=False):
    """One attempt, named."""

    task: int
    token: int


# ── from the agent ──────────────────────────────────────────────────────────────────────────────


class Hello(Struct, tag="hello"):
    """First message of a session."""

    name: str
    slots: int
    labels: dict[str, str]
    protocol: int = PROTOCOL


class Heartbeat(Struct, tag="heartbeat", gc=False):
    running: int


class Start(Struct, array_like=True, gc=False):
    task: int
    token: int
    at: float


class Started(Struct, tag="started"):
    """Attempts that have started and not yet ended; one that ended says so in `Finished` alone."""

    starts: list[Start]


class Ending(Struct, array_like=True, gc=False):
    """How one attempt ended. `state` is what the attempt came to; the server decides about retries."""

    task: int
    token: int
    job: int
    attempt: int
    state: TaskState
    started_at: float
    finished_at: float
    result: str | None = None  # JSON
    code: str | None = None  # names the cause: handler_error, timeout, exit_code, ...
    error: str | None = None
    labels: tuple[str, ...] = ()  # of the failure, for retry_on and abort_on
    retry_after: float | None = None  # the handler's own wish
    snooze: float | None = None  # put off: costs no attempt
    final: bool = False  # the handler says: do not retry


class Finished(Struct, tag="finished"):
    endings: list[Ending]


class Note(Struct, array_like=True, gc=False):
    """Progress and checkpoint of a running attempt, as JSON; None leaves what is stored."""

    task: int
    token: int
    progress: str | None
    checkpoint: str | None


class Progress(Struct, tag="progress"):
    notes: list[Note]


class Chunk(Struct, array_like=True, gc=False):
    """A piece of output: bytes as they came, with stream (1 stdout, 2 stderr, 0 a remark) and time."""

    task: int
    token: int
    number: int
    stream: int
    at: float
    data: bytes


class Output(Struct, tag="output"):
    chunks: list[Chunk]


class Refused(Struct, tag="refused"):
    """Attempts the agent gives back unstarted; this costs the task nothing."""

    attempts: list[Held]
    reason: str


AgentMessage = Hello | Heartbeat | Started | Finished | Progress | Output | Refused


# ── from the server ─────────────────────────────────────────────────────────────────────────────


class Welcome(Struct, tag="welcome", gc=False):
    """The session is accepted; it lives for `lease` seconds from each heartbeat answered."""

    session: int
    lease: float
    now: float


class Configure(Struct, tag="configure", gc=False):
    """Answer to a heartbeat: the lease is renewed, and this is the database's time."""

    lease: float
    now: float


class Armed(Struct, array_like=True, gc=False):
    """One attempt to fire at `fire_at`."""

    task: int
    token: int
    job: int
    attempt: int
    fire_at: float
    args: str  # JSON object
    checkpoint: str | None = None
    careful: bool = False  # an attempt ended with its agent before: the start must be durable before it runs
    plan_time: float | None = None  # of its schedule
    scope: str | None = None


class Dispatch(Struct, tag="dispatch"):
    """Attempts to arm, and the jobs among them that this session has not been told of yet."""

    jobs: list[Job]
    tasks: list[Armed]


class Recall(Struct, tag="recall"):
    """Give these back if they have not started; answered by `Refused`, or by what they came to."""

    attempts: list[Held]


class Cancel(Struct, tag="cancel"):
    """Stop these now; with `kill` they get no grace to end by themselves."""

    attempts: list[Held]
    kill: bool = False


class Drain(Struct, tag="drain"):
    """Take nothing new, give back what has not started."""


ServerMessage = Welcome | Configure | Dispatch | Recall | Cancel | Drain


# ── both ────────────────────────────────────────────────────────────────────────────────────────


M = TypeVar("M")


class Frame(Struct, Generic[M]):
    sequence: int
    ack: int
    messages: list[M]
