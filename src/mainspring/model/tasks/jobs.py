"""Jobs: what to run, and the policies it runs under.

The definition is stored as JSON in `job.definition`: its field names never change.
Next: model/messages.py
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from mainspring.model.limits.limits import Limits
from mainspring.model.secrets.references import Value, names_in
from mainspring.model.tasks.retry import Retry

Delivery = Literal["at_least_once", "at_most_once", "effectively_once"]
Priority = Literal["low", "normal", "high", "critical"] | int  # 0 to 9

PRIORITIES = {"low": 2, "normal": 5, "high": 7, "critical": 9}
PRIORITY_LEVELS = tuple(range(9, -1, -1))  # in the order in which they are claimed
DEFAULT_PRIORITY = PRIORITIES["normal"]
DEFAULT_CHUNK_WAIT = 0.2


class ProcessLimits(Struct, frozen=True, omit_defaults=True):
    """The most that one process of a command may use."""

    memory: int | None = None  # bytes of address space
    cpu: float | None = None  # seconds of CPU time
    files: int | None = None  # open at the same time


NO_LIMITS = ProcessLimits()


class Command(Struct, frozen=True, tag="command", omit_defaults=True):
    """A program and its arguments; a shell only on request."""

    argv: tuple[str, ...]
    shell: bool = False
    cwd: str | None = None
    env: dict[str, Value] = {}
    stdin: str | None = None
    user: str | None = None  # to run as, if the agent allows it
    limits: ProcessLimits = NO_LIMITS
    python: bool = False  # argv is a script, or -m and a module: its interpreter starts before the instant
    warm: tuple[str, ...] = ()  # modules that the interpreter imports before the instant


class Argument(Struct, frozen=True, omit_defaults=True):
    """A parameter of a handler, so that a form can ask for it. What it may be is for the handler to say."""

    name: str
    type: Literal["any", "string", "integer", "number", "boolean"] = "any"  # of its JSON
    required: bool = False  # it has no default


class Python(Struct, frozen=True, tag="python", omit_defaults=True):
    """A handler that the agent's application has registered."""

    handler: str
    takes: tuple[str, ...] = ()  # those of schedules.FILLED that are its parameters
    chunk: int | None = None  # one call takes a list of up to so many tasks; None: a call for each task
    chunk_wait: float = DEFAULT_CHUNK_WAIT  # seconds that the first task of a chunk waits for more
    arguments: tuple[Argument, ...] = ()  # what it can be given, in its own order; none: it is not known


class Http(Struct, frozen=True, tag="http", omit_defaults=True):
    """A request, and which responses count as success."""

    method: str
    url: str
    headers: dict[str, Value] = {}
    body: str | None = None
    expect: tuple[str, ...] = ()  # statuses such as "204" or classes such as "2xx"; none: any 2xx
    redirects: int = 5  # followed at most


Run = Command | Python | Http


def kind_of(run: Run) -> str:
    """command, python or http: its `type` in JSON."""
    return str(run.__struct_config__.tag)


def secrets_of(run: Run) -> frozenset[str]:
    """The names of the secrets that it refers to."""
    match run:
        case Command():
            return names_in(run.env.values())
        case Http():
            return names_in(run.headers.values())
        case Python():
            return frozenset()


class Placement(Struct, frozen=True, omit_defaults=True):
    """Which of the agents that could run a task gets it."""

    strategy: str | None = None  # None: the strategy of the cluster
    needs: dict[str, float] = {}  # amounts that an agent must have free
    prefer: dict[str, str] = {}  # labels of the agents that come first
    sticky: str | None = None  # name of an argument: tasks with equal values go to the same agent
    broadcast: bool = False  # one run on every agent that matches


class Health(Struct, frozen=True, omit_defaults=True):
    """The health check of a daemon: a command that exits with 0, or a URL that responds with 2xx."""

    argv: tuple[str, ...] = ()
    url: str | None = None
    every: float = 10.0
    timeout: float = 5.0
    failures: int = 3  # in a row, before it is restarted
    start: float = 0.0  # seconds after its start during which failures do not count


class Definition(Struct, frozen=True, omit_defaults=True):
    """What the user defines. Durations are seconds."""

    run: Run
    retry: Retry = Retry()
    retries_by_default: bool = False  # they were not named, so the setting default_retries counts
    timeout: float | None = None
    stalls_after: float | None = None  # without output, progress or a heartbeat for so long it is stopped
    grace: float = 5.0  # between TERM and KILL, and for a cancelled handler to end
    delivery: Delivery = "at_least_once"
    priority: int = DEFAULT_PRIORITY
    requires: dict[str, str] = field(default_factory=dict)  # labels an agent must have
    placement: Placement = Placement()
    health: Health | None = None
    gate: Limits | None = None
    max_queued: int | None = None  # tasks that may wait before submissions are refused
    expires: float | None = None  # a task that has not started so long after its time is skipped
    keep_succeeded: float | None = None  # its succeeded, cancelled and skipped tasks; None: as the cluster keeps them
    keep_failed: float | None = None  # its failed, timed-out and lost ones
    description: str = ""


def uses_default_retries(definition: Definition) -> bool:
    """Whether the setting default_retries counts, if the cluster has one."""
    return definition.retries_by_default and definition.delivery != "at_most_once"


class Job(Struct, frozen=True):
    id: int
    name: str
    version: int
    pool: int
    definition: Definition
    namespace: str = "default"
    default_timeout: float | None = None  # of the cluster, for attempts that have no other; not for daemons
    app: str | None = None  # the application whose code defines it
    manifest: str | None = None  # the set of manifests that owns it
