"""Manifests: plan, apply and export, in one transaction, with one owner for each object."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.cli.manifests.reading import through_yaml
from tests.model.manifests.test_job_spec import MORE
from tests.model.schedules.test_schedule_spec import ARGS, KINDS, POLICIES
from tests.model.tasks.test_read_definition import LIMITS, OPTIONS, RUNS, SECONDS
from tests.operations.conftest import ACTOR, echo, same_in_json
from tests.schedules import live, planned, set_clock
from tests.secret_keys import Ring

from mainspring.errors import (
    CalendarNotFound,
    Conflict,
    Forbidden,
    JobInUse,
    JobNotFound,
    NameTaken,
    NotFound,
    ScheduleNotFound,
    StaleVersion,
    ValidationError,
)
from mainspring.model.access.actors import Actor, Role
from mainspring.model.manifests.manifest import read_manifest
from mainspring.model.schedules.schedule_spec import ScheduleSpec, defined
from mainspring.model.tasks.define_job import define
from mainspring.model.tasks.jobs import Run
from mainspring.operations.definitions import calendars, jobs, schedules, secrets
from mainspring.operations.manifests import manifest
from mainspring.operations.manifests.manifest import Applied, Plan
from mainspring.store.access import audit
from mainspring.store.manifests import owners
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules as stored
from mainspring.store.schedules import synchronise

VIEWER = Actor("viewer", Role.VIEWER)
SHOP: dict[str, Any] = {
    "mainspring": 1,
    "set": "shop",
    "jobs": {
        "report": {"command": ["./report.sh"], "timeout": "10m", "retries": 3},
        "ping": {"http": "POST https://shop.example/ping", "headers": {"Authorization": "hunter2"}},
    },
    "schedules": {
        "daily": {"job": "report", "daily": "09:00", "tz": "Europe/Paris", "calendars": ["holidays"]},
        "often": {"job": "ping", "every": "30s"},
        "behind": {"job": "report", "daily": "10:00", "tz": "Europe/Paris", "after": "daily"},
    },
    "calendars": {"holidays": ["12-25", "01-01"]},
}


def changed(**sections: Any) -> dict[str, Any]:
    """The shop with some members of its objects changed: `changed(schedules={"often": {"every": "45s"}})`."""
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(SHOP))
    for section, objects in sections.items():
        for name, members in objects.items():
            if members is None:
                del whole[section][name]
            elif isinstance(members, dict):
                whole[section][name] = whole[section].get(name, {}) | members
            else:
                whole[section][name] = members
    return whole


async def plan(conn: Connection, given: Any, *, actor: Actor = ACTOR, **flags: bool) -> Plan:
    return await manifest.plan(conn, actor, read_manifest(given), **flags)


async def apply(conn: Connection, given: Any, *, actor: Actor = ACTOR, **flags: bool) -> Applied:
    seen = await plan(conn, given, actor=actor, **flags)
    return await manifest.apply(conn, actor, read_manifest(given), seen.hash, **flags)


def steps(found: Plan) -> list[tuple[str, str, str]]:
    return [(one.action, one.kind, one.name) for one in found.changes]


async def actions(conn: Connection, behind: int = 0) -> list[tuple[str, str]]:
    rows = await conn.fetch("select action, subject from mainspring.audit where id > $1 order by id", behind)
    return [(row["action"], row["subject"]) for row in rows]


async def last_entry(conn: Connection) -> int:
    return int(await conn.fetchval("select coalesce(max(id), 0) from mainspring.audit"))


# ── create, change, delete ──────────────────────────────────────────────────────────────────────


async def test_a_set_is_created_and_then_plans_to_nothing(conn: Connection) -> None:
    found = await plan(conn, SHOP)
    assert steps(found) == [
        ("create", "job", "ping"),
        ("create", "job", "report"),
        ("create", "schedule", "behind"),
        ("create", "schedule", "daily"),
        ("create", "schedule", "often"),
        ("create", "calendar", "holidays"),
    ]
    assert same_in_json(found, Plan)
    daily = found.changes[3]
    assert (daily.words, len(daily.next_after)) == ("At 09:00 every day", 1)
    done = await manifest.apply(conn, ACTOR, read_manifest(SHOP), found.hash)
    assert (done.created, done.changed, done.deleted, done.unchanged) == (6, 0, 0, 0)
    again = await plan(conn, SHOP, prune=True)
    assert (again.changes, again.unchanged) == ([], 6)
    view = (await schedules.show(conn, ACTOR, "daily")).schedule
    assert (view.manifest, view.enabled, view.policies.excluded) == ("shop", True, ("12-25", "01-01"))
    assert (await jobs.show(conn, ACTOR, "ping")).manifest == "shop"
    assert (await calendars.show(conn, ACTOR, "holidays")).manifest == "shop"


async def test_a_change_is_told_old_and_new_with_the_plan_times_of_both(conn: Connection) -> None:
    await apply(conn, SHOP)
    other = changed(
        jobs={"report": {"retries": 4}, "ping": {"headers": {"Authorization": "hunter3"}}},
        schedules={"daily": {"daily": "10:30", "overlap": "skip"}, "behind": None},
        calendars={"holidays": ["12-26"]},
    )
    found = await plan(conn, other)
    assert steps(found) == [
        ("change", "job", "ping"),
        ("change", "job", "report"),
        ("change", "schedule", "daily"),
        ("change", "calendar", "holidays"),
    ]
    ping, report, daily, holidays = found.changes
    assert {name: (one.old, one.new) for name, one in report.changes.items()} == {"retries": (3, 4)}
    assert {name: (one.old, one.new) for name, one in ping.changes.items()} == {"headers.Authorization": ("***", "***")}
    assert {name: (one.old, one.new) for name, one in daily.changes.items()} == {
        "cron": ("0 9 * * *", "30 10 * * *"),
        "overlap": (None, "skip"),
    }
    assert [at.hour for at in daily.next_before] == [9, 9, 9]
    assert [(at.hour, at.minute) for at in daily.next_after] == [(10, 30)] * 3
    assert holidays.users == ["daily"]
    assert "hunter" not in msgspec.json.encode(found).decode()
    await apply(conn, other)
    assert (await schedules.show(conn, ACTOR, "daily")).schedule.policies.excluded == ("12-26",)
    assert (await plan(conn, other)).changes == []
    assert (await schedules.show(conn, ACTOR, "behind")).schedule.enabled, "without --prune nothing is deleted"


async def test_pruning_deletes_what_the_set_owns_and_nothing_else(conn: Connection) -> None:
    await apply(conn, SHOP)
    await jobs.put(conn, ACTOR, "by-hand", echo())
    await apply(conn, {"mainspring": 1, "set": "other", "jobs": {"theirs": {"command": ["a"]}}})
    await calendars.put(conn, ACTOR, "by-hand", ["sun"])
    kept = {"job": "ping", "every": "1h", "calendars": ["by-hand"]}
    await apply(conn, changed(schedules={"kept": kept}))
    less = {"mainspring": 1, "set": "shop", "jobs": {"ping": SHOP["jobs"]["ping"]}, "schedules": {"kept": kept}}
    found = await plan(conn, less, prune=True)
    assert steps(found) == [
        ("delete", "job", "report"),
        ("delete", "schedule", "behind"),
        ("delete", "schedule", "daily"),
        ("delete", "schedule", "often"),
        ("delete", "calendar", "holidays"),
    ]
    await apply(conn, less, prune=True)
    assert [view.name for view in (await jobs.listing(conn, ACTOR)).items] == ["by-hand", "ping", "theirs"]
    assert [view.name for view in (await schedules.listing(conn, ACTOR)).items] == ["kept"]
    assert [view.name for view in (await calendars.listing(conn, ACTOR)).items] == ["by-hand"]
    with pytest.raises(ValidationError, match="the manifest needs `set: NAME`"):
        await plan(conn, {"mainspring": 1}, prune=True)


async def test_a_reference_to_a_secret_is_checked_written_and_exported_as_it_is(conn: Connection) -> None:
    given = changed(jobs={"report": {"env": {"PGPASSWORD": {"$secret": "db"}}}})
    with pytest.raises(ValidationError, match="job 'report': env: there is no secret 'db'") as raised:
        await plan(conn, given)
    assert raised.value.field == "jobs.report.env"
    await secrets.put(conn, ACTOR, "db", "hunter2", labels={"zone": "eu"}, keys=Ring())
    with pytest.raises(ValidationError, match="labels zone=eu; let the job require them"):
        await plan(conn, given)
    given["jobs"]["report"]["requires"] = {"zone": "eu"}
    await apply(conn, given)
    exported = msgspec.to_builtins(await manifest.export(conn, VIEWER, set_name="shop"))
    assert exported["jobs"]["report"]["env"] == {"PGPASSWORD": {"$secret": "db"}}
    assert (await plan(conn, exported, prune=True)).changes == []


async def test_what_was_planned_is_told_and_taken_back(conn: Connection) -> None:
    await set_clock(conn, 0)
    await apply(conn, changed(schedules={"often": {"every": "1s"}}))
    assert await planned(conn)
    often_id = (await stored.find(conn, "often")).id
    waiting = len(await live(conn, often_id))
    assert waiting > 0
    other = changed(schedules={"often": {"every": "45s"}})
    [often] = (await plan(conn, other)).changes
    assert often.recalled is not None
    assert often.recalled.taken_back == waiting
    done = await apply(conn, other)
    assert done.recalled.taken_back == waiting
    assert await live(conn, often_id) == []


async def test_enabled_is_left_alone_unless_the_manifest_says_it(conn: Connection) -> None:
    await apply(conn, SHOP)
    await schedules.disable(conn, ACTOR, "daily")
    assert (await plan(conn, SHOP)).changes == []
    off = changed(schedules={"often": {"enabled": False}, "daily": {"enabled": True}})
    found = await plan(conn, off)
    told = {one.name: {name: (d.old, d.new) for name, d in one.changes.items()} for one in found.changes}
    assert told == {"daily": {"enabled": (False, True)}, "often": {"enabled": (True, False)}}
    await apply(conn, off)
    assert (await schedules.show(conn, ACTOR, "often")).schedule.state == "disabled"


async def test_a_daemon_is_a_schedule(conn: Connection) -> None:
    given = {
        "mainspring": 1, "set": "shop",
        "jobs": {"serve": {"command": ["./serve"], "health": {"http": "http://127.0.0.1:80/"}}},
        "schedules": {"serve": {"job": "serve", "daemon": 3}},
    }  # fmt: skip
    await apply(conn, given)
    assert (await plan(conn, given)).changes == []
    given["jobs"]["serve"]["max_running"] = 1  # type: ignore[index]
    with pytest.raises(ValidationError):
        await apply(conn, given)


async def test_a_schedule_may_wait_for_one_of_the_same_manifest_however_many_there_are(conn: Connection) -> None:
    names = [f"s{number:03}" for number in range(120)]
    chain = {name: {"job": "a", "daily": "09:00", "after": other} for name, other in pairwise(names)}
    given: dict[str, Any] = {"mainspring": 1, "set": "chain", "jobs": {"a": {"command": ["a"]}}}
    given["schedules"] = dict(list(chain.items())[40:]) | {names[-1]: {"job": "a", "daily": "09:00"}}
    await apply(conn, given)
    assert (await plan(conn, given)).changes == []
    turned = {name: spec | {"after": names[-1]} for name, spec in given["schedules"].items() if name != names[-1]}
    given["schedules"] |= turned
    await apply(conn, given)
    await apply(conn, given | {"schedules": {}}, prune=True)
    assert (await schedules.listing(conn, ACTOR)).items == []


# ── owners ──────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_made_by_hand_is_adopted_if_it_is_the_same(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo(retries=2))
    given = {"mainspring": 1, "set": "shop", "jobs": {"hello": {"command": ["echo", "hello"], "retries": 2}}}
    found = await plan(conn, given)
    assert steps(found) == [("adopt", "job", "hello")]
    assert (await apply(conn, given)).adopted == 1
    assert (await plan(conn, given)).changes == []
    assert (await jobs.show(conn, ACTOR, "hello")).version == 1
    assert (await actions(conn))[-2:] == [("job.adopt", "job:hello"), ("manifest.apply", "manifest:shop")]


async def test_what_was_made_by_hand_and_differs_is_taken_over_only_on_demand(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    await schedules.put(conn, ACTOR, "nightly", ScheduleSpec(job="hello", every="1h"))
    await calendars.put(conn, ACTOR, "free", ["sun"])
    given = {
        "mainspring": 1, "set": "shop", "jobs": {"hello": {"command": ["echo"]}},
        "schedules": {"nightly": {"job": "hello", "every": "2h"}}, "calendars": {"free": ["sat"]},
    }  # fmt: skip
    with pytest.raises(Conflict, match="job 'hello': it was made by hand") as caught:
        await plan(conn, given)
    told = caught.value.details["errors"]
    assert [one["field"] for one in told] == ["jobs.hello.name", "schedules.nightly.name", "calendars.free.name"]  # type: ignore[attr-defined]
    found = await plan(conn, given, adopt=True)
    assert {(one.action, one.adopts) for one in found.changes} == {("change", True)}
    await apply(conn, given, adopt=True)
    assert (await plan(conn, given)).changes == []
    assert (await schedules.show(conn, ACTOR, "nightly")).schedule.manifest == "shop"


async def test_what_another_set_or_an_application_owns_is_refused_with_its_owner(conn: Connection) -> None:
    await apply(conn, SHOP)
    mine = changed() | {"set": "mine"}
    with pytest.raises(Conflict, match="job 'ping': it belongs to the set 'shop'; .* and 5 more"):
        await plan(conn, mine, adopt=True)
    with pytest.raises(Conflict, match="belongs to the set 'shop'"):
        await plan(conn, changed() | {"set": None})
    await jobs.put(conn, ACTOR, "backup", echo())
    await owners.note_app(conn, "store", "job", ["backup"])
    await calendars.put(conn, ACTOR, "code-days", ["sun"])
    await owners.note_app(conn, "store", "calendar", ["code-days"])
    spec = defined("code", ScheduleSpec(job="backup", every="1h"))
    await synchronise.synchronise(conn, "store", 1, [spec])
    for section in (
        {"jobs": {"backup": {"command": ["echo", "hello"]}}},
        {"calendars": {"code-days": ["sun"]}},
        {"schedules": {"code": {"job": "backup", "every": "1h"}}},
    ):
        with pytest.raises(Conflict, match="defined by the code of the application 'store'"):
            await plan(conn, {"mainspring": 1, "set": "mine"} | section, adopt=True)


async def test_code_does_not_take_over_what_a_set_owns(conn: Connection) -> None:
    await apply(conn, SHOP)
    with pytest.raises(Conflict, match="a job named 'ping' belongs to the set 'shop' of manifests"):
        await owners.check_free(conn, "job", {"ping": None})
    with pytest.raises(Conflict, match="belongs to the set 'shop' of manifests"):
        await synchronise.synchronise(conn, "store", 1, [defined("often", ScheduleSpec(job="ping", every="1h"))])
    await owners.check_free(conn, "job", {"other": None})


async def test_without_a_set_objects_are_as_if_made_by_hand(conn: Connection) -> None:
    given = {"mainspring": 1, "jobs": {"hello": {"command": ["echo"]}}}
    await apply(conn, given)
    assert (await jobs.show(conn, ACTOR, "hello")).manifest is None
    await apply(conn, {"mainspring": 1, "jobs": {"hello": {"command": ["echo", "again"]}}})
    assert (await manifest.export(conn, ACTOR)).jobs["hello"].command == ["echo", "again"]


# ── one transaction ─────────────────────────────────────────────────────────────────────────────


async def everything(conn: Connection) -> list[Any]:
    tables = ("job", "schedule", "calendar", "audit", "schedule_version", "slo")
    return [
        await conn.fetchval(f"select string_agg(t::text, ';' order by t::text) from mainspring.{t} t") for t in tables
    ]


@pytest.mark.parametrize("given", [None, "0" * 64, ""])
async def test_another_hash_writes_nothing(conn: Connection, given: str | None) -> None:
    await apply(conn, SHOP)
    other = changed(jobs={"report": {"retries": 9}})
    seen = (await plan(conn, other)).hash if given is None else given
    if given is None:
        await jobs.edit(conn, ACTOR, "report", {"timeout": 7})
    before = await everything(conn)
    with pytest.raises(StaleVersion, match="the plan is out of date"):
        await manifest.apply(conn, ACTOR, read_manifest(other), seen)
    assert await everything(conn) == before


async def test_the_hash_is_that_of_the_flags_the_manifest_and_what_it_changes(conn: Connection) -> None:
    seen = {(await plan(conn, SHOP)).hash, (await plan(conn, SHOP)).hash}
    assert len(seen) == 1
    seen |= {(await plan(conn, SHOP, prune=True)).hash, (await plan(conn, SHOP, adopt=True)).hash}
    seen |= {(await plan(conn, changed(jobs={"ping": {"headers": {"Authorization": "x"}}}))).hash}
    assert len(seen) == 4


CHANGES_MEANWHILE: dict[str, Callable[[Connection], Awaitable[Any]]] = {
    "a job is changed": lambda conn: jobs.edit(conn, ACTOR, "report", {"timeout": 5}),
    "a schedule is disabled": lambda conn: schedules.disable(conn, ACTOR, "daily"),
    "a schedule is deleted": lambda conn: schedules.delete(conn, ACTOR, "often"),
    "a calendar is changed": lambda conn: calendars.put(conn, ACTOR, "holidays", ["sun"]),
    "a new schedule is made": lambda conn: schedules.put(conn, ACTOR, "new", ScheduleSpec(job="ping", every="1h")),
    "a new job is made": lambda conn: jobs.put(conn, ACTOR, "fresh", echo()),
    "a new calendar is made": lambda conn: calendars.put(conn, ACTOR, "fresh", ["sat"]),
}


@pytest.mark.parametrize("what", CHANGES_MEANWHILE)
async def test_what_is_changed_between_comparing_and_writing_is_not_written_over(
    conn: Connection, dsn: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Another session changes it when all has been compared, before the first lock is taken."""
    await apply(conn, SHOP)
    other = changed(
        jobs={"report": {"retries": 9}, "fresh": {"command": ["b"]}},
        schedules={"daily": {"daily": "11:00"}, "often": {"every": "1m"}, "new": {"job": "ping", "every": "2h"}},
        calendars={"holidays": ["12-26"], "fresh": ["mon"]},
    )
    seen = await plan(conn, other)
    elsewhere = await Database(dsn).connect()
    lock = owners.lock

    async def change_first(given: Connection) -> None:
        await CHANGES_MEANWHILE[what](elsewhere)
        await lock(given)

    monkeypatch.setattr(owners, "lock", change_first)
    last = await last_entry(conn)
    with pytest.raises(StaleVersion, match="meanwhile; plan again"):
        await manifest.apply(conn, ACTOR, read_manifest(other), seen.hash)
    assert len(await actions(conn, last)) == 1, "that of the other session"
    assert (await jobs.show(conn, ACTOR, "report")).definition.retry.retries == 3
    await elsewhere.close()


