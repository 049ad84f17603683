"""Every row of the table, called by a client on the database and over HTTP: its request works, its answer decodes."""

from __future__ import annotations

import hashlib
import inspect
import pydoc
import re
from datetime import UTC, datetime, timedelta
from typing import Any, get_origin, get_type_hints
from uuid import UUID

import msgspec
import pytest
from tests.client.conftest import ACTOR
from tests.cluster import add_server
from tests.secret_keys import Ring

from mainspring.api.handlers import public, scrape, session, site
from mainspring.api.rows import ROWS
from mainspring.api.streams import bulk, events
from mainspring.client import namespaces
from mainspring.client.interface import Operations
from mainspring.client.local import LocalClient
from mainspring.client.namespaces import Named, Namespace
from mainspring.client.remote import Client
from mainspring.model.access.actors import Role
from mainspring.model.alerts.channels import ChannelSpec
from mainspring.model.alerts.rules import AlertRuleSpec
from mainspring.model.flows.batches import Callback
from mainspring.model.flows.rules import Condition, NewRule
from mainspring.model.manifests.manifest import read_manifest
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.tasks.define_job import command, define
from mainspring.operations import access, settings
from mainspring.operations.alerting import alert_rules, alerts, channels, mutes
from mainspring.operations.condition import autoscale, cluster, failing, fleet, health
from mainspring.operations.definitions import calendars, daemons, holds, jobs, rules, schedules, secrets
from mainspring.operations.definitions.schedules import ScheduleFilter
from mainspring.operations.manifests import manifest
from mainspring.operations.planning import backfill, coming, fired, forecast, herds, plan_times, skips, timeline
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.requests.task_filters import TaskFilter
from mainspring.operations.work import batches, flows, output, tasks
from mainspring.operations.work.batches import NewBatch
from mainspring.operations.work.flows import NewStep
from mainspring.store.access import tokens
from mainspring.store.alerts import deliveries
from mainspring.store.postgres.database import Connection, Database

OLD_TOKEN = 900
FROM, TO = datetime(2026, 1, 5, tzinfo=UTC), datetime(2026, 1, 6, tzinfo=UTC)
ECHO = define(command(["echo", "hello"]), {"retries": 1})
DELIVERY = UUID(int=7)
WEBHOOK = ChannelSpec(kind="webhook", url="https://hooks.example/alerts")
SLOW = AlertRuleSpec(
    kind="late", names=["hel*"], parameters={"after": "30s"}, hold="1m", channels=["ops"], repeat=3600.0
)
NIGHTLY = ScheduleSpec(job="hello", cron="0 2 * * *", tz="Europe/Berlin", calendars=["holidays"], enabled=True)


