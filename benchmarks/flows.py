"""Flows: what the features of queues and flows cost, or save, against the same work without them, in one run.

chunks       10,000 rows into a table of the application's, a task for each: a call for each, and one for a hundred.
             `transaction` is the same in transaction(), so that rows and completions are committed together
bounds       submissions to a job with max_queued and to one without: `await enqueue()`, and 5,000 in a statement
rules        what twenty priority rules add to a submission, of which the last one fits
batch        100,000 no-op tasks, alone and counted in one batch with a callback: submitted, then run by a worker
expiry       1,000,000 tasks that have not started by their deadline: the steps of the leader that end them
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import psutil

import mainspring
from benchmarks.common import (
    arguments,
    connection,
    cpu_seconds,
    drained,
    empty_tables,
    make_app,
    postmaster,
    quantiles,
    run,
    workers,
)
from mainspring import operations
from mainspring.model.flows.rules import Condition, NewRule
from mainspring.operations.actors import this_user
from mainspring.server.planning.expiry import ExpiryLoop
from mainspring.store.postgres.database import Connection, Database

CHUNK = 100
CONNECTIONS = 10  # of the handlers
RULES = 20
SINGLES = 300  # of one round
BULK, BULKS = 5_000, 4  # tasks of a statement, and statements of one round
NOWHERE = {"bench": "nowhere"}  # a label that no agent has

_TABLE = "create table if not exists public.bench_row (id int, name text)"
_INSERT = "insert into public.bench_row (id, name) values ($1, $2)"
_INSERT_MANY = "insert into public.bench_row (id, name) select * from unnest($1::int[], $2::text[])"


@dataclass
class Row:
    id: int
    name: str


def _columns(rows: list[Row]) -> tuple[list[int], list[str]]:
    return [row.id for row in rows], [row.name for row in rows]


def loaders(app: mainspring.App, pool: asyncpg.Pool[Any]) -> dict[str, mainspring.Job[..., Any]]:
    """The same insert in four ways."""

    @app.job(retries=0)
    async def each(id: int, name: str) -> None:
        await pool.execute(_INSERT, id, name)

    @app.job(retries=0, chunk=CHUNK)
    async def chunked(rows: list[Row]) -> None:
        await pool.execute(_INSERT_MANY, *_columns(rows))

    @app.job(retries=0, delivery="effectively_once")
    async def each_transaction(id: int, name: str) -> None:
        async with mainspring.current_task().transaction() as conn:
            await conn.execute(_INSERT, id, name)

    @app.job(retries=0, delivery="effectively_once", chunk=CHUNK)
    async def chunked_transaction(rows: list[Row]) -> None:
        async with mainspring.current_tasks().transaction() as conn:
            await conn.execute(_INSERT_MANY, *_columns(rows))

    return {job.name: job for job in (each, chunked, each_transaction, chunked_transaction)}


async def chunks(dsn: str, conn: Connection, args: argparse.Namespace) -> dict[str, Any]:
    """Rows per second of each way, alone, in one process; from the first start to the last commit."""
    await conn.execute(_TABLE)
    rates: dict[str, list[float]] = defaultdict(list)
    async with asyncpg.create_pool(dsn, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        app = make_app(dsn)
        jobs = loaders(app, pool)
        for name in _in_turns(list(jobs), args.rounds):
            await empty_tables(conn)
            await conn.execute("truncate public.bench_row")
            async with app:
                await jobs[name].enqueue_many([{"id": number, "name": f"row {number}"} for number in range(args.rows)])
            async with app.running():
                rates[name].append(await drained(conn, args.rows))
            if (stored := await conn.fetchval("select count(distinct id) from public.bench_row")) != args.rows:
                raise RuntimeError(f"{name} stored {stored} rows of {args.rows}")
    return {
        **{f"{name}_rows_per_s": round(statistics.median(found)) for name, found in rates.items()},
        "chunked_ratio": _ratio(rates, "chunked", "each"),
        "chunked_transaction_ratio": _ratio(rates, "chunked_transaction", "each_transaction"),
    }


def _in_turns(names: list[str], rounds: int) -> Iterator[str]:
    """Each so often, in one order and then in the other: the machine is not as fast all the time."""
    for number in range(rounds):
        yield from names if number % 2 else reversed(names)


def _ratio(found: Mapping[str, Sequence[float]], one: str, other: str) -> float:
    """The median of the ratios of each round."""
    return round(statistics.median(mine / theirs for mine, theirs in zip(found[one], found[other], strict=True)), 2)


# ── bounds ──────────────────────────────────────────────────────────────────────────────────────

_COUNTED = """
    select exists (select from mainspring.queue_bound b join mainspring.job j on j.id = b.job_id
                    where j.name = 'bounded')
