"""App: the jobs of an application, and the way to submit and to run them.

Next: sdk/job.py; what runs them is built in compose.py
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import msgspec

from mainspring import compose
from mainspring.agent.attempt import Attempt
from mainspring.agent.current import running
from mainspring.agent.executors.python import Handler
from mainspring.errors import JobNotFound, ValidationError
from mainspring.model.define import command, define
from mainspring.model.define_http import UNSET, http
from mainspring.model.durations import Duration
from mainspring.model.jobs import Definition, Python, Run
from mainspring.model.names import check_name
from mainspring.model.sizes import Size
from mainspring.sdk.decorator import Decorator
from mainspring.sdk.job import Job, bind_command, check_command
from mainspring.sdk.limits import bind_limits, check_limits
from mainspring.sdk.remote import loop_of, submit_through_server
from mainspring.sdk.schedules import JobOptions, Schedules, check_version
from mainspring.sdk.signature import Signature, encode_result
from mainspring.sdk.sync import SyncBridge
from mainspring.sdk.waiting import Waiting
from mainspring.store import tasks
from mainspring.store.database import Connection, Database
from mainspring.store.submit import Submission, Submissions, submit, submit_sync
from mainspring.store.tasks import TaskView

P = ParamSpec("P")
R = TypeVar("R")


class App:
    """An application's jobs.

    `dsn` names an external PostgreSQL; without it MAINSPRING_DSN counts, and without that the embedded one.
    `name` tells applications apart that share a database: a handler runs only where its application runs.
    `version` orders deployments: one with a lower version leaves the schedules alone that a higher one has defined.
    """

    def __init__(self, name: str = "default", *, version: int = 0, dsn: str | None = None, **settings: Any) -> None:
        self.name = check_name(name, field="name")
        self.version = check_version(version)
        self.schedules = Schedules()
        self._overrides: dict[str, Any] = {"dsn": dsn, **settings}
        self.definitions: dict[str, Definition] = {}
        self.handlers: dict[str, Handler] = {}
        self.jobs: dict[str, Job[..., Any]] = {}
        self._open: AsyncExitStack | None = None
        self._opening = asyncio.Lock()  # first submissions may come several at once
        self._database: Database | None = None
        self._waiting: Waiting | None = None
        self._engine: compose.Engine | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # on which it is open
        self._sync = SyncBridge(self)

    # ── defining ────────────────────────────────────────────────────────────────────────────────

    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R]: ...
    @overload
    def job(self, *, name: str | None = None, **options: Unpack[JobOptions]) -> Decorator: ...
    def job(self, *functions: Any, name: str | None = None, **options: Any) -> Any:
        """Make a function a job: `@app.job` or `@app.job(cron="0 9 * * *", retries=5, timeout="10m", …)`."""

        def register(function: Callable[..., Any]) -> Job[..., Any]:
            return self._handler(function, name, options)

        return register(*functions) if functions else Decorator(register)

    def _handler(self, function: Callable[..., Any], name: str | None, options: Any) -> Job[..., Any]:
        if not inspect.isfunction(function):
            raise ValidationError(f"{function!r} is not a function; @app.job goes above a def", field="handler")
        name = check_name(function.__name__ if name is None else name, field="name")
        if function.__doc__ and "description" not in options:
            options = {**options, "description": inspect.cleandoc(function.__doc__).partition("\n")[0]}
        signature = Signature(name, function)
        options = self.schedules.take(name, options, signature.check)
        definition = define(Python(name, signature.takes), options, requires={"app": self.name})
        if definition.placement.sticky is not None:
            signature.check_parameter(definition.placement.sticky, field="sticky")
        self._define(name, bind_limits(definition, signature))
        self.handlers[name] = Handler(
            name, function, inspect.iscoroutinefunction(function), signature.decode, encode_result
        )
        # A broadcast results in a report on its runs, whatever the handler returns.
        decode = msgspec.json.decode if definition.placement.broadcast else signature.decode_result
        job: Job[..., Any] = Job(self, name, signature.bind, function, decode, signature.check)
        self.jobs[name] = job
        return job

    def command(
        self,
        name: str,
        argv: Sequence[str] | str,
        *,
        shell: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
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
        return self._call(name, run, options)

    def http(
        self,
        name: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
        json: Any = UNSET,
        expect: str | int | Sequence[str | int] = (),
        redirects: int = 5,
        **options: Unpack[JobOptions],
    ) -> Job[..., Any]:
        """A job that calls a URL: `app.http("ping", "POST", "https://shop.example/ping", every="30s")`."""
        run = http(method, url, headers=headers, body=body, json=json, expect=expect, redirects=redirects)
        return self._call(name, run, options)

    def _call(self, name: str, run: Run, options: JobOptions) -> Job[..., Any]:
        """A job of something that is not ours and takes its arguments by name."""
        name = check_name(name, field="name")
        policies = self.schedules.take(name, options, check_command)
        self._define(name, define(run, policies))
        job: Job[..., Any] = Job(self, name, bind_command, None, msgspec.json.decode, check_command)
        self.jobs[name] = job
        return job

    def calendar(self, name: str, days: Iterable[Any]) -> None:
        """Days on which schedules that name this calendar do not run: dates, "12-25" of every year, "sun"."""
        self.schedules.calendar(name, days)

    def _define(self, name: str, definition: Definition) -> None:
        if name in self.definitions:
            raise ValidationError(
                f"a job named {name!r} is defined already; give one of them another name", field="name"
            )
        check_limits(name, definition, is_daemon=self.schedules.is_daemon(name))
        self.definitions[name] = definition

    def __getitem__(self, name: str) -> Job[..., Any]:
        try:
            return self.jobs[name]
        except KeyError:
            known = ", ".join(sorted(self.jobs)) or "none yet"
            raise JobNotFound(f"this application has no job {name!r}; it has: {known}", field="job") from None

    # ── opening and running ─────────────────────────────────────────────────────────────────────

    def settings(self, **overrides: Any) -> compose.Settings:
        """The settings in force: `overrides`, else what the application was made with, else the environment."""
        return compose.load({**self._overrides, **overrides})

    async def open(self, **overrides: Any) -> None:
        """Connect, bring the schema up to date, register the jobs: ready to submit."""
        if self._open is not None:
            self._check_loop()
            return
        async with self._opening:
            if self._open is None:
                await self._open_once(overrides)

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self.loop:
            raise ValidationError(
                "the application is open on another event loop; use it there, or enqueue_sync() from threads",
                field="app",
            )

    async def _open_once(self, overrides: Mapping[str, Any]) -> None:
        async with AsyncExitStack() as stack:
            settings = self.settings(**overrides)
            database = await stack.enter_async_context(compose.open_database(settings))
            await compose.register(database, self.definitions, self.name, self.version, self.schedules)
            self._opened(database, stack)

    def _opened(self, database: Database, stack: AsyncExitStack) -> None:
        self._database = database
        self.loop = asyncio.get_running_loop()
        self._waiting = Waiting(database)
        stack.push_async_callback(self._waiting.close)
        self._open = stack.pop_all()

    async def close(self) -> None:
        stack, self._open = self._open, None
        self._opening = asyncio.Lock()  # the next event loop's
        self._database = self._waiting = self.loop = None
        if stack is not None:
            await stack.aclose()

    @asynccontextmanager
    async def attached(self, database: Database) -> AsyncIterator[App]:
        """Open on the database of an agent, as it is: its servers keep the schema, and register the jobs."""
        async with AsyncExitStack() as stack:
            self._opened(database, stack)
            try:
                yield self
            finally:
                await self.close()

    async def __aenter__(self) -> App:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def running(self, **overrides: Any) -> AsyncIterator[App]:
        """Run the jobs inside this process: a server and an agent, until the block ends."""
        if self._engine is not None:
            raise ValidationError("this application is running already", field="app")
        was_open = self._open is not None
        await self.open(**overrides)
        assert self._database is not None
        try:
            settings = self.settings(**overrides)
            labels = {**settings.labels, "app": self.name}
            providers = self.schedules.providers
            async with compose.engine(settings, self._database, self.handlers, labels, providers) as engine:
                self._engine = engine
                engine.server.recorder.on_ended.append(self._ended)
                try:
                    yield self
                finally:
                    self._engine = None
        finally:
            if not was_open:
                await self.close()

    def _ended(self, endings: Sequence[Any]) -> None:
        if self._waiting is not None:
            self._waiting.hint(ending.task for ending in endings)

    @property
    def engine(self) -> compose.Engine | None:
        """What runs the jobs, while they are running in this process."""
        return self._engine

    # ── what jobs and tasks ask ─────────────────────────────────────────────────────────────────

    @property
    def database(self) -> Database:
        if self._database is None:
            raise ValidationError("the application is not open; use `async with app:` or `app.running()`", field="app")
        self._check_loop()
        return self._database

    async def submit(self, submission: Submission | Submissions, conn: Any) -> Any:
        """Insert through the caller's connection, or through our own and wake our own dispatcher."""
        if conn is not None:
            return await submit(conn, submission)
        if self._database is None:
            if (attempt := self._on_an_agent()) is not None:
                return await submit_through_server(attempt, submission)
            await self.open()
        own = self.database
        engine = self._engine
        if engine is not None and isinstance(submission, Submission):
            id = await engine.server.dispatcher.submit(submission)
            if id is not None:
                return id
        async with own.acquire() as conn:
            ids = await submit(conn, submission)
        if engine is not None:
            engine.server.dispatcher.wake.set()
        return ids

    def submit_sync(self, submission: Submission | Submissions, conn: Any) -> Any:
        if conn is not None:
            return submit_sync(conn, submission)
        if self._database is None and (attempt := self._on_an_agent()) is not None:
            return self._sync.call(lambda: submit_through_server(attempt, submission), loop_of(attempt))
        return self._sync.call(lambda: self.submit(submission, None))

    def _on_an_agent(self) -> Attempt | None:
        """The attempt that runs here, if that is on an agent for which the application names no database."""
        if compose.lacks_database() and self.settings().dsn is None:
            return running.get(None)
        return None

    async def wait_for(
        self, task: int, timeout: float | None, decode: Callable[[str], Any] = msgspec.json.decode
    ) -> Any:
        """The result of a task, once it has succeeded."""
        if self._waiting is None:
            await self.open()
        assert self._waiting is not None
        return await self._waiting.result(task, timeout, decode)

    async def status(self, task: int) -> TaskView:
        if self._database is None:
            await self.open()
        async with self.database.acquire() as conn:
            return await tasks.get(conn, task)

    async def control(self, act: Callable[[Connection, int], Awaitable[object]], task: int) -> None:
        """Ask something of a task that runs, and of the agent in this process at once."""
        if self._database is None:
            await self.open()
        async with self.database.acquire() as conn:
            await act(conn, task)
        if self._engine is not None:
            self._engine.server.gateway.cancel_wake.set()
