"""What the tests of the command line share: a way to call it, here and as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from mainspring.cli.main import main
from mainspring.model.access.actors import Role
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database
from tests.served import served_in_thread


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Outcome]


COMMAND_LINE = "command line"  # the name of its token
NOWHERE = "postgresql://127.0.0.1:1/nowhere"

# For what differs by its nature: a command that works on the database itself, what only its own user may see.
on_the_database = pytest.mark.parametrize("cli", ["database"], indirect=True)


@pytest.fixture(params=["database", "server"])
def cli(
    request: pytest.FixtureRequest, dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cli]:
    """Call the command line in this process: `cli("task", "list")`.

    Each test runs twice: on a database of its own, and over HTTP, with a server that has this database and a command
    line that has none. Output and exit codes are the same.
    """

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(arguments)
        return Outcome(code, *capsys.readouterr())

    if request.param == "database":
        monkeypatch.setenv("MAINSPRING_DSN", dsn)
        yield call
        return
    with served_in_thread(dsn) as url:
        monkeypatch.setenv("MAINSPRING_DSN", NOWHERE)
        monkeypatch.setenv("MAINSPRING_URL", url)
        monkeypatch.setenv("MAINSPRING_TOKEN", asyncio.run(make_token(dsn, COMMAND_LINE, Role.ADMIN)))
        yield call


async def make_token(dsn: str, name: str, role: Role) -> str:
    conn = await Database(dsn).connect()
    try:
        _, secret = await tokens.create(conn, name, role=role)
        return secret
    finally:
        await conn.close()


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> str:
    """How the name of whoever runs the command line begins in the audit."""
    return "os:" if request.node.callspec.params["cli"] == "database" else f"token:{COMMAND_LINE}"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The same with a database that nobody can reach: for what must be refused before one is asked."""
    monkeypatch.setenv("MAINSPRING_DSN", NOWHERE)

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(arguments)
        return Outcome(code, *capsys.readouterr())

    return call


Stage = Callable[[Callable[[Connection], Awaitable[None]]], None]


@pytest.fixture
def stage(dsn: str) -> Stage:
    """Let there be something in the test's database before the command line looks at it: `stage(two_servers)`."""

    async def set_up(scene: Callable[[Connection], Awaitable[None]]) -> None:
        conn = await Database(dsn).connect()
        await scene(conn)
        await conn.close()

    return lambda scene: asyncio.run(set_up(scene))


def command(*arguments: str) -> list[str]:
    """The command line as a process: warnings are errors there too."""
    return [sys.executable, "-W", "error", "-m", "mainspring.cli.main", *arguments]


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "timeout": 30, "check": False, **options}
    return subprocess.run(command(*arguments), **options)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}
