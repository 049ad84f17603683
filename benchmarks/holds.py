"""Holds: for how long a request to the HTTP API keeps the event loop from others, in processor time.

`mainspring up` serves the API on the loop that fires tasks: a loop that is held makes a fire late. Each request is
made in this process, beside 300 jobs, 600 schedules, 500 agents, 9,000 tasks, some with arguments of nearly 1 MB, and
the figures of two days. Two figures for each: the longest step of the loop, in processor time of its thread; and the
longest time between two turns of a task that always wants one, in processor time of the process. The second also
counts other threads, which hold the interpreter's lock.
Processor time, so that a busy machine does not matter; the first request of each kind is left out, it loads and plans.
"""

from __future__ import annotations

import asyncio
import json
import time
from asyncio import events
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from benchmarks.common import arguments, connection, fresh_database, report, say
from benchmarks.figures import FIGURES
from benchmarks.stored import store
from mainspring.api.app import Api
from mainspring.api.make import make_api
from mainspring.cli.runtime import settle_memory
from mainspring.model.access.actors import Actor, Role
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.tasks.define_job import command, define
from mainspring.operations import access
from mainspring.operations.definitions import jobs, schedules
from mainspring.store.postgres.database import Connection, Database

ACTOR = Actor("benchmark")
LARGE = {"rows": [{"id": number, "name": f"row {number}", "values": [1, 2, 3]} for number in range(18_000)]}
WANTED = 5.0  # milliseconds
READ = 64 * 1024  # bytes of a body that come at once
T = TypeVar("T")


class Asked(NamedTuple):
    method: str
    path: str
    body: Any = None
    lines: bytes = b""  # a body of NDJSON, in place of the other
    name: str = ""

    def for_run(self, run: int) -> Asked:
        """With the job of this run, where there is one for each, and with the times of now."""
        body = self.body
        if self.path.startswith("/actions"):
            body = json.loads(json.dumps(self.body).replace("RUN", f"{run:03}"))
        return self._replace(path=_times(self.path, minutes=15 + run), body=body)  # a forecast is kept: another cell


def requests(large: int) -> list[Asked]:
    return [
        Asked("GET", "/tasks?limit=50"),
        Asked("GET", "/tasks?limit=500"),
        Asked("GET", "/tasks?limit=50&fields=all&job=job-001"),
        Asked("GET", "/tasks?limit=50&fields=all&job=job-large"),
        Asked("GET", f"/tasks/{large}"),
        Asked("GET", "/tasks?limit=200&fields=all&job=job-medium"),
        Asked("POST", "/tasks", {"job": "job-001", "args": LARGE}),
        Asked("POST", "/tasks", {"job": "job-001", "args": {"n": [1] * 300_000}}, name="numbers"),
        Asked("POST", "/tasks", {"job": "job-001", "args": {"text": '\\"' * 200_000}}, name="one text"),
        Asked("POST", "/tasks", {"job": "job-001", "args": {"n": [[1]] * 180_000}}, name="short lists"),
        Asked("POST", "/tasks/bulk", lines=_line(LARGE, 0.8) * 3, name="lines of 0.8 MB"),
        Asked("POST", "/tasks/bulk", lines=_line(LARGE, 0.0001) * 20_000, name="short lines"),
        Asked("POST", "/tasks/flow", {"steps": [{"job": "job-001", "args": {"rows": LARGE["rows"][:17_000]}}]}),
        Asked("POST", "/batches", {"name": "large", "on_success": {"job": "job-001", "args": LARGE}}, name="refused"),
        Asked("PUT", "/calendars/days", {"days": _days(9_000)}, name="refused"),
        Asked("PATCH", "/jobs/job-002", {"description": "y" * 900_000}, name="refused"),
        Asked("POST", "/actions/tasks", {"action": "cancel", "filter": {"job": ["job-RUN"]}, "limit": 1000}),
        Asked("POST", "/actions/tasks", {"action": "retry", "filter": {"job": ["job-RUN"]}, "limit": 1000}),
        Asked("POST", "/actions/schedules", {"action": "disable", "filter": {"name": ["s-*"]}}),
        Asked("POST", "/actions/schedules", {"action": "enable", "filter": {"name": ["s-*"]}}),
        Asked("GET", "/jobs?limit=500"),
        Asked("GET", "/schedules?limit=500"),
        Asked("GET", "/schedules/s-0001/next?n=100"),
        Asked("GET", "/check?since=24h"),
        Asked("GET", "/forecast?from={now}&to={tomorrow}&cell={minutes}m"),
        Asked("GET", "/timeline?from={yesterday}&to={now}&schedule=s-0001&schedule=s-0002"),
        Asked("GET", "/agents"),
        Asked("GET", "/segments"),
        Asked("GET", "/figures?from={yesterday}&to={now}&step=1m"),
        Asked("GET", "/queues"),
        Asked("GET", "/stats"),
        Asked("GET", "/health"),
        Asked("GET", "/audit?limit=500"),
        Asked("GET", "/settings"),
        Asked("PUT", "/schedules/s-large", {"job": "job-001", "every": "1h", "args": LARGE}, name="refused"),
    ]


def _days(count: int) -> list[str]:
    return [f"{2000 + n // 336}-{n // 28 % 12 + 1:02}-{n % 28 + 1:02}" for n in range(count)]


def _line(args: dict[str, Any], share: float) -> bytes:
    rows = args["rows"]
    return json.dumps({"job": "job-001", "args": {"rows": rows[: int(len(rows) * share)]}}).encode() + b"\n"


