"""OverHttp: the tasks of an application that has no database, and reaches a server by its URL.

    app = App(url="https://mainspring.example", token="ms_…")

What it submits is of jobs that are registered elsewhere, by a worker or `mainspring job create`: it registers nothing.
A submission that is sent again because its answer was lost creates one task.
Imported only by an application with a URL: it loads aiohttp and the table of the API.
Next: client/remote.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn, cast
from uuid import uuid4

import msgspec

from mainspring.client.reading import state_of
from mainspring.client.remote import FIRST_DELAY, TRIES, Client, check_url
from mainspring.errors import (
    MainspringError,
    ServerUnavailable,
    StoreUnavailable,
    TaskFailed,
    ValidationError,
    from_code,
)
from mainspring.model.flows.batches import BatchState, Callback
from mainspring.operations.requests.bulk import MOST_ATOMIC, Committed, Done, RefusedLine
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import batches, flows, tasks
from mainspring.operations.work.batches import NewBatch
from mainspring.operations.work.flows import NewStep
from mainspring.sdk.backends.on_database import Operation, P, R
from mainspring.sdk.lifecycle import Lifecycle
from mainspring.sdk.task import Decode, result_of
from mainspring.store.postgres.database import Database
from mainspring.store.submission.submissions import (
    BulkSubmission,
    CloseBatch,
    FlowSubmission,
    OpenBatch,
    Request,
    Submission,
)
from mainspring.store.tasks.tasks import Ended
from mainspring.store.views.task_views import TaskView
from mainspring.sync import SYNC_TIMEOUT, SyncBridge

PART = 64 * 1024  # bytes of lines that are sent at once


def needs_database(what: str) -> ValidationError:
    return ValidationError(
        f"{what} needs a database, and this application has the URL of a server instead; make it App(dsn=…)",
        field="url",
    )


class OverHttp:
    """`url` and `token` are those of a server; the token is of a submitter at least."""

    def __init__(self, url: str, token: str | None) -> None:
        self.lifecycle = HttpLifecycle(check_url(url), token)
        self.sync = SyncBridge(self.lifecycle)

    async def submit(self, submission: Request, conn: Any, *, require_agents: bool = False) -> Any:
        _refuse(conn)
        client = await self._client()
        match submission:
            case BulkSubmission():
                return await _submit_many(client, submission, require_agents=require_agents)
            case OpenBatch():
                return (await client.call(batches.create, _new_batch(submission))).id
            case CloseBatch():
                was = (await client.call(batches.show, submission.batch)).state
                await client.call(batches.close, submission.batch)
                return was == BatchState.OPEN.label
            case FlowSubmission():
                steps = msgspec.json.decode(submission.steps, type=list[NewStep])
                return (await client.call(flows.submit, steps)).ids
        return (await client.call(tasks.submit, _new_task(submission, require_agents=require_agents))).id

    async def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await (await self._client()).call(operation, *args, **kwargs)

    def submit_sync(self, submission: Request, conn: Any, *, require_agents: bool = False) -> Any:
        _refuse(conn)
        submit = partial(self.submit, submission, None, require_agents=require_agents)
        return self.sync.call("enqueue", submit, SYNC_TIMEOUT)

    async def wait_for(self, task: int, timeout: float | None, decode: Decode) -> Any:
        view = await (await self._client()).ended(task, timeout)
        result = None if view.result is None else msgspec.json.encode(view.result).decode()
        if (state := state_of(view)) is None:
            raise TaskFailed(
                f"task {task} {view.state}, which is a state that this version does not know",
                task_id=task, state=view.state, error_code=view.error_code,
            )  # fmt: skip
        return result_of(task, Ended(state, result, view.error_code, view.error, view.result_lost), decode)

    async def status(self, task: int) -> TaskView:
        return await (await self._client()).call(tasks.status, task)

    async def control(self, act: Any, *given: Any, **options: Any) -> None:
        await (await self._client()).call(act, *given, **options)

    async def _client(self) -> Client:
        await self.lifecycle.ensure()
        assert self.lifecycle.client is not None
        return self.lifecycle.client


def _refuse(conn: Any) -> None:
    if conn is not None:
        raise needs_database("conn: a task in your own transaction")


class HttpLifecycle(Lifecycle):
    """Opens a client in place of a database; opens and resources are counted and closed in the same way."""

    def __init__(self, url: str, token: str | None) -> None:
        super().__init__(_no_database, _no_database, _no_database)
        self._url = url
        self._token = token
        self.client: Client | None = None

    @property
    def is_open(self) -> bool:
        return self.client is not None

    def opened(self) -> Database:
        raise needs_database("this")

    def held(self, overrides: Mapping[str, Any]) -> NoReturn:
        raise needs_database("running()")

    @asynccontextmanager
    async def attached(self, database: Database | None) -> AsyncIterator[None]:
        await self.open({})
        try:
            yield
        finally:
            await self.close()

    async def _connect(self, stack: AsyncExitStack, overrides: Mapping[str, Any]) -> None:
        if overrides:
            raise needs_database(f"{next(iter(overrides))}: a setting")
        client = await stack.enter_async_context(Client(self._url, self._token))
        self.client = client
        await self._take(stack, None)
        assert self._stack is not None
        self._stack.callback(self._forget)

    def _forget(self) -> None:
        self.client = None
        super()._forget()


def _no_database(*_: Any, **__: Any) -> Any:
    raise needs_database("this")


# ── what is sent ────────────────────────────────────────────────────────────────────────────────


def _new_task(submission: Submission, *, require_agents: bool) -> NewTask:
    """Its arguments are JSON already, and go as they are."""
    return NewTask(
        job=submission.job,
        args=cast(Any, msgspec.Raw(submission.args.encode())),
        key=submission.key,
        key_ttl=submission.key_ttl.total_seconds(),
        if_exists="reject" if submission.if_exists == "reject" else "return",
        after=submission.after or (),
        on_parent_failure=cast(Any, submission.on_parent_failure),
        require_agents=require_agents,
        **_common(submission),
    )


def _new_batch(given: OpenBatch) -> NewBatch:
    """Who creates it is known by the token."""
    return NewBatch(
        name=given.name,
        on_success=_callback(given.on_success),
        on_complete=_callback(given.on_complete),
        on_failure=_callback(given.on_failure),
        parent=given.parent,
    )


def _callback(given: str | None) -> Callback | None:
    return None if given is None else msgspec.json.decode(given, type=Callback)


def _common(submission: Submission | BulkSubmission) -> dict[str, Any]:
    return {
        "priority": submission.priority,
        "run_at": submission.run_at,
        "delay": _seconds(submission.delay),
        "concurrency_key": submission.concurrency_key,
        "batch": submission.batch,
        "tags": submission.tags or (),
        "expires": _seconds(submission.expires),
        "timeout": _seconds(submission.timeout),
        "retries": submission.retries,
        "stalls_after": _seconds(submission.stalls_after),
    }


def _seconds(given: timedelta | None) -> float | None:
    return None if given is None else given.total_seconds()


async def _submit_many(client: Client, submission: BulkSubmission, *, require_agents: bool) -> list[int]:
    """All or none of up to 10,000; of more each chunk for itself. Line n has the key KEY:n, so it can be sent again."""
    key, delay = uuid4().hex, FIRST_DELAY
    for tries_left in reversed(range(TRIES)):
        try:
            return await _send_many(client, submission, key, require_agents=require_agents)
        except (ServerUnavailable, StoreUnavailable):
            if not tries_left:
                raise
        await asyncio.sleep(delay)
        delay *= 2
    raise AssertionError("the last try returns or raises")


async def _send_many(client: Client, submission: BulkSubmission, key: str, *, require_agents: bool) -> list[int]:
    lines = _lines(submission, require_agents=require_agents)
    atomic = len(submission.args) <= MOST_ATOMIC
    ids: list[int] = []

    async def receive() -> bytes | None:
        return next(lines, None)

    last = Done(False, 0, 0)
    error: MainspringError | None = None
    async for answer in client.submit_lines(receive, key=key, atomic=atomic, on_error="stop"):
        match answer:
            case Committed():
                ids += [id for id in answer.ids if id is not None]
            case RefusedLine() if error is None:
                error = from_code(answer.code, f"calls[{answer.line - 1}]: {answer.message}", answer.field)
            case Done():
                last = answer
    if error is not None:
        raise error
    if not last.done or len(ids) != len(submission.args):
        raise ServerUnavailable(f"the server has taken {len(ids):,} of {len(submission.args):,} tasks, and stopped")
    return ids


def _lines(submission: BulkSubmission, *, require_agents: bool) -> Any:
    """The body, part by part; each is made when the one before it is sent.

    Agents are asked for by the first line alone: all lines are of one job, and none is taken if that one is refused.
    """
    common = NewTask(job=submission.job, **_common(submission))
    members = {name: value for name, value in msgspec.structs.asdict(common).items() if value is not None}
    del members["args"], members["require_agents"]
    head = msgspec.json.encode(members)[:-1]
    part: list[bytes] = []
    size = 0
    ending = b',"require_agents":true}\n' if require_agents else b"}\n"
    for args in submission.args:
        line = head + b',"args":' + args.encode() + ending
        ending = b"}\n"
        part.append(line)
        size += len(line)
        if size >= PART:
            yield b"".join(part)
            part, size = [], 0
    if part:
        yield b"".join(part)
