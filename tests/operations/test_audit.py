"""Every change is audited, in the transaction that makes it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import msgspec
import pytest
from tests.conftest import MakeTask
from tests.operations.conftest import add_agent, echo
from tests.secret_keys import Ring

from mainspring import operations
from mainspring.model.access.actors import Actor, Role
from mainspring.model.flows.rules import NewRule
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.model.secrets.keys import Keys
from mainspring.model.tasks.define_job import command, define
from mainspring.model.tasks.states import TaskState
from mainspring.operations import access, backfill, settings, skips
from mainspring.operations.condition import fleet
from mainspring.operations.definitions import calendars, daemons, holds, jobs, rules, schedules, secrets
from mainspring.operations.requests.task_filters import TaskFilter
from mainspring.operations.work import tasks
from mainspring.store.access import audit
from mainspring.store.postgres.database import Connection

ALICE = Actor("token:alice", Role.ADMIN, (), "10.0.0.7", "r-1")
SERVER = define(command(["serve"]), {})
OLD, ROTATED = Ring(), Ring("2")
ROTATED.keys = Keys(dict(ROTATED.keys.items()) | dict(OLD.keys.items()))  # the new one first


class World(msgspec.Struct):
    """A database in which every operation has something to change."""

    conn: Connection
    make_task: MakeTask
    token: int = 0
    session: int = 0
    code: str = ""

    async def prepare(self) -> None:
        await jobs.put(self.conn, ALICE, "hello", echo())
        await jobs.put(self.conn, ALICE, "idle", echo())
        for name, enabled in (("nightly", True), ("off", False)):
            spec = ScheduleSpec(job="hello", every="1h", enabled=enabled)
            await schedules.put(self.conn, ALICE, name, spec)
        await calendars.put(self.conn, ALICE, "holidays", ["12-25"])
        await rules.put(self.conn, ALICE, "first", NewRule(priority="low"))
        await secrets.put(self.conn, ALICE, "db", "hunter2", keys=OLD)
        for name, enabled in (("up", True), ("down", False)):
            await daemons.put(self.conn, ALICE, name, SERVER, enabled=enabled)
        await add_agent(self.conn)
        await add_agent(self.conn, "drained", 8)
        await fleet.drain(self.conn, ALICE, "drained")
        await holds.hold_job(self.conn, ALICE, "idle")
        await holds.hold(self.conn, ALICE)
        self.token = (await access.create_token(self.conn, ALICE, "ci", role=Role.VIEWER)).id
        code = (await access.create_login(self.conn, ALICE)).code
        self.session = (await access.exchange_login(self.conn, ALICE, code=code)).session.id
        self.code = (await access.create_login(self.conn, ALICE)).code or ""
        await self.conn.execute("create role mainspring_audit_test")

    async def running(self, **columns: Any) -> int:
        id = await self.make_task(TaskState.RUNNING, session=7, **columns)
        hello = "(select id from mainspring.job where name = 'hello')"
        await self.conn.execute(f"update mainspring.task set job_id = {hello} where id = $1", id)
        return id

    async def cancelled(self) -> int:
        id = await self.make_task()
        await tasks.cancel(self.conn, ALICE, id)
        return id


Prepared = Callable[[World], Awaitable[Any]]


def on(operation: Callable[..., Any], *given: Any, task: Prepared | None = None, **named: Any) -> Prepared:
    """How to call an operation; `task` makes the task that it acts on, before anything is looked at."""

    async def prepare(world: World) -> Callable[[], Awaitable[Any]]:
        first = () if task is None else (await task(world),)
        values = [value(world) if callable(value) else value for value in given]
        late = {name: value(world) if callable(value) else value for name, value in named.items()}
        return lambda: operation(world.conn, ALICE, *first, *values, **late)

    return prepare


async def fill(conn: Connection, actor: Actor) -> None:
    end = await conn.fetchval("select mainspring.now()")
    await backfill.step(conn, actor, "nightly", end - timedelta(hours=3), end, max_parallel=10)


async def paused(world: World) -> int:
    return await world.running(paused_at=await world.conn.fetchval("select mainspring.now()"))


CHANGES: dict[str, Prepared] = {
    "job.create": on(jobs.put, "new", echo()),
    "job.change": on(jobs.put, "hello", echo(retries=2)),
    "job.delete": on(jobs.delete, "idle"),
    "job.reveal": on(jobs.show, "hello", reveal=True),
    "schedule.reveal": on(schedules.show, "nightly", reveal=True),
    "setting.reveal": on(settings.show, reveal=True),
    "task.reveal": on(tasks.show, task=lambda world: world.make_task(), reveal=True),
    "schedule.create": on(schedules.put, "new", ScheduleSpec(job="hello", every="1h", enabled=True)),
    "schedule.edit": on(schedules.edit, "nightly", {"every": "2h"}),
    "schedule.enable": on(schedules.enable, "off"),
    "schedule.disable": on(schedules.disable, "nightly"),
    "schedule.delete": on(schedules.delete, "nightly"),
    "schedule.run": on(schedules.run, "nightly"),
    "schedule.skip": on(skips.skip, "nightly", next=2, note="release"),
    "schedule.unskip": lambda world: _skipped(world),
    "schedule.backfill": on(fill),
    "calendar.put": on(calendars.put, "holidays", ["12-25", "12-26"]),
    "calendar.delete": on(calendars.delete, "holidays"),
    "rule.put": on(rules.put, "urgent", NewRule(priority="high")),
    "rule.delete": on(rules.delete, "first"),
    "secret.create": on(secrets.put, "new", "hunter3", keys=OLD),
    "secret.change": on(secrets.put, "db", "hunter3", keys=OLD),
    "secret.delete": on(secrets.delete, "db"),
    "secret.rotate": on(secrets.rotate, keys=ROTATED),
    "daemon.create": on(daemons.put, "idle", echo()),
    "daemon.start": on(daemons.start, "down"),
    "daemon.stop": on(daemons.stop, "up"),
    "daemon.scale": on(daemons.scale, "up", 3),
    "daemon.restart": on(daemons.restart, "up"),
    "daemon.delete": on(daemons.delete, "up"),
    "agent.drain": on(fleet.drain, "eve"),
    "agent.undrain": on(fleet.undrain, "drained"),
    "job.hold": on(holds.hold_job, "hello", note="for a while"),
    "job.release": on(holds.release_job, "idle"),
    "cluster.hold": on(holds.hold, skip=True),
    "cluster.release": on(holds.release),
    "setting.change": on(settings.edit, {"placement": "least_tasks"}),
    "task.cancel": on(tasks.cancel, task=World.running, kill=True),
    "task.skip": on(tasks.skip, task=lambda world: world.make_task(), note="release"),
    "task.pause": on(tasks.pause, task=World.running),
    "task.resume": on(tasks.resume, task=paused),
    "task.restart": on(tasks.restart, task=World.running),
    "task.retry": on(tasks.retry, task=World.cancelled),
    "task.change": on(tasks.change, task=lambda world: world.make_task(), priority="high"),
    "token.create": on(access.create_token, "new", role=Role.VIEWER),
    "token.revoke": on(access.revoke_token, lambda world: world.token),
    "login.create": on(access.create_login, role=Role.VIEWER),
    "session.create": on(access.exchange_login, code=lambda world: world.code),
    "session.revoke": on(access.revoke_session, lambda world: world.session),
    "session.end": lambda world: _logout(world),
    "role.grant": on(access.grant_role, "viewer", "mainspring_audit_test"),
    "role.revoke": lambda world: _revoke_role(world),
}


async def _logout(world: World) -> Callable[[], Awaitable[Any]]:
    actor = msgspec.structs.replace(ALICE, session=world.session)
    return lambda: access.logout(world.conn, actor)


async def _skipped(world: World) -> Callable[[], Awaitable[Any]]:
    await skips.skip(world.conn, ALICE, "nightly", next=2)
    return lambda: skips.unskip(world.conn, ALICE, "nightly")


async def _revoke_role(world: World) -> Callable[[], Awaitable[Any]]:
    await access.grant_role(world.conn, ALICE, "viewer", "mainspring_audit_test")
    return lambda: access.revoke_role(world.conn, ALICE, "viewer", "mainspring_audit_test")


@pytest.fixture
async def world(conn: Connection, make_task: MakeTask) -> World:
    world = World(conn, make_task)
    await world.prepare()
    return world


async def everything(conn: Connection, but: tuple[str, ...] = ()) -> dict[str, str]:
    """Table → its rows and who may read it. Pools are interned, whether a job uses them or not."""
    names = await conn.fetch(
        "select relname as name, oid from pg_class where relnamespace = 'mainspring'::regnamespace and relkind = 'r'"
    )
    queries = " union all ".join(
        f"""select '{row["name"]}' as name,
                   coalesce(string_agg(t::text, '' order by t::text), '')
                   || coalesce((select relacl::text from pg_class where oid = {row["oid"]}), '') as rows
              from mainspring.{row["name"]} t"""
        for row in names
        if row["name"] not in ("pool", *but)
    )
    return {row["name"]: row["rows"] for row in await conn.fetch(queries)}


@pytest.mark.parametrize("action", CHANGES)
async def test_a_change_is_audited_with_who_made_it(world: World, action: str) -> None:
    call = await CHANGES[action](world)
    before, last = await everything(world.conn, ("audit",)), await last_entry(world.conn)
    await call()
    assert action.endswith(".reveal") or await everything(world.conn, ("audit",)) != before, "nothing was changed"
    [row] = await world.conn.fetch("select * from mainspring.audit where id > $1", last)
    assert (row["actor"], row["role"], row["action"]) == ("token:alice", "admin", action)
    assert (row["address"], row["request_id"], row["refused"]) == ("10.0.0.7", "r-1", None)
    assert row["subject"]


@pytest.mark.parametrize("action", CHANGES)
async def test_a_change_and_its_audit_are_there_together_or_not_at_all(
    world: World, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = await CHANGES[action](world)
    before, real = await everything(world.conn), audit._insert

    class Dies(Exception):
        pass

    async def insert_and_die(*given: Any) -> None:
        await real(*given)
        raise Dies

    monkeypatch.setattr(audit, "_insert", insert_and_die)
    with pytest.raises(Dies):
        await call()
    assert await everything(world.conn) == before


async def last_entry(conn: Connection) -> int:
    return int(await conn.fetchval("select coalesce(max(id), 0) from mainspring.audit"))


# An operation that is in neither list is one that nobody has thought about.
READS = {
    "access": {"list_tokens", "list_sessions", "list_audit", "who"},
    "alerting.scaling": {"wanted_agents"},
    "condition.autoscale": {"autoscale"},
    "definitions.calendars": {"listing", "show", "check_change"},
    "definitions.rules": {"listing", "show", "explain"},
    "definitions.secrets": {"listing", "show", "check_references"},
    "manifests.manifest": {"plan"},
    "manifests.present": {"load", "schedules_named"},
    "manifests.difference": {"compare"},
    "manifests.describe": {"described", "digest"},
    "work.batches": {"listing", "check"},
    "work.flows": {"submit", "of_task", "of_batch"},  # as tasks: each says itself who submitted it
    "condition.cluster": {
        "servers",
        "server",
        "segments",
        "moves",
        "stats",
        "figures",
        "job_figures",
        "punctuality",
        "queues",
        "postgresql",
    },
    "definitions.daemons": {"listing", "show"},
    "condition.fleet": {"listing", "show", "armed", "armed_fleet", "sessions"},
    "condition.health": {"health"},
    "definitions.jobs": {"listing", "find"},
    "work.output": {"read", "resolve"},
    "definitions.schedules": {"listing", "count", "find"},
    "condition.failing": {"failing"},
    "planning.timeline": {"show"},
    "planning.coming": {"next_fires", "missed", "strips"},
    "planning.forecast": {"forecast", "count"},
    "planning.herds": {"cell", "spread"},
    "planning.fired": {"fired"},
    "planning.sources": {"sources", "read"},
    "planning.plan_times": {"explain", "check", "fires", "next_times", "preview", "slo"},
    "alerting.alert_rules": {"kinds", "listing", "show", "evaluate"},
    "alerting.alerts": {"listing", "show", "list_deliveries", "show_delivery"},
    "alerting.channels": {"listing", "show"},
    "alerting.mutes": {"listing"},
    "planning.schedule_views": {"last_fires"},
    "requests.new_tasks": {"submit", "submit_each", "answer", "checked_in_turns", "check_agents", "check_relations"},
    "requests.task_filters": {"resolve", "check_reach"},
    "parts.by_name": {"page"},
    "parts.reach": {"job_ids"},
    "parts.slices": {"in_slices"},
    "parts.task_detail": {"detail"},
    "parts.masked_json": {"masked_task", "masked_batch", "each_masked", "masked_json"},
    "parts.workload": {"read"},
    "definitions.holds": {"show", "view"},
    "work.tasks": {
        "submit",
        "submit_each",
        "listing",
        "count",
        "attempts",
        "children",
    },  # a task says itself who submitted it, and when
    "work.waiting": {"wait", "wait_for_batch"},
}
AUDITED = {
    "access": {
        *("create_token", "revoke_token", "create_login", "exchange_login", "revoke_session", "logout"),
        *("grant_role", "revoke_role"),
    },
    "definitions.calendars": {"put", "delete"},
    "definitions.rules": {"put", "delete"},
    "definitions.secrets": {"put", "delete", "rotate"},
    "manifests.manifest": {"apply", "export"},  # tests/operations/test_manifests.py
    "parts.revealing": {"reveal"},
    "work.batches": {"create", "close", "cancel", "retry", "show"},
    "alerting.alert_rules": {"put", "edit", "delete"},
    "alerting.channels": {"put", "edit", "delete", "send_test"},
    "alerting.mutes": {"create", "delete"},
    "definitions.daemons": {"put", "delete", "start", "stop", "scale", "restart"},
    "planning.backfill": {"step"},
    "planning.skips": {"skip", "unskip"},
    "condition.fleet": {"drain", "undrain"},
    "definitions.holds": {"hold_job", "hold", "release_job", "release"},
    "settings": {"edit", "show"},
    "definitions.jobs": {"put", "edit", "delete", "show"},
    "definitions.schedules": {"put", "edit", "enable", "disable", "delete", "run", "act", "show"},
    "work.tasks": {"cancel", "skip", "pause", "resume", "restart", "retry", "change", "act", "show", "status"},
}


def test_every_operation_is_a_read_or_audited() -> None:
    prefix = f"{operations.__name__}."
    for name in (found.name.removeprefix(prefix) for found in walk_packages(operations.__path__, prefix)):
        module = import_module(f"mainspring.operations.{name}")
        there = {
            each
            for each, function in vars(module).items()
            if inspect.iscoroutinefunction(function)
            and function.__module__ == module.__name__
            and not each.startswith("_")
        }
        assert there <= READS.get(name, set()) | AUDITED.get(name, set()), name


async def test_what_changes_nothing_is_not_audited(world: World) -> None:
    last = await last_entry(world.conn)
    await jobs.put(world.conn, ALICE, "hello", echo())
    await schedules.enable(world.conn, ALICE, "nightly")
    await daemons.start(world.conn, ALICE, "up")
    await calendars.put(world.conn, ALICE, "holidays", ["12-25"])
    await fleet.drain(world.conn, ALICE, "drained")
    await access.revoke_token(world.conn, ALICE, world.token)
    assert await last_entry(world.conn) == last + 1
    await access.revoke_token(world.conn, ALICE, world.token)
    assert await last_entry(world.conn) == last + 1


async def changes_of(conn: Connection, action: str) -> list[dict[str, Any]]:
    """Of each entry, the oldest first: path → what was, and what is."""
    entries = (await access.list_audit(conn, ALICE, action=action, limit=100)).items[::-1]
    return [{name: (one.old, one.new) for name, one in (entry.changes or {}).items()} for entry in entries]


async def test_of_a_task_the_audit_tells_what_it_was_before(world: World) -> None:
    later = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    id = await world.make_task(run_at=later, priority=5)
    await tasks.change(world.conn, ALICE, id, priority=7)
    await tasks.change(world.conn, ALICE, id, priority=7, now=True)
    first, second = await changes_of(world.conn, "task.change")
    assert first == {"priority": (5, 7)}
    assert second.keys() == {"run_at"}
    old, new = map(datetime.fromisoformat, second["run_at"])
    assert old == later > new


async def test_of_many_tasks_the_audit_tells_what_each_was_before(world: World) -> None:
    made = {await world.make_task(priority=number % 3): number % 3 for number in range(70)}
    step = await tasks.act(world.conn, ALICE, "change", TaskFilter(id=list(made)), priority=7)
    assert step.done == 70
    found = await changes_of(world.conn, "task.change")
    assert {path: both for each in found for path, both in each.items()} == {
        f"{id}.priority": (was, 7) for id, was in made.items()
    }


async def test_of_a_daemon_that_is_deleted_the_audit_tells_what_it_was(world: World) -> None:
    await daemons.delete(world.conn, ALICE, "up")
    [found] = await changes_of(world.conn, "daemon.delete")
    assert found["job"] == ("up", None)


async def test_the_audit_tells_old_and_new_and_no_secret(world: World) -> None:
    definition = define(command(["echo", "hello"], env={"TOKEN": "hunter2", "REGION": "eu"}), {"retries": 2})
    await jobs.put(world.conn, ALICE, "hello", definition)
    [entry] = (await access.list_audit(world.conn, ALICE, action="job.change")).items
    assert entry.changes is not None
    assert {name: (change.old, change.new) for name, change in entry.changes.items()} == {
        "run.env": (None, {"TOKEN": "***", "REGION": "eu"}),
        "retry.retries": (0, 2),
        "retries_by_default": (True, None),
    }
