"""Gateway: a server and agents in processes of their own, over WebSockets on this machine.

throughput  no-op tasks with two agent processes, from the first start to the last commit
lateness    tasks at distinct instants over ten seconds, from the instant to the first line of the handler
stalled     the same while all processes of PostgreSQL are stopped for three seconds: those that fire meanwhile
idle        CPU of a server with 500 agents that have nothing to do

`--parts throughput,idle` runs some of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import uvloop

import mainspring
from benchmarks.common import (
    arguments,
    connection,
    drained,
    empty_tables,
    fill,
    fresh_database,
    lateness_of,
    make_app,
    median_of,
    report,
    say,
)
from benchmarks.network import able_to_stop_postgresql, cluster, read_stamps, resume, stop
from mainspring.cli.runtime import settle_memory


async def throughput(dsn: str, args: argparse.Namespace) -> dict[str, float]:
    async with connection(dsn) as conn, make_app(dsn) as app:
        await empty_tables(conn)
        await fill(app, args.tasks)
        await conn.execute("checkpoint")
        with cluster(dsn, agents=args.agents, slots=args.slots):
            return {"tasks_per_s": round(await drained(conn, args.tasks))}


def with_stamp(dsn: str) -> mainspring.App:
    app = make_app(dsn)

    @app.job(retries=0)
    async def stamp() -> None:
        raise RuntimeError("runs in an agent, from benchmarks.app")

    return app


async def submit_at_instants(app: mainspring.App, instants: int, seconds: float, ahead: float) -> dict[int, float]:
    """Tasks at distinct instants, evenly; returns the instant of each."""
    first = datetime.now(UTC) + timedelta(seconds=ahead)
    planned = {}
    for number in range(instants):
        instant = first + timedelta(seconds=seconds) * number / instants
        task = await app["stamp"].using(run_at=instant).enqueue()
        planned[task.id] = instant.timestamp()
    return planned


async def _stamped(path: Path, count: int) -> dict[int, float]:
    async with asyncio.timeout(120):
        while len(stamps := read_stamps(path)) < count:
            await asyncio.sleep(0.2)
    return stamps


def _late(planned: dict[int, float], stamps: dict[int, float]) -> dict[str, float]:
    return lateness_of((instant, stamps[task]) for task, instant in planned.items())


async def lateness(dsn: str, args: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "stamps")
        with cluster(dsn, agents=args.agents, slots=args.slots, stamps=path):
            async with with_stamp(dsn) as app:
                planned = await submit_at_instants(app, args.instants, args.seconds, ahead=6)
                return _late(planned, await _stamped(path, len(planned)))


async def stalled(dsn: str, args: argparse.Namespace) -> dict[str, float]:
    """The database stops in the middle, for less than the lead: what is armed by then must not wait for it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "stamps")
        with cluster(dsn, agents=args.agents, slots=args.slots, stamps=path):
            async with with_stamp(dsn) as app:
                planned = await submit_at_instants(app, args.instants, args.seconds, ahead=6)
            began, ended = await _stop_for(dsn, min(planned.values()) + 3, args.stop)
            stamps = await _stamped(path, len(planned))
    meanwhile = {task: instant for task, instant in planned.items() if began <= instant <= ended}
    others = {task: instant for task, instant in planned.items() if task not in meanwhile}
    return {
        "fires": len(meanwhile),
        **_late(meanwhile, stamps),
        **{f"other_{name}": value for name, value in _late(others, stamps).items()},
    }


async def _stop_for(dsn: str, at: float, seconds: float) -> tuple[float, float]:
    async with able_to_stop_postgresql(dsn) as processes:
        await asyncio.sleep(at - time.time())
        stop(processes)
        began = time.time()
        await asyncio.sleep(seconds)
        ended = time.time()
        resume(processes)
    return began, ended


async def idle(dsn: str, args: argparse.Namespace) -> dict[str, float]:
    with cluster(dsn, agents=0, slots=1) as running:
        command = [sys.executable, "-m", "benchmarks.idle_agents", running.url, running.token, str(args.idle_agents)]
        child = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            line = await asyncio.wait_for(child.stdout.readline(), 300)
            if line != b"connected\n":
                raise RuntimeError("the agents could not connect; stderr says why")
            await asyncio.sleep(5)  # the work of connecting is over
            server = psutil.Process(running.server.pid)
            before = server.cpu_times()
            await asyncio.sleep(args.idle_seconds)
            after = server.cpu_times()
            memory = server.memory_info().rss / 2**20
        finally:
            child.stdin.close()
            await asyncio.wait_for(child.wait(), 120)
    cpu = (after.user + after.system - before.user - before.system) / args.idle_seconds
    return {"agents": args.idle_agents, "cpu_percent": round(cpu * 100, 2), "memory_mb": round(memory, 1)}


Part = Callable[[str, argparse.Namespace], Awaitable[dict[str, float]]]
PARTS: dict[str, Part] = {"throughput": throughput, "lateness": lateness, "stalled": stalled, "idle": idle}


async def measure(dsn: str, args: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in args.parts:
        found = await PARTS[name](dsn, args)
        say(f"{name}: {json.dumps(found)}")
        result |= {f"{name}_{key}": value for key, value in found.items()}
        async with connection(dsn) as conn:
            await empty_tables(conn)
    return result


def main() -> None:
    args = arguments(
        __doc__ or "",
        parts=list(PARTS),
        tasks=100_000,
        agents=2,
        slots=1_000,
        instants=1_000,
        idle_agents=500,
        idle_seconds=20,
        seconds=10,
        stop=3,
        runs=1,
    )
    results = []
    with fresh_database() as dsn:
        for number in range(1, args.runs + 1):
            settle_memory()
            results.append(uvloop.run(measure(dsn, args)))
            say(f"gateway run {number} of {args.runs}: {json.dumps(results[-1])}")
    report("gateway", {**median_of(results), "runs": args.runs}, as_json=args.json)


if __name__ == "__main__":
    main()
