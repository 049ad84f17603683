"""Rescuer: what an expired session held runs again, ends, or is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cluster import OWNER, shift_clock

from mainspring.model.messages import Start
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.retry import Retry
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.server.recovery import rescuer as rescuer_module
from mainspring.server.recovery.rescuer import Rescuer
from mainspring.store.cluster import agents
from mainspring.store.daemons import daemons, replicas
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules
from mainspring.store.tasks import claims, jobs, rescue, tasks, transitions
from mainspring.wire.clock import Clock

PATIENT = Retry(retries=1000, backoff="fixed", delay=0.0)


@pytest.fixture
async def rescuer(database: Database, conn: Connection) -> Rescuer:
    await jobs.register(
        conn,
        {
            "job": Definition(Python("job"), PATIENT),
            "once": Definition(Python("once"), PATIENT, delivery="at_most_once"),
            "brittle": Definition(Python("brittle"), Retry(retries=0)),
            "careful": Definition(Python("careful"), Retry(retries=5, abort_on=("lost",))),
        },
    )
    catalogue = Catalogue(database)
    await catalogue.refresh()
    recorder = Recorder(database, catalogue)
    return Rescuer(database, catalogue, recorder, Clock(), 60.0)


async def dies_with(conn: Connection, *names: str, started: bool = True) -> list[int]:
    """A session that claims one task of each job, starts them, and is gone."""
    for name in names:
        await conn.execute("select mainspring.enqueue($1)", name)
    return await crash(conn, started=started)


async def crash(conn: Connection, *, started: bool = True) -> list[int]:
    session = await agents.begin(conn, agents.AgentInfo("agent", 10, {}, None), 60.0)
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    claim = await claims.claim(conn, OWNER, pool, [session], 1000, [BOTTOM] * 10, ahead=60.0)
    held = claim.tasks.get(session, [])
    if started:
        await transitions.start(conn, [Start(armed.task, armed.token, 1_790_000_000.0) for armed in held])
    await agents.end(conn, [session])
    return [armed.task for armed in held]


async def view(conn: Connection, task: int) -> Any:
    return await tasks.get(conn, task)


async def crashes(conn: Connection, task: int) -> int:
    return int(await conn.fetchval("select crashes from mainspring.task where id = $1", task))


async def test_a_living_session_keeps_what_it_holds(conn: Connection, rescuer: Rescuer) -> None:
    session = await agents.begin(conn, agents.AgentInfo("agent", 10, {}, None), 60.0)
    await conn.execute("select mainspring.enqueue('job')")
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    await claims.claim(conn, OWNER, pool, [session], 10, [BOTTOM] * 10, ahead=60.0)
    assert await rescuer.step() == 0


async def test_what_was_rescued_is_counted(conn: Connection, rescuer: Rescuer) -> None:
    await dies_with(conn, "job", "once")
    assert await rescuer.step() == 2
    tallies = rescuer._recorder.tallies
    assert [(state.label, cell.count) for (_, state), cell in tallies.again.items()] == [("lost", 1)]
    assert [(state.label, cell.count) for (_, state), cell in tallies.ended.items()] == [("lost", 1)]
    assert tallies.rescued == {"lost": 2}


async def test_a_clock_that_is_set_forward_takes_nothing_from_who_may_run_it(
    conn: Connection, rescuer: Rescuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease seems over, and its agent knows nothing of that: for as long as a lease nobody else may run it."""
    await rescuer.step()
    [task] = await dies_with(conn, "job")
    await shift_clock(conn, 3600)
    for _ in range(2):
        assert await rescuer.step() == 0
    assert (await view(conn, task)).state == "running"
    monkeypatch.setattr(rescuer, "_lease", 0.0)
    assert await rescuer.step() == 1, "by then it has stopped"


async def test_what_had_started_costs_an_attempt_and_counts_as_a_crash(conn: Connection, rescuer: Rescuer) -> None:
    [task] = await dies_with(conn, "job")
    assert await rescuer.step() == 1
    found = await view(conn, task)
    assert (found.state, found.attempt, await crashes(conn, task)) == ("pending", 1, 1)
    [attempt] = await tasks.attempts(conn, task)
    assert (attempt.number, attempt.state, attempt.error_code, attempt.agent) == (1, "lost", "lost", "agent")
    assert await rescuer.step() == 0
    assert await rescue.gone(conn) == [], "buried"


