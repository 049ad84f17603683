"""The client: what commands ask for, and its implementation straight on the database.

Uses   store.jobs, store.tasks, store.submit
Next:  cli/schedule_client.py for schedules, cli/agent_client.py for agents, cli/cluster_client.py
       for servers and segments; cli/render.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol

import asyncpg
import msgspec

from mainspring.cli.agent_client import Agents, DatabaseAgents
from mainspring.cli.cluster_client import Cluster, DatabaseCluster
from mainspring.cli.daemon_client import Daemons, DatabaseDaemons
from mainspring.cli.schedule_client import DatabaseSchedules, Schedules
from mainspring.compose.local import Settings, load, open_database
from mainspring.errors import AccessDenied, Conflict, SchemaMismatch
from mainspring.model.tasks.jobs import Definition
from mainspring.model.tasks.states import TaskState
from mainspring.model.words.names import check_name
from mainspring.sdk.waiting import Waiting
from mainspring.store.cluster import agents, tokens
from mainspring.store.cluster.tokens import Token
from mainspring.store.figures import stats as figures
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules
from mainspring.store.tasks import broadcasts, control, jobs, output, tasks
from mainspring.store.tasks.broadcasts import ChildView
from mainspring.store.tasks.enqueue import Submission, submit
from mainspring.store.tasks.output import Piece
from mainspring.store.tasks.tasks import AttemptView, TaskView


class JobView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as people see it."""

    name: str
    version: int
    definition: Definition
    live: int | None = None  # tasks that have not ended, where they were counted


class Client(Protocol):
    """What the commands need of a Mainspring, wherever it is."""

    async def jobs(self) -> list[JobView]: ...
    async def job(self, name: str) -> JobView: ...
    async def create_job(self, name: str, definition: Definition, *, replace: bool) -> bool:
        """Returns whether anything changed; Conflict if there is another job of this name."""

    async def delete_job(self, name: str) -> None: ...
    async def submit(self, submission: Submission) -> int: ...
    async def tasks(
        self,
        *,
        job: str | None,
        states: Sequence[TaskState],
        before: int | None,
        limit: int,
        schedule: str | None = None,
        parent: int | None = None,
    ) -> list[TaskView]: ...
    async def task(self, id: int) -> TaskView: ...
    async def attempts(self, id: int) -> list[AttemptView]: ...
    async def output(self, id: int, *, after: tuple[int, int] = (0, 0)) -> list[Piece]:
        """The next pieces behind `after` = (token, number); empty at the end."""

    async def children(self, id: int) -> list[ChildView]:
        """The runs of a broadcast."""

    async def cancel(self, id: int, *, kill: bool = False) -> TaskState: ...
    async def pause(self, id: int) -> None: ...
    async def resume(self, id: int) -> None: ...
    async def restart(self, id: int) -> None: ...
    async def retry(self, id: int) -> None: ...
    async def wait(self, id: int, timeout: float | None) -> TaskView:
        """The task once it has ended; WaitTimeout if it goes on."""

    async def has_agent(self) -> bool: ...
    async def create_token(self, name: str, lifetime: float | None, *, once: bool) -> tuple[int, str]:
        """Its number and its secret."""

    async def tokens(self) -> Sequence[Token]: ...
    async def revoke_token(self, id: int) -> None: ...
    @property
    def schedules(self) -> Schedules: ...
    @property
    def daemons(self) -> Daemons: ...
    @property
    def agents(self) -> Agents: ...
    @property
    def cluster(self) -> Cluster: ...
    async def stats(self) -> dict[str, Any]: ...


