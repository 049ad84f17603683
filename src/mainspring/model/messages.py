"""Messages: the agent protocol, the same over memory and network.

A frame carries a sequence number and acknowledges all frames of the other side up to `ack`, so a lost frame is sent
again and a repeated one changes nothing. Sequence numbers belong to one connection; what it left unacknowledged is sent
again on the next. Times are seconds since 1970 on the database's clock. (task, token) names one attempt.
Next: wire/channel.py
"""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from mainspring.model.flows.options import MAX_TAGS
from mainspring.model.tasks.jobs import DEFAULT_PRIORITY, Job
from mainspring.model.tasks.states import TaskState

PROTOCOL = 1

# What one message of an agent may carry. A longer one is not decoded: a frame of 16 MiB holds millions of items.
ITEMS = 5000  # on attempts
MAX_HELD = 200_000
MAX_TASKS = 100_000  # in one submission
MAX_LABELS = 200  # of a failure

T = TypeVar("T")
Items = Annotated[list[T], Meta(max_length=ITEMS)]


class AttemptId(Struct, array_like=True, gc=False):
    """The name of one attempt; items about an attempt begin with it."""

    task: int
    token: int


# ── from the agent ──────────────────────────────────────────────────────────────────────────────


class Holding(AttemptId, array_like=True, gc=False):
    """One attempt that the agent holds: armed (ASSIGNED), RUNNING, or ended and not yet acknowledged."""

    state: TaskState


class Hello(Struct, tag="hello"):
    """The first message of a connection. With `session` set the agent reconnects: a new session takes over `held`.

    Its statement may be executed late, when the agent has long connected elsewhere: `connection` orders the hellos of
    one agent process, so that a late one changes nothing.
    """

    name: str
    slots: int
    labels: dict[str, str]
    protocol: int = PROTOCOL
    instance: str = ""  # a secret of this agent process, which proves that a session is its own
    connection: int = 1  # counts the connections of this agent process
    session: int | None = None
    held: Annotated[list[Holding], Meta(max_length=MAX_HELD)] = []
    offers: dict[str, float] = {}  # amounts that jobs may need, such as gpu: 2
    version: str = ""
    host: str = ""


class Heartbeat(Struct, tag="heartbeat", gc=False):
    running: int
    sent: float = 0.0  # boot time of the agent; the answer echoes it
    cpu: float = 0.0  # in use on the machine, 0 to 1
    memory: float = 0.0  # in use, 0 to 1
    skew: float = 0.0  # seconds by which the agent's wall clock is ahead of the database's
    round_trip: float = 0.0
    draining: bool = False  # it takes nothing new
    blocked: int = 0  # how often its event loop was blocked, since its start
    blocked_seconds: float = 0.0


class Keep(Struct, tag="keep", gc=False):
    """Renew a session whose agent lives and cannot say hello; answered by `Configure`.

    A connection of its own begins with it, in place of a hello, and carries nothing else.
    """

    session: int
    instance: str  # the secret of the agent process, as in its hello
    sent: float  # boot time of the agent; the answer echoes it
    blocked: bool = True  # the agent's event loop is; False: it is free, and only a server that is blocked renews it


class Start(AttemptId, array_like=True, gc=False):
    at: float


class Started(Struct, tag="started"):
    """Attempts that have started and not ended; one that has ended is in `Finished` alone."""

    starts: Items[Start]


class Ending(AttemptId, array_like=True, gc=False):
    """How one attempt ended. `state` is the outcome of the attempt; the server decides about retries."""

    job: int
    attempt: int
    state: TaskState
    started_at: float
    finished_at: float
    result: str | None = None  # JSON
    code: str | None = None  # names the cause: handler_error, timeout, exit_code, ...
    error: str | None = None
    labels: Annotated[tuple[str, ...], Meta(max_length=MAX_LABELS)] = ()  # of the failure, for retry_on and abort_on
    retry_after: float | None = None  # asked by the handler
    snooze: float | None = None  # run again later; costs no attempt
    final: bool = False  # the handler asks for no retry
    exit_code: int | None = None  # of a command that failed; negative: the signal that ended it
    armed_ahead: float | None = None  # seconds before its instant that its agent had it; negative: after it
    fire_at: float = 0.0  # its instant; 0: not known, or there is none, as for a daemon
    planned: bool = False  # made by a schedule


class Finished(Struct, tag="finished"):
    endings: Items[Ending]


class Note(AttemptId, array_like=True, gc=False):
    """Progress and checkpoint of a running attempt, as JSON; None keeps what is stored."""

    progress: str | None
    checkpoint: str | None
    healthy: bool | None = None  # the result of its health check, if that has changed


class Progress(Struct, tag="progress"):
    notes: Items[Note]


class Chunk(AttemptId, array_like=True, gc=False):
    """A piece of output: raw bytes, with stream (1 stdout, 2 stderr, 0 a remark of the agent) and time."""

    number: int
    stream: int
    at: float
    data: bytes


class Output(Struct, tag="output"):
    chunks: Items[Chunk]


