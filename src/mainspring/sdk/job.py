"""Job: a handler, a command or an HTTP call, and how tasks of it are submitted.

Next: sdk/app.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, Unpack, overload

from mainspring.errors import ValidationError, shown
from mainspring.model.limits.limits import check_concurrency_key
from mainspring.model.schedules.define_schedule import When
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.jobs import Priority
from mainspring.model.tasks.payload import decode, encode
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.instants import check_instant
from mainspring.model.words.names import check_name
from mainspring.model.words.numbers import check_id
from mainspring.sdk.schedules import Check
from mainspring.sdk.task import Decode, Task
from mainspring.store.tasks.enqueue import BulkSubmission, Submission, check_connection

if TYPE_CHECKING:
    from mainspring.sdk.app import App

MAX_CALLS = 1_000_000  # tasks in one statement; what gives them may be endless

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)

Bind = Callable[[tuple[Any, ...], Mapping[str, Any]], str]


class Call(Generic[P]):
    """Arguments for one task, made by `report.call(…)`, which the type checker has checked."""

    __slots__ = ("args", "kwargs")

    def __init__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        self.args = args
        self.kwargs = kwargs


class TakesOne(Protocol[A_contra]):
    """A job that can be called with a single argument, as type checkers see it."""

    def enqueue_sync(self, argument: A_contra, /) -> object: ...


class Using(NamedTuple):
    """How tasks are submitted: the fields of a `Submission` behind its job and arguments, in their order."""

    priority: str | None = None
    run_at: datetime | None = None
    delay: timedelta | None = None
    key: str | None = None
    key_ttl: timedelta = timedelta(days=1)
    after: list[int] | None = None
    concurrency_key: str | None = None


AT_ONCE = Using()


class Submitter(Generic[P, R]):
    """Submits tasks of one job."""

    def __init__(
        self, app: App, name: str, bind: Bind, decode: Decode, using: Using = AT_ONCE, conn: Any = None
    ) -> None:
        self._app = app
        self.name = name
        self._bind = bind
        self._decode = decode
        self._using = using
        self._conn = conn

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """Submit one task with these arguments."""
        submission = Submission(self.name, self._bind(args, kwargs), *self._using)
        id = await self._app.submit(submission, self._conn)
        return Task(self._app, id, self.name, self._decode)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """The same from sync code."""
        submission = Submission(self.name, self._bind(args, kwargs), *self._using)
        id = self._app.submit_sync(submission, self._conn)
        return Task(self._app, id, self.name, self._decode)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """The arguments of one task, for `enqueue_many`."""
        return Call(*args, **kwargs)

    @overload
    async def enqueue_many(self, calls: Iterable[Call[P] | tuple[Any, ...] | Mapping[str, Any]]) -> list[Task[R]]: ...
    @overload
    async def enqueue_many(
        self: TakesOne[A], calls: Iterable[A | Call[P] | tuple[Any, ...] | Mapping[str, Any]]
    ) -> list[Task[R]]: ...
    async def enqueue_many(self, calls: Any) -> list[Task[R]]:
        """Submit many tasks in one statement.

        A call is what `report.call(…)` makes, a single argument, a tuple of positional arguments or a dict of named
        ones. A type checker looks into the first two.
        """
        many = self._many(calls)
        return self._handles(await self._app.submit(many, self._conn) if many.args else [])

    @overload
    def enqueue_many_sync(self, calls: Iterable[Call[P] | tuple[Any, ...] | Mapping[str, Any]]) -> list[Task[R]]: ...
    @overload
    def enqueue_many_sync(
        self: TakesOne[A], calls: Iterable[A | Call[P] | tuple[Any, ...] | Mapping[str, Any]]
    ) -> list[Task[R]]: ...
    def enqueue_many_sync(self, calls: Any) -> list[Task[R]]:
        """The same from sync code."""
        many = self._many(calls)
        return self._handles(self._app.submit_sync(many, self._conn) if many.args else [])

    def _many(self, calls: Iterable[Any]) -> BulkSubmission:
        using = self._using
        if using.key is not None or using.after is not None:
            raise ValidationError("key, after: belong to a single task; use enqueue()", field="key")
        if not isinstance(calls, Iterable) or isinstance(calls, (str, bytes)):
            raise ValidationError(f"calls: {shown(calls)}; give a list of calls", field="calls")
        args = [self._bind_item(number, call) for number, call in enumerate(islice(calls, MAX_CALLS + 1))]
        if len(args) > MAX_CALLS:
            raise ValidationError(f"calls: more than {MAX_CALLS:,}; submit them in several parts", field="calls")
        return BulkSubmission(self.name, args, using.priority, using.run_at, using.delay, using.concurrency_key)

    def _handles(self, ids: Sequence[int]) -> list[Task[R]]:
        return [Task(self._app, id, self.name, self._decode) for id in ids]

    def _bind_item(self, number: int, call: Any) -> str:
        positional: tuple[Any, ...] = ()
        named: Mapping[str, Any] = {}
        if isinstance(call, tuple):
            positional = call
        elif isinstance(call, Call):
            positional, named = call.args, call.kwargs
        elif isinstance(call, Mapping):
            named = call
        else:
            positional = (call,)
        try:
            return self._bind(positional, named)
        except ValidationError as error:
            raise ValidationError(f"calls[{number}]: {error.message}", field=error.field) from None


class Job(Submitter[P, R]):
    """A registered job. For a handler, `function` is the function itself, for direct calls in tests."""

    def __init__(
        self, app: App, name: str, bind: Bind, function: Callable[P, Any] | None, decode: Decode, check: Check
    ) -> None:
        super().__init__(app, name, bind, decode)
        self._function = function
        self._check = check

    def schedule(self, name: str, *, args: Mapping[str, Any] | None = None, **when: Unpack[When]) -> None:
        """A further schedule of this job, under another name: `report.schedule("report-eu", cron=…)`."""
        schedules = self._app.schedules
        name = self._app.full_name(name)
        planned = schedules.plan(name, self.name, when, {} if args is None else args, self._check)
        schedules.check_limits(planned, self._app.definitions[self.name])
        schedules.add(planned)

    def task(self, id: int) -> Task[R]:
        """A handle on a task of this job, by its number."""
        return Task(self._app, check_id(id, field="id"), self.name, self._decode)

    @property
    def decode_result(self) -> Decode:
        """JSON → what the handler is annotated to return."""
        return self._decode

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the handler here and now; no task is submitted."""
        return self.function(*args, **kwargs)

    @property
    def function(self) -> Callable[P, Any]:
        if self._function is None:
            raise ValidationError(f"{self.name} is not a handler; it has no function", field="job")
        return self._function

    def using(
        self,
        *,
        delay: Duration | None = None,
        run_at: datetime | None = None,
        priority: Priority | None = None,
        key: str | None = None,
        key_ttl: Duration = "1d",
        after: Task[Any] | int | Sequence[Task[Any] | int] | None = None,
        concurrency_key: str | None = None,
        conn: Any = None,
    ) -> Submitter[P, R]:
        """The same job with other options of submission.

        delay, run_at   when it becomes due
        priority        low, normal, high, critical, or 0 to 9
        key             a second submission with the same key gives the first task, for `key_ttl`
        after           it waits until these tasks have succeeded
        concurrency_key tasks with the same key run one at a time, or as many as the job says
        conn            a connection of yours: the task is part of your transaction
        """
        if delay is not None and run_at is not None:
            raise ValidationError("run_at, delay: give one of them, not both", field="run_at")
        if run_at is not None:
            check_instant(run_at, field="run_at")
        using = Using(
            priority=None if priority is None else str(priority_level(priority)),
            run_at=run_at,
            delay=None if delay is None else timedelta(seconds=seconds(delay, field="delay")),
            key=None if key is None else check_name(key, field="key"),
            key_ttl=timedelta(seconds=seconds(key_ttl, field="key_ttl", at_least=0.001)),
            after=None if after is None else _task_ids(after),
            concurrency_key=None if concurrency_key is None else check_concurrency_key(concurrency_key),
        )
        checked = None if conn is None else check_connection(conn)
        return Submitter(self._app, self.name, self._bind, self._decode, using, checked)


def _task_ids(after: Any) -> list[int]:
    given = after if isinstance(after, (list, tuple)) else [after]
    try:
        return [check_id(task.id if isinstance(task, Task) else task, field="after") for task in given]
    except ValidationError:
        raise ValidationError(
            f"after: {shown(after)} is not a task, nor a list of tasks or their numbers", field="after"
        ) from None


def bind_command(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """A command finds its arguments as JSON in MAINSPRING_ARGS, an HTTP call sends them: by name."""
    if args:
        raise ValidationError("args: commands and HTTP calls take named arguments only", field="args")
    return encode(dict(kwargs), "args") if kwargs else "{}"


def check_command(args: Mapping[str, Any], *, has_scopes: bool) -> dict[str, Any]:
    """The arguments of a schedule of a command or an HTTP call: any, by name."""
    plain: dict[str, Any] = decode(bind_command((), args), "args")
    return plain