class DatabaseClient:
    """A client on the database itself. Connects when first asked: what is wrong with a request comes before that."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stack = AsyncExitStack()
        self._opened: Database | None = None
        keep = timedelta(seconds=max(settings.keep_succeeded, settings.keep_failed))
        self._schedules = DatabaseSchedules(self._conn, keep)
        self.daemons: Daemons = DatabaseDaemons(self._conn)
        self._agents = DatabaseAgents(self._conn, settings.skew_limit)
        self.cluster: Cluster = DatabaseCluster(self._conn)

    @property
    def schedules(self) -> Schedules:
        return self._schedules

    @property
    def agents(self) -> Agents:
        return self._agents

    async def _database(self) -> Database:
        """The embedded PostgreSQL is our own, so its schema is brought up to date.

        One that others share is left to `mainspring migrate`, and to the servers.
        """
        if self._opened is None:
            opening = open_database(self._settings, prepare=self._settings.dsn is None)
            self._opened = await self._stack.enter_async_context(opening)
        return self._opened

    async def close(self) -> None:
        await self._stack.aclose()

    async def jobs(self) -> list[JobView]:
        async with self._conn() as conn:
            return [JobView(job.name, job.version, job.definition, live) for job, live in await jobs.listing(conn)]

    async def job(self, name: str) -> JobView:
        check_name(name, field="job")
        async with self._conn() as conn:
            found = await jobs.find(conn, name)
        return JobView(found.name, found.version, found.definition)

    async def create_job(self, name: str, definition: Definition, *, replace: bool) -> bool:
        check_name(name, field="name")
        async with self._conn() as conn:
            return await jobs.create(conn, name, definition, replace=replace)

    async def delete_job(self, name: str) -> None:
        check_name(name, field="job")
        async with self._conn() as conn:
            if not await jobs.delete(conn, name):
                raise Conflict(f"{name!r} has tasks that have not ended; wait for them, or cancel them", field="job")

    async def submit(self, submission: Submission) -> int:
        async with self._conn() as conn:
            id: int = await submit(conn, submission)
        return id

    async def tasks(
        self,
        *,
        job: str | None,
        states: Sequence[TaskState],
        before: int | None,
        limit: int,
        schedule: str | None = None,
        parent: int | None = None,
    ) -> list[TaskView]:
        if job is not None:
            check_name(job, field="job")
        async with self._conn() as conn:
            if job is not None:
                await jobs.find(conn, job)  # a misspelt name is an error, not an empty list
            if schedule is not None:
                await schedules.find(conn, schedule)
            if parent is not None:
                await tasks.get(conn, parent)
            return await tasks.listing(
                conn, job=job, states=states, before=before, limit=limit, schedule=schedule, parent=parent
            )

    async def task(self, id: int) -> TaskView:
        async with self._conn() as conn:
            return await tasks.get(conn, id)

    async def attempts(self, id: int) -> list[AttemptView]:
        async with self._conn() as conn:
            return await tasks.attempts(conn, id)

    async def output(self, id: int, *, after: tuple[int, int] = (0, 0)) -> list[Piece]:
        async with self._conn() as conn:
            return await output.read(conn, id, after=after)

    async def children(self, id: int) -> list[ChildView]:
        async with self._conn() as conn:
            return await broadcasts.children(conn, id)

    async def cancel(self, id: int, *, kill: bool = False) -> TaskState:
        async with self._conn() as conn:
            return await tasks.cancel(conn, id, kill=kill)

    async def pause(self, id: int) -> None:
        async with self._conn() as conn:
            await control.pause(conn, id)

    async def resume(self, id: int) -> None:
        async with self._conn() as conn:
            await control.resume(conn, id)

    async def restart(self, id: int) -> None:
        async with self._conn() as conn:
            await control.restart(conn, id)

    async def retry(self, id: int) -> None:
        async with self._conn() as conn:
            await tasks.run_again(conn, id)

    async def wait(self, id: int, timeout: float | None) -> TaskView:
        waiting = Waiting(await self._database())
        try:
            await waiting.wait(id, timeout)
        finally:
            await waiting.close()
        return await self.task(id)

    async def has_agent(self) -> bool:
        async with self._conn() as conn:
            return await agents.any_lives(conn)

    async def create_token(self, name: str, lifetime: float | None, *, once: bool) -> tuple[int, str]:
        check_name(name, field="name")
        expires = None if lifetime is None else timedelta(seconds=lifetime)
        async with self._conn() as conn:
            return await tokens.create(conn, name, expires=expires, once=once)

    async def tokens(self) -> Sequence[Token]:
        async with self._conn() as conn:
            return await tokens.listing(conn)

    async def revoke_token(self, id: int) -> None:
        async with self._conn() as conn:
            await tokens.revoke(conn, id)

    async def stats(self) -> dict[str, Any]:
        async with self._conn() as conn:
            return await figures.stats(conn)

    @asynccontextmanager
    async def _conn(self) -> AsyncIterator[Connection]:
        database = await self._database()
        try:
            async with database.acquire() as conn:
                yield conn
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError) as error:
            raise SchemaMismatch("this database lacks (parts of) the schema; run `mainspring migrate`") from error
        except asyncpg.UndefinedColumnError as error:
            raise SchemaMismatch("this database has an older schema; run `mainspring migrate`") from error
        except asyncpg.InsufficientPrivilegeError as error:
            raise AccessDenied(f"PostgreSQL does not allow it ({error}); use a role that may") from error


@asynccontextmanager
async def open_client(overrides: Mapping[str, Any]) -> AsyncIterator[Client]:
    """A client for these settings."""
    client = DatabaseClient(load(overrides))
    try:
        yield client
    finally:
        await client.close()
