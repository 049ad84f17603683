"""Listener: a hint wakes its loops, and a lost connection wakes them all, for hints may have been lost with it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.conftest import eventually

from mainspring.errors import StoreUnavailable
from mainspring.server.cluster.clock import ClockLoop
from mainspring.server.cluster.listener import Hear, Listener
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.hints import CHANNEL
from mainspring.wire.clock import Clock


async def test_a_hint_wakes_the_loops_of_its_payload(database: Database, conn: Connection) -> None:
    due, job = asyncio.Event(), asyncio.Event()
    heard: list[str] = []

    def hear_due(rest: str) -> None:
        heard.append(rest)
        due.set()

    listener = Listener(database, {"due": hear_due, "job": lambda _: job.set()})
    await listener.step()
    due.clear()
    job.clear()
    await conn.execute("select pg_notify($1, 'unknown'), pg_notify($1, 'due 1 5 2.5 7')", CHANNEL)
    async with asyncio.timeout(10):
        await due.wait()
    assert not job.is_set()
    assert heard == ["", "1 5 2.5 7"], "the first, because hints may have been missed before"


async def test_the_clock_loop_notices_a_lost_connection_and_the_listener_listens_on_the_next(
    database: Database, conn: Connection
) -> None:
    due, job = asyncio.Event(), asyncio.Event()
    hears: dict[str, Hear] = {"due": lambda _: due.set(), "job": lambda _: job.set()}
    listener, clock_loop = Listener(database, hears), ClockLoop(database, Clock(), 1.0)
    await listener.step()
    await listener.step()
    for event in (due, job):
        assert event.is_set()
        event.clear()
    listening = "select pid from pg_stat_activity where query ilike 'listen %' and datname = current_database()"
    assert await conn.fetchval(f"select count(pg_terminate_backend(pid)) from ({listening}) as one") == 1
    await eventually(lambda: conn.fetchval(f"select not exists ({listening})"))
    with suppress(StoreUnavailable):  # unless the loss was noticed first
        await clock_loop.step()
    await listener.step()
    assert all(event.is_set() for event in (due, job))
    for event in (due, job):
        event.clear()
    await conn.execute("select pg_notify($1, 'job')", CHANNEL)
    async with asyncio.timeout(10):
        await job.wait()
    assert not due.is_set()