async def longest_wait(asked: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """What it returns, and the longest that another task had to wait for its turn meanwhile, in milliseconds."""
    longest = 0.0

    async def turns() -> None:
        nonlocal longest
        before = time.process_time()
        while True:
            await asyncio.sleep(0)
            now = time.process_time()
            longest, before = max(longest, now - before), now

    turning = asyncio.create_task(turns())
    try:
        return await asked, longest * 1000
    finally:
        turning.cancel()


@contextmanager
def timed_steps() -> Iterator[list[float]]:
    """The processor time of every step of asyncio's loop, in milliseconds."""
    took: list[float] = []
    run = events.Handle._run

    def timed(handle: events.Handle) -> None:
        began = time.thread_time()
        run(handle)
        took.append((time.thread_time() - began) * 1000)

    events.Handle._run = timed  # type: ignore[method-assign,assignment]
    try:
        yield took
    finally:
        events.Handle._run = run  # type: ignore[method-assign]


async def ask(api: Api, token: str, asked: Asked, body: bytes) -> tuple[int, int]:
    """The status of the answer and its size."""
    path, _, query = asked.path.partition("?")
    found: list[int] = []
    sizes: list[int] = []
    sent = -1

    async def receive() -> dict[str, Any]:
        nonlocal sent
        sent += 1
        if sent * READ > len(body):
            await asyncio.sleep(3600)
        part = body[sent * READ : (sent + 1) * READ]
        return {"type": "http.request", "body": part, "more_body": (sent + 1) * READ <= len(body)}

    async def send(message: Any) -> None:
        found.append(message.get("status", 0))
        sizes.append(len(message.get("body", b"")))

    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {token}".encode())]
    headers += [(b"content-type", b"application/x-ndjson" if asked.lines else b"application/json")] if body else []
    scope = {"type": "http", "method": asked.method, "path": f"/api/v1{path}", "raw_path": f"/api/v1{path}".encode()}
    scope |= {"query_string": query.encode(), "headers": headers, "client": ("127.0.0.1", 1), "scheme": "http"}
    scope |= {"server": ("127.0.0.1", 7070), "root_path": ""}
    await api(scope, receive, send)
    return found[0], sum(sizes)


async def prepare(conn: Connection, runs: int) -> int:
    """The id of a task with large arguments."""
    definition = define(command(["true"]), {"description": "x" * 200})
    for number in range(300):
        await jobs.put(conn, ACTOR, f"job-{number:03}", definition)
    await jobs.put(conn, ACTOR, "job-large", definition)
    for number in range(600):
        cron = f"{number % 60} {number % 24} * * mon-fri" if number % 2 else f"*/{number % 50 + 1} * * * *"
        spec = ScheduleSpec(job=f"job-{number % 300:03}", cron=cron, tz="Europe/Paris", enabled=True)
        await schedules.put(conn, ACTOR, f"s-{number:04}", spec)
    await conn.execute(
        """insert into mainspring.agent (session, name, slots, lease_until)
           select 100 + n, 'agent-' || n, 4, mainspring.now() + interval '1 hour' from generate_series(1, 500) n"""
    )
    await store(conn, 3_000, 0)
    await conn.execute(FIGURES, 20, timeout=600)
    many = "select mainspring.enqueue_many($1, array_fill($2::text::jsonb, array[$3::integer]))"
    for run in range(runs + 1):
        await conn.fetch(many, f"job-{run:03}", '{"a": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "text": "some text"}', 1_000)
    await jobs.put(conn, ACTOR, "job-medium", definition)
    await conn.fetch(many, "job-medium", json.dumps({"rows": LARGE["rows"][:900]}), 200)
    rows = await conn.fetch(many, "job-large", json.dumps(LARGE), 5)
    return int(rows[0][0][0] if isinstance(rows[0][0], list) else rows[0][0])


def _times(path: str, minutes: int) -> str:
    def written(days: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + days * 86400))

    return path.format(now=written(0), tomorrow=written(1), yesterday=written(-1), minutes=minutes)


async def measure(dsn: str, runs: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with connection(dsn) as conn:
        large = await prepare(conn, runs)
        made = await access.create_token(conn, ACTOR, "holds", role=Role.ADMIN)
    database = Database(dsn)
    pool = database.for_api()
    api = make_api(pool)
    given = requests(large)
    settle_memory()  # as `up` and servers do
    try:
        for asked in given:
            longest: list[float] = []
            waited: list[float] = []
            for run in range(runs + 1):
                one = asked.for_run(run)
                body = one.lines or (b"" if one.body is None else json.dumps(one.body).encode())
                with timed_steps() as took:
                    (status, size), waits = await longest_wait(ask(api, str(made.token), one, body))
                if status >= 300 and asked.path != "/health" and asked.name != "refused":
                    raise RuntimeError(f"{asked.method} {asked.path}: {status}")
                longest += [max(took, default=0.0)] if run else []
                waited += [waits] if run else []
            name = f"{asked.method} {asked.path.replace(str(large), 'ID')}"
            if asked.body is not None:
                name += f" {asked.body.get('action', '')}"
            name = f"{name} {asked.name}".strip()
            step, wait = (round(sorted(figures)[len(figures) // 2], 2) for figures in (longest, waited))
            found[name] = max(step, wait)
            mark = "  <- too long" if found[name] > WANTED else ""
            say(f"{step:8.2f} ms step {wait:8.2f} ms wait  {size:>9} bytes  {name}{mark}")
    finally:
        await api.close()
        await pool.close()
        await database.close()
    return found


def worst(found: dict[str, Any]) -> Sequence[str]:
    return [name for name, took in found.items() if took > WANTED]


def main() -> None:
    args = arguments(__doc__ or "", runs=5)
    with fresh_database() as dsn:
        found = asyncio.run(measure(dsn, args.runs))
    report("holds", {"longest_ms": max(found.values()), "too_long": worst(found), "runs": args.runs}, as_json=args.json)


if __name__ == "__main__":
    main()
