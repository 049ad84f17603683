"""Hints: every statement that makes a task pending says where it lies, for the server whose segment it is in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.schedules import create
from tests.store.test_moves import CASES, Case, _place, a_task

from mainspring.model.tasks.claim_floors import Released, parse_released
from mainspring.model.tasks.define_job import define
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import PENDING, TaskState
from mainspring.store.limits import parked, release
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.hints import CHANNEL
from mainspring.store.schedules import backfill, schedules
from mainspring.store.tasks import jobs, tasks

Heard = Callable[[], Awaitable[list[str]]]


@pytest.fixture
async def heard(dsn: str, conn: Connection) -> AsyncIterator[Heard]:
    """The hints since the last call."""
    payloads: list[str] = []
    listener = await Database(dsn).connect()
    await listener.add_listener(CHANNEL, lambda *said: payloads.append(str(said[3])))

    async def hear() -> list[str]:
        await conn.execute("select pg_notify($1, 'end')", CHANNEL)
        async with asyncio.timeout(10):
            while "end" not in payloads:
                await listener.execute("select 1")
        heard = payloads[: payloads.index("end")]
        payloads.clear()
        return heard

    yield hear
    await listener.close()


async def position(conn: Connection, task: int) -> Released:
    sql = "select pool, priority, date_part('epoch', run_at), id from mainspring.task where id = $1 and state = 1"
    pool, priority, at, id = await conn.fetchrow(sql, task)
    return Released(pool, priority, (at, id))


def positions(heard: list[str]) -> list[Released]:
    return [found for hint in heard if (found := parse_released(hint.removeprefix("due ")))]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.move.target is PENDING and not case.place.startswith("daemons/")],
    ids=lambda case: case.place,
)
async def test_a_task_that_becomes_pending_is_announced_with_its_position(
    conn: Connection, heard: Heard, case: Case
) -> None:
    task = await case.prepare(conn)
    await _place(conn, task, min(case.sources))
    await conn.execute("update mainspring.task set run_at = run_at - interval '1 hour' where id = $1", task)
    await heard()
    await case.act(conn, task)
    assert positions(await heard()) == [await position(conn, task)]


async def test_one_hint_announces_all_tasks_of_a_pool_and_priority(conn: Connection, heard: Heard) -> None:
    await jobs.register(conn, {"job": define(Python("job"), {"max_running": 3})})
    sql = "select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[5]))"
    first, *_ = await conn.fetchval(sql)
    [gate] = await release.look(conn)
    await heard()
    assert len((await release.release(conn, gate, 10, ahead=0.0)).released) == 3
    assert positions(await heard()) == [await position(conn, first)]


async def test_what_people_run_again_or_now_is_announced(conn: Connection, heard: Heard) -> None:
    task = await a_task(conn)
    await _place(conn, task, TaskState.FAILED)
    await heard()
    await tasks.run_again(conn, task)
    assert positions(await heard()) == [await position(conn, task)]
    await create(conn, every="1h")
    [task] = await backfill.run_now(conn, "report")
    assert positions(await heard()) == [await position(conn, task)]
    stored = await schedules.find(conn, "report")
    [task] = await backfill.backfill(conn, stored, [(stored.now - timedelta(days=1), "")])
    assert positions(await heard()) == [await position(conn, task)]


async def test_a_submission_says_where_it_lies_only_if_it_is_late(conn: Connection, heard: Heard) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await heard()
    await conn.execute("select mainspring.enqueue('job'), mainspring.enqueue('job')")
    assert await heard() == ["due"], "one for any number"
    late = "run_at => mainspring.now() - interval '1 hour'"
    for call in (f"enqueue('job', {late})", f"(enqueue_many('job', '{{\"{{}}\",\"{{}}\"}}', {late}))[1]"):
        task = await conn.fetchval("select " + call.replace("enqueue", "mainspring.enqueue"))
        assert positions(await heard()) == [await position(conn, task)]


async def test_a_freed_slot_names_the_gates_that_it_may_open(conn: Connection, heard: Heard) -> None:
    """Its own, and that of the first task parked for its key, which may be of another job."""
    keyed: Any = {"concurrency_key": "k"}
    await jobs.register(conn, {name: define(Python(name), keyed) for name in ("one", "two", "three")})
    gates = dict(await conn.fetch("select name, pool from mainspring.job"))
    for name in ("one", "two", "three"):
        await conn.execute("select mainspring.enqueue($1)", name)
        for gate in await release.look(conn):
            await release.release(conn, gate, 10, ahead=0.0)
    await heard()
    await conn.execute("delete from mainspring.task where key_slot is not null")
    assert sorted(await heard()) == sorted([f"gate {gates['one']}", f"gate {gates['two']}"])
    assert (await parked.sweep(conn, "", 10)).moved == 1
    assert await heard() == [f"gate {gates['three']}"]
