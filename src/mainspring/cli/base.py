"""Base: what all commands share: options, examples in their help, and the client through which they call operations.

`mainspring --help` loads this module and those of the commands, so they import nothing heavy.
Next: operations/tasks.py
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

from mainspring.errors import SchemaMismatch

if TYPE_CHECKING:
    from mainspring.config import Settings
    from mainspring.model.access.actors import Actor
    from mainspring.operations.pages import Page
    from mainspring.store.postgres.database import Connection, Database

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Shared:
    """The values of the shared options, wherever on the line they stand."""

    dsn: str | None = None
    data: str | None = None
    json: bool = False
    wide: bool = False

    def overrides(self) -> dict[str, str]:
        """The settings that were given."""
        if self.dsn is not None and self.data is not None:
            raise click.UsageError("--dsn and --data: give one of them, not both")
        given = {"dsn": self.dsn, "data_directory": self.data}
        return {name: value for name, value in given.items() if value is not None}


def shared() -> Shared:
    """The shared options of the command that runs."""
    context = click.get_current_context(silent=True)
    return Shared() if context is None else context.find_root().ensure_object(Shared)


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        setattr(context.find_root().ensure_object(Shared), str(parameter.name), value)


def _shared_options() -> list[click.Parameter]:
    def option(name: str, **how: Any) -> click.Option:
        return click.Option([name], expose_value=False, callback=_remember, **how)

    return [
        option("--dsn", metavar="URL", help="PostgreSQL to use, else MAINSPRING_DSN, else the embedded one."),
        option("--data", metavar="DIR", help="Directory of the embedded PostgreSQL."),
        option("--json", is_flag=True, help="JSON, for programs."),
        option("--wide", is_flag=True, help="Tables with all columns, however narrow the terminal."),
    ]


class Client:
    """Connects on the first call: what is wrong with a request is reported before that."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._stack = AsyncExitStack()
        self._database: Database | None = None

    async def call(
        self, operation: Callable[Concatenate[Connection, Actor, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`await client.call(operations.jobs.show, "backup")`, as the user who runs the command."""
        from mainspring.operations.actors import this_user

        async with self.acquire() as conn:
            return await operation(conn, this_user(), *args, **kwargs)

    async def every(
        self,
        operation: Callable[Concatenate[Connection, Actor, P], Awaitable[Page[R]]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[R]:
        """All items of a list, page by page."""
        from mainspring.operations.pages import MAX_LIMIT

        read: Any = operation
        page: Page[R] = await self.call(read, *args, **kwargs, limit=MAX_LIMIT)
        found = page.items
        while page.next is not None:
            page = await self.call(read, *args, **kwargs, limit=MAX_LIMIT, cursor=page.next)
            found += page.items
        return found

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Connection]:
        import asyncpg

        database = await self._open()
        try:
            async with database.acquire() as conn:
                yield conn
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedFunctionError, asyncpg.InvalidSchemaNameError) as error:
            raise SchemaMismatch("this database lacks (parts of) the schema; run `mainspring migrate`") from error
        except asyncpg.UndefinedColumnError as error:
            raise SchemaMismatch("this database has an older schema; run `mainspring migrate`") from error

    async def _open(self) -> Database:
        """Migrates the embedded PostgreSQL; a shared one is left to servers and `mainspring migrate`."""
        from mainspring.compose.local import open_database

        if self._database is None:
            opening = open_database(self.settings, prepare=self.settings.dsn is None)
            self._database = await self._stack.enter_async_context(opening)
        return self._database

    async def close(self) -> None:
        await self._stack.aclose()


Operation = Callable[Concatenate[Client, P], Awaitable[None]]


def run_async(command: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async command on an event loop."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        import asyncio

        asyncio.run(command(*args, **kwargs))

    return run


def with_client(command: Operation[P]) -> Callable[P, None]:
    """Run an async command with a client for the database that the shared options name."""

    @wraps(command)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from mainspring.compose.local import load

        client = Client(load(shared().overrides()))
        try:
            await command(client, *args, **kwargs)
        finally:
            await client.close()

    return run_async(run)


def with_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


EXAMPLE_COLUMNS = 76  # of the 80 of a terminal, less the indent


def examples(*lines: str) -> str:
    """An epilog of examples; two spaces divide a command from what it does."""
    return "\n".join(["\b", "Examples:", *(f"  {part}" for line in lines for part in _example(line))])


def _example(line: str) -> list[str]:
    """A line that is too long for a terminal, broken as a shell would read it."""
    if len(line) <= EXAMPLE_COLUMNS:
        return [line]
    typed, _, told = line.partition("  ")
    parts = [""]
    for word in re.findall(r"""\s*(?:'[^']*'|"[^"]*"|\$\([^)]*\)|\S)+""", typed):
        if len(parts[-1] + word) > EXAMPLE_COLUMNS - 2:  # room for the backslash
            parts[-1] += " \\"
            parts.append(f"    {word.lstrip()}")
        else:
            parts[-1] += word
    return [*parts, f"    {told.lstrip()}"] if told else parts


class Command(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


class Group(click.Group):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()

    def operation(self, name: str, *lines: str) -> Callable[[Operation[P]], click.Command]:
        """Adds an `operation` to the group."""

        def add(function: Operation[P]) -> click.Command:
            made = operation(name, *lines)(function)
            self.add_command(made)
            return made

        return add


def command(name: str, *lines: str, **how: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with these lines as examples in its help."""
    return click.command(name, cls=Command, epilog=examples(*lines), **how)


def operation(name: str, *lines: str) -> Callable[[Operation[P]], click.Command]:
    """The same for an async function that calls operations through a client."""
    return lambda function: command(name, *lines)(with_client(function))