"""


async def bounds(dsn: str, conn: Connection, args: argparse.Namespace) -> dict[str, Any]:
    """Submissions per second of a process without an engine, while another one leads; no agent can run the tasks.

    `…_us` is what a task costs PostgreSQL's processor in SQL, without the commit: the machine is too noisy for more.
    """
    app = make_app(dsn)
    app.job(name="unbounded", requires=NOWHERE)(_nothing)
    app.job(name="bounded", requires=NOWHERE, max_queued=10_000_000)(_nothing)
    rates: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[float]] = defaultdict(list)
    await empty_tables(conn)
    async with app:
        with workers(dsn, 1):
            await _until(conn, _COUNTED)
            for name in _in_turns(["unbounded", "bounded"], 2 * args.rounds):
                began = time.perf_counter()
                for _ in range(SINGLES):
                    await app[name].enqueue()
                singly = time.perf_counter()
                for _ in range(BULKS):
                    await app[name].enqueue_many([()] * BULK)
                rates[f"{name}_single"].append(SINGLES / (singly - began))
                rates[f"{name}_bulk"].append(BULKS * BULK / (time.perf_counter() - singly))
                for kind, seconds in (await _submitted(conn, name)).items():
                    costs[f"{name}_{kind}"].append(seconds)
    await empty_tables(conn)
    return {
        **{f"{name}_per_s": round(statistics.median(found)) for name, found in rates.items()},
        **_costs(costs),
        "bounded_single_ratio": _ratio(rates, "bounded_single", "unbounded_single"),
        "bounded_bulk_ratio": _ratio(rates, "bounded_bulk", "unbounded_bulk"),
    }


async def _nothing() -> None:
    return None


async def _until(conn: Connection, question: str) -> None:
    async with asyncio.timeout(30):
        while not await conn.fetchval(question):
            await asyncio.sleep(0.05)


# ── rules ───────────────────────────────────────────────────────────────────────────────────────

_ARGS = '{"repository": "shop", "branch": "main"}'
_ONE = "select mainspring.enqueue($1, $2)"
_MANY = "select mainspring.enqueue_many($1, array_fill($2::jsonb, array[$3::int]))"


async def rules(dsn: str, conn: Connection, args: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of PostgreSQL's processor that a task costs more with twenty rules, of which the last one fits."""
    app = make_app(dsn)
    app.job(name="ruled", requires=NOWHERE)(_ruled)
    async with app:
        pass
    found: dict[str, list[float]] = defaultdict(list)
    for enabled in [True, False] * (5 * args.rounds):
        await _put_rules(conn, enabled=enabled)
        for name, seconds in (await _submitted(conn, "ruled")).items():
            found[f"{'ruled' if enabled else 'plain'}_{name}"].append(seconds)
    costs = _costs(found)
    return {
        **costs,
        "rules_single_us": round(costs["ruled_single_us"] - costs["plain_single_us"], 2),
        "rules_bulk_us": round(costs["ruled_bulk_us"] - costs["plain_bulk_us"], 2),
    }


async def _put_rules(conn: Connection, *, enabled: bool) -> None:
    async with conn.transaction():
        for number in range(RULES):
            values = ["shop"] if number == RULES - 1 else [f"repository {number}", f"other {number}"]
            when = [Condition("args.repository", "in", values)]
            rule = NewRule(order=number, when=when, priority="high", enabled=enabled)
            await operations.rules.put(conn, this_user(), f"bench {number}", rule)


async def _submitted(conn: Connection, job: str) -> dict[str, float]:
    """Seconds of the processor of PostgreSQL, by a statement for each task and by one for many; none is committed."""
    backend = psutil.Process(await conn.fetchval("select pg_backend_pid()"))
    await conn.execute("begin")
    try:
        began = _cpu(backend)
        for _ in range(SINGLES):
            await conn.fetchval(_ONE, job, _ARGS)
        singly = _cpu(backend)
        await conn.fetchval(_MANY, job, _ARGS, BULK)
        return {"single": singly - began, "bulk": _cpu(backend) - singly}
    finally:
        await conn.execute("rollback")


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


_TASKS = {"single": SINGLES, "bulk": BULK}


