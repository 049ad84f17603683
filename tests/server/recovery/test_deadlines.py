"""Rescuer: an attempt that its living agent should have ended is ended, and the agent is ordered to stop it."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster import OWNER, shift_clock

from mainspring.model.messages import Armed, Ending, Start
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.jobs import Command, Definition, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.server.recovery import rescuer as rescuer_module
from mainspring.server.recovery.rescuer import MARGIN, Rescuer
from mainspring.store.cluster import agents
from mainspring.store.daemons import daemons, replicas
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules
from mainspring.store.tasks import claims, control, jobs, rescue, tasks, transitions
from mainspring.wire.clock import Clock

LEASE = 10.0
TIMEOUT, GRACE = 100.0, 5.0
MOST = TIMEOUT + GRACE + MARGIN + 2 * LEASE
AGAIN = Retry(retries=1, backoff="fixed", delay=0.0)


@pytest.fixture(autouse=True)
def look_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescuer_module, "LOOK_EVERY", 0.0)


@pytest.fixture
async def rescuer(database: Database, conn: Connection) -> Rescuer:
    await jobs.register(
        conn,
        {
            "job": Definition(Python("job"), AGAIN, timeout=TIMEOUT, grace=GRACE),
            "once": Definition(Python("once"), AGAIN, timeout=TIMEOUT, grace=GRACE, delivery="at_most_once"),
            "brittle": Definition(Python("brittle"), Retry(retries=0), timeout=TIMEOUT, grace=GRACE),
            "endless": Definition(Python("endless"), AGAIN),
            "command": Definition(Command(("true",)), AGAIN, timeout=TIMEOUT, grace=GRACE),
        },
    )
    catalogue = Catalogue(database)
    await catalogue.refresh()
    recorder = Recorder(database, catalogue)
    return Rescuer(database, catalogue, recorder, Clock(), LEASE)


async def begin(conn: Connection) -> int:
    return await agents.begin(conn, agents.AgentInfo("builder", 10, {}, host="north"), 3600.0)


async def runs(conn: Connection, session: int, *names: str, since: float) -> list[Armed]:
    """A living session runs one task of each job since so many seconds."""
    for name in names:
        await conn.execute("select mainspring.enqueue($1)", name)
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    claim = await claims.claim(conn, OWNER, pool, [session], 100, [BOTTOM] * 10, ahead=60.0)
    now = await conn.fetchval("select date_part('epoch', mainspring.now())")
    await transitions.start(conn, [Start(armed.task, armed.token, now - since) for armed in claim.tasks[session]])
    return sorted(claim.tasks[session], key=lambda armed: armed.task)


async def test_an_attempt_past_its_deadline_is_timed_out_and_runs_again_after_it_had_time_to_stop(
    conn: Connection, rescuer: Rescuer
) -> None:
    session = await begin(conn)
    [armed] = await runs(conn, session, "job", since=MOST + 1)
    assert await rescuer.step() == 1
    found = await tasks.get(conn, armed.task)
    assert (found.state, found.attempt) == ("pending", 1)
    assert 0 < await conn.fetchval("select date_part('epoch', run_at - mainspring.now()) from mainspring.task") <= 5
    [attempt] = await tasks.attempts(conn, armed.task)
    assert (attempt.state, attempt.error_code, attempt.agent) == ("timed_out", "timeout", "builder")
    assert attempt.error == (
        f"did not end within its timeout of 100 s, and its agent builder (session {session}, host north) "
        "did not end it either"
    )
    assert await rescue.stop_orders(conn, [session]) == [(session, armed.task, armed.token)]
    assert await rescuer.step() == 0


async def test_one_without_further_attempts_ends_and_so_does_an_at_most_once_task(
    conn: Connection, rescuer: Rescuer
) -> None:
    held = await runs(conn, await begin(conn), "brittle", "once", since=MOST + 1)
    assert await rescuer.step() == 2
    assert [(await tasks.get(conn, armed.task)).state for armed in held] == ["timed_out", "timed_out"]
    assert await conn.fetchval("select count(*) from mainspring.stop_order") == 2


async def test_one_that_somebody_wants_cancelled_does_not_run_again(conn: Connection, rescuer: Rescuer) -> None:
    [armed] = await runs(conn, await begin(conn), "job", since=MOST + 1)
    await tasks.cancel(conn, armed.task)
    assert await rescuer.step() == 1
    assert (await tasks.get(conn, armed.task)).state == "cancelled"


async def test_until_its_deadline_an_attempt_is_its_agents_and_without_a_timeout_for_ever(
    conn: Connection, rescuer: Rescuer
) -> None:
    await runs(conn, await begin(conn), "job", since=MOST - 5)
    await runs(conn, await begin(conn), "endless", since=10 * MOST)
    assert await rescuer.step() == 0


async def test_one_that_stands_still_has_time_and_what_it_stood_still_does_not_count(
    conn: Connection, rescuer: Rescuer
) -> None:
    [armed] = await runs(conn, await begin(conn), "command", since=MOST + 1)
    await control.pause(conn, armed.task)
    await conn.execute("update mainspring.task set paused_at = paused_at - interval '50 seconds'")
    assert await rescuer.step() == 0
    await control.resume(conn, armed.task)
    assert await rescuer.step() == 0
    await conn.execute("update mainspring.task set started_at = started_at - interval '50 seconds'")
    assert await rescuer.step() == 1
    assert await conn.fetchval("select paused_for from mainspring.task") is None, "the next attempt begins anew"


async def test_one_that_started_before_its_job_was_changed_has_a_timeout_that_nobody_knows(
    conn: Connection, rescuer: Rescuer
) -> None:
    await runs(conn, await begin(conn), "job", since=MOST + 1)
    changed = {"job": Definition(Python("job"), AGAIN, timeout=1.0)}
    await jobs.register(conn, changed)
    assert await rescuer.step() == 0, "and the catalogue does not know of it yet"
    await rescuer._catalogue.refresh()
    assert await rescuer.step() == 0
    await conn.execute("update mainspring.job set updated_at = updated_at - interval '2 hours'")
    assert await rescuer.step() == 1, "it was armed long after the change"


async def test_one_that_started_before_the_clock_was_set_forward_is_left_to_its_agent(
    conn: Connection, rescuer: Rescuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody here knows how long it has been running. Of what starts after that everybody does."""
    session = await begin(conn)
    await runs(conn, session, "job", since=1)
    await rescuer.step()
    await shift_clock(conn, MOST + 3600)
    await conn.execute("update mainspring.agent set lease_until = lease_until + interval '1 day'")
    await rescuer.step()
    monkeypatch.setattr(rescuer, "_lease", 0.0)
    assert await rescuer.step() == 0
    await conn.execute("update mainspring.task set started_at = mainspring.now()")
    monkeypatch.setattr(rescuer, "_margin", -TIMEOUT - GRACE)
    assert await rescuer.step() == 1


