"""What the tests of the command line share: a way to call it, here and as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from mainspring.cli.main import main
from mainspring.store.postgres.database import Connection, Database


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(dsn: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call the command line in this process, on a database of the test's own: `cli("task", "list")`."""
    monkeypatch.setenv("MAINSPRING_DSN", dsn)

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(arguments)
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The same with a database that nobody can reach: for what must be refused before one is asked."""
    monkeypatch.setenv("MAINSPRING_DSN", "postgresql://127.0.0.1:1/nowhere")

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
