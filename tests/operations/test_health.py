"""Health: each check can be provoked, and says what to do; nothing reads what grows."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.cluster import add_server, lead, own
from tests.conftest import MakeTask
from tests.operations.conftest import ACTOR, add_agent, echo

from mainspring.errors import StoreUnavailable
from mainspring.model.access.actors import Actor
from mainspring.operations.condition.health import Check, Health, Status, health, unavailable
from mainspring.operations.definitions import holds
from mainspring.store.maintenance import chore_log
from mainspring.store.maintenance.chore_log import Done
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs

CODES = {
    "store_unavailable", "schema_mismatch", "no_server", "no_leader", "segments_unowned", "no_agents", "unrunnable",
    "backing_up", "queue_full", "clock_skew", "maintenance_failing", "alerts_undelivered", "held",
}  # fmt: skip


async def make_healthy(conn: Connection) -> None:
    server = await add_server(conn, "alpha")
    await own(conn, server, range(100))
    await lead(conn, server)
    await add_agent(conn)


async def failing(conn: Connection, **how: float) -> dict[str, Check]:
    found = await health(conn, ACTOR, **how)
    assert {check.code for check in found.checks} == CODES
    return {check.code: check for check in found.checks if check.status is not Status.HEALTHY}


async def test_all_is_well_where_a_server_leads_and_an_agent_waits(conn: Connection) -> None:
    await make_healthy(conn)
    found = await health(conn, ACTOR)
    assert found.status is Status.HEALTHY, found
    assert {check.code for check in found.checks} == CODES


async def test_an_empty_database_is_unhealthy_and_says_what_to_start(conn: Connection) -> None:
    found = await failing(conn)
    assert found["no_server"].status is Status.UNHEALTHY
    assert "mainspring up" in found["no_server"].message
    assert found.keys() >= {"no_server", "no_agents"}


async def late_task(conn: Connection, make_task: MakeTask) -> None:
    await conn.execute("update mainspring.task set run_at = now() - interval '61 s' where id = $1", await make_task())


async def unrunnable_task(conn: Connection, _: MakeTask) -> None:
    await jobs.register(conn, {"rare": echo(requires={"gpu": "yes"})})
    id = await conn.fetchval("select mainspring.enqueue('rare')")
    await conn.execute("update mainspring.task set run_at = now() - interval '6 s' where id = $1", id)


async def full_queue(conn: Connection, _: MakeTask) -> None:
    await jobs.register(conn, {"small": echo(max_queued=2)})
    await conn.execute(
        "insert into mainspring.queue_bound select id, 2, 1, now(), 0, now() from mainspring.job where name = 'small'"
    )


def sql(statement: str) -> Callable[[Connection, MakeTask], Awaitable[object]]:
    return lambda conn, _: conn.execute(statement)


async def failing_chore(conn: Connection, _: MakeTask) -> None:
    for _number in range(2):
        await chore_log.record(conn, [Done("analyze", 1, 0, 1, 0.1, 0, "it is broken")])
        await conn.execute("update mainspring.chore set failing_since = failing_since - interval '6 minutes'")


PROVOKED: list[tuple[str, Status, str, Callable[[Connection, MakeTask], Awaitable[object]]]] = [
    (
        "no_server",
        Status.UNHEALTHY,
        "start one",
        sql("update mainspring.server set lease_until = now()"),
    ),
    ("no_server", Status.UNHEALTHY, "start one", sql("update mainspring.server set status = 'draining'")),
    (
        "no_leader",
        Status.DEGRADED,
        "see its log",
        sql("update mainspring.leader set lease_until = now() - interval '5 min'"),
    ),
    (
        "segments_unowned",
        Status.DEGRADED,
        "7 of 100 segments",
        sql("update mainspring.segment set owner = null, since = now() - interval '5 min' where id < 7"),
    ),
    ("no_agents", Status.DEGRADED, "start one", sql("update mainspring.agent set ended_at = now()")),
    ("backing_up", Status.DEGRADED, "add agents", late_task),
    ("unrunnable", Status.DEGRADED, "no agent has gpu=yes", unrunnable_task),
    ("queue_full", Status.DEGRADED, "wait as may (2), and submissions are refused; add agents", full_queue),
    (
        "clock_skew",
        Status.DEGRADED,
        "agent eve (-2.5 s)",
        sql("update mainspring.agent set skew = -2.5, skewed_since = now()"),
    ),
    ("maintenance_failing", Status.DEGRADED, "it is broken", failing_chore),
    (
        "alerts_undelivered",
        Status.DEGRADED,
        "did not reach ops: it answered 500",
        sql("""insert into mainspring.channel (name, kind, url, shown_url) values ('ops', 'webhook', 'http://x', 'http://x');
               insert into mainspring.alert_delivery (channel, message, created_at, next_try_at, last_error)
               values ('ops', '{}', now() - interval '5 min', now(), 'it answered 500')"""),
    ),
    (
        "maintenance_failing",
        Status.DEGRADED,
        "has not run",
        sql("""insert into mainspring.chore (name, last_at, last_seconds, last_rows)
               values ('analyze', now() - interval '11 min', 0, 0)"""),
    ),
    (
        "held",
        Status.DEGRADED,
        "everything is held by alice (tonight)",
        sql("insert into mainspring.hold (held_at, held_by, note, skips) values (now(), 'alice', 'tonight', false)"),
    ),
    (
        "schema_mismatch",
        Status.UNHEALTHY,
        "run `mainspring migrate`",
        sql("delete from mainspring.migration"),
    ),
    (
        "schema_mismatch",
        Status.UNHEALTHY,
        "Upgrade mainspring",
        sql("insert into mainspring.migration (number, name, checksum) values (9999, 'later', '')"),
    ),
]


def test_every_check_is_provoked() -> None:
    assert {code for code, *_ in PROVOKED} | {"store_unavailable"} == CODES  # below


async def test_a_postgresql_that_takes_no_writes_is_unhealthy(database: Database, conn: Connection) -> None:
    await make_healthy(conn)
    await conn.execute("begin read only")
    found = await failing(conn)
    assert found.keys() == {"store_unavailable"}
    assert "name its primary" in found["store_unavailable"].message
    await conn.execute("rollback")


async def test_the_command_that_ends_a_hold_can_be_typed_whatever_the_name_of_the_job(conn: Connection) -> None:
    await make_healthy(conn)
    await jobs.register(conn, {"year's end": echo()})
    await holds.hold_job(conn, ACTOR, "year's end")
    [held] = [one for one in (await health(conn, ACTOR)).checks if one.code == "held"]
    assert """`mainspring job release 'year'"'"'s end'` lets it go on""" in held.message


async def test_a_queue_that_is_full_and_held_is_not_for_more_agents(conn: Connection, make_task: MakeTask) -> None:
    await make_healthy(conn)
    await full_queue(conn, make_task)
    await holds.hold_job(conn, ACTOR, "small")
    (check,) = [one for one in (await health(conn, ACTOR)).checks if one.code == "queue_full"]
    assert check.message.endswith("; the job is held, so none starts: `mainspring job release small` lets it go on")
    await holds.hold(conn, ACTOR)
    (check,) = [one for one in (await health(conn, ACTOR)).checks if one.code == "queue_full"]
    assert check.message.endswith("; everything is held, so none starts: `mainspring release` lets it go on")


@pytest.mark.parametrize(
    ("code", "status", "says", "provoke"), PROVOKED, ids=[f"{code}: {says}" for code, _, says, _ in PROVOKED]
)
async def test_a_check_fails_alone_and_says_what_to_do(
    conn: Connection,
    make_task: MakeTask,
    code: str,
    status: Status,
    says: str,
    provoke: Callable[[Connection, MakeTask], Awaitable[object]],
) -> None:
    await make_healthy(conn)
    await provoke(conn, make_task)
    found = await health(conn, ACTOR)
    failed = {check.code: check for check in found.checks if check.status is not Status.HEALTHY}
    # Without a server none leads, and a silent one serves nothing.
    alone = {code} if code != "no_server" else {"no_server", "no_leader", "segments_unowned"}
    assert code in failed
    assert failed.keys() <= alone
    assert found.status is status
    assert failed[code].status is status
    assert says in failed[code].message
    assert failed[code].since is not None or code == "schema_mismatch", "a server that is asked fills it in"


async def test_without_a_server_nothing_is_said_to_be_well_that_needs_one(conn: Connection) -> None:
    await make_healthy(conn)
    await conn.execute("update mainspring.server set lease_until = now()")
    found = {check.code: check for check in (await health(conn, ACTOR)).checks}
    assert found["no_leader"].status is found["segments_unowned"].status is Status.DEGRADED
    assert "none is active" in found["no_leader"].message
    assert "100 of 100 segments" in found["segments_unowned"].message


async def test_since_is_when_it_began(conn: Connection, make_task: MakeTask) -> None:
    await make_healthy(conn)
    await late_task(conn, make_task)
    [since] = [check.since for check in (await failing(conn)).values()]
    assert since == await conn.fetchval("select run_at from mainspring.task")


async def test_a_pause_shorter_than_two_leases_is_no_reason_to_wake_anybody(conn: Connection) -> None:
    await make_healthy(conn)
    await conn.execute("""
        update mainspring.segment set owner = null, since = now() - interval '100 s' where id < 7;
        update mainspring.leader set lease_until = now() - interval '100 s'
    """)
    assert await failing(conn) == {}  # the lease of this server is a minute


async def test_how_long_a_task_may_wait_is_a_parameter(conn: Connection, make_task: MakeTask) -> None:
    await make_healthy(conn)
    await late_task(conn, make_task)
    assert await failing(conn, degraded_after=70.0) == {}


async def test_this_machines_own_clock_is_compared(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_healthy(conn)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 30)
    assert "the machine that answers this (+30.0 s)" in (await failing(conn))["clock_skew"].message


async def test_a_caller_sees_the_jobs_that_it_may_see(conn: Connection) -> None:
    await make_healthy(conn)
    await unrunnable_task(conn, lambda: None)  # type: ignore[arg-type,return-value]
    theirs = await health(conn, Actor("token:ci", jobs=("shop.*",)))
    assert theirs.status is Status.HEALTHY
    own_jobs = await health(conn, Actor("token:ci", jobs=("ra*",)))
    assert own_jobs.status is Status.DEGRADED


async def test_tasks_that_wait_for_a_limit_do_as_they_were_told(conn: Connection) -> None:
    await make_healthy(conn)
    await jobs.register(conn, {"limited": echo(max_running=1)})
    await conn.execute("select mainspring.enqueue_many('limited', array_fill('{}'::jsonb, array[3]))")
    await conn.execute("update mainspring.task set run_at = now() - interval '5 min'")
    assert await failing(conn) == {}


async def test_far_tasks_and_finished_ones_are_not_read(conn: Connection, make_task: MakeTask) -> None:
    """By the plan: due tasks are found by the index that claims use, with the time in its condition."""
    from mainspring.store.figures.waiting import _WAITING

    await make_healthy(conn)
    await make_task()
    await conn.execute("set local enable_seqscan = off")
    plan = "\n".join(row[0] for row in await conn.fetch(f"explain {_WAITING}"))
    assert "task_claim on task" in plan
    assert "run_at <= " in plan.partition("task_claim on task")[2].partition("Filter")[0]


def test_an_answer_can_be_given_without_a_connection() -> None:
    found = unavailable(StoreUnavailable("PostgreSQL does not answer"))
    assert found.status is Status.UNHEALTHY
    assert [check.code for check in found.checks] == ["store_unavailable"]


async def test_an_answer_survives_the_wire(conn: Connection) -> None:
    found = await health(conn, ACTOR)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Health) == found