async def test_a_daemon_has_no_deadline(conn: Connection, rescuer: Rescuer) -> None:
    await schedules.create(conn, define_schedule("stand", "job", {"daemon": 1}), enabled=True)
    await daemons.make(conn)
    session = await begin(conn)
    [due] = await replicas.due(conn, within=1.0, limit=10)
    claim, _ = await replicas.claim(conn, {due.task: session})
    [armed] = claim.tasks[session]
    await transitions.start(conn, [Start(armed.task, armed.token, 1_000_000.0)])
    assert await rescuer.step() == 0


async def test_two_rescuers_end_each_attempt_once(conn: Connection, database: Database, rescuer: Rescuer) -> None:
    session = await begin(conn)
    held = await runs(conn, session, *["job"] * 20, since=MOST + 1)
    other = Rescuer(database, rescuer._catalogue, rescuer._recorder, Clock(), LEASE)
    moved = await asyncio.gather(rescuer.step(), other.step())
    assert sum(moved) == 20
    assert {(await tasks.get(conn, armed.task)).attempt for armed in held} == {1}
    assert await conn.fetchval("select count(*) from mainspring.attempt") == 20
    assert len(await rescue.stop_orders(conn, [session])) == 20


async def test_looks_go_on_from_session_to_session_and_begin_again(
    conn: Connection, rescuer: Rescuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescuer_module, "SESSIONS", 2)
    for _ in range(3):
        await runs(conn, await begin(conn), "job", since=MOST + 1)
    assert [await rescuer.step() for _ in range(3)] == [2, 1, 0]
    await runs(conn, await begin(conn), "job", since=MOST + 1)
    assert sum([await rescuer.step() for _ in range(2)]) == 4, "with those that it has claimed again"


async def test_a_late_report_of_what_was_taken_away_changes_nothing(conn: Connection, rescuer: Rescuer) -> None:
    [armed] = await runs(conn, await begin(conn), "job", since=MOST + 1)
    await rescuer.step()
    await rescuer._recorder.record(conn, [Ending(armed.task, armed.token, armed.job, 1, TaskState.SUCCEEDED, 1.0, 2.0)])
    assert (await tasks.get(conn, armed.task)).state == "pending"
    assert len(await tasks.attempts(conn, armed.task)) == 1
