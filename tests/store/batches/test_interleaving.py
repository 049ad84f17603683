"""What ends a batch against what joins, closes and reopens it, in every order of their statements.

Each program is a list of steps on a connection of its own. A schedule is one order of all steps that keeps that of each
program; after each step a server settles. Whatever the order, a batch has ended only if nothing of it is live, its
callbacks come once, and in the end it has ended.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest
from tests.store.batches.helpers import FAILED, called, close, end, member, opened, settle, view

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.server.recording.batches import BatchesLoop
from mainspring.store.batches import batches, settling
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs, tasks, transitions

Step = Callable[[], Awaitable[None]]


@pytest.fixture
async def others(database: Database) -> AsyncIterator[list[Connection]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(_connected(database)) for _ in range(4)]


@asynccontextmanager
async def _connected(database: Database) -> AsyncIterator[Connection]:
    conn = await database.connect()
    try:
        yield conn
    finally:
        await conn.close()


@pytest.fixture(autouse=True)
async def registered(conn: Connection) -> None:
    await jobs.register(conn, {name: Definition(Python(name)) for name in ("job", "callback")})


def adds(conn: Connection, batch: int, *, commits: bool) -> list[Step]:
    """One task, which is committed later or not at all; refused if the batch has ended."""
    transaction: Any = conn.transaction()
    joined = False

    async def add() -> None:
        nonlocal joined
        await transaction.start()
        with suppress(asyncpg.PostgresError):
            async with conn.transaction():
                await member(conn, batch)
                joined = True

    async def finish() -> None:
        await (transaction.commit() if commits and joined else transaction.rollback())

    return [add, finish]


def closes(conn: Connection, batch: int) -> list[Step]:
    transaction: Any = conn.transaction()

    async def act() -> None:
        await transaction.start()
        await close(conn, batch)

    return [act, transaction.commit]


def ends(conn: Connection, batch: int) -> list[Step]:
    """A task that is live when its turn comes."""

    async def act() -> None:
        task = await conn.fetchval("select min(id) from mainspring.task where batch_id = $1", batch)
        if task is not None:
            await end(conn, task)

    return [act]


def orders(lengths: list[int], chosen: random.Random) -> list[int]:
    order = [program for program, length in enumerate(lengths) for _ in range(length)]
    chosen.shuffle(order)
    return order


async def _live(conn: Connection, batch: int) -> int:
    return int(await conn.fetchval("select count(*) from mainspring.task where batch_id = $1", batch))


@pytest.mark.parametrize("seed", range(4))
async def test_a_batch_ends_once_and_with_its_last_task_in_whatever_order_things_happen(
    conn: Connection, others: list[Connection], seed: int
) -> None:
    chosen = random.Random(seed)
    for _ in range(40):
        batch = await opened(conn)
        await member(conn, batch)
        first, second, third, fourth = others
        programs = [
            adds(first, batch, commits=True),
            adds(second, batch, commits=chosen.random() < 0.7),
            closes(third, batch),
            ends(fourth, batch),
            ends(fourth, batch),
            ends(fourth, batch),
        ]
        before = len(await called(conn))
        for turn in orders([len(program) for program in programs], chosen):
            await programs[turn].pop(0)()
            await settle(conn)
            if (await view(conn, batch)).state == "ended":
                assert await _live(conn, batch) == 0
        while await _live(conn, batch):
            [act] = ends(conn, batch)
            await act()
        await settle(conn)
        shown = await view(conn, batch)
        assert (shown.state, shown.outcome, shown.total) == ("ended", "succeeded", shown.succeeded)
        assert sorted((await called(conn))[before:]) == ["complete", "success"]


async def test_a_batch_does_not_end_while_a_transaction_that_has_joined_it_is_open(
    conn: Connection, others: list[Connection]
) -> None:
    batch = await opened(conn)
    task = await member(conn, batch)
    await close(conn, batch)
    joining = others[0]
    async with joining.transaction():
        await member(joining, batch)
        await end(conn, task)
        await settle(conn)
        await settle(conn)
        assert (await view(conn, batch)).state == "closed"
        assert await called(conn) == []
        await member(others[1], batch)  # does not wait for the other
    await settle(conn)
    assert ((await view(conn, batch)).state, (await view(conn, batch)).live) == ("closed", 2)


async def test_a_batch_does_not_end_while_the_retry_of_a_task_is_not_committed(
    conn: Connection, others: list[Connection]
) -> None:
    batch = await opened(conn)
    failed, running = await member(conn, batch), await member(conn, batch)
    await close(conn, batch)
    await end(conn, failed, FAILED)
    retrying = others[0]
    async with retrying.transaction():
        await tasks.run_again(retrying, failed)
        await end(conn, running)
        await settle(conn)
        assert (await view(conn, batch)).state == "closed"
    await settle(conn)
    assert (await view(conn, batch)).live == 1
    await end(conn, failed)
    await settle(conn)
    assert (await view(conn, batch)).outcome == "succeeded"


async def test_two_servers_that_settle_at_once_call_each_callback_once(
    conn: Connection, others: list[Connection]
) -> None:
    batch = await opened(conn)
    await end(conn, await member(conn, batch), FAILED)
    await close(conn, batch)
    first, second = others[:2]
    async with first.transaction():
        await settle(first)
        await settle(second)  # passes it by
        assert await called(second) == []
    await settle(second)
    assert await called(conn) == ["failure", "complete"]


async def test_a_second_retry_is_not_taken_for_done_by_the_steps_of_the_first(
    conn: Connection, others: list[Connection]
) -> None:
    batch = await opened(conn)
    failed = [await member(conn, batch) for _ in range(2)]
    await end(conn, failed[0], FAILED)
    await close(conn, batch)
    await batches.retry(conn, batch, callbacks_again=False)
    [first] = await settling.commands(conn, 10)
    await end(conn, failed[1], FAILED)
    await batches.retry(others[0], batch, callbacks_again=False)
    assert (await settling.retry_step(conn, first, 0)).tasks == 1
    [second] = await settling.commands(conn, 10)
    assert second.given_at > first.given_at
    assert (await settling.retry_step(others[0], second, 0)).tasks == 1
    assert await settling.commands(conn, 10) == []
    assert (await view(conn, batch)).live == 2


async def test_what_failed_again_behind_the_steps_of_a_retry_is_retried_by_the_next(
    conn: Connection, database: Database
) -> None:
    batch = await opened(conn)
    many = settling.STEP + 1
    ids: list[int] = await conn.fetchval(
        "select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[$1::integer]), batch => $2)", many, batch
    )
    await close(conn, batch)
    await conn.execute("update mainspring.task set state = 3, token = id")
    await transitions.finish(conn, [Ending(id, id, 1, 1, FAILED, 1.0, 2.0) for id in ids])
    loop = BatchesLoop(database)
    await batches.retry(conn, batch, callbacks_again=False)
    assert await loop.step() == 1, "there is more to do"
    await end(conn, ids[0], FAILED)
    await batches.retry(conn, batch, callbacks_again=False)
    while await loop.step():
        pass
    shown = await view(conn, batch)
    assert (shown.live, shown.failed, shown.retrying) == (many, 0, False)


async def test_a_batch_that_is_opened_while_its_parent_is_cancelled_is_cancelled_too(
    conn: Connection, others: list[Connection], database: Database
) -> None:
    parent = await opened(conn, "outer")
    opening, loop = others[0], BatchesLoop(database)
    async with opening.transaction():
        child = await opened(opening, "inner", parent=parent)
        await member(opening, child)
        await batches.cancel(conn, parent, kill=False)
        await loop.step()
        assert (await view(conn, parent)).state == "closed", "it cannot end before that transaction does"
    for _ in range(4):
        await loop.step()
    for batch in (child, parent):
        shown = await view(conn, batch)
        assert (shown.state, shown.outcome, shown.live) == ("ended", "cancelled", 0)
    with pytest.raises(asyncpg.PostgresError, match="takes no more tasks"):
        await opened(conn, "later", parent=parent)
    assert await called(conn) == ["complete", "complete"]


async def test_what_the_close_of_a_client_ends_and_calls_is_counted_once(conn: Connection, database: Database) -> None:
    first, second = BatchesLoop(database), BatchesLoop(database)
    empty, done, live = [await opened(conn) for _ in range(3)]
    await end(conn, await member(conn, done), FAILED)
    task = await member(conn, live)
    for batch in (empty, done, live):
        assert await batches.close(conn, batch)
    assert [(await view(conn, batch)).state for batch in (empty, done, live)] == ["ended", "ended", "closed"]
    assert (await view(conn, done)).total == 1, "what is told to servers is no task"
    await settle(conn)  # a server that counts, and dies before it could tell
    await first.step()
    assert (first.tally.ended, first.tally.callbacks) == (2, 4), "success or failure, and complete"
    for loop in (second, first):
        await loop.step()
    assert (second.tally.ended, second.tally.callbacks) == (0, 0)
    assert (first.tally.ended, first.tally.callbacks) == (2, 4)
    await end(conn, task)
    await second.step()
    assert (second.tally.ended, second.tally.callbacks) == (1, 2), "what it ends itself"
    assert await conn.fetchval("select count(*) from mainspring.batch_change") == 0
