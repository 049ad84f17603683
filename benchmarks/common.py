"""What the benchmarks share: a fresh database, worker processes, the environment, the report.

Every benchmark prints what it does on stderr, and on stdout one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import uvloop

import mainspring
from benchmarks.pairs import compare
from benchmarks.probe import Probe
from mainspring.cli.runtime import settle_memory
from mainspring.store.embedded.server import Embedded
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.migrate import migrate


def make_app(dsn: str | None = None, **settings: Any) -> mainspring.App:
    """The application that is measured: its handler does nothing."""
    app = mainspring.App("bench", dsn=dsn, **settings)

    @app.job(retries=0)
    async def noop() -> None:
        return None

    return app


_probes: list[Probe] = []  # that runs beside the benchmark of this process
AROUND = 0.5  # seconds before and after a measurement in which the probe is looked at


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def fresh_directory() -> Iterator[Path]:
    """A directory on the disk where PostgreSQL would be; from here until the report the probe runs."""
    parent = "/var/lib" if os.geteuid() == 0 else None  # where the server's account can reach it
    directory = Path(tempfile.mkdtemp(prefix="mainspring-bench-", dir=parent))
    directory.chmod(0o711)
    _probes.append(Probe(directory))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def fresh_database() -> Iterator[str]:
    """A new PostgreSQL in a directory of its own; yields its DSN. `--dsn` or MAINSPRING_DSN is never used."""
    with fresh_directory() as directory:
        embedded = Embedded.start(directory)
        try:
            asyncio.run(_prepare(embedded.dsn))
            yield embedded.dsn
        finally:
            embedded.stop()


async def _prepare(dsn: str) -> None:
    await migrate(Database(dsn))
    async with make_app(dsn):
        pass


@asynccontextmanager
async def connection(dsn: str) -> AsyncIterator[Connection]:
    conn = await Database(dsn).connect()
    try:
        yield conn
    finally:
        await conn.close()


async def empty_tables(conn: Connection) -> None:
    """As if nothing had ever run, so that the runs of one benchmark do not feel each other."""
    await conn.execute("truncate mainspring.task, mainspring.task_history, mainspring.attempt, mainspring.output")
    await conn.execute("checkpoint")


async def fill(app: mainspring.App, tasks: int) -> None:
    """Submit tasks, five thousand in a statement, two statements at a time."""
    sizes = [min(5_000, tasks - start) for start in range(0, tasks, 5_000)]
    turns = iter(sizes)

    async def submit() -> None:
        for size in turns:
            await app["noop"].enqueue_many([()] * size)

    await asyncio.gather(submit(), submit())


@contextmanager
def workers(dsn: str, processes: int) -> Iterator[list[psutil.Process]]:
    """Worker processes, each a server and an agent, once their modules are loaded; they run until the block ends."""
    command = [sys.executable, "-m", "benchmarks.worker", dsn]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(processes)]
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()
        yield [psutil.Process(child.pid) for child in children]
    finally:
        for child in children:
            assert child.stdin is not None
            child.stdin.close()  # tells it to stop
        for child in children:
            child.wait(timeout=60)


async def postmaster(conn: Connection) -> psutil.Process:
    """The first process of the PostgreSQL at the other end."""
    found = psutil.Process(int(await conn.fetchval("select pg_backend_pid()"))).parent()
    assert found is not None
    return found


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of a process and its children, with those that have ended."""
    total = sum(process.cpu_times()[:4])
    for child in process.children():
        with suppress(psutil.NoSuchProcess):
            total += sum(child.cpu_times()[:2])
    return total


_DONE = "select count(*) from mainspring.task_history"
_RATE = """
    select count(*) / date_part('epoch', max(recorded_at) - min(started_at)) as rate from mainspring.task_history
"""


async def drained(conn: Connection, tasks: int, timeout: float = 300.0) -> float:
    """Wait until so many tasks have ended; returns tasks per second from the first start to the last commit."""
    async with asyncio.timeout(timeout):
        while await conn.fetchval("select exists (select from mainspring.task where run_at < mainspring.now())"):
            await asyncio.sleep(0.25)  # each look passes over all that has ended: every 50 ms it took 5 % of both cores
    ended = await conn.fetchval(_DONE)
    if ended < tasks:
        raise RuntimeError(f"only {ended} of {tasks} tasks have ended")
    return float(await conn.fetchval(_RATE))