async def test_of_two_that_apply_at_once_one_wins_and_never_both_in_part(conn: Connection, dsn: str) -> None:
    sessions = [await Database(dsn).connect() for _ in range(2)]
    for number in range(5):
        given = [
            {
                "mainspring": 1,
                "set": "race",
                "jobs": {f"job-{n}": {"command": [who, str(number)]} for n in range(60)},
                "schedules": {
                    f"s-{n}": {"job": f"job-{n}", "every": f"{10 + number}m", "description": who} for n in range(60)
                },
            }
            for who in ("one", "two")
        ]
        seen = [await plan(conn, one) for one in given]
        ended = await asyncio.gather(
            *(
                manifest.apply(session, ACTOR, read_manifest(one), found.hash)
                for session, one, found in zip(sessions, given, seen, strict=True)
            ),
            return_exceptions=True,
        )
        kinds = sorted(type(one).__name__ for one in ended)
        assert kinds == ["Applied", "StaleVersion"], ended
        winner = "one" if isinstance(ended[0], Applied) else "two"
        names = await conn.fetch("select distinct definition->'run'->'argv'->>0 as who from mainspring.job")
        words = await conn.fetch("select distinct policies->>'description' as who from mainspring.schedule")
        assert ([row["who"] for row in names], [row["who"] for row in words]) == ([winner], [winner])
    for session in sessions:
        await session.close()


