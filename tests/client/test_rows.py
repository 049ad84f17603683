"""Every row of the table, called by a client on the database and over HTTP: its request works, its answer decodes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, get_origin, get_type_hints

import msgspec
from tests.client.conftest import ACTOR
from tests.cluster import add_server

from mainspring.api.handlers import public, scrape, session, site
from mainspring.api.rows import ROWS
from mainspring.api.streams import bulk, events
from mainspring.client import namespaces
from mainspring.client.interface import Operations
from mainspring.client.local import LocalClient
from mainspring.client.namespaces import Named, Namespace
from mainspring.client.remote import Client
from mainspring.model.access.actors import Role
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.tasks.define_job import command, define
from mainspring.operations import (
    access,
    calendars,
    cluster,
    daemons,
    fleet,
    health,
    jobs,
    output,
    schedules,
    settings,
    tasks,
)
from mainspring.operations.planning import backfill, forecast, plan_times, timeline
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.requests.task_filters import TaskFilter
from mainspring.operations.schedules import ScheduleFilter
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database

FROM, TO = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC)
ECHO = define(command(["echo", "hello"]), {"retries": 1})
NIGHTLY = ScheduleSpec(job="hello", cron="0 2 * * *", tz="Europe/Berlin", calendars=["holidays"], enabled=True)


def called(operation: Any, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return operation, args, kwargs


# In this order: each finds what those before it have made. Task 1 waits, 2 runs, 3 has ended.
CALLS = [
    called(jobs.put, "hello", ECHO, replace=False),
    called(jobs.edit, "hello", {"timeout": 60}, version=1),
    called(jobs.listing, name=["hel*"], limit=1),
    called(jobs.show, "hello", reveal=True),
    called(tasks.submit, NewTask(job="hello", args={"day": "mon"}, run_at=datetime(2030, 1, 1, tzinfo=UTC), key="k")),
    called(tasks.listing, job=["hello"], state=["pending", "running"], args={"day": "mon"}, limit=5),
    called(tasks.count, created_after=FROM),
    called(tasks.show, 1),
    called(tasks.status, 3),
    called(tasks.change, 1, priority="high", run_at=datetime(2031, 1, 1, tzinfo=UTC)),
    called(tasks.pause, 2),
    called(tasks.resume, 2),
    called(tasks.restart, 2),
    called(tasks.cancel, 1, kill=True),
    called(tasks.retry, 1),
    called(tasks.act, "cancel", TaskFilter(job=["hello"], state=["pending"]), limit=10),
    called(output.read, 3),
    called(calendars.put, "holidays", ["12-25", "sun"]),
    called(calendars.listing),
    called(calendars.show, "holidays"),
    called(schedules.put, "nightly", NIGHTLY),
    called(schedules.edit, "nightly", {"jitter": "5s"}),
    called(schedules.listing, job=["hello"], kind=["cron"]),
    called(schedules.show, "nightly"),
    called(schedules.disable, "nightly", note="for a while"),
    called(schedules.enable, "nightly"),
    called(schedules.run, "nightly"),
    called(schedules.act, "disable", ScheduleFilter(name=["night*"])),
    called(plan_times.fires, "nightly", since=FROM),
    called(plan_times.explain, "nightly", at=datetime(2026, 1, 5, 1, tzinfo=UTC)),
    called(plan_times.next_times, "nightly", n=2),
    called(plan_times.preview, ScheduleSpec(every="30m"), n=2, after=FROM, exclude=["12-25"]),
    called(plan_times.check, since=timedelta(hours=1), schedule="nightly"),
    called(backfill.step, "nightly", FROM, TO, dry_run=True),
    called(forecast.forecast, start=FROM, end=TO, cell=timedelta(hours=6), by="job"),
    called(timeline.show, schedule=["nightly"], start=FROM, end=TO),
    called(schedules.delete, "nightly"),
    called(calendars.delete, "holidays"),
    called(daemons.put, "watcher", define(command(["sleep", "600"]), {}), replicas=2),
    called(daemons.listing),
    called(daemons.show, "watcher"),
    called(daemons.scale, "watcher", 1),
    called(daemons.restart, "watcher"),
    called(daemons.stop, "watcher"),
    called(daemons.start, "watcher"),
    called(daemons.delete, "watcher"),
    called(fleet.listing),
    called(fleet.show, "alpha"),
    called(fleet.armed, "alpha"),
    called(fleet.drain, "alpha"),
    called(fleet.undrain, "alpha"),
    called(cluster.servers, everything=True),
    called(cluster.server, "north"),
    called(cluster.segments),
    called(cluster.moves, 5),
    called(cluster.stats),
    called(cluster.figures, start=FROM, end=TO, step="1h", job="hello"),
    called(cluster.queues),
    called(health.health),
    called(settings.show),
    called(settings.edit, placement="least_tasks"),
    called(session.show),
    called(access.create_token, "ci", role=Role.SUBMITTER, jobs=["hello*"], expires="30d", rate=5.0),
    called(access.list_tokens),
    called(access.revoke_token, 1),
    called(access.create_login, role=Role.VIEWER, jobs=["hello"]),
    called(access.list_sessions),
    called(access.revoke_session, 1),
    called(access.list_audit, since=FROM, action="job.*", limit=2),
    called(jobs.put, "idle", ECHO),
    called(jobs.delete, "idle"),
]

STREAMS = {bulk.submit, events.listen, events.follow}  # Client.submit_lines, Client.events, Client.follow
OF_BROWSERS = {session.login, session.logout, site.page}
OF_MONITORING = {scrape.metrics, public.healthz, public.readyz, public.openapi}


async def a_world(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "other", ECHO)
    await tokens.create(conn, "old", role=Role.VIEWER)
    login = await access.create_login(conn, ACTOR)
    await access.exchange_login(conn, ACTOR, code=login.code)
    server = await add_server(conn, "north", url="ws://127.0.0.1:7071")
    await conn.execute(
        """insert into mainspring.agent (name, session, slots, server, lease_until, version)
           values ('alpha', 1, 10, $1, mainspring.now() + interval '1 hour', '0.1.0')""",
        server,
    )
    await conn.execute("select setval('mainspring.task_id', 1)")  # task 1 is the first that a call submits
    for number in (2, 3):
        assert (await tasks.submit(conn, ACTOR, NewTask(job="other"))).id == number
    await tasks.cancel(conn, ACTOR, 3)
    await conn.execute(
        """update mainspring.task set state = 3, token = 1, session = 1, attempt = 1, started_at = mainspring.now()
            where id = 2"""
    )
    await conn.execute("select setval('mainspring.task_id', 1, false)")


def test_every_row_is_called() -> None:
    offered = {row.operation for row in ROWS} - STREAMS - OF_BROWSERS - OF_MONITORING
    assert {one.__qualname__ for one in offered - {operation for operation, _, _ in CALLS}} == set()


async def test_a_call_works_and_its_answer_decodes(client: Operations, conn: Connection) -> None:
    await a_world(conn)
    for operation, args, kwargs in CALLS:
        answer = await client.call(operation, *args, **kwargs)
        returned = get_type_hints(operation)["return"]
        assert isinstance(answer, get_origin(returned) or returned), operation


# What passes between two calls.
PASSING = re.compile(rb'"(\w*age|uptime|last_used_at|counted_at)":[^,}]*')


async def test_reads_are_the_same_views(remote: Client, database: Database, conn: Connection) -> None:
    await a_world(conn)
    local = LocalClient(database)
    reads = {row.operation for row in ROWS if row.method == "GET"} - {session.show}
    for operation, args, kwargs in CALLS:
        there = await remote.call(operation, *args, **kwargs)
        if operation in reads:
            here = await local.call(operation, *args, **kwargs)
            assert type(there) is type(here)
            assert _lasting(there) == _lasting(here), operation


def _lasting(view: object) -> bytes:
    return PASSING.sub(b"", msgspec.json.encode(view))


def test_the_namespaces_have_every_row() -> None:
    rooms = [kind for kind in vars(namespaces).values() if isinstance(kind, type) and issubclass(kind, Namespace)]
    named = {one.operation for room in rooms for one in vars(room).values() if isinstance(one, Named)}
    offered = {row.operation for row in ROWS} - STREAMS - OF_BROWSERS - OF_MONITORING
    assert named == offered