class Refused(Struct, tag="refused"):
    """Attempts that the agent returns unstarted; this costs the task no attempt."""

    attempts: Items[AttemptId]
    reason: str


class Submit(Struct, tag="submit"):
    """Tasks that a running handler submits, answered by `Submitted`. Repeating a request submits nothing more."""

    request: str  # a UUID; the answer echoes it
    task: int  # with `token`: the attempt that submits
    token: int
    job: str
    args: Annotated[list[str], Meta(max_length=MAX_TASKS)]  # JSON objects, one for each task
    many: bool = False
    priority: str | None = None
    run_at: float | None = None
    delay: float | None = None
    key: str | None = None
    key_ttl: float = 86400.0
    after: Annotated[list[int], Meta(max_length=MAX_TASKS)] | None = None
    concurrency_key: str | None = None
    tags: Annotated[list[str], Meta(max_length=MAX_TAGS)] | None = None
    expires: float | None = None
    batch: int | None = None
    on_parent_failure: str | None = None
    if_exists: str | None = None
    timeout: float | None = None
    retries: int | None = None
    stalls_after: float | None = None

    @property
    def size(self) -> int:
        return sum(len(text) if text.isascii() else len(text.encode()) for text in self.args)


AgentMessage = Hello | Keep | Heartbeat | Started | Finished | Progress | Output | Refused | Submit


# ── from the server ─────────────────────────────────────────────────────────────────────────────


class Welcome(Struct, tag="welcome"):
    """The session is accepted; its lease lasts `lease` seconds from each answered heartbeat."""

    session: int
    lease: float
    now: float
    kept: list[AttemptId] = []  # of what the agent holds; it must drop the rest
    credential: str | None = None  # replaces a single-use token from now on
    database: str = ""  # id of the database, part of every idempotency key
    error: float = 0.0  # seconds by which `now` may be wrong


class Configure(Struct, tag="configure", gc=False):
    """The answer to a heartbeat: the renewed lease, and the database's time."""

    lease: float
    now: float
    echo: float = 0.0  # `sent` of the heartbeat
    error: float = 0.0  # seconds by which `now` may be wrong


class Armed(AttemptId, array_like=True, gc=False):
    """One attempt to fire at `fire_at`."""

    job: int
    attempt: int
    fire_at: float
    args: str  # JSON object
    checkpoint: str | None = None
    careful: bool = False  # an earlier attempt crashed its agent: the start must be durable before it runs
    plan_time: float | None = None  # of its schedule
    scope: str | None = None
    daemon: bool = False  # a replica: an agent that stops does not wait for it
    priority: int = DEFAULT_PRIORITY  # of those that wait for a slot, the agent starts the most important first
    schedule: str | None = None  # the name of the schedule that made it
    expires_at: float | None = None  # it is skipped if it has not started by then
    options: str | None = None  # JSON, of TaskOptions
    rank: int | None = None  # counts in place of the priority, for one that has waited long
    parents: str | None = None  # JSON: what became of the tasks that it ran after (model/flows/parents.py)


class JobSecrets(Struct, array_like=True, gc=False):
    """The secrets that a job refers to, for the attempts of one dispatch."""

    job: int
    values: dict[str, str]  # by name
    withheld: dict[str, str] = {}  # by name, why this agent does not get the value

    def __repr__(self) -> str:
        return f"JobSecrets({self.job}, …)"


class Dispatch(Struct, tag="dispatch"):
    """Attempts to arm, and those of their jobs that this session has not received yet."""

    jobs: list[Job]
    tasks: list[Armed]
    session: int = 0  # an agent drops what was meant for another session
    secrets: list[JobSecrets] = []  # of those of their jobs that refer to any


class Recall(Struct, tag="recall"):
    """Return these if they have not started; answered by `Refused`, or by their outcome."""

    attempts: list[AttemptId]


class Cancel(Struct, tag="cancel"):
    """Stop these now; with `kill` without their grace, with `restart` they run again."""

    attempts: list[AttemptId]
    kill: bool = False
    restart: bool = False


class Pause(Struct, tag="pause"):
    """Suspend the processes of these commands; with `resume` continue them."""

    attempts: list[AttemptId]
    resume: bool = False


class Drain(Struct, tag="drain"):
    """Take nothing new, return what has not started."""


class Submitted(Struct, tag="submitted"):
    """The answer to `Submit`: the committed tasks, or the code of an error and its message."""

    request: str
    tasks: list[int] = []
    code: str | None = None
    message: str = ""
    field: str | None = None


ServerMessage = Welcome | Configure | Dispatch | Recall | Cancel | Pause | Drain | Submitted


# ── both ────────────────────────────────────────────────────────────────────────────────────────


M = TypeVar("M")


class Frame(Struct, Generic[M], array_like=True):
    """`sequence` 0 is outside the sequence: handled on arrival, never kept, never acknowledged."""

    sequence: int
    ack: int  # the sender of this frame has handled all up to here
    messages: list[M]
    received: int = 0  # it has received all up to here: they need not be sent again
    urgent: bool = False  # it waits for the acknowledgement of this frame and of all before it