async def test_what_fails_at_the_end_leaves_nothing_behind(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    await apply(conn, SHOP)
    other = changed(jobs={"report": {"retries": 9}}, schedules={"often": None}, calendars={"holidays": ["sun"]})
    before, real = await everything(conn), audit.record

    async def record_and_die(*given: Any) -> None:
        await real(*given)
        raise asyncio.CancelledError

    monkeypatch.setattr(audit, "record", record_and_die)
    with pytest.raises(asyncio.CancelledError):
        await apply(conn, other, prune=True)
    assert await everything(conn) == before


async def test_a_job_with_live_tasks_is_pruned_once_they_have_ended(conn: Connection) -> None:
    from mainspring.operations.requests.new_tasks import NewTask
    from mainspring.operations.work import tasks

    await apply(conn, SHOP)
    task = (await tasks.submit(conn, ACTOR, NewTask(job="ping"))).id
    nothing = {"mainspring": 1, "set": "shop"}
    done = await apply(conn, nothing, prune=True)
    assert (done.kept, done.deleted) == (["ping"], 5)
    assert (await schedules.listing(conn, ACTOR)).items == [], "what would make more of them is gone"
    assert steps(await plan(conn, nothing, prune=True)) == [("delete", "job", "ping")]
    await tasks.cancel(conn, ACTOR, task)
    assert (await apply(conn, nothing, prune=True)).kept == []
    assert (await jobs.listing(conn, ACTOR)).items == []


async def test_a_job_that_schedules_of_others_use_is_not_pruned_and_nothing_else_is(conn: Connection) -> None:
    await apply(conn, SHOP)
    await schedules.put(conn, ACTOR, "by-hand", ScheduleSpec(job="ping", every="1h"))
    before = await everything(conn)
    with pytest.raises(JobInUse, match="job 'ping' cannot be deleted: .*nothing was changed"):
        await apply(conn, {"mainspring": 1, "set": "shop"}, prune=True)
    assert await everything(conn) == before


async def test_every_change_is_audited_and_a_plan_is_not(conn: Connection) -> None:
    last = await last_entry(conn)
    await plan(conn, SHOP)
    assert await last_entry(conn) == last
    await apply(conn, SHOP)
    assert await actions(conn, last) == [
        ("job.create", "job:ping"),
        ("job.create", "job:report"),
        ("calendar.put", "calendar:holidays"),
        ("schedule.create", "schedule:daily"),
        ("schedule.create", "schedule:often"),
        ("schedule.create", "schedule:behind"),
        ("manifest.apply", "manifest:shop"),
    ]
    last = await last_entry(conn)
    await apply(conn, changed(schedules={"often": {"every": "1m"}, "behind": None}), prune=True)
    assert await actions(conn, last) == [
        ("schedule.edit", "schedule:often"),
        ("schedule.delete", "schedule:behind"),
        ("manifest.apply", "manifest:shop"),
    ]
    last = await last_entry(conn)
    await apply(conn, changed(schedules={"often": {"every": "1m"}, "behind": None}), prune=True)
    assert await last_entry(conn) == last, "nothing was changed"


# ── what cannot be ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sections", "kind", "says"),
    [
        ({"schedules": {"s": {"job": "nothing", "every": "1h"}}}, JobNotFound, "schedule 's': no job named 'nothing'"),
        (
            {"schedules": {"s": {"job": "a", "every": "1h", "calendars": ["none"]}}},
            CalendarNotFound,
            "schedule 's': no calendar named 'none'",
        ),
        (
            {"schedules": {"s": {"job": "a", "daily": "09:00", "after": "none"}}},
            ScheduleNotFound,
            "no schedule named 'none'",
        ),
        (
            {"schedules": {name: {"job": "a", "daily": "09:00", "after": other} for name, other in ("st", "ts")}},
            ValidationError,
            "is a circle",
        ),
        (
            {"schedules": {"s": {"job": "a", "weekly": "sun 09:00", "calendars": ["c"]}}, "calendars": {"c": ["sun"]}},
            ValidationError,
            "no plan time would ever come",
        ),
        (
            {"schedules": {"s": {"job": "a", "once": "2020-01-01T00:00:00Z"}}},
            ValidationError,
            "no plan time would ever come",
        ),
        ({"jobs": {"a": {"command": ["a"], "env": {"TOKEN": "***"}}}}, ValidationError, "holds ***"),
    ],
)
async def test_a_plan_refuses_what_could_not_be_written(
    conn: Connection, sections: Any, kind: type[Exception], says: str
) -> None:
    given = {"mainspring": 1, "set": "shop", "jobs": {"a": {"command": ["a"]}}} | sections
    with pytest.raises(kind) as caught:
        await plan(conn, given)
    assert says in str(caught.value)


