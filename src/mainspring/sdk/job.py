"""Job: a handler, a command or an HTTP call, and how tasks of it are submitted.

Next: sdk/app.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from math import inf
from random import uniform
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, Unpack, overload

from mainspring import operations
from mainspring.errors import QueueFull, ValidationError, shown
from mainspring.model.flows.batches import TaskBatch
from mainspring.model.flows.options import (
    OnParentFailure,
    check_on_parent_failure,
    check_tags,
    check_task_retries,
)
from mainspring.model.limits.limits import check_concurrency_key
from mainspring.model.schedules.define_schedule import When
from mainspring.model.tasks.define_job import priority_level
from mainspring.model.tasks.jobs import Priority
from mainspring.model.tasks.payload import decode
from mainspring.model.words.durations import Duration, seconds
from mainspring.model.words.instants import check_instant
from mainspring.model.words.names import check_name
from mainspring.model.words.numbers import check_id
from mainspring.sdk.flows.batch import Batch, batch_id
from mainspring.sdk.flows.flow import Step
from mainspring.sdk.schedules import Check
from mainspring.sdk.task import Decode, Task
from mainspring.store.submission.drivers import check_connection
from mainspring.store.submission.submissions import KEY_TTL, BulkSubmission, Submission

if TYPE_CHECKING:
    from mainspring.sdk.app import App

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between looks for room in a full queue
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
    key_ttl: timedelta = KEY_TTL
    after: list[int] | None = None
    concurrency_key: str | None = None
    on_parent_failure: str | None = None
    if_exists: str | None = None
    batch: int | None = None
    expires: timedelta | None = None
    tags: Sequence[str] | None = None
    timeout: timedelta | None = None
    retries: int | None = None
    stalls_after: timedelta | None = None


AT_ONCE = Using()
_OF_MANY = [name for name in BulkSubmission._fields if name in Using._fields]  # all behind its arguments


class Room:
    """Waits for room in a full queue, for `patience` seconds: not at all, as a rule."""

    def __init__(self, patience: float) -> None:
        self._until = monotonic() + patience
        self._pause = FIRST_PAUSE

    def pause(self, full: QueueFull) -> float:
        """Seconds until the next try; raises the error if there is none."""
        left = self._until - monotonic()
        if left <= 0:
            raise full
        pause = min(left, self._pause * uniform(0.5, 1.0))  # those who wait do not come back all at once
        self._pause = min(LONGEST_PAUSE, 2 * self._pause)
        return pause


class Submitter(Generic[P, R]):
    """Submits tasks of one job."""

    def __init__(
        self,
        app: App,
        name: str,
        bind: Bind,
        decode: Decode,
        using: Using = AT_ONCE,
        conn: Any = None,
        patience: float = 0.0,
        *,
        require_agents: bool = False,
    ) -> None:
        self._app = app
        self.name = name
        self._bind = bind
        self._decode = decode
        self._using = using
        self._conn = conn
        self._patience = patience  # seconds to wait for room in a full queue
        self._require_agents = require_agents

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """Submit one task with these arguments."""
        submission = Submission(self.name, self._bind(args, kwargs), *self._using)
        id = await self._submit(submission)
        return Task(self._app, id, self.name, self._decode)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Task[R]:
        """The same from sync code."""
        submission = Submission(self.name, self._bind(args, kwargs), *self._using)
        id = self._submit_sync(submission)
        return Task(self._app, id, self.name, self._decode)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[P]:
        """The arguments of one task, for `enqueue_many`."""
        return Call(*args, **kwargs)

    def with_args(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """This job with arguments, for `chain` and `group`, or as the callback of a batch."""
        if self._conn is not None or self._patience or self._require_agents:
            raise ValidationError(
                "with_args: conn, if_full and require_agents say how to submit at once; give conn to enqueue()",
                field="using",
            )
        bound = self._bind(args, kwargs)
        submission = Submission(self.name, bound, *self._using)
        return Step(self.name, decode(bound, "args"), self._using.priority, self._app, submission, self._decode)

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
        return self._handles(await self._submit(many) if many.args else [])

    @overload
    def enqueue_many_sync(self, calls: Iterable[Call[P] | tuple[Any, ...] | Mapping[str, Any]]) -> list[Task[R]]: ...
    @overload
    def enqueue_many_sync(
        self: TakesOne[A], calls: Iterable[A | Call[P] | tuple[Any, ...] | Mapping[str, Any]]
    ) -> list[Task[R]]: ...
    def enqueue_many_sync(self, calls: Any) -> list[Task[R]]:
        """The same from sync code."""
        many = self._many(calls)
        return self._handles(self._submit_sync(many) if many.args else [])

    async def _submit(self, submission: Submission | BulkSubmission) -> Any:
        room = Room(self._patience)
        while True:
            try:
                return await self._app.submit(submission, self._conn, require_agents=self._require_agents)
            except QueueFull as full:
                await asyncio.sleep(room.pause(full))

    def _submit_sync(self, submission: Submission | BulkSubmission) -> Any:
        room = Room(self._patience)
        while True:
            try:
                return self._app.submit_sync(submission, self._conn, require_agents=self._require_agents)
            except QueueFull as full:
                sleep(room.pause(full))

    def _many(self, calls: Iterable[Any]) -> BulkSubmission:
        using = self._using
        if using.key is not None or using.after is not None or using.on_parent_failure is not None:
            raise ValidationError("key, after: belong to a single task; use enqueue()", field="key")
        if not isinstance(calls, Iterable) or isinstance(calls, (str, bytes)):
            raise ValidationError(f"calls: {shown(calls)}; give a list of calls", field="calls")
        args = [self._bind_item(number, call) for number, call in enumerate(islice(calls, MAX_CALLS + 1))]
        if len(args) > MAX_CALLS:
            raise ValidationError(f"calls: more than {MAX_CALLS:,}; submit them in several parts", field="calls")
        return BulkSubmission(self.name, args, *(getattr(using, name) for name in _OF_MANY))

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

    async def hold(self, *, note: str | None = None, skip: bool = False) -> None:
        """Start nothing new of this job until `release()`; what runs goes on. Tasks can be submitted, and wait.

        With `skip` its plan times are decided as paused meanwhile; else their tasks wait too.
        """
        await self._app.control(operations.holds.hold_job, self.name, note=note, skip=skip)

    async def release(self, *, note: str | None = None, at_once: bool = False) -> None:
        """End the hold. What waits starts within a minute, or at once."""
        await self._app.control(operations.holds.release_job, self.name, note=note, at_once=at_once)

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
        key_ttl: Duration = KEY_TTL,
        after: Task[Any] | int | Sequence[Task[Any] | int] | None = None,
        on_parent_failure: OnParentFailure | None = None,
        concurrency_key: str | None = None,
        tags: Sequence[str] | None = None,
        expires: Duration | None = None,
        if_exists: Literal["return", "reject"] | None = None,
        timeout: Duration | None = None,
        retries: int | None = None,
        stalls_after: Duration | None = None,
        batch: Batch | TaskBatch | int | None = None,
        if_full: Literal["raise", "wait"] = "raise",
        require_agents: bool = False,
        conn: Any = None,
    ) -> Submitter[P, R]:
        """The same job with other options of submission.

        delay, run_at   when it becomes due
        priority        low, normal, high, critical, or 0 to 9
        key             a second submission with the same key gives the first task, for `key_ttl`
        after           it waits until these tasks have succeeded
        on_parent_failure  if one of them does not: skip it (as without), fail it, or run it once all have ended
        concurrency_key tasks with the same key run one at a time, or as many as the job says
        tags            up to 10 words, to find it by, and for priority rules
        expires         it is skipped if it has not started so long after its time
        if_exists       where the key is taken: return that task, or reject this one (TaskExists)
        timeout         of this task, in place of its job's; with if_full="wait", how long to wait for room instead
        retries         of this task, in place of its job's
        stalls_after    of this task, in place of its job's: it is stopped after so long without a sign of life
        batch           it is counted in this batch, whose callbacks come when all have ended
        if_full         where the queue of the job is full: raise QueueFull, or wait for room
        require_agents  raise NoAgents, and submit nothing, if no connected agent could run it
        conn            a connection of yours: the task is part of your transaction
        """
        if delay is not None and run_at is not None:
            raise ValidationError("run_at, delay: give one of them, not both", field="run_at")
        if run_at is not None:
            check_instant(run_at, field="run_at")
        using = Using(
            priority=None if priority is None else str(priority_level(priority)),
            run_at=run_at,
            delay=_lasting(delay, "delay", at_least=0.0),
            key=None if key is None else check_name(key, field="key"),
            key_ttl=timedelta(seconds=seconds(key_ttl, field="key_ttl", at_least=0.001)),
            after=None if after is None else _task_ids(after),
            concurrency_key=None if concurrency_key is None else check_concurrency_key(concurrency_key),
            on_parent_failure=None if on_parent_failure is None else check_on_parent_failure(on_parent_failure),
            if_exists=if_exists,
            batch=None if batch is None else batch_id(batch),
            expires=_lasting(expires, "expires"),
            tags=None if tags is None else check_tags(tags),
            timeout=_lasting(timeout, "timeout"),
            retries=None if retries is None else check_task_retries(retries),
            stalls_after=_lasting(stalls_after, "stalls_after"),
        )
        checked = None if conn is None else check_connection(conn)
        patience = 0.0 if if_full == "raise" else _patience(if_full, using.timeout, conn)
        if if_full == "wait":
            using = using._replace(timeout=None)
        return Submitter(
            self._app, self.name, self._bind, self._decode, using, checked, patience, require_agents=require_agents
        )


class ChunkJob(Job[[A], R]):
    """A job whose handler takes a list, with an item for each task. `load.enqueue(row)` submits one task."""

    def __call__(self, items: list[A]) -> Any:  # type: ignore[override]
        """Call the handler here and now; no task is submitted."""
        return self.function(items)

    @property
    def function(self) -> Callable[[list[A]], Any]:  # type: ignore[override]
        return super().function  # type: ignore[return-value]


def _patience(if_full: str, timeout: timedelta | None, conn: Any) -> float:
    """Seconds to wait for room."""
    if if_full != "wait":
        raise ValidationError(f"if_full: {shown(if_full)}; use raise or wait", field="if_full")
    if conn is not None:
        raise ValidationError(
            "if_full: a transaction must not wait for room; leave conn or if_full out", field="if_full"
        )
    return inf if timeout is None else timeout.total_seconds()


def _lasting(given: Duration | None, field: str, *, at_least: float = 0.001) -> timedelta | None:
    return None if given is None else timedelta(seconds=seconds(given, field=field, at_least=at_least))


def _task_ids(after: Any) -> list[int]:
    given = after if isinstance(after, (list, tuple)) else [after]
    try:
        return [check_id(task.id if isinstance(task, Task) else task, field="after") for task in given]
    except ValidationError:
        raise ValidationError(
            f"after: {shown(after)} is not a task, nor a list of tasks or their numbers", field="after"
        ) from None