def called(operation: Any, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return operation, args, kwargs


MANIFEST = read_manifest({"mainspring": 1, "set": "shop", "jobs": {"shop": {"command": ["echo"]}}})
EMPTY = read_manifest({"mainspring": 1})
EMPTY_HASH = hashlib.sha256(msgspec.json.encode([1, None, [False, False]])).hexdigest()  # of a plan without changes

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
    called(tasks.attempts, 3, limit=5),
    called(tasks.children, 3),
    called(flows.of_task, 3),
    called(tasks.change, 1, priority="high", run_at=datetime(2031, 1, 1, tzinfo=UTC)),
    called(tasks.pause, 2),
    called(tasks.resume, 2),
    called(tasks.restart, 2),
    called(tasks.cancel, 1, kill=True),
    called(tasks.retry, 1),
    called(tasks.skip, 1, note="release"),
    called(tasks.retry, 1),
    called(tasks.act, "cancel", TaskFilter(job=["hello"], state=["pending"]), limit=10),
    called(output.read, 3),
    called(batches.create, NewBatch(name="import", on_failure=Callback("hello", {"day": "mon"}))),
    called(batches.listing, state=["open"], name=["im*"], limit=1),
    called(batches.show, 1),
    called(flows.of_batch, 1),
    called(batches.close, 1),
    called(batches.retry, 1, callbacks_again=True),
    called(batches.create, NewBatch(name="other")),
    called(batches.cancel, 2, kill=True),
    called(flows.submit, [NewStep(job="hello", key="k"), NewStep(job="hello", key="k", steps=[0])]),  # both are task 1
    called(calendars.put, "holidays", ["12-25", "sun"]),
    called(calendars.listing),
    called(calendars.show, "holidays"),
    called(schedules.put, "nightly", NIGHTLY),
    called(schedules.edit, "nightly", {"jitter": "5s", "slo": {"lateness": "2s"}}),
    called(schedules.listing, job=["hello"], kind=["cron"]),
    called(schedules.listing, order="next"),
    called(schedules.count, job=["hello"], state=["enabled"]),
    called(schedules.show, "nightly"),
    called(schedules.disable, "nightly", note="for a while"),
    called(schedules.enable, "nightly"),
    called(schedules.run, "nightly"),
    called(skips.skip, "nightly", next=2, note="release"),
    called(skips.unskip, "nightly", until=datetime(2100, 1, 1, tzinfo=UTC)),
    called(schedules.act, "disable", ScheduleFilter(name=["night*"])),
    called(plan_times.fires, "nightly", since=FROM),
    called(plan_times.explain, "nightly", at=datetime(2026, 1, 5, 1, tzinfo=UTC)),
    called(plan_times.slo, "nightly"),
    called(plan_times.next_times, "nightly", n=2),
    called(plan_times.preview, ScheduleSpec(every="30m"), n=2, after=FROM, exclude=["12-25"]),
    called(plan_times.check, since=timedelta(hours=1), schedule="nightly"),
    called(backfill.step, "nightly", FROM, TO, dry_run=True),
    called(forecast.forecast, start=FROM, end=TO, cell=timedelta(hours=6), by="job"),
    called(herds.cell, FROM, cell=timedelta(hours=1)),
    called(herds.spread, FROM, by="jitter", jitter="5m"),
    called(fired.fired, FROM, TO, cell=timedelta(hours=1)),
    called(timeline.show, schedule=["nightly"], start=FROM, end=TO),
    called(coming.next_fires, n=3),
    called(coming.missed, since=timedelta(hours=1), limit=3),
    called(coming.strips, schedule=["nightly"]),
    called(failing.failing, limit=3),
    called(cluster.punctuality, last="24h"),
    called(schedules.delete, "nightly"),
    called(calendars.delete, "holidays"),
    called(rules.put, "urgent", NewRule(when=[Condition("tag", "in", ["hotfix"])], priority="high")),
    called(rules.listing),
    called(rules.show, "urgent"),
    called(rules.explain, "hello", args={"name": "x"}, tags=["hotfix"]),
    called(rules.delete, "urgent"),
    called(secrets.put, "db", "hunter2", labels={"zone": "eu"}, keys=Ring()),
    called(secrets.listing),
    called(secrets.show, "db"),
    called(secrets.rotate, keys=Ring()),
    called(secrets.delete, "db", version=1),
    called(daemons.put, "watcher", define(command(["sleep", "600"]), {}), replicas=2),
    called(daemons.listing),
    called(daemons.show, "watcher"),
    called(daemons.scale, "watcher", 1),
    called(daemons.restart, "watcher"),
    called(daemons.stop, "watcher"),
    called(daemons.start, "watcher"),
    called(daemons.delete, "watcher"),
    called(fleet.listing, limit=5),
    called(fleet.show, "alpha"),
    called(fleet.armed, "alpha"),
    called(fleet.armed_fleet, each=5),
    called(fleet.sessions, "alpha", limit=2),
    called(fleet.drain, "alpha"),
    called(fleet.undrain, "alpha"),
    called(cluster.servers, everything=True),
    called(cluster.server, "north"),
    called(cluster.segments),
    called(cluster.moves, 5),
    called(cluster.postgresql),
    called(cluster.stats),
    called(cluster.figures, start=FROM, end=TO, step="1h", job="hello"),
    called(cluster.job_figures, job=["hello", "other"]),
    called(cluster.queues),
    called(autoscale.autoscale, labels=["gpu=a100"], slots_per_agent=4, horizon=timedelta(minutes=15)),
    called(health.health),
    called(holds.hold_job, "hello", note="for a while", skip=True),
    called(holds.release_job, "hello", at_once=True),
    called(holds.hold, note="a release night"),
    called(holds.show),
    called(holds.release),
    called(settings.show),
    called(settings.edit, {"placement": "least_tasks", "aging": None}),
    called(channels.put, "ops", WEBHOOK, replace=False),
    called(channels.edit, "ops", {"enabled": False}, version=1),
    called(channels.listing),
    called(channels.show, "ops"),
    called(channels.send_test, "ops"),
    called(alert_rules.kinds),
    called(alert_rules.put, "slow", SLOW),
    called(alert_rules.edit, "slow", {"for": "2m", "repeat": None}),
    called(alert_rules.listing, limit=3),
    called(alert_rules.show, "slow"),
    called(alert_rules.evaluate, "failed", since="10m"),
    called(alert_rules.delete, "slow", version=2),
    called(alerts.listing, state=["firing"], rule=["fail*"], subject=["job:*"], severity=["warning"]),
    called(alerts.show, 1),
    called(alerts.list_deliveries, channel="ops", state=["pending"]),
    called(alerts.show_delivery, DELIVERY),
    called(mutes.create, "repairs", rules=["slow"], duration="2h"),
    called(mutes.listing),
    called(mutes.delete, 1),
    called(channels.delete, "ops"),
    called(session.show),
    called(access.create_token, "ci", role=Role.SUBMITTER, jobs=["hello*"], expires="30d", rate=5.0),
    called(access.list_tokens),
    called(access.revoke_token, OLD_TOKEN),
    called(access.create_login, role=Role.VIEWER, jobs=["hello"]),
    called(access.list_sessions),
    called(access.revoke_session, 1),
    called(access.list_audit, since=FROM, action="job.*", limit=2),
    called(jobs.put, "idle", ECHO),
    called(jobs.delete, "idle"),
    called(manifest.plan, MANIFEST),
    called(manifest.apply, EMPTY, EMPTY_HASH),
    called(manifest.export),
]

