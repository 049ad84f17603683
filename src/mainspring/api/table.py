"""The table of operations: one row for each that can be asked for over HTTP.

From it come routing, permissions, OpenAPI, the Python client, the command line over HTTP and the test of roles. The
parameters and the answer of a row are those of its operation (api/parameters.py); nothing is declared twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mainspring.api.parameters import Shape, shape_of
from mainspring.errors import MainspringError
from mainspring.model.access.actors import Role

BASE = "/api/v1"
MOST_BYTES = 1024 * 1024  # of a body
LONGEST = 10.0  # seconds of an operation
_THINGS = {"fleet": "agent"} | dict.fromkeys(
    ("plan_times", "backfill", "fired", "forecast", "herds", "skips"), "schedule"
)

ADMIN = frozenset({Role.ADMIN})
ACTS = ADMIN | {Role.OPERATOR}
READS = ACTS | {Role.VIEWER}
SUBMITS = ACTS | {Role.SUBMITTER}
READS_TASKS = READS | {Role.SUBMITTER}
SCRAPES = READS | {Role.METRICS}
ANY = frozenset(Role) - {Role.AGENT}
NOBODY: frozenset[Role] = frozenset()  # needs no caller at all


# Of a Call, which knows its row: an Answer, or None once it has sent one itself.
Handler = Callable[[Any], Awaitable[Any]]


@dataclass(frozen=True)
class Row:
    operation: Callable[..., Any]
    method: str
    path: str  # below `base`
    roles: frozenset[Role]
    status: int = 200  # where nothing in the answer says another
    body: str | None = None  # the parameter that is the whole body
    names: tuple[tuple[str, str], ...] = ()  # (parameter, its name on the wire)
    bound: tuple[str, ...] = ()  # parameters that the server knows (`bindings` of the application), not the caller
    errors: tuple[type[MainspringError], ...] = ()
    handler: Handler | None = None  # answers in place of the operation, which then only says what is taken and given
    computes: bool = False  # for long between its statements: it gets a connection for each of them, not one for all
    reads: bool = False  # a POST that changes nothing: no answer of it is kept for its idempotency key
    waits: bool = False  # takes `wait`: answers once the task has ended
    most_bytes: int = MOST_BYTES  # of its body
    longest: float = LONGEST  # seconds that it may take, its connection and its commit included
    frees: bool = False  # what it takes and gives is large and in no cache: it is freed bit by bit
    media_type: str = "application/json"
    other_types: tuple[str, ...] = ()  # of the answer, by Accept
    answered: tuple[int, ...] = ()  # other statuses with the same answer, which are no refusal
    body_type: str | None = None  # of a body that the handler reads itself; all parameters are in the query then
    secret: str | None = None  # the member of the answer that is shown once and stored nowhere
    base: str = BASE
    offline: bool = False  # answers also while PostgreSQL does not: callers that were known lately are believed
    guarded: bool = True  # refuses a Host that is not ours; load balancers ask for health under any

    @cached_property
    def name(self) -> str:
        """Such as tasks.cancel: in OpenAPI, in metrics and in the audit."""
        return f"{self.operation.__module__.rpartition('.')[2]}.{self.operation.__name__}"

    @property
    def action(self) -> str:
        """The same in the words of the audit: task.cancel, token.create, agent.drain."""
        room, _, name = self.name.partition(".")
        if room in ("access", "holds"):
            verb, _, what = name.partition("_")
            if room == "holds":
                return f"{what or 'cluster'}.{verb}"
            return f"{what.removesuffix('s')}.{verb}" if what else name
        return f"{_THINGS.get(room, room.removesuffix('s'))}.{name}"

    def subject(self, names: Mapping[str, str]) -> str:
        """What a request is about, in the words of the audit: task:17, job:report."""
        thing = self.action.partition(".")[0]
        return ", ".join(f"{thing}:{name}" for name in names.values()) or self.path

    @cached_property
    def shape(self) -> Shape:
        method = self.method if self.body_type is None else "GET"
        return shape_of(self.operation, method, self.path, self.body, self.names, self.bound)

    @property
    def full_path(self) -> str:
        return self.base + self.path