def _costs(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Microseconds a task, from the seconds of each round: a clock of the kernel's that ticks every 10 ms."""
    return {
        f"{name}_us": round(sum(seconds) / len(seconds) / _TASKS[name.rpartition("_")[2]] * 1e6, 2)
        for name, seconds in found.items()
    }


async def _ruled(repository: str, branch: str) -> None:
    return None


# ── start deadlines ─────────────────────────────────────────────────────────────────────────────

_LATE = """
    select mainspring.enqueue_many('late', array_fill('{}'::jsonb, array[$1::int]), expires => interval '1 ms')
"""


async def expiry(dsn: str, conn: Connection, args: argparse.Namespace) -> dict[str, Any]:
    """A million tasks whose deadline has passed: how fast they end, and how long one step of the leader lasts."""
    app = make_app(dsn)
    app.job(name="late", requires=NOWHERE)(_nothing)
    async with app:
        pass
    await empty_tables(conn)
    for start in range(0, args.late, BULK):
        await conn.execute(_LATE, min(BULK, args.late - start))
    loop, steps = ExpiryLoop(Database(dsn)), list[float]()
    began = time.perf_counter()
    while True:
        stepped = time.perf_counter()
        found = await loop.step()
        steps.append((time.perf_counter() - stepped) * 1000)
        if not found:
            break
    seconds = time.perf_counter() - began
    if await conn.fetchval("select count(*) from mainspring.task"):
        raise RuntimeError("some tasks have not expired")
    await empty_tables(conn)
    return {
        "expired_per_s": round(args.late / seconds),
        "expiry_steps": len(steps),
        **{f"expiry_step_{name}": value for name, value in quantiles(steps).items()},
    }


# ── batches ─────────────────────────────────────────────────────────────────────────────────────


async def batch(dsn: str, conn: Connection, args: argparse.Namespace) -> dict[str, Any]:
    """Submitted and run, alone and in a batch; each twice, in opposite order, because the machine changes its speed."""
    ways: dict[str, list[dict[str, float]]] = {"alone": [], "batch": []}
    for name in ("alone", "batch", "batch", "alone"):
        ways[name].append(await _counted(dsn, conn, args.tasks // 2, in_batch=name == "batch"))
    found = {
        f"{name}_{figure}": round(sum(one[figure] for one in runs) / len(runs), 2)
        for name, runs in ways.items()
        for figure in runs[0]
    }
    ratios = {
        f"batch_ratio_{figure}": round(found[f"batch_{figure}"] / found[f"alone_{figure}"], 3)
        for figure in ("submitted_per_s", "tasks_per_s", "us_per_task")
    }
    return {**found, **ratios}


async def _counted(dsn: str, conn: Connection, tasks: int, *, in_batch: bool) -> dict[str, float]:
    await empty_tables(conn)
    await conn.execute("delete from mainspring.batch; delete from mainspring.batch_change")
    async with make_app(dsn) as app:
        noop = app["noop"]
        opened = await app.batch("bench", on_complete=noop).open() if in_batch else None
        began = time.perf_counter()
        for start in range(0, tasks, 5_000):
            await noop.using(batch=opened).enqueue_many([()] * min(5_000, tasks - start))
        submitted = tasks / (time.perf_counter() - began)
        if opened is not None:
            await opened.close()
        first = await postmaster(conn)
        before = cpu_seconds(first)
        with workers(dsn, 1) as children:
            rate = await drained(conn, tasks)
            cpu = sum(map(cpu_seconds, children)) + cpu_seconds(first) - before
            if opened is not None:
                view = await opened.wait(timeout=30)
                if (view.outcome, view.succeeded) != ("succeeded", tasks):
                    raise RuntimeError(f"the batch ended {view.outcome} with {view.succeeded} of {tasks}")
    return {"submitted_per_s": submitted, "tasks_per_s": rate, "us_per_task": cpu / tasks * 1e6}


Part = Callable[[str, Connection, argparse.Namespace], Awaitable[dict[str, Any]]]

PARTS: dict[str, Part] = {"chunks": chunks, "bounds": bounds, "rules": rules, "expiry": expiry, "batch": batch}


async def flows(dsn: str, args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    async with connection(dsn) as conn:
        for name in args.parts:
            figures |= await PARTS[name](dsn, conn, args)
    return figures


def main() -> None:
    args = arguments(__doc__ or "", parts=tuple(PARTS), rows=10_000, late=1_000_000, tasks=200_000, rounds=3, runs=1)
    run("flows", lambda dsn: flows(dsn, args), args)


if __name__ == "__main__":
    main()
