"""The agent protocol: typed messages in numbered frames, the same over memory and network.

A frame carries a sequence number and acknowledges all frames up to `ack` of the other side, so a
lost frame is sent again and a repeated one changes nothing. Sequence numbers are those of one connection; what
was not acknowledged on it is told again on the next. Times are seconds since 1970 on the
database's clock. Tasks are named with their token everywhere: (task, token) is one attempt.
Next: wire/channel.py
"""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

from mainspring.model.tasks.jobs import Job
from mainspring.model.tasks.states import TaskState

PROTOCOL = 1


class Held(Struct, array_like=True, gc=False):
    """One attempt, named."""

    task: int
    token: int


# ── from the agent ──────────────────────────────────────────────────────────────────────────────


class Holding(Struct, array_like=True, gc=False):
    """One attempt that the agent has: armed (ASSIGNED), RUNNING, or ended and not yet acknowledged."""

    task: int
    token: int
    state: TaskState


class Hello(Struct, tag="hello"):
    """First message of a connection. With `session` it goes on with what it holds from that session."""

    name: str
    slots: int
    labels: dict[str, str]
    protocol: int = PROTOCOL
    instance: str = ""  # a secret of this agent process: only who knows it goes on with its session
    session: int | None = None
    held: list[Holding] = []
    offers: dict[str, float] = {}  # amounts of what jobs may need, such as gpu: 2
    version: str = ""
    host: str = ""


class Heartbeat(Struct, tag="heartbeat", gc=False):
    running: int
    sent: float = 0.0  # boot time of the agent, which the answer repeats
    cpu: float = 0.0  # of the whole machine, 0 to 1
    memory: float = 0.0  # in use, 0 to 1
    skew: float = 0.0  # seconds by which the agent's wall clock is ahead of the database's
    round_trip: float = 0.0
    draining: bool = False  # it takes nothing new


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
    healthy: bool | None = None  # what its health check says, where it has one and that has changed


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


class Submit(Struct, tag="submit"):
    """Tasks that a handler submits while it runs, answered by `Submitted`. A repeated request submits nothing more."""

    request: str  # a UUID, which the answer repeats
    task: int  # with its token: the attempt that submits
    token: int
    job: str
    args: list[str]  # JSON objects, one for each task
    many: bool = False
    priority: str | None = None
    run_at: float | None = None
    delay: float | None = None
    key: str | None = None
    key_ttl: float = 86400.0
    after: list[int] | None = None
    concurrency_key: str | None = None


AgentMessage = Hello | Heartbeat | Started | Finished | Progress | Output | Refused | Submit


# ── from the server ─────────────────────────────────────────────────────────────────────────────


class Welcome(Struct, tag="welcome"):
    """The session is accepted; it lives for `lease` seconds from each heartbeat answered."""

    session: int
    lease: float
    now: float
    kept: list[Held] = []  # of what it said it holds: all else is not its own any more
    credential: str | None = None  # to connect with from now on, in place of a token that serves once
    database: str = ""  # its id, part of every idempotency key


class Configure(Struct, tag="configure", gc=False):
    """Answer to a heartbeat: the lease goes on for so long, and this is the database's time."""

    lease: float
    now: float
    echo: float = 0.0  # `sent` of the heartbeat


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
    daemon: bool = False  # a replica that must stay up: it is not waited for when its agent stops


class Dispatch(Struct, tag="dispatch"):
    """Attempts to arm, and the jobs among them that this session has not been told of yet."""

    jobs: list[Job]
    tasks: list[Armed]
    session: int = 0  # whose they are: an agent takes nothing that was meant for another session


class Recall(Struct, tag="recall"):
    """Give these back if they have not started; answered by `Refused`, or by what they came to."""

    attempts: list[Held]


class Cancel(Struct, tag="cancel"):
    """Stop these now; with `kill` they get no grace to end by themselves, with `restart` they run again."""

    attempts: list[Held]
    kill: bool = False
    restart: bool = False


class Pause(Struct, tag="pause"):
    """Stop the processes of these commands where they are; with `resume` let them go on."""

    attempts: list[Held]
    resume: bool = False


class Drain(Struct, tag="drain"):
    """Take nothing new, give back what has not started."""


class Submitted(Struct, tag="submitted"):
    """Answer to `Submit`: the tasks, which are committed; or the code of an error and what it says."""

    request: str
    tasks: list[int] = []
    code: str | None = None
    message: str = ""
    field: str | None = None


ServerMessage = Welcome | Configure | Dispatch | Recall | Cancel | Pause | Drain | Submitted


# ── both ────────────────────────────────────────────────────────────────────────────────────────


M = TypeVar("M")


class Frame(Struct, Generic[M], array_like=True):
    """`sequence` 0 is out of turn: handled when it comes, never kept, never acknowledged."""

    sequence: int
    ack: int  # all up to here are safe with the sender of this frame
    messages: list[M]
    received: int = 0  # all up to here have come to it: they need not be sent again