async def test_the_log_says_once_how_many_tasks_of_an_agent_were_rescued(
    conn: Connection, rescuer: Rescuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.server.recovery.rescuer.BATCH", 2)
    await dies_with(conn, *["job"] * 5)
    while await rescuer.step():
        pass
    [line] = [record.getMessage() for record in caplog.records if record.getMessage().startswith("rescued")]
    assert line.startswith("rescued 5 tasks of agent agent, session ")


@pytest.mark.parametrize("job", ["brittle", "careful"])
@pytest.mark.parametrize("how", ["submitted", "scheduled"])
async def test_attempts_count_alike_however_a_task_came_to_be(
    conn: Connection, rescuer: Rescuer, how: str, job: str
) -> None:
    if how == "submitted":
        await conn.execute("select mainspring.enqueue($1)", job)
    else:
        id = await schedules.create(conn, define_schedule("tick", job, {"every": "1h"}), enabled=True)
        await conn.execute("select mainspring.enqueue($1)", job)
        await conn.execute("update mainspring.task set schedule_id = $1, plan_time = run_at, scope = ''", id)
    [task] = await crash(conn)
    assert await rescuer.step() == 1
    found = await view(conn, task)
    assert (found.state, found.attempt, found.error_code) == ("failed", 1, "lost")


async def test_a_job_that_is_not_retried_after_a_crash_runs_if_it_had_not_started(
    conn: Connection, rescuer: Rescuer
) -> None:
    [task] = await dies_with(conn, "careful", started=False)
    await rescuer.step()
    assert ((await view(conn, task)).state, await crashes(conn, task)) == ("pending", 0)


async def test_what_had_not_started_costs_nothing_but_is_careful_from_then_on(
    conn: Connection, rescuer: Rescuer
) -> None:
    [task] = await dies_with(conn, "job", started=False)
    await rescuer.step()
    assert ((await view(conn, task)).attempt, await crashes(conn, task)) == (0, 1)
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    claim = await claims.claim(conn, OWNER, pool, [1], 1, [BOTTOM] * 10, ahead=60.0)
    assert claim.tasks[1][0].careful
    for _ in range(5):  # never known to have started: never its fault
        await conn.execute("update mainspring.task set state = 1, session = null, attempt = 0")
        await crash(conn, started=False)
        await rescuer.step()
    assert await crashes(conn, task) == 1


async def test_the_third_crash_is_quarantine_which_the_log_tells(
    conn: Connection, rescuer: Rescuer, caplog: pytest.LogCaptureFixture
) -> None:
    [task] = await dies_with(conn, "job")
    await rescuer.step()
    for expected in ("pending", "failed"):
        await crash(conn)
        await rescuer.step()
        assert (await view(conn, task)).state == expected
    assert (await view(conn, task)).error_code == "quarantined"
    assert len(await tasks.attempts(conn, task)) == 3
    [record] = [record for record in caplog.records if record.name == "mainspring.job"]
    assert record.getMessage().startswith(f"job: task {task}, attempt 3 was the last, it is failed (quarantined: ")


async def test_an_at_most_once_task_is_lost_and_one_without_retries_fails(conn: Connection, rescuer: Rescuer) -> None:
    once, brittle = await dies_with(conn, "once", "brittle")
    assert await rescuer.step() == 2
    assert [(await view(conn, task)).state for task in (once, brittle)] == ["lost", "failed"]


async def test_a_task_that_was_to_be_cancelled_is_cancelled(conn: Connection, rescuer: Rescuer) -> None:
    [task] = await dies_with(conn, "job")
    await tasks.cancel(conn, task)
    await rescuer.step()
    assert (await view(conn, task)).state == "cancelled"


async def test_a_task_whose_job_is_gone_fails_once_it_had_started(conn: Connection, rescuer: Rescuer) -> None:
    [task] = await dies_with(conn, "job")
    await conn.execute("delete from mainspring.job")
    await rescuer._catalogue.refresh()
    await rescuer.step()
    assert (await view(conn, task)).state == "failed"


async def test_many_are_rescued_in_batches_and_the_session_is_buried_after_the_last(
    conn: Connection, rescuer: Rescuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescuer_module, "BATCH", 4)
    made = await dies_with(conn, *["job"] * 10)
    requeued = []
    rescuer._recorder.on_requeued.connect(lambda: requeued.append(1))
    moved = [await rescuer.step() for _ in range(4)]
    assert moved == [4, 4, 2, 0]
    assert len(requeued) == 3
    assert {(await view(conn, task)).state for task in made} == {"pending"}


async def test_two_rescuers_at_once_move_each_task_once(conn: Connection, database: Database, rescuer: Rescuer) -> None:
    made = await dies_with(conn, *["job"] * 20)
    other = Rescuer(database, rescuer._catalogue, rescuer._recorder, Clock(), 60.0)
    await asyncio.gather(rescuer.step(), other.step())
    assert {(await view(conn, task)).attempt for task in made} == {1}
    assert {await crashes(conn, task) for task in made} == {1}
    assert await conn.fetchval("select count(*) from mainspring.attempt") == 20


async def test_what_was_claimed_for_a_session_after_its_burial_is_rescued(conn: Connection, rescuer: Rescuer) -> None:
    session = await agents.begin(conn, agents.AgentInfo("agent", 10, {}, None), -1.0)
    await rescuer.step()
    assert await rescue.gone(conn) == []
    task = await conn.fetchval("select mainspring.enqueue('job')")
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    await claims.claim(conn, OWNER, pool, [session], 10, [BOTTOM] * 10, ahead=60.0)
    assert await rescuer.step() == 1
    assert (await view(conn, task)).state == "pending"
    assert await rescuer.step() == 0


@pytest.mark.parametrize("started", [False, True])
async def test_what_a_session_holds_that_nobody_knows_is_rescued_and_its_claims_are_forgotten(
    conn: Connection, rescuer: Rescuer, started: bool
) -> None:
    """Such as one that a program made up, or whose row was lost: no lease of it ever expires."""
    task = await conn.fetchval("select mainspring.enqueue('job')")
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    claim = await claims.claim(conn, OWNER, pool, [999_999], 10, [BOTTOM] * 10, ahead=60.0)
    if started:
        await transitions.start(conn, [Start(armed.task, armed.token, 1e9) for armed in claim.tasks[999_999]])
    assert await rescuer.step() == 1
    assert (await view(conn, task)).state == "pending"
    await rescuer.step()
    assert await conn.fetchval("select count(*) from mainspring.claim") == 0


async def test_a_daemon_is_never_quarantined_but_waits_longer_each_time(
    conn: Connection, rescuer: Rescuer, caplog: pytest.LogCaptureFixture
) -> None:
    await schedules.create(conn, define_schedule("stand", "brittle", {"daemon": 1}), enabled=True)
    await daemons.make(conn)
    waits = []
    for _ in range(5):
        await conn.execute("update mainspring.task set run_at = mainspring.now()")
        session = await agents.begin(conn, agents.AgentInfo("agent", 10, {}, None), 60.0)
        [due] = await replicas.due(conn, within=1.0, limit=10)
        claim, _ = await replicas.claim(conn, {due.task: session})
        [armed] = claim.tasks[session]
        await transitions.start(conn, [Start(armed.task, armed.token, rescuer._clock.now())])
        await agents.end(conn, [session])
        assert await rescuer.step() == 1
        waits.append(await conn.fetchval("select date_part('epoch', run_at - mainspring.now()) from mainspring.task"))
    assert waits[0] <= 0 < waits[1] < waits[3] < waits[4]
    assert await crashes(conn, armed.task) == 5
    assert await rescue.gone(conn) == []
    assert not [record for record in caplog.records if record.name == "mainspring.job"]


# ── the reason ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("started", [True, False])
async def test_the_attempt_tells_which_agent_it_was_where_and_since_when_it_was_silent(
    conn: Connection, rescuer: Rescuer, started: bool
) -> None:
    [task] = await dies_with(conn, "job", started=started)
    await conn.execute("""
        insert into mainspring.server (id, name, version, status) values (gen_random_uuid(), 'server-2', '1', 'active');
        update mainspring.agent set host = 'north', heard_at = '2026-11-15 09:00:01.5+00',
               server = (select id from mainspring.server where name = 'server-2')
    """)
    await rescuer.step()
    [attempt] = await tasks.attempts(conn, task)
    session = await conn.fetchval("select session from mainspring.agent")
    assert attempt.error == (
        f"its agent agent (session {session}, host north, server server-2) is gone, "
        f"silent since 2026-11-15 09:00:01 UTC; {'it had started' if started else 'it is not known to have started'}"
    )


async def test_quarantine_is_told_in_words_with_the_last_reason_and_a_retry_by_hand_begins_anew(
    conn: Connection, rescuer: Rescuer
) -> None:
    [task] = await dies_with(conn, "job")
    await rescuer.step()
    for _ in range(2):
        await crash(conn)
        await rescuer.step()
    error = (await view(conn, task)).error
    assert error.startswith(
        "its agent died 3 times while it ran; retry it by hand once the cause is fixed. The last time: "
    )
    assert error.endswith("it had started")
    await tasks.run_again(conn, task)
    assert ((await view(conn, task)).attempt, await crashes(conn, task)) == (0, 0)


# ── rows that others have, and bad ones ─────────────────────────────────────────────────────────


async def test_a_row_that_a_recorder_has_is_passed_over_and_looked_at_again(
    dsn: str, conn: Connection, rescuer: Rescuer
) -> None:
    held, free = await dies_with(conn, "job", "job")
    other = await Database(dsn).connect()
    async with other.transaction():
        await other.execute("update mainspring.task set progress = '1' where id = $1", held)
        assert await asyncio.wait_for(rescuer.step(), 20) == 1
    await other.close()
    assert [(await view(conn, task)).state for task in (held, free)] == ["running", "pending"]
    assert await rescuer.step() == 1
    assert (await view(conn, held)).state == "pending"


async def refuse(conn: Connection, table: str, task: int) -> None:
    column = "id" if table == "task_history" else "task_id"
    await conn.execute(f"alter table mainspring.{table} add constraint bad check ({column} <> {task}) not valid")


async def test_one_whose_attempt_cannot_be_written_ends_as_failed_and_the_others_move(
    conn: Connection, rescuer: Rescuer
) -> None:
    good, bad, other = await dies_with(conn, "job", "job", "job")
    await refuse(conn, "attempt", bad)
    assert await rescuer.step() == 3
    assert [(await view(conn, task)).state for task in (good, bad, other)] == ["pending", "failed", "pending"]
    assert (await view(conn, bad)).error_code == "rescue_failed"
    assert await rescue.gone(conn) == []


async def test_one_that_cannot_be_written_at_all_is_told_of_once_and_tried_again_later_and_later(
    conn: Connection, rescuer: Rescuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(rescuer_module, "boottime", lambda: now)
    good, bad = await dies_with(conn, "job", "job")
    for table in ("attempt", "task_history"):
        await refuse(conn, table, bad)
    assert await rescuer.step() == 1
    assert [(await view(conn, task)).state for task in (good, bad)] == ["pending", "running"]
    told = caplog.text.count(f"task {bad} cannot be rescued")
    tries = []
    for now in range(1001, 1041):
        caplog.clear()
        assert await rescuer.step() == 0
        if "each is written by itself" in caplog.text:
            tries.append(now - 1000)
        told += caplog.text.count(f"task {bad} cannot be rescued")
    assert tries == [5, 15, 35]
    assert told == 1
    for table in ("attempt", "task_history"):
        await conn.execute(f"alter table mainspring.{table} drop constraint bad")
    now = 2000.0
    assert await rescuer.step() == 1
    assert (await view(conn, bad)).state == "pending"
    assert await rescue.gone(conn) == []


async def test_bad_ones_keep_no_others_from_being_found(
    conn: Connection, rescuer: Rescuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescuer_module, "BATCH", 2)
    *bad, good = await dies_with(conn, *["job"] * 5)
    for table, column in (("attempt", "task_id"), ("task_history", "id")):
        await conn.execute(f"alter table mainspring.{table} add constraint bad check ({column} >= {good}) not valid")
    assert sum([await rescuer.step() for _ in range(4)]) == 1
    assert (await view(conn, good)).state == "pending"
    assert {(await view(conn, task)).state for task in bad} == {"running"}


async def test_a_job_that_cannot_be_read_ends_no_loop_and_its_task_fails(
    conn: Connection, rescuer: Rescuer, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = await dies_with(conn, "job", "brittle", started=False)
    await conn.execute(
        """update mainspring.job set definition = '{"run": {"type": "oracle"}}' where name = 'brittle'"""
    )
    for _ in range(2):
        await rescuer._catalogue.refresh()
    assert caplog.text.count("job 'brittle' cannot be read") == 1
    assert await rescuer.step() == 2
    assert [(await view(conn, task)).state for task in (good, bad)] == ["pending", "failed"]
    assert "its job cannot be read" in (await view(conn, bad)).error


async def test_a_job_that_is_newer_than_what_the_server_knows_is_looked_up_first(
    conn: Connection, rescuer: Rescuer
) -> None:
    await jobs.register(conn, {"new": Definition(Python("new"), PATIENT)})
    [task] = await dies_with(conn, "new")
    await rescuer.step()
    assert (await view(conn, task)).state == "pending"
