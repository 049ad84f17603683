"""Cluster: 1, 2 and 4 servers with an agent each, in processes of their own, over one PostgreSQL on this machine.

waiting    tasks that wait 5 ms in their handler, few slots: the database has room; two servers to one
noop       tasks that do nothing: processors and database are full; two and four servers to one, of the same work
claim      the time of a claim in the servers during `noop`, from the call until its rows are there
pickup     two idle servers, one task every 50 ms: from the call of enqueue to the first line of the handler
rebalance  a steady stream of tasks; a third server joins, and one stops by SIGTERM: the longest time between two
           starts in one of the segments that moved

All agents are there, and drained, while the queue is filled; they begin together. `waiting`, `noop` and `claim` are
medians of the runs, in each of which the numbers of servers take turns; the others are measured once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from benchmarks.common import (
    arguments,
    connection,
    drained,
    empty_tables,
    fill,
    fresh_database,
    make_app,
    median_of,
    quantiles,
    report,
    say,
)
from benchmarks.network import APP, Process, make_token, process, read_stamps
from benchmarks.rebalance import rebalance
from mainspring.cli.runtime import settle_memory
from mainspring.store.postgres.database import Connection

SERVERS = (1, 2, 4)
WAITING_SLOTS = 8
NOOP_SLOTS = 1_000


class Cluster(NamedTuple):
    servers: list[Process]
    names: list[str]  # of the agents


@contextmanager
def cluster(dsn: str, servers: int, slots: int, **notes: Path) -> Iterator[Cluster]:
    """So many servers, each with an agent that knows no other; started at the same time."""
    token = make_token(dsn)
    names = [f"bench-{number}" for number in range(1, servers + 1)]
    listen = ("server", "--listen", "127.0.0.1:0", "--dsn", dsn, "--app", APP)
    with ExitStack() as stack:
        started = together(stack, [process(*listen, **notes) for _ in names])
        together(
            stack,
            [
                process(
                    *("agent", "--server", server.told["url"], "--token", token, "--app", APP),
                    *("--slots", str(slots), "--name", name),
                    **notes,
                )
                for server, name in zip(started, names, strict=True)
            ],
        )
        yield Cluster(started, names)


def together(stack: ExitStack, managers: list[AbstractContextManager[Process]]) -> list[Process]:
    with ThreadPoolExecutor(len(managers)) as pool:
        return list(pool.map(stack.enter_context, managers))


async def hold(conn: Connection, names: list[str]) -> None:
    """Agents of these names take nothing, whenever they come."""
    await conn.execute("insert into mainspring.draining (name) select unnest($1::text[])", names)
    await conn.execute("select pg_notify('mainspring', 'agent')")


async def let_go(conn: Connection) -> None:
    """All of them, at once."""
    await conn.execute("delete from mainspring.draining")
    await conn.execute("select pg_notify('mainspring', 'agent')")


async def until_shared(conn: Connection, servers: int) -> None:
    async with asyncio.timeout(30):
        while await conn.fetchval("select count(distinct owner) from mainspring.segment") != servers:
            await asyncio.sleep(0.02)


async def rate(conn: Connection, dsn: str, servers: int, job: str, tasks: int, slots: int, **notes: Path) -> float:
    """Tasks per second from the first start to the last commit."""
    await empty_tables(conn)
    names = [f"bench-{number}" for number in range(1, servers + 1)]
    await hold(conn, names)
    with cluster(dsn, servers, slots, **notes):
        await until_shared(conn, servers)
        async with make_app(dsn) as app:
            if job == "noop":
                await fill(app, tasks)
            else:
                await conn.execute("select mainspring.enqueue($1) from generate_series(1, $2)", job, tasks)
        await conn.execute("checkpoint")
        await asyncio.sleep(1.0)  # the servers have looked, and are idle
        await let_go(conn)
        return await drained(conn, tasks)


async def waiting(conn: Connection, dsn: str, args: argparse.Namespace) -> dict[str, float]:
    one, two = [await rate(conn, dsn, servers, "wait", args.waiting, WAITING_SLOTS) for servers in (1, 2)]
    return {"waiting_1_per_s": round(one), "waiting_2_per_s": round(two), "waiting_2_ratio": round(two / one, 3)}


async def noop(conn: Connection, dsn: str, args: argparse.Namespace) -> dict[str, float]:
    result: dict[str, float] = {}
    rates = {}
    for servers in SERVERS:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "claims")
            rates[servers] = await rate(conn, dsn, servers, "noop", args.tasks, NOOP_SLOTS, claims=path)
            result |= {f"claim_{servers}_{name}": value for name, value in quantiles(_claims(path)).items()}
        result[f"noop_{servers}_per_s"] = round(rates[servers])
    for servers in SERVERS[1:]:
        result[f"noop_{servers}_ratio"] = round(rates[servers] / rates[1], 3)
    return result


def _claims(path: Path) -> list[float]:
    """Milliseconds of each."""
    return [float(line.split()[0]) * 1000 for line in path.read_text().splitlines()]


async def pickup(conn: Connection, dsn: str, args: argparse.Namespace) -> dict[str, float]:
    await empty_tables(conn)
    called = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "stamps")
        with cluster(dsn, 2, NOOP_SLOTS, stamps=path):
            await until_shared(conn, 2)
            await asyncio.sleep(1.0)  # let them become idle
            for _ in range(args.pickups):
                now = time.time()
                called[int(await conn.fetchval("select mainspring.enqueue('stamp')"))] = now
                await asyncio.sleep(0.05)
            await drained(conn, args.pickups)
            started = read_stamps(path)
    waits = [(started[task] - at) * 1000 for task, at in called.items()]
    return {f"pickup_{name}": value for name, value in quantiles(waits).items()}


async def throughput(dsn: str, args: argparse.Namespace) -> dict[str, Any]:
    async with connection(dsn) as conn:
        return await waiting(conn, dsn, args) | await noop(conn, dsn, args)


async def latency(dsn: str, args: argparse.Namespace) -> dict[str, Any]:
    async with connection(dsn) as conn:
        result = await pickup(conn, dsn, args)
        await empty_tables(conn)
        return result | await rebalance(conn, dsn)


def main() -> None:
    args = arguments(__doc__ or "", tasks=60_000, waiting=4_000, pickups=60, runs=3)
    results = []
    with fresh_database() as dsn:
        for number in range(1, args.runs + 1):
            settle_memory()
            results.append(uvloop.run(throughput(dsn, args)))
            say(f"cluster run {number} of {args.runs}: {json.dumps(results[-1])}")
        once = uvloop.run(latency(dsn, args))
    report("cluster", {**median_of(results), **once, "runs": args.runs}, as_json=args.json)


if __name__ == "__main__":
    main()