# ── secrets, and who sees what ──────────────────────────────────────────────────────────────────


async def test_an_export_is_masked_and_leaves_secrets_as_they_are(conn: Connection) -> None:
    await apply(conn, changed(schedules={"often": {"ping_url": "https://hc.example/0a1b2c3d4e5f60718293"}}))
    exported = msgspec.to_builtins(await manifest.export(conn, ACTOR, set_name="shop"))
    assert exported["jobs"]["ping"]["headers"] == {"Authorization": "***"}
    assert exported["schedules"]["often"]["ping_url"] == "https://hc.example/***"
    assert (await plan(conn, exported, prune=True)).changes == []
    exported["jobs"]["ping"]["timeout"] = 5
    await apply(conn, exported)
    view = await jobs.show(conn, ACTOR, "ping", reveal=True)
    assert (view.definition.timeout, view.definition.run.headers) == (5.0, {"Authorization": "hunter2"})  # type: ignore[union-attr]
    last = await last_entry(conn)
    revealed = await manifest.export(conn, ACTOR, set_name="shop", reveal=True)
    assert revealed.jobs["ping"].headers == {"Authorization": "hunter2"}
    assert await actions(conn, last) == [("manifest.reveal", "manifest:shop")]
    with pytest.raises(Forbidden):
        await manifest.export(conn, VIEWER, set_name="shop", reveal=True)
    with pytest.raises(NotFound):
        await manifest.export(conn, ACTOR, set_name="shopp")