STREAMS = {bulk.submit, events.listen, events.follow}  # Client.submit_lines, Client.events, Client.follow
OF_BROWSERS = {session.login, session.logout, site.page, site.file}
OF_MONITORING = {scrape.metrics, public.healthz, public.readyz, public.openapi}


_ALERT = """
    insert into mainspring.alert (rule, kind, severity, subject, job, state, is_event, message, details, since,
                                  pending_at, seen_at, count, changed_at)
    select 'failed', 'failed', 'warning', 'job:other', 'other', 'firing', true, '…', '{"a": 1}', at, at, at, 1, at
      from (select mainspring.now() as at) now
"""


async def a_world(conn: Connection) -> None:
    await conn.execute(_ALERT)
    await deliveries.add(conn, "failed", [deliveries.New(DELIVERY, "gone", '{"title": "…"}')], FROM)
    await jobs.put(conn, ACTOR, "other", ECHO)
    # Not the first token, which the client itself may have: servers would refuse it within seconds.
    await conn.execute("select setval(pg_get_serial_sequence('mainspring.token', 'id'), $1, false)", OLD_TOKEN)
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


AGAIN = 20  # a minute, a second or a count of PostgreSQL's may pass between two calls
# What always passes between them.
PASSING = re.compile(rb'"(\w*age|uptime|last_used_at|counted_at)":[^,}]*')


async def test_reads_are_the_same_views(remote: Client, database: Database, conn: Connection) -> None:
    await a_world(conn)
    local = LocalClient(database)
    reads = {row.operation for row in ROWS if row.method == "GET"} - {session.show, cluster.postgresql}
    for operation, args, kwargs in CALLS:
        there = await remote.call(operation, *args, **kwargs)
        if operation in reads:
            here = await local.call(operation, *args, **kwargs)
            for _ in range(AGAIN):
                if _lasting(there) == _lasting(here):
                    break
                there, here = (
                    await remote.call(operation, *args, **kwargs),
                    await local.call(operation, *args, **kwargs),
                )
            assert type(there) is type(here)
            assert _lasting(there) == _lasting(here), operation


def _lasting(view: object) -> bytes:
    return PASSING.sub(b"", msgspec.json.encode(view))


def test_the_namespaces_have_every_row() -> None:
    rooms = [kind for kind in vars(namespaces).values() if isinstance(kind, type) and issubclass(kind, Namespace)]
    named = {one.operation for room in rooms for one in vars(room).values() if isinstance(one, Named)}
    offered = {row.operation for row in ROWS} - STREAMS - OF_BROWSERS - OF_MONITORING
    assert named == offered


def test_a_method_shows_the_parameters_and_the_description_of_its_operation(remote: Client) -> None:
    for method in (remote.tasks.submit, remote.sync.tasks.submit):
        assert str(inspect.signature(method)) == "(task: 'NewTask') -> 'Submitted'"
        shown = pydoc.plain(pydoc.render_doc(method))
        assert "submit(task: 'NewTask') -> 'Submitted'" in shown
        assert "Create a task, or find the one that has its key." in shown
        assert "partial" not in shown
    assert inspect.iscoroutinefunction(remote.tasks.submit)
    assert not inspect.iscoroutinefunction(remote.sync.tasks.submit)
    everything = pydoc.plain(pydoc.render_doc(remote.tasks))
    assert "cancel(self, id: 'int', *, kill: 'bool' = False)" in everything
    assert "submit" in dir(remote.sync.tasks)
    with pytest.raises(AttributeError):
        getattr(remote.sync.tasks, "fly")  # noqa: B009