def quantiles(milliseconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    return {
        "p50_ms": round(ordered[len(ordered) // 2], 3),
        "p99_ms": round(ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)], 3),
        "max_ms": round(ordered[-1], 3),
    }


def lateness_of(starts: Iterable[tuple[float, float]]) -> dict[str, float]:
    """Of (planned, started) in seconds since 1970: how late, and how much later than the probe's timer meanwhile."""
    pairs = list(starts)
    found = quantiles([(started - planned) * 1000 for planned, started in pairs])
    began, ended = min(planned for planned, _ in pairs), max(started for _, started in pairs)
    p99 = probe_timer(began, ended)["timer_p99_ms"]
    return {**found, "probe_p99_ms": p99, "p99_over_probe_ms": round(found["p99_ms"] - p99, 3)}


def probe_timer(began: float, ended: float) -> dict[str, float]:
    """How late the probe's timer was between two times, in seconds since 1970."""
    return _probes[-1].timer_between(began - AROUND, ended + AROUND)


def median_of(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the runs."""
    return {
        key: round(statistics.median(result[key] for result in results), 3)
        for key, value in results[0].items()
        if isinstance(value, (int, float))
    }


def environment() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "postgresql": "18 (embedded)",
        "mainspring": mainspring.__version__,
        "asyncpg": version("asyncpg"),
        "uvloop": version("uvloop"),
    }


def arguments(description: str, *, parts: Sequence[str] = (), **defaults: int) -> argparse.Namespace:
    """The flags of a benchmark: --json, --runs, and its own. With --against it compares two commits instead."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object (always the last line)")
    parser.add_argument("--against", metavar="COMMIT", help="compare with another commit, in interleaved pairs of runs")
    parser.add_argument("--pairs", type=int, default=3, metavar="N", help="with --against; default 3")
    if parts:
        parser.add_argument("--parts", type=partial(_parts, parts), default=list(parts), metavar="NAME,…")
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"default {default}")
    args = parser.parse_args()
    if args.against is not None:
        given = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in defaults]
        given += [f"--parts={','.join(args.parts)}"] if parts else []
        module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
        print(json.dumps(compare(module, given, args.against, args.pairs)))
        raise SystemExit(0)
    return args


Part = Callable[[str, argparse.Namespace], Awaitable[dict[str, Any]]]


def run_parts(benchmark: str, parts: Mapping[str, Part], args: argparse.Namespace) -> None:
    """Run those of `--parts` on one database, emptied before each, and report; a figure has the name of its part."""
    results = []
    with fresh_database() as dsn:
        for number in range(1, args.runs + 1):
            settle_memory()
            results.append(uvloop.run(_run_parts(dsn, parts, args)))
            say(f"{benchmark} run {number} of {args.runs}: {json.dumps(results[-1])}")
    readings = {key: value for key, value in results[-1].items() if isinstance(value, list)}
    report(benchmark, {**median_of(results), **readings, "runs": args.runs}, as_json=args.json)


async def _run_parts(dsn: str, parts: Mapping[str, Part], args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in args.parts:
        async with connection(dsn) as conn:
            await empty_tables(conn)
        found = await parts[name](dsn, args)
        say(f"{name}: {json.dumps(found)}")
        result |= {f"{name}_{key}": value for key, value in found.items()}
    return result


def _parts(known: Sequence[str], text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"{unknown.pop()!r} is none of {', '.join(known)}")
    return names


def stop_probe() -> dict[str, Any] | None:
    """The figures of the probe that `fresh_database` has started."""
    return _probes.pop().figures() if _probes else None


def report(name: str, result: dict[str, Any], *, as_json: bool) -> None:
    """The environment for people on stderr; the figures on stdout, as JSON on the last line."""
    whole = {"benchmark": name, **result, "probe": stop_probe(), "environment": environment()}
    if not as_json:
        for key, value in result.items():
            print(f"{key:>24}  {value}")
    print(json.dumps(whole))


Measure = Callable[[str], Coroutine[Any, Any, dict[str, Any]]]


def run(name: str, measure: Measure, args: argparse.Namespace) -> None:
    """Measure `--runs` times on one fresh database, and report the medians."""
    results = []
    with fresh_database() as dsn:
        for number in range(1, args.runs + 1):
            settle_memory()
            result = uvloop.run(measure(dsn))
            say(f"{name} run {number} of {args.runs}: {json.dumps(result)}")
            results.append(result)
    report(name, {**median_of(results), "runs": args.runs}, as_json=args.json)
