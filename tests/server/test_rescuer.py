"""Rescuer: what a dead session held runs again, ends, or is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.cluster import OWNER

from mainspring.model.define_schedule import define_schedule
from mainspring.model.floors import BOTTOM
from mainspring.model.jobs import Definition, Python
from mainspring.model.messages import Start
from mainspring.model.retry import Retry
from mainspring.server import rescuer as rescuer_module
from mainspring.server.catalogue import Catalogue
from mainspring.server.recorder import Recorder
from mainspring.server.rescuer import Rescuer, is_dead_neighbour, process_identity
from mainspring.store import agents, claims, daemons, jobs, outcomes, replicas, schedules, tasks
from mainspring.store.database import Connection, Database
from mainspring.wire.clock import Clock

PATIENT = Retry(retries=1000, backoff="fixed", delay=0.0)


@pytest.fixture
async def rescuer(database: Database, conn: Connection) -> AsyncIterator[Rescuer]:
    await jobs.register(
        conn,
        {
            "job": Definition(Python("job"), PATIENT),
            "once": Definition(Python("once"), PATIENT, delivery="at_most_once"),
            "brittle": Definition(Python("brittle"), Retry(retries=0)),
        },
    )
    catalogue = Catalogue(database)
    await catalogue.refresh()
    recorder = Recorder(database, catalogue)
    rescuer = Rescuer(database, catalogue, recorder, Clock())
    yield rescuer
    await rescuer.close()
    await recorder.close()


async def dies_with(conn: Connection, *names: str, started: bool = True) -> list[int]:
    """A session that claims one task of each job, starts them, and is gone."""
    for name in names:
        await conn.execute("select mainspring.enqueue($1)", name)
    return await crash(conn, started=started)


async def crash(conn: Connection, *, started: bool = True) -> list[int]:
    session = await agents.begin(conn, agents.Newcomer("agent", 10, {}, None), 60.0)
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    claim = await claims.claim(conn, OWNER, pool, [session], 1000, [BOTTOM] * 10, ahead=60.0)
    held = claim.tasks.get(session, [])
    if started:
        await outcomes.start(conn, [Start(armed.task, armed.token, 1_790_000_000.0) for armed in held])
    await agents.end(conn, [session])
    return [armed.task for armed in held]


async def view(conn: Connection, task: int) -> Any:
    return await tasks.get(conn, task)


async def crashes(conn: Connection, task: int) -> int:
    return int(await conn.fetchval("select crashes from mainspring.task where id = $1", task))


async def test_a_living_session_keeps_what_it_holds(conn: Connection, rescuer: Rescuer) -> None:
    session = await agents.begin(conn, agents.Newcomer("agent", 10, {}, None), 60.0)
    await conn.execute("select mainspring.enqueue('job')")
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    await claims.claim(conn, OWNER, pool, [session], 10, [BOTTOM] * 10, ahead=60.0)
    assert await rescuer.step() == 0


async def test_what_had_started_costs_an_attempt_and_counts_as_a_crash(conn: Connection, rescuer: Rescuer) -> None:
    [task] = await dies_with(conn, "job")
    assert await rescuer.step() == 1
    found = await view(conn, task)
    assert (found.state, found.attempt, await crashes(conn, task)) == ("pending", 1, 1)
    [attempt] = await tasks.attempts(conn, task)
    assert (attempt.number, attempt.state, attempt.error_code, attempt.agent) == (1, "lost", "lost", "agent")
    assert await rescuer.step() == 0
    assert await agents.gone(conn) == [], "buried"


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


async def test_the_third_crash_is_quarantine(conn: Connection, rescuer: Rescuer) -> None:
    [task] = await dies_with(conn, "job")
    await rescuer.step()
    for expected in ("pending", "failed"):
        await crash(conn)
        await rescuer.step()
        assert (await view(conn, task)).state == expected
    assert (await view(conn, task)).error_code == "quarantined"
    assert len(await tasks.attempts(conn, task)) == 3


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
    rescuer._recorder.on_requeued.append(lambda: requeued.append(1))
    moved = [await rescuer.step() for _ in range(4)]
    assert moved == [4, 4, 2, 0]
    assert len(requeued) == 3
    assert {(await view(conn, task)).state for task in made} == {"pending"}


async def test_two_rescuers_at_once_move_each_task_once(conn: Connection, database: Database, rescuer: Rescuer) -> None:
    made = await dies_with(conn, *["job"] * 20)
    other = Rescuer(database, rescuer._catalogue, rescuer._recorder, Clock())
    await asyncio.gather(rescuer.step(), other.step())
    await other.close()
    assert {(await view(conn, task)).attempt for task in made} == {1}
    assert {await crashes(conn, task) for task in made} == {1}
    assert await conn.fetchval("select count(*) from mainspring.attempt") == 20


async def test_what_was_claimed_for_a_session_after_its_burial_is_rescued(conn: Connection, rescuer: Rescuer) -> None:
    session = await agents.begin(conn, agents.Newcomer("agent", 10, {}, None), -1.0)
    await rescuer.step()
    assert await agents.gone(conn) == []
    task = await conn.fetchval("select mainspring.enqueue('job')")
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    await claims.claim(conn, OWNER, pool, [session], 10, [BOTTOM] * 10, ahead=60.0)
    assert await rescuer.step() == 1
    assert (await view(conn, task)).state == "pending"
    assert await rescuer.step() == 0


# ── neighbours ──────────────────────────────────────────────────────────────────────────────────

here = pytest.mark.skipif(process_identity() is None, reason="this system does not show its processes")


@here
def test_a_process_that_lives_is_no_dead_neighbour() -> None:
    own = process_identity()
    assert own is not None
    assert not is_dead_neighbour(own)


@here
async def test_a_neighbour_that_died_is_seen_before_its_lease_is_over(conn: Connection, rescuer: Rescuer) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = process_identity(child.pid)
    assert identity is not None
    session = await agents.begin(conn, agents.Newcomer("agent", 10, {}, identity), 3600.0)
    task = await conn.fetchval("select mainspring.enqueue('job')")
    pool = await conn.fetchval("select pool from mainspring.job limit 1")
    await claims.claim(conn, OWNER, pool, [session], 10, [BOTTOM] * 10, ahead=60.0)
    assert not is_dead_neighbour(identity)
    assert await rescuer.step() == 0
    child.kill()
    child.wait()
    if child.stdin is not None:
        child.stdin.close()
    assert is_dead_neighbour(identity)
    assert await rescuer.step() == 1
    assert (await view(conn, task)).state == "pending"


@here
def test_another_process_with_the_same_number_is_another() -> None:
    own = process_identity()
    assert own is not None
    boot, namespace, pid, started = own.split()
    assert is_dead_neighbour(f"{boot} {namespace} {pid} {int(started) - 1}")


@here
@pytest.mark.parametrize("place", [0, 1], ids=["another boot", "another namespace"])
def test_a_process_that_cannot_be_seen_from_here_is_never_called_dead(place: int) -> None:
    own = process_identity()
    assert own is not None
    parts = own.split()
    parts[2] = str(2**22 + 1)  # nobody
    assert is_dead_neighbour(" ".join(parts))
    parts[place] = "elsewhere"
    assert not is_dead_neighbour(" ".join(parts))


@here
def test_a_name_with_blanks_and_brackets_does_not_confuse() -> None:
    name = "import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 (x', 0, 0, 0); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdout.readline()
    identity = process_identity(child.pid)
    assert identity is not None
    assert len(identity.split()) == 4
    assert identity.split()[3].isdigit()
    assert not is_dead_neighbour(identity)
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


async def test_a_daemon_is_never_quarantined_but_waits_longer_each_time(conn: Connection, rescuer: Rescuer) -> None:
    await schedules.create(conn, define_schedule("stand", "brittle", {"daemon": 1}), enabled=True)
    await daemons.make(conn)
    waits = []
    for _ in range(5):
        await conn.execute("update mainspring.task set run_at = mainspring.now()")
        session = await agents.begin(conn, agents.Newcomer("agent", 10, {}, None), 60.0)
        [due] = await replicas.due(conn, within=1.0, limit=10)
        claim, _ = await replicas.claim(conn, {due.task: session})
        [armed] = claim.tasks[session]
        await outcomes.start(conn, [Start(armed.task, armed.token, rescuer._clock.now())])
        await agents.end(conn, [session])
        assert await rescuer.step() == 1
        waits.append(await conn.fetchval("select date_part('epoch', run_at - mainspring.now()) from mainspring.task"))
    assert waits[0] <= 0 < waits[1] < waits[3] < waits[4]
    assert await crashes(conn, armed.task) == 5
    assert await agents.gone(conn) == []