async def test_a_viewer_does_not_learn_whether_a_guess_is_right(conn: Connection) -> None:
    await apply(conn, SHOP)
    for guess in ("hunter2", "hunter3"):
        guessed = changed(jobs={"ping": {"headers": {"Authorization": guess}}})
        assert (await plan(conn, guessed, actor=VIEWER)).changes == []
    assert len((await plan(conn, guessed)).changes) == 1, "an admin is told"
    more = changed(jobs={"report": {"env": {"API_TOKEN": "abc", "REGION": "eu"}}, "ping": {"timeout": 9}})
    found = await plan(conn, more, actor=VIEWER)
    assert [one.name for one in found.changes] == ["ping", "report"]
    assert "abc" not in msgspec.json.encode(found).decode()


async def test_a_narrow_actor_sees_and_touches_its_jobs_only(conn: Connection) -> None:
    narrow = Actor("narrow", jobs=("rep*",))
    await apply(conn, SHOP)
    mine = await manifest.export(conn, narrow, set_name="shop")
    assert (list(mine.jobs), sorted(mine.schedules)) == (["report"], ["behind", "daily"])
    assert list(mine.calendars) == ["holidays"], "a schedule of its uses it"
    with pytest.raises(JobNotFound, match="job 'ping'"):
        await plan(conn, SHOP, actor=narrow)
    taken = {"mainspring": 1, "set": "shop", "schedules": {"often": {"job": "report", "every": "1h"}}}
    with pytest.raises(NameTaken, match="'often' is not free"):
        await plan(conn, taken, actor=narrow)
    kept = {"mainspring": 1, "set": "shop", "jobs": {"report": SHOP["jobs"]["report"]}}
    await apply(conn, kept, actor=narrow, prune=True)
    assert [view.name for view in (await schedules.listing(conn, ACTOR)).items] == ["often"]
    assert [view.name for view in (await jobs.listing(conn, ACTOR)).items] == ["ping", "report"]
    assert (await calendars.show(conn, ACTOR, "holidays")).name == "holidays", "days are of all jobs"
    await calendars.put(conn, ACTOR, "theirs", ["mon"])
    with pytest.raises(NameTaken, match="'theirs' is not free"):
        await plan(conn, {"mainspring": 1, "calendars": {"theirs": ["mon"]}}, actor=narrow)


