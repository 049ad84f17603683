"""Manifests: plan and apply many schedules at once, on the database and over HTTP, and the longest steps of the server.

Every schedule has a cron expression of its own. A manifest creates them, changes all of them, changes a calendar that
all of them use, and deletes them. The steps are those of the event loop that serves the request, by CPU time
(benchmarks/steps.py); the client is a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.served import served

from benchmarks.common import arguments, connection, fresh_database, report, say
from benchmarks.steps import Steps
from mainspring.api.make import make_api
from mainspring.cli.runtime import settle_memory
from mainspring.client.remote import Client
from mainspring.model.access.actors import Actor, Role
from mainspring.model.manifests.manifest import Manifest, read_manifest
from mainspring.operations.manifests import manifest
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Database

ACTOR = Actor("benchmark")
JOBS = 100


def manifest_of(schedules: int, *, zone: str = "Europe/Paris", day: str = "12-25") -> dict[str, Any]:
    jobs = {f"job-{n:04}": {"command": ["./run.sh", str(n)], "timeout": "10m", "retries": 3} for n in range(JOBS)}
    times = {
        f"schedule-{n:05}": {
            "job": f"job-{n % JOBS:04}", "cron": f"{n % 60} {n // 60 % 24} * * {n % 7}", "tz": zone,
            "overlap": "skip", "calendars": ["feasts"], "description": f"number {n} of many",
        }
        for n in range(schedules)
    }  # fmt: skip
    return {
        "mainspring": 1, "set": "load",
        "jobs": jobs if schedules else {}, "schedules": times, "calendars": {"feasts": [day]} if schedules else {},
    }  # fmt: skip


def stages(schedules: int) -> dict[str, dict[str, Any]]:
    return {
        "create": manifest_of(schedules),
        "nothing": manifest_of(schedules),
        "change": manifest_of(schedules, zone="Europe/Berlin"),
        "calendar": manifest_of(schedules, zone="Europe/Berlin", day="12-26"),
        "delete": manifest_of(0),
    }


Call = Callable[..., Awaitable[Any]]


async def timed(call: Call, given: dict[str, Any]) -> dict[str, float]:
    """Seconds of a plan, and of applying it."""
    wanted: Manifest = read_manifest(given)
    began = time.monotonic()
    planned = await call(manifest.plan, wanted, prune=True)
    between = time.monotonic()
    await call(manifest.apply, wanted, planned.hash, prune=True)
    return {"plan_s": round(between - began, 2), "apply_s": round(time.monotonic() - between, 2)}


async def on_the_database(dsn: str, args: argparse.Namespace) -> dict[str, Any]:
    async with connection(dsn) as conn:

        async def call(operation: Any, *given: Any, **named: Any) -> Any:
            return await operation(conn, ACTOR, *given, **named)

        return {name: await timed(call, given) for name, given in stages(args.schedules).items()}


async def over_http(dsn: str, args: argparse.Namespace) -> dict[str, Any]:
    database = Database(dsn)
    async with connection(dsn) as conn:
        _, token = await tokens.create(conn, "benchmark", role=Role.ADMIN)
    api = make_api(database)
    found: dict[str, Any] = {}
    async with served(api) as url:
        settle_memory()
        for name in stages(args.schedules):
            steps = Steps()
            with steps.watched():
                client = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.manifests", "--as-client", url, token, name,
                    str(args.schedules), stdout=asyncio.subprocess.PIPE,
                )  # fmt: skip
                told, _ = await client.communicate()
            longest = steps.longest()
            say(f"{name}: {json.dumps(longest[:3])}")
            found[name] = json.loads(told) | {
                "longest_step_ms": round(max((step.cpu for step in steps.all_kept), default=0.0), 2),
                "steps_over_5_ms": sum(step.cpu > 5.0 for step in steps.all_kept),
            }
    await api.close()
    await database.close()
    return found


async def as_client(url: str, token: str, name: str, schedules: str) -> None:
    async with Client(url, token, timeout=120.0) as client:
        print(json.dumps(await timed(client.call, stages(int(schedules))[name])))


async def measure(dsn: str, args: argparse.Namespace) -> dict[str, Any]:
    return {"database": await on_the_database(dsn, args), "http": await over_http(dsn, args)}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-client"]:
        asyncio.run(as_client(*sys.argv[2:]))
    else:
        args = arguments(__doc__ or "", schedules=10_000)
        with fresh_database() as dsn:
            report("manifests", asyncio.run(measure(dsn, args)), as_json=args.json)
