"""App: the jobs of an application; opens its database, submits its tasks, runs them.

Next: sdk/backends/on_database.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from inspect import isasyncgenfunction
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import msgspec

from mainspring import operations
from mainspring.agent.executors.python import Handler
from mainspring.agent.run.hooks import FailureHook
from mainspring.compose import local, stores
from mainspring.errors import JobNotFound, ValidationError, shown
from mainspring.model.flows.batches import Callback, TaskBatch
from mainspring.model.secrets.references import Value
from mainspring.model.tasks.define_http import UNSET, http
from mainspring.model.tasks.define_job import command
from mainspring.model.tasks.jobs import Definition
from mainspring.model.words.durations import Duration
from mainspring.model.words.names import check_name, check_path_name
from mainspring.model.words.numbers import check_id
from mainspring.model.words.sizes import Size
from mainspring.operations.actors import this_user
from mainspring.operations.condition import cluster
from mainspring.sdk import define
from mainspring.sdk.backends.on_database import OnDatabase, Operation, Tasks
from mainspring.sdk.flows.batch import Batch, BatchBlock, opening
from mainspring.sdk.job import Job, Submitter
from mainspring.sdk.schedules import JobOptions, Schedules
from mainspring.sdk.task import Decode, Task
from mainspring.store.figures.stats import Stats
from mainspring.store.postgres.database import Database
from mainspring.store.submission.drivers import check_connection
from mainspring.store.submission.submissions import Request
from mainspring.store.views.task_views import TaskView
from mainspring.sync import SYNC_TIMEOUT, Make

P = ParamSpec("P")
R = TypeVar("R")
Hook = TypeVar("Hook", bound=FailureHook)


class App:
    """An application's jobs.

    `dsn` names an external PostgreSQL; without it MAINSPRING_DSN counts, and without that the embedded one.
    `name` tells applications apart that share a database: a handler runs only where its application runs.
    `version` orders deployments: one with a lower version leaves the schedules alone that a higher one has defined.
    `prefix` goes before the name of each job and schedule, for applications whose names would clash.
    `url` names a server in place of a database: the application submits tasks over HTTP and waits for them, with the
    right of `token`. Its jobs are registered and run elsewhere.
    """

    def __init__(
        self,
        name: str = "default",
        *,
        version: int = 0,
        prefix: str = "",
        dsn: str | None = None,
        url: str | None = None,
        token: str | None = None,
        **settings: Any,
    ) -> None:
        self.name = check_name(name, field="name")
        self.version = define.check_version(version)
        self.prefix = define.check_prefix(prefix)
        self._overrides: dict[str, Any] = {"dsn": dsn, **settings}
        if url is None and token is not None:
            self._overrides["token"] = token  # the setting of this name
        self._tasks = self._tasks_by(url, token)
        self._lifecycle, self._sync = self._tasks.lifecycle, self._tasks.sync
        self.schedules = Schedules(self.changed)
        self.failure_hooks: list[FailureHook] = []
        self.definitions: dict[str, Definition] = {}
        self.handlers: dict[str, Handler] = {}
        self.jobs: dict[str, Job[..., Any]] = {}
        self._engine: local.Engine | None = None
        self._runs = False  # set before the engine is there

    def _tasks_by(self, url: str | None, token: str | None) -> Tasks:
        if url is None:
            return OnDatabase(self.settings, self._register, lambda: self._engine)
        given = next((name for name, value in self._overrides.items() if value is not None), None)
        if given is not None:
            raise ValidationError(f"url, {given}: give one of them; {given} is for a database", field=given)
        from mainspring.sdk.backends.over_http import OverHttp  # loads aiohttp

        return OverHttp(url, token)

    # ── defining ────────────────────────────────────────────────────────────────────────────────

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R]: ...
    @overload
    def job(self, *, name: str | None = None, **options: Unpack[JobOptions]) -> define.Decorator[define.EachTask]: ...
    @overload
    def job(
        self, *, chunk: int, chunk_wait: Duration = ..., name: str | None = None, **options: Unpack[JobOptions]
    ) -> define.Decorator[define.ManyTasks]: ...
    def job(self, *functions: Any, name: str | None = None, **options: Any) -> Any:
        """Make a function a job: `@app.job` or `@app.job(cron="0 9 * * *", retries=5, timeout="10m", …)`.

        With `chunk=100` one call takes a list with the arguments of up to so many tasks; the first of them waits at
        most `chunk_wait` for more.
        """

        def register(function: Callable[..., Any]) -> Job[..., Any]:
            return define.add_handler(self, function, name, options)

        return register(*functions) if functions else define.Decorator(register)

    def command(
        self,
        name: str,
        argv: Sequence[str] | str,
        *,
        shell: bool = False,
        cwd: str | None = None,
        env: Mapping[str, Value] | None = None,
        stdin: str | None = None,
        user: str | None = None,
        limits: Mapping[str, Size | Duration] | None = None,
        python: bool = False,
        warm: Sequence[str] = (),
        **options: Unpack[JobOptions],
    ) -> Job[..., Any]:
        """A job that runs a program: `app.command("backup", ["pg_dump", "shop"], cron="@daily")`.

        `python=True` makes argv a script of Python's, whose interpreter is started and has imported `warm` by its time.
        """
        run = command(
            argv, shell=shell, cwd=cwd, env=env, stdin=stdin, user=user, limits=limits, python=python, warm=warm
        )
        return define.add_call(self, name, run, options)

    def http(
        self,
        name: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, Value] | None = None,
        body: str | None = None,
        json: Any = UNSET,
        expect: str | int | Sequence[str | int] = (),
        redirects: int = 5,
        **options: Unpack[JobOptions],
    ) -> Job[..., Any]:
        """A job that calls a URL: `app.http("ping", "POST", "https://shop.example/ping", every="30s")`."""
        run = http(method, url, headers=headers, body=body, json=json, expect=expect, redirects=redirects)
        return define.add_call(self, name, run, options)

    def calendar(self, name: str, days: Iterable[Any]) -> None:
        """Days on which schedules that name this calendar do not run: dates, "12-25" of every year, "sun"."""
        self.schedules.calendar(name, days)

    def full_name(self, name: object) -> str:
        """The name of a job or a schedule as the database has it."""
        return check_path_name(f"{self.prefix}{check_name(name, field='name')}", field="name")

    def __getitem__(self, name: str) -> Job[..., Any]:
        """A job by its name, with or without the application's prefix."""
        is_text = isinstance(name, str)
        job = (self.jobs.get(f"{self.prefix}{name}") or self.jobs.get(name)) if is_text else None
        if job is None:
            known = ", ".join(sorted(self.jobs)) or "none yet"
            raise JobNotFound(f"this application has no job {shown(name)}; it has: {known}", field="job")
        return job

    def on_failure(self, hook: Hook) -> Hook:
        """Call `hook` with a `mainspring.Failure` when an attempt failed in this process: for Sentry and the like.

        It may be async. What it raises is logged; the attempt and its report do not wait for it.
        """
        if not callable(hook):
            raise ValidationError(
                f"{shown(hook)} is not a function; @app.on_failure goes above a def", field="on_failure"
            )
        self.failure_hooks.append(hook)
        return hook

    def while_open(self, resource: Callable[[], AsyncIterator[Any]]) -> Callable[[], AsyncIterator[Any]]:
        """An async generator function: runs to its `yield` when the application opens, to its end when it closes.

        For what handlers and routes need, such as an engine on `app.dsn`: in a worker, a web server, a test alike.
        """
        if not isasyncgenfunction(resource):
            raise ValidationError(f"{shown(resource)} is not an `async def` with a `yield`", field="while_open")
        self._lifecycle.resources.append(asynccontextmanager(resource))
        return resource

    # ── opening and running ─────────────────────────────────────────────────────────────────────

    def settings(self, **overrides: Any) -> local.Settings:
        """The settings in force: `overrides`, else what the application was made with, else the environment."""
        return local.load({**self._overrides, **overrides})

    def changed(self) -> None:
        """More is defined. If the application is open, that is registered soon, and before its next submission."""
        self._lifecycle.changed()

    async def _register(self, database: Database) -> None:
        await stores.register(database, self.definitions, self.name, self.version, self.schedules)

    async def open(self, **overrides: Any) -> None:
        """Connect, migrate, register the jobs: ready to submit. Opens are counted: the last `close()` closes."""
        await self._lifecycle.open(overrides)

    async def close(self) -> None:
        """Undo one `open()`; the last one closes, except inside `running()`."""
        await self._lifecycle.close()

    def attached(self, database: Database | None) -> AbstractAsyncContextManager[None]:
        """Open on the database of an agent, if it has one. Its servers own the schema and the jobs."""
        return self._lifecycle.attached(database)

    async def __aenter__(self) -> App:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def running(self, **overrides: Any) -> AsyncIterator[App]:
        """Run the jobs inside this process: a server and an agent, until the block ends.

        Inside another `running()`, as in a test under `mainspring_running(app)`, it only opens: the jobs run already.
        """
        if self._runs:
            if overrides:
                name = next(iter(overrides))
                raise ValidationError(f"{name}: this application is running already, as it was started", field=name)
            async with self:
                yield self
            return
        self._runs = True
        try:
            async with self._lifecycle.held(overrides) as database:
                settings = self.settings(**overrides)
                labels, providers = {**settings.labels, "app": self.name}, self.schedules.providers
                engine = local.Engine(settings, database, self.handlers, labels, providers)
                async with engine.running():
                    self._engine = engine
                    engine.server.recorder.on_ended.connect(self._ended)
                    engine.agent.failures.hooks = self.failure_hooks
                    try:
                        yield self
                    finally:
                        self._engine = None
        finally:
            self._runs = False

    @asynccontextmanager
    async def lifespan(self, _asgi: object) -> AsyncIterator[None]:
        """`FastAPI(lifespan=app.lifespan)`: open for submitting while the web application runs."""
        async with self:
            yield

    @asynccontextmanager
    async def lifespan_running(self, _asgi: object) -> AsyncIterator[None]:
        """`FastAPI(lifespan=app.lifespan_running)`: the jobs run in the process of the web application too."""
        async with self.running():
            yield

    def _ended(self, endings: Sequence[Any]) -> None:
        if (waiting := self._lifecycle.waiting) is not None:
            waiting.hint(ending.task for ending in endings)

    @property
    def engine(self) -> local.Engine | None:
        """The server and the agent inside `running()`, else None."""
        return self._engine

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that it is open on."""
        return self._lifecycle.loop

    # ── for jobs and tasks ──────────────────────────────────────────────────────────────────────

    def task(self, id: int) -> Task[Any]:
        """A handle on a task by its number. Makes no query.

        Its result has the annotated type if this application has its job; `report.task(id)` tells the type checker.
        """
        return Task(self, check_id(id, field="id"))

    @property
    def has_database(self) -> bool:
        """Not with the URL of a server."""
        return isinstance(self._tasks, OnDatabase)

    @property
    def dsn(self) -> str:
        """The DSN of the database that it is open on."""
        return self.database.dsn

    @property
    def database(self) -> Database:
        return self._lifecycle.opened()

    async def opened_database(self) -> Database:
        """Its database, opened if it is not."""
        await self._lifecycle.ensure()
        return self.database

    def at_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call it before the application closes its database, which is open."""
        self._lifecycle.at_close(close)

    def batch(
        self,
        name: str,
        *,
        on_success: Callback | Submitter[..., Any] | None = None,
        on_complete: Callback | Submitter[..., Any] | None = None,
        on_failure: Callback | Submitter[..., Any] | None = None,
        parent: Batch | TaskBatch | int | None = None,
        conn: Any = None,
    ) -> BatchBlock:
        """A new batch: `async with app.batch("import", on_success=publish.with_args(month="2026-11")) as batch:`.

        on_success   a job that is enqueued once all have succeeded
        on_complete  once all have ended, however
        on_failure   once the first has failed for good
        parent       a batch that it is a member of
        conn         a connection of yours: the batch is opened and closed in your transaction

        Leaving the block closes it; an exception cancels it, and with `conn` leaves it to your rollback.
        """
        given = opening(
            name,
            on_success=on_success,
            on_complete=on_complete,
            on_failure=on_failure,
            parent=parent,
            created_by=this_user().name,
        )
        return BatchBlock(self, given, None if conn is None else check_connection(conn))

    def existing_batch(self, id: int) -> Batch:
        """A handle on a batch by its number. Makes no query."""
        return Batch(self, check_id(id, field="id", of="a batch"))

    async def submit(self, submission: Request, conn: Any, *, require_agents: bool = False) -> Any:
        """The id of a task or a batch, or the list of ids."""
        return await self._tasks.submit(submission, conn, require_agents=require_agents)

    async def stats(self) -> Stats:
        """How the cluster stands: live tasks by state, what is due, the last hour, agents and servers."""
        return await self._tasks.call(cluster.stats)

    def submit_sync(self, submission: Request, conn: Any, *, require_agents: bool = False) -> Any:
        return self._tasks.submit_sync(submission, conn, require_agents=require_agents)

    async def call(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What an operation of operations/ returns."""
        return await self._tasks.call(operation, *args, **kwargs)

    def call_sync(self, name: str, make: Make[R], timeout: float | None = SYNC_TIMEOUT) -> R:
        """Call the async method `name` from sync code."""
        return self._sync.call(name, make, timeout)

    async def wait_for(self, task: int, timeout: float | None, decode: Decode = msgspec.json.decode) -> Any:
        """The result of a task, once it has succeeded."""
        return await self._tasks.wait_for(task, timeout, decode)

    async def status(self, task: int) -> TaskView:
        return await self._tasks.status(task)

    async def control(self, act: Callable[..., Awaitable[object]], *given: int | str, **options: Any) -> None:
        """Act on a task, a job or everything by an operation."""
        await self._tasks.control(act, *given, **options)

    async def hold(self, *, note: str | None = None, skip: bool = False) -> None:
        """Start nothing new until `release()`, of this and all other applications; what runs goes on.

        With `skip` plan times are decided as paused meanwhile; else their tasks wait.
        """
        await self.control(operations.holds.hold, note=note, skip=skip)

    async def release(self, *, note: str | None = None, at_once: bool = False) -> None:
        """End the hold of everything. What waits starts within a minute, or at once."""
        await self.control(operations.holds.release, note=note, at_once=at_once)
