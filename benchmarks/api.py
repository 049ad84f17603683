"""API: what the HTTP API holds, each beside the same work straight on the database; `…_ratio` is one to the other.

submit    POST /tasks on 64 connections, each durable when it is answered; beside `await enqueue()`, 64 at once
bulk      POST /tasks/bulk on one connection, and how far memory grows meanwhile; beside `enqueue_many`
show      GET /tasks/{id} of finished and of waiting tasks, on 16 connections; beside the operation on 4 connections
list      GET /tasks?limit=50 beside many stored tasks (`--finished`, `--live`), the slowest of many filters
consoles  100 streams of GET /events at 5,000 tasks a second: processor time of the API; beside nobody listening
lateness  tasks at their instants in `up` under 200 requests a second and 20 streams; beside none
idle      `up` with nobody connected: start to the first task, memory, processor time

`submit` to `consoles` ask `mainspring api`, a process of its own. The client (benchmarks/http_client.py) is one too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.common import (
    Part,
    arguments,
    connection,
    cpu_seconds,
    drained,
    empty_tables,
    fill,
    lateness_of,
    make_app,
    postmaster,
    quantiles,
    run_parts,
    say,
    workers,
)
from benchmarks.gateway import submit_at_instants, with_stamp
from benchmarks.load import load as steady_load
from benchmarks.network import APP, Process, process, read_stamps
from benchmarks.stored import FILTERS, make_days, store
from mainspring.model.access.actors import Actor, Role
from mainspring.operations import access
from mainspring.operations.work import tasks
from mainspring.store.postgres.database import Connection, Database

ACTOR = Actor("benchmark")
CONNECTIONS = 64
READERS = 16
PER_TOKEN = 20  # streams that one token may open
RATE = 5_000  # tasks a second while consoles listen

ASKED = ("tasks?limit=50", "stats", "jobs", "queues", "agents")  # by consoles, while lateness is measured

Found = dict[str, Any]
Request = tuple[str, str, Any]  # method, path, body


class Served(NamedTuple):
    dsn: str
    process: psutil.Process
    port: int
    tokens: list[str]


async def make_tokens(dsn: str, number: int) -> list[str]:
    async with connection(dsn) as conn:
        made = [
            await access.create_token(conn, ACTOR, f"bench-{time.time_ns()}", role=Role.ADMIN) for _ in range(number)
        ]
    return [str(one.token) for one in made]


def _served(dsn: str, its_process: Process, tokens: list[str]) -> Served:
    port = int(str(its_process.told["url"]).rpartition(":")[2].strip("/"))
    return Served(dsn, psutil.Process(its_process.pid), port, tokens)


@asynccontextmanager
async def api(dsn: str, *, tokens: int = 1) -> AsyncIterator[Served]:
    """`mainspring api` alone."""
    made = await make_tokens(dsn, tokens)
    with process("api", "--listen", "127.0.0.1:0", "--dsn", dsn) as running:
        yield _served(dsn, running, made)


async def client(what: str, served: Served, **given: Any) -> Found:
    """What the process of the client measured."""
    asked = json.dumps({"what": what, "port": served.port, "token": served.tokens[0], **given})
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.http_client"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(child.communicate(asked.encode() + b"\n"), 300)
    if child.returncode:
        raise RuntimeError("the client failed; stderr says why")
    found: Found = json.loads(out)
    if found.pop("wrong", None):
        raise RuntimeError(f"requests were refused: {found['why']}")
    found.pop("why", None)
    return found


async def asked(served: Served, requests: Sequence[Request], **given: Any) -> Found:
    """Requests as fast as they are answered; with the processor time of the API for one."""
    before = cpu_seconds(served.process)
    found = await client("load", served, requests=requests, **given)
    cpu = cpu_seconds(served.process) - before
    return found | {"api_us": round(cpu / found["per_s"] / (given["seconds"] + 1) * 1e6)}


@asynccontextmanager
async def listening(served: Served, number: int) -> AsyncIterator[Found]:
    """So many streams of events; what they got is in the dictionary at the end of the block."""
    given = {"what": "stream", "port": served.port, "token": "", "tokens": served.tokens, "connections": number}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.http_client"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps(given).encode() + b"\n")
    if await asyncio.wait_for(child.stdout.readline(), 60) != b"ready\n":
        raise RuntimeError("the streams could not be opened; stderr says why")
    found: Found = {}
    try:
        yield found
    finally:
        out, _ = await asyncio.wait_for(child.communicate(b""), 60)  # closes its input
        found |= json.loads(out)
    if found["silent"]:
        raise RuntimeError(f"{found['silent']} of {number} streams have told nothing")


async def at_once(number: int, seconds: float, call: Callable[[], Awaitable[object]]) -> Found:
    """Calls for so many seconds, so many at once."""
    waits: list[float] = []
    began = time.perf_counter() + 0.5

    async def some() -> None:
        while (now := time.perf_counter()) < began + seconds:
            await call()
            if now >= began:
                waits.append((time.perf_counter() - now) * 1000)

    await asyncio.gather(*(some() for _ in range(number)))
    return {"per_s": round(len(waits) / (time.perf_counter() - began), 1), **quantiles(waits)}


def beside(found: Found, direct: Found, rate: str = "per_s") -> Found:
    """The figures of both, and the ratio of their rates."""
    ratio = {"ratio": round(found[rate] / direct[rate], 3)}
    return found | {f"direct_{name}": value for name, value in direct.items()} | ratio


# ── the parts ───────────────────────────────────────────────────────────────────────────────────


async def submit(dsn: str, args: argparse.Namespace) -> Found:
    async with make_app(dsn) as app:
        direct = await at_once(CONNECTIONS, args.seconds, app["noop"].enqueue)
    async with connection(dsn) as conn, api(dsn) as served:
        await empty_tables(conn)
        body = {"job": "noop", "args": {}}
        requests = [("POST", "/tasks", body)]
        found = await asked(served, requests, connections=CONNECTIONS, seconds=args.seconds)
    return beside(found, direct)


async def bulk(dsn: str, args: argparse.Namespace) -> Found:
    async with make_app(dsn) as app:
        began = time.perf_counter()
        await fill(app, args.tasks)
        direct = {"tasks_per_s": round(args.tasks / (time.perf_counter() - began))}
    async with connection(dsn) as conn, api(dsn) as served:
        await empty_tables(conn)
        first = await postmaster(conn)
        line = {"job": "noop", "args": {}}
        await client("bulk", served, tasks=args.tasks // 4, line=line)
        before, cpu, database = served.process.memory_info().rss, cpu_seconds(served.process), cpu_seconds(first)
        found = await client("bulk", served, tasks=args.tasks, line=line)
        grown = (served.process.memory_info().rss - before) / 2**20
        found["api_us"] = round((cpu_seconds(served.process) - cpu) / args.tasks * 1e6, 2)
        found["database_us"] = round((cpu_seconds(first) - database) / args.tasks * 1e6, 2)
    return beside(found, direct, "tasks_per_s") | {"memory_grown_mb": round(grown, 1)}


async def show(dsn: str, args: argparse.Namespace) -> Found:
    async with connection(dsn) as conn:
        await make_days(conn)
        ids = await _finished_and_waiting(conn, dsn)
        turns = iter(lambda: random.choice(ids), None)
        async with direct_calls(dsn) as call:
            direct = await at_once(4, args.seconds, lambda: call(tasks.show, next(turns)))
        async with api(dsn) as served:
            requests = [("GET", f"/tasks/{id}", None) for id in ids]
            found = await asked(served, requests, connections=READERS, seconds=args.seconds)
    return beside(found, direct)


async def _finished_and_waiting(conn: Connection, dsn: str) -> list[int]:
    """Two thousand tasks that have run, and as many that nobody runs yet."""
    async with make_app(dsn) as app:
        await fill(app, 2_000)
        with workers(dsn, 1):
            await drained(conn, 2_000)
        await fill(app, 2_000)
    rows = await conn.fetch("select id from mainspring.task union all select id from mainspring.task_history")
    ids = [int(row["id"]) for row in rows]
    random.Random(1).shuffle(ids)
    return ids


@asynccontextmanager
async def direct_calls(dsn: str) -> AsyncIterator[Callable[..., Awaitable[object]]]:
    database = Database(dsn)

    async def call(operation: Callable[..., Awaitable[object]], *given: Any, **options: Any) -> object:
        async with database.acquire() as conn:
            return await operation(conn, ACTOR, *given, **options)

    try:
        yield call
    finally:
        await database.close()


async def lists(dsn: str, args: argparse.Namespace) -> Found:
    async with connection(dsn) as conn:
        await store(conn, args.finished, args.live)
        async with direct_calls(dsn) as call:
            direct = await at_once(4, args.seconds, lambda: call(tasks.listing, limit=50))
        async with api(dsn) as served:
            found = await asked(served, [("GET", "/tasks?limit=50", None)], connections=READERS, seconds=args.seconds)
            slowest: tuple[float, str] = (0.0, "")
            for query in FILTERS:
                one = await client(
                    "load", served, requests=[("GET", f"/tasks?limit=50&{query}", None)], connections=1, seconds=0.5
                )
                say(f"list?{query}: {json.dumps(one)}")
                slowest = max(slowest, (one["max_ms"], query))
    return beside(found, direct) | {"slowest_filter_ms": slowest[0], "slowest_filter": slowest[1]}


async def consoles(dsn: str, args: argparse.Namespace) -> Found:
    found: Found = {}
    with process("worker", APP, "--dsn", dsn, "--slots", "1000"):
        async with api(dsn, tokens=-(-args.consoles // PER_TOKEN)) as served, steady_load(dsn) as load:
            running = asyncio.create_task(load.submit(RATE, 2 * args.seconds + 8.0))
            await asyncio.sleep(2.0)
            found["nobody_cpu_percent"] = await _cpu_percent(served.process, args.seconds)
            async with listening(served, args.consoles) as heard:
                await asyncio.sleep(2.0)
                found["cpu_percent"] = await _cpu_percent(served.process, args.seconds)
            await running
            found["tasks_per_s"] = round(load.tasks / (2 * args.seconds + 8.0))
    return found | {"events": heard["events"], "megabytes": round(heard["bytes"] / 2**20, 1)}


async def _cpu_percent(of: psutil.Process, seconds: float) -> float:
    before, began = cpu_seconds(of), time.perf_counter()
    await asyncio.sleep(seconds)
    return round(100 * (cpu_seconds(of) - before) / (time.perf_counter() - began), 2)


async def lateness(dsn: str, args: argparse.Namespace) -> Found:
    found: Found = {}
    made = await make_tokens(dsn, 2)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "stamps")
        with process("up", APP, "--dsn", dsn, stamps=path) as running:
            served = _served(dsn, running, made)
            found |= {f"quiet_{name}": value for name, value in (await _late(dsn, path, args)).items()}
            requests: list[Request] = [("GET", f"/{path}", None) for path in ASKED]
            requests.append(("POST", "/tasks", {"job": "noop"}))
            async with listening(served, 20):
                asking = asyncio.create_task(
                    client("load", served, requests=requests, connections=20, seconds=args.seconds + 6, rate=200)
                )
                found |= await _late(dsn, path, args)
                told = await asking
    found["p99_to_quiet"] = round(found["p99_ms"] / found["quiet_p99_ms"], 2)
    return found | {f"requests_{name}": value for name, value in told.items() if name != "client_cpu"}


async def _late(dsn: str, path: Path, args: argparse.Namespace) -> Found:
    async with with_stamp(dsn) as app:
        planned = await submit_at_instants(app, args.instants, args.seconds, ahead=5)
        async with asyncio.timeout(args.seconds + 60):
            while not planned.keys() <= (stamps := read_stamps(path)).keys():
                await asyncio.sleep(0.2)
    return dict(lateness_of((instant, stamps[task]) for task, instant in planned.items()))


async def idle(dsn: str, args: argparse.Namespace) -> Found:
    async with connection(dsn) as conn, make_app(dsn) as app:
        await empty_tables(conn)
        task = await app["noop"].enqueue()
        began = time.perf_counter()
        with process("up", APP, "--dsn", dsn) as running:
            ready = time.perf_counter() - began
            await task.result(timeout=60)
            started = time.perf_counter() - began
            its_process = psutil.Process(running.pid)
            await asyncio.sleep(3.0)  # the work of starting is over
            cpu = await _cpu_percent(its_process, args.seconds)
            memory = its_process.memory_info().rss / 2**20
    return {
        "first_task_s": round(started, 3),
        "ready_s": round(ready, 3),
        "memory_mb": round(memory, 1),
        "cpu_percent": cpu,
    }


PARTS: dict[str, Part] = {
    "submit": submit,
    "bulk": bulk,
    "show": show,
    "list": lists,
    "consoles": consoles,
    "lateness": lateness,
    "idle": idle,
}


def main() -> None:
    args = arguments(
        __doc__ or "",
        parts=list(PARTS),
        tasks=200_000,
        finished=200_000,
        live=20_000,
        consoles=100,
        instants=1_000,
        seconds=5,
        runs=1,
    )
    run_parts("api", PARTS, args)


if __name__ == "__main__":
    main()
