"""Whole stories with real processes that are killed, stopped and cut off: nothing is lost, nothing ends twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from mainspring import ResultLost
from mainspring.store.embedded.server import Embedded
from mainspring.store.postgres.database import Connection, Database
from tests.conftest import eventually
from tests.journey.conftest import Story, assert_each_ended_once

MANY = 10_000


async def held(conn: Connection) -> set[int]:
    """Tasks that an agent has, or had when it went."""
    return {row["id"] for row in await conn.fetch("select id from mainspring.task where state in (2, 3)")}


async def until_running(conn: Connection, tasks: int) -> None:
    """So many at once: asked about one after another, the first may have ended before the last has begun."""

    async def there() -> bool:
        return bool(await conn.fetchval("select count(*) = $1 from mainspring.task where state = 3", tasks))

    await eventually(there)


# ── kill -9 of a worker ─────────────────────────────────────────────────────────────────────────────


async def test_after_a_kill_in_the_middle_of_many_each_task_ends_once(story: Story, conn: Connection) -> None:
    await story.app["work"].enqueue_many([()] * MANY)
    first = await story.worker()
    await story.until_written(MANY // 4)
    await first.kill()
    before = story.written()
    assert before < MANY, "it was in the middle"
    in_flight = await held(conn)
    await story.worker()
    await story.until_all_ended(conn)
    effects = await assert_each_ended_once(conn, story, MANY)
    assert {task for task, count in effects.items() if count > 1} <= in_flight


async def test_a_task_that_was_running_at_the_kill_runs_again_and_keeps_its_checkpoint(story: Story) -> None:
    task = await story.app["copy_in_steps"].enqueue()
    first = await story.worker()
    assert await first.ended() == -signal.SIGKILL
    await story.worker()
    assert await task.result(timeout=30) == [1, 2], "a crash costs an attempt"


@pytest.mark.parametrize("die", ["before the commit", "after the commit"])
async def test_an_effectively_once_task_has_one_effect_whenever_its_worker_dies(
    story: Story, conn: Connection, die: str
) -> None:
    await conn.execute("create table public.effect (task bigint, token bigint)")
    task = await story.app["pay"].enqueue(die=die)
    first = await story.worker()
    assert await first.ended() == -signal.SIGKILL
    await story.worker()
    with nullcontext() if die == "before the commit" else pytest.raises(ResultLost):
        await task.result(timeout=30)
    effects = [tuple(row) for row in await conn.fetch("select task, token from public.effect")]
    assert effects == [(task.id, await conn.fetchval("select token from mainspring.task_history"))]
    assert (await task.status()).attempt == (2 if die == "before the commit" else 1)


async def test_an_at_most_once_task_whose_worker_dies_is_lost_and_never_runs_again(
    story: Story, conn: Connection
) -> None:
    task = await story.app["launch"].enqueue(gate=str(story.directory / "gate"))
    first = await story.worker()
    await story.until_written(1)
    await first.kill()
    (story.directory / "gate").touch()
    await story.worker()
    await story.until_all_ended(conn)
    status = await task.status()
    assert (status.state, status.error_code) == ("lost", "lost")
    assert [line.event for line in story.ledger()] == ["start"]


async def test_a_task_that_takes_its_worker_along_is_quarantined_at_the_third_time(
    story: Story, conn: Connection
) -> None:
    task = await story.app["crash"].enqueue()
    for _ in range(3):
        assert await (await story.worker()).ended() == -signal.SIGKILL
    last = await story.worker()
    await story.until_all_ended(conn)
    status = await task.status()
    assert (status.state, status.error_code) == ("failed", "quarantined")
    assert len(story.ledger()) == 3
    await last.stop()


# ── kill -9 of PostgreSQL ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def own_server(server_directory: Path) -> Iterator[Path]:
    """A PostgreSQL server that only this test has."""
    embedded = Embedded.start(server_directory)
    yield server_directory
    again = Embedded.start(server_directory)  # whatever the test did to it, so that the last one out stops it
    embedded.stop()
    again.stop()


async def test_after_a_kill_of_postgresql_workers_reconnect_and_finish(
    own_server: Path, tmp_path: Path, processes: list[Story]
) -> None:
    use = await asyncio.to_thread(Embedded.start, own_server)
    story = Story(use.dsn, tmp_path)
    processes.append(story)
    async with story.app:
        await story.app["work"].enqueue_many([()] * MANY)
    await story.worker()
    await story.until_written(MANY // 4)
    postmaster = int((own_server / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGKILL)
    assert story.written() < MANY, "it was in the middle"
    again = await asyncio.to_thread(Embedded.start, own_server)
    conn = await Database(use.dsn).connect()
    try:
        await story.until_all_ended(conn)
        effects = await assert_each_ended_once(conn, story, MANY)
        # The agent lives, and so does its lease: what was under way is reported, not run again.
        assert set(effects.values()) == {1}
    finally:
        await conn.close()
        story.clean_up()
        await asyncio.to_thread(again.stop)
        await asyncio.to_thread(use.stop)


async def test_when_all_connections_are_cut_nothing_is_lost_and_nothing_runs_twice(
    story: Story, conn: Connection
) -> None:
    tasks = MANY // 2
    await story.app["work"].enqueue_many([()] * tasks)
    await story.worker()
    cut = 0
    for part in (1, 2, 3):
        await story.until_written(tasks * part // 4)
        cut += await conn.fetchval("""
            select count(pg_terminate_backend(pid)) from pg_stat_activity
             where datname = current_database() and application_name like 'mainspring%' and pid <> pg_backend_pid()
        """)
    assert cut > 3  # in all: at one moment they may just be coming back
    assert story.written() < tasks, "it was in the middle"
    await story.until_all_ended(conn)
    effects = await assert_each_ended_once(conn, story, tasks)
    assert set(effects.values()) == {1}


# ── several workers ─────────────────────────────────────────────────────────────────────────────────


async def test_two_workers_share_the_work_and_each_task_runs_once(story: Story, conn: Connection) -> None:
    tasks = MANY // 2
    await asyncio.gather(story.worker(slots=50), story.worker(slots=50))
    await story.app["work"].using(delay=0).enqueue_many([()] * tasks)
    await story.until_all_ended(conn)
    effects = await assert_each_ended_once(conn, story, tasks)
    assert set(effects.values()) == {1}
    assert len({line.pid for line in story.ledger()}) == 2


async def test_a_worker_that_is_told_to_stop_hands_its_tasks_on_without_costing_an_attempt(
    story: Story, conn: Connection
) -> None:
    gate = story.directory / "gate"
    tasks = [await story.app[name].enqueue(gate=str(gate)) for name in ("hold", "hold_sync") for _ in range(3)]
    first = await story.worker(stop_patience=0.2)
    await story.until_written(len(tasks))
    await first.stop()
    for task in tasks:
        status = await task.status()
        assert (status.state, status.attempt) == ("pending", 0)
    gate.touch()
    second = await story.worker()
    assert [await task.result(timeout=30) for task in tasks] == [1] * len(tasks)
    effects = [line for line in story.ledger() if line.event == "effect"]
    assert {line.pid for line in effects} == {second.pid}
    assert len(effects) == len(tasks)
    await second.stop()


async def test_a_worker_that_is_told_to_stop_lets_short_tasks_end(story: Story, conn: Connection) -> None:
    gate = story.directory / "gate"
    tasks = await story.app["hold"].enqueue_many([(str(gate),)] * 20)
    first = await story.worker(stop_patience=30)
    await story.until_written(len(tasks))
    first.signal(signal.SIGTERM)
    gate.touch()
    assert await first.ended() == 0
    effects = await assert_each_ended_once(conn, story, len(tasks))
    assert set(effects.values()) == {1}


# ── a zombie ────────────────────────────────────────────────────────────────────────────────────────


async def history(conn: Connection) -> list[tuple[object, ...]]:
    query = "select id, token, state, attempt, finished_at, recorded_at from mainspring.task_history order by id"
    return [tuple(row) for row in await conn.fetch(query)]


async def until_living(conn: Connection, sessions: int) -> None:
    async def there() -> bool:
        living = "select count(*) from mainspring.agent where ended_at is null and lease_until > mainspring.now()"
        return int(await conn.fetchval(living)) == sessions

    await eventually(there)


async def test_a_worker_that_was_frozen_past_its_lease_changes_nothing_when_it_wakes(
    story: Story, conn: Connection
) -> None:
    tasks = await story.app["work"].enqueue_many([(2.0,)] * 5)
    frozen = await story.worker(lease=3.0)
    await until_running(conn, len(tasks))
    frozen.signal(signal.SIGSTOP)
    other = await story.worker(lease=3.0)
    await story.until_all_ended(conn)
    before = await history(conn)
    frozen.signal(signal.SIGCONT)
    await until_living(conn, 2)
    await frozen.stop()
    await assert_each_ended_once(conn, story, len(tasks))
    assert await history(conn) == before
    assert {line.token for line in story.ledger() if line.pid == other.pid} == {row[1] for row in before}


async def test_a_worker_that_was_frozen_alone_takes_its_tasks_up_again(story: Story, conn: Connection) -> None:
    tasks = await story.app["work"].enqueue_many([(2.0,)] * 5)
    frozen = await story.worker(lease=3.0)
    await until_running(conn, len(tasks))
    frozen.signal(signal.SIGSTOP)
    await until_living(conn, 0)
    frozen.signal(signal.SIGCONT)
    await story.until_all_ended(conn)
    await assert_each_ended_once(conn, story, len(tasks))
    await frozen.stop()