# ── export → apply → no change ──────────────────────────────────────────────────────────────────


DAEMONS = st.fixed_dictionaries(
    {"daemon": st.integers(1, 9)},
    optional=dict.fromkeys(("restart_delay", "max_restart_delay", "stable", "ready"), SECONDS),
)
MORE_POLICIES = st.fixed_dictionaries(
    {},
    optional={
        "end": st.just("2150-01-01T00:00:00+00:00"),
        "expires": SECONDS,
        "when_full": st.just("skip"),
        "description": st.sampled_from(["a: b", "yes", "é \u2028"]),
    },
)


def test_whatever_is_made_by_hand_is_exported_and_plans_to_nothing(dsn: str) -> None:
    """For every option: from the database through YAML and back, then owned by a set, then in an empty database."""

    async def story(conn: Connection, run: Run, options: Any, when: Any, args: Any, enabled: bool) -> None:
        transaction: Any = conn.transaction()
        await transaction.start()
        try:
            try:
                await jobs.put(conn, ACTOR, "the job", define(run, options))
                await calendars.put(conn, ACTOR, "free", ["12-25", "2030-01-01", "sat"])
                spec = {name: msgspec.to_builtins(value) for name, value in when.items()}
                await schedules.put(conn, ACTOR, "s", ScheduleSpec(job="the job", args=args, enabled=enabled, **spec))
            except ValidationError:
                assume(False)
            await exported_plans_to_nothing(conn)
        finally:
            await transaction.rollback()

    with asyncio.Runner() as runner:
        conn = runner.run(Database(dsn).connect())

        @settings(max_examples=150)
        @given(RUNS, OPTIONS, MORE, LIMITS, KINDS | DAEMONS, POLICIES, MORE_POLICIES, ARGS, st.booleans())
        def check(
            run: Run,
            options: Any,
            more: Any,
            limits: Any,
            kind: Any,
            policies: Any,
            others: Any,
            args: Any,
            enabled: bool,
        ) -> None:
            policies = {} if "daemon" in kind else policies | others
            runner.run(story(conn, run, options | more | limits, kind | policies, args, enabled))

        check()
        runner.run(conn.close())


async def exported_plans_to_nothing(conn: Connection) -> None:
    exported = through_yaml(msgspec.to_builtins(await manifest.export(conn, ACTOR)))
    assert (await plan(conn, exported)).changes == []
    await apply(conn, exported | {"set": "shop"})
    owned = through_yaml(msgspec.to_builtins(await manifest.export(conn, ACTOR, set_name="shop", reveal=True)))
    assert (await plan(conn, owned, prune=True)).changes == []
    before = (await jobs.show(conn, ACTOR, "the job", reveal=True)).definition, await stored.find(conn, "s")
    await apply(conn, {"mainspring": 1, "set": "shop"}, prune=True)
    await apply(conn, owned)
    assert (await plan(conn, owned, prune=True)).changes == []
    after = (await jobs.show(conn, ACTOR, "the job", reveal=True)).definition, await stored.find(conn, "s")
    assert (after[0], after[1].schedule, after[1].enabled) == (before[0], before[1].schedule, before[1].enabled)
