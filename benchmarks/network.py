"""What the benchmarks of gateway and cluster start: servers, agents, a token; PostgreSQL's processes, to stop them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.common import connection
from mainspring.store.postgres.database import Connection

APP = "benchmarks.app:app"


def _mainspring(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "mainspring.cli.main", *arguments]


class Process(NamedTuple):
    pid: int
    told: dict[str, Any]  # what it printed when it was ready


@contextmanager
def process(*arguments: str, stamps: Path | None = None, claims: Path | None = None) -> Iterator[Process]:
    """A `mainspring` process that has said that it is ready; told to stop when the block ends.

    Agents note starts in `stamps`, servers the time of each claim in `claims`: see benchmarks/app.py.
    """
    notes = {"MAINSPRING_BENCH_STAMPS": stamps, "MAINSPRING_BENCH_CLAIMS": claims}
    environment = {**os.environ, **{name: str(path) for name, path in notes.items() if path is not None}}
    child = subprocess.Popen(
        _mainspring(*arguments, "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        if not line:
            raise RuntimeError(f"mainspring {arguments[0]} ended with {child.wait(10)} before it was ready")
        yield Process(child.pid, json.loads(line))
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


def make_token(dsn: str) -> str:
    """A token that lets any number of agents in."""
    name = f"benchmark-{time.time_ns()}"
    done = subprocess.run(
        _mainspring("token", "create", name, "--dsn", dsn), capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise RuntimeError(f"no token: {done.stderr.strip()}")
    return done.stdout.strip()


class Cluster(NamedTuple):
    server: Process
    url: str
    token: str


@contextmanager
def cluster(dsn: str, *, agents: int, slots: int, stamps: Path | None = None) -> Iterator[Cluster]:
    """One server and so many agent processes, all ready."""
    token = make_token(dsn)
    with ExitStack() as stack:
        server = stack.enter_context(process("server", "--listen", "127.0.0.1:0", "--dsn", dsn, "--app", APP))
        url = server.told["url"]
        for number in range(1, agents + 1):
            options = ["--server", url, "--token", token, "--slots", str(slots), "--name", f"bench-{number}"]
            stack.enter_context(process("agent", *options, "--app", APP, stamps=stamps))
        yield Cluster(server, url, token)


def read_stamps(path: Path) -> dict[int, float]:
    """When each task started; the first time, if it ran again."""
    found: dict[int, float] = {}
    for line in path.read_text().splitlines():
        task, at = line.split()
        found.setdefault(int(task), float(at))
    return found


async def postgresql(conn: Connection) -> list[psutil.Process]:
    """All processes of the PostgreSQL at the other end, the first one first."""
    backend = psutil.Process(int(await conn.fetchval("select pg_backend_pid()")))
    postmaster = backend.parent()
    assert postmaster is not None
    return [postmaster, *postmaster.children(recursive=True)]


@asynccontextmanager
async def able_to_stop_postgresql(dsn: str) -> AsyncIterator[list[psutil.Process]]:
    """Its processes; they go on when the block ends, whatever happens."""
    async with connection(dsn) as conn:
        processes = await postgresql(conn)
        try:
            yield processes
        finally:
            resume(processes)


def stop(processes: Sequence[psutil.Process]) -> None:
    processes[0].suspend()  # it starts no new ones from here
    for each in processes[0].children(recursive=True):
        each.suspend()


def resume(processes: Sequence[psutil.Process]) -> None:
    for each in processes[0].children(recursive=True):
        each.resume()
    processes[0].resume()
