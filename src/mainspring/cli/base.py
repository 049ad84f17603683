"""Base: what all commands share: options, examples in their help, and the client through which they call operations.

`mainspring --help` loads this module and those of the commands, so they import nothing heavy.
Next: operations/work/tasks.py
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    MutableMapping,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from mainspring.client.interface import Operations
    from mainspring.config import Settings
    from mainspring.model.access.actors import Actor
    from mainspring.operations.pages import Page
    from mainspring.operations.requests.bulk import Answer, OnError, Receive
    from mainspring.operations.work.output import Event
    from mainspring.store.postgres.database import Connection, Database

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Shared:
    """The values of the shared options, wherever on the line they stand."""

    dsn: str | None = None
    data: str | None = None
    server: str | None = None
    json: bool = False
    wide: bool = False

    def overrides(self) -> dict[str, str]:
        """The settings that were given to a command that works on the database itself."""
        if self.server is not None:
            raise click.UsageError(
                "--server: this command works on the database itself; run it there, with --dsn or --data"
            )
        return self.given()

    def of_database(self) -> dict[str, str]:
        """The same for a backup and the like: while MAINSPRING_URL names a server, it must not be another database."""
        is_named = self.given() or os.environ.get("MAINSPRING_DSN") or os.environ.get("MAINSPRING_DATA_DIRECTORY")
        if os.environ.get("MAINSPRING_URL") and not is_named:
            raise click.UsageError(
                "MAINSPRING_URL: names a server, and this command works on the database itself; say which one with "
                "--dsn or --data"
            )
        return self.overrides()

    def given(self) -> dict[str, str]:
        """The settings that were given."""
        places = [f"--{name}" for name in ("dsn", "data", "server") if getattr(self, name) is not None]
        if len(places) > 1 and places != ["--data", "--server"]:  # the token of that server is in its directory
            raise click.UsageError(f"{' and '.join(places)}: give one of them, not both")
        given = {"dsn": self.dsn, "data_directory": self.data}
        return {name: value for name, value in given.items() if value is not None}


def shared() -> Shared:
    """The shared options of the command that runs."""
    context = click.get_current_context(silent=True)
    return Shared() if context is None else context.find_root().ensure_object(Shared)


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value not in (None, False):
        setattr(context.find_root().ensure_object(Shared), str(parameter.name), value)


def _shared_options(taken: Collection[str] = ()) -> list[click.Parameter]:
    """The options that every command has; those of the names `taken` are its own."""

    def option(name: str, **how: Any) -> click.Option:
        return click.Option([name], expose_value=False, callback=_remember, **how)

    options: list[click.Parameter] = [
        option("--dsn", metavar="URL", help="PostgreSQL to use, else MAINSPRING_DSN, else the embedded one."),
        option("--data", metavar="DIR", help="Directory of the embedded PostgreSQL."),
        option("--server", metavar="URL|NAME", help="A server to ask, else MAINSPRING_URL, in place of a database."),
        option("--json", is_flag=True, help="JSON, for programs."),
        option("--wide", is_flag=True, help="Tables with all columns, however narrow the terminal."),
    ]
    return [option for option in options if option.name not in taken]


class Client:
    """Reaches a server if one was named, else a database; at the first call, once all that was typed is checked."""

    def __init__(self, settings: Settings, server: str | None = None) -> None:
        self.settings = settings
        self._server = server
        self._stack = AsyncExitStack()
        self._database: Database | None = None
        self._operations: Operations | None = None

    @property
    def url(self) -> str | None:
        """That of the server, if one is asked."""
        return getattr(self._reached(), "url", None)

    async def call(
        self, operation: Callable[Concatenate[Connection, Actor, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """`await client.call(operations.jobs.show, "backup")`"""
        return await self._reached().call(operation, *args, **kwargs)

    async def wait(self, id: int, timeout: float | None) -> None:
        """Until the task has ended. WaitTimeout if it has not after `timeout` seconds."""
        await self._reached().wait(id, timeout)

    def follow(self, id: int, *, wait: bool) -> AsyncIterator[Event]:
        """The output of a task; with `wait` until it has ended."""
        return self._reached().follow(id, wait=wait)

    def submit_lines(
        self, receive: Receive, *, key: str | None, atomic: bool, on_error: OnError
    ) -> AsyncIterator[Answer]:
        """Submit many tasks, one per line; yields what became of them."""
        return self._reached().submit_lines(receive, key=key, atomic=atomic, on_error=on_error)

    async def has_agents(self) -> bool:
        """Whether anybody is there to run tasks."""
        from mainspring import operations

        return any(agent.status in ("active", "draining") for agent in await self.every(operations.fleet.listing))

    def _reached(self) -> Operations:
        if self._operations is None:
            if self._server is not None:
                from mainspring.cli.remote import remote_client

                self._operations = remote_client(self._server, self.settings)
            else:
                from mainspring.client.local import LocalClient

                self._operations = LocalClient(self)
        return self._operations

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
        """A connection to the database: where no server is asked."""
        import asyncpg

        from mainspring.store.postgres.errors import schema_mismatch

        database = await self._open()
        try:
            async with database.acquire() as conn:
                yield conn
        except asyncpg.PostgresError as error:
            if (mismatch := schema_mismatch(error)) is None:
                raise
            raise mismatch from error

    async def _open(self) -> Database:
        """Migrates the embedded PostgreSQL; a shared one is left to servers and `mainspring migrate`."""
        from mainspring.compose.stores import open_database

        if self._database is None:
            opening = open_database(self.settings, prepare=self.settings.dsn is None)
            self._database = await self._stack.enter_async_context(opening)
        return self._database

    async def close(self) -> None:
        if self._operations is not None:
            await self._operations.close()
        await self._stack.aclose()


Operation = Callable[Concatenate[Client, P], Awaitable[None]]


def server_of(given: Shared) -> str | None:
    """The server to ask, if one was named; a database on the command line counts more than the environment."""
    if given.server is not None or given.dsn is not None or given.data is not None:
        return given.server
    return os.environ.get("MAINSPRING_URL") or None


def run_async(command: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async command on an event loop."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        import asyncio

        asyncio.run(command(*args, **kwargs))

    return run


def with_client(command: Operation[P]) -> Callable[P, None]:
    """Run an async command with a client for the server or the database that the shared options name."""

    @wraps(command)
    async def run(*args: P.args, **kwargs: P.kwargs) -> None:
        from mainspring.config import load

        given = shared()
        client = Client(load(given.given()), server_of(given))
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


_BEHIND = "\0behind"  # no argument of a process can be this
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
        self.params += _shared_options([option.name for option in self.params if option.name is not None])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args and any(parameter.name == "argv" for parameter in self.params):
            self._check_dashes(ctx, args)
        return super().parse_args(ctx, args)

    def _check_dashes(self, ctx: click.Context, args: list[str]) -> None:
        """Refuse words before --: click forgets where it stood, and would begin the command with them."""
        dashes = args.index("--") + 1
        given, _, _ = self.make_parser(ctx).parse_args([*args[:dashes], _BEHIND, *args[dashes:]])
        words = list(given.get("argv") or ())
        stray = words[: words.index(_BEHIND)] if _BEHIND in words else []
        if stray:
            name = shlex.quote(" ".join([str(given.get("name")), *stray]))
            raise click.UsageError(
                f"{shlex.join(stray)} is too much before --: NAME is one word, and the command comes behind --; "
                f"a name with spaces needs quotes: `{ctx.command_path} {name} -- …`",
                ctx,
            )


class LazyCommands(MutableMapping[str, click.Command]):
    """By name; the module of a command, which has it under its name, is loaded once the command is asked for."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = dict(modules)
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            self._loaded[name] = getattr(import_module(self._modules[name]), name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._modules[name], self._loaded[name] = "", command

    def __delitem__(self, name: str) -> None:
        del self._modules[name]
        self._loaded.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


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
