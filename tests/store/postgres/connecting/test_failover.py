"""PostgreSQL fails over or starts again: who is written to, what is refused, and an engine that goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conftest import eventually
from tests.postgres import PostgreSQL, dsn_of, free_port

import mainspring
from mainspring.errors import StoreUnavailable
from mainspring.store.postgres.connecting.connect import PrimaryConnector
from mainspring.store.postgres.database import Connection, Database


async def port_of(database: Database) -> int:
    async with database.acquire() as conn:
        return int(await conn.fetchval("select inet_server_port()"))


# ── a list of hosts ─────────────────────────────────────────────────────────────────────────────────


async def test_of_several_hosts_the_one_that_accepts_writes_is_found(
    lasting: PostgreSQL, lasting_standby: PostgreSQL
) -> None:
    for dsn in (
        dsn_of(lasting, lasting_standby),
        dsn_of(lasting_standby, lasting),
        dsn_of(lasting_standby, lasting_standby, lasting) + "?target_session_attrs=any",
        f"postgresql://mainspring@127.0.0.1:{free_port()},127.0.0.1:{lasting.port}/mainspring",
        f"postgresql:///mainspring?user=mainspring&host=127.0.0.1,127.0.0.1&port={lasting_standby.port},{lasting.port}",
    ):
        for database in (Database(dsn), Database(dsn).for_handlers()):
            assert await port_of(database) == lasting.port
            await database.close()
    for dsn in (lasting_standby.dsn, dsn_of(lasting_standby, lasting_standby)):
        with pytest.raises(StoreUnavailable, match=f"{lasting_standby.port} is read-only"):
            await Database(dsn).open()
    lasting.ask("alter database mainspring set default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable, match="read-only") as refused:
        await Database(dsn_of(lasting, lasting_standby).replace("mainspring@", "mainspring:secret@")).open()
    lasting.ask("begin read write; alter database mainspring reset default_transaction_read_only; commit")
    assert str(lasting.port) in refused.value.message
    assert str(lasting_standby.port) in refused.value.message
    assert "secret" not in refused.value.message


async def test_a_user_without_access_to_the_timeline_connects_and_is_kept_from_a_standby(
    lasting: PostgreSQL, lasting_standby: PostgreSQL
) -> None:
    lasting.ask("create role weak login")
    lasting.ask("revoke execute on function pg_control_system from public")
    await eventually(lambda: asyncio.to_thread(lasting_standby.ask, "select true from pg_roles where rolname = 'weak'"))
    dsn = dsn_of(lasting_standby, lasting).replace("mainspring@", "weak@")
    database = Database(dsn)
    assert await port_of(database) == lasting.port
    await database.close()


# ── failover ────────────────────────────────────────────────────────────────────────────────────────


class Work:
    """An application whose handler notes what it ran, and somebody who goes on submitting."""

    def __init__(self, dsn: str) -> None:
        self.app = mainspring.App("failover", dsn=dsn)
        self.ran: list[int] = []
        self.acknowledged: list[int] = []

        @self.app.job
        async def work(number: int) -> None:
            self.ran.append(number)

        self._work = work

    async def submit(self) -> None:
        """One after another, each again until it is acknowledged; the key makes that safe."""
        number = 0
        while True:
            number += 1
            while True:
                try:
                    await self._work.using(key=f"work {number}").enqueue(number)
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.01)
            self.acknowledged.append(number)
            await asyncio.sleep(0.002)

    async def until_acknowledged(self, more: int) -> None:
        wanted = len(self.acknowledged) + more

        async def there() -> bool:
            return len(self.acknowledged) >= wanted

        await eventually(there, timeout=15)

    async def until_all_ran(self) -> None:
        async def all_ran() -> bool:
            return set(self.ran) >= set(self.acknowledged)

        await eventually(all_ran, timeout=15)


async def test_an_engine_survives_a_failover_and_nothing_acknowledged_is_lost(
    primary: PostgreSQL, standby: PostgreSQL, server_directory: Path
) -> None:
    work = Work(dsn_of(primary, standby))
    async with work.app.running():
        submitting = asyncio.create_task(work.submit())
        try:
            await work.until_acknowledged(50)
            primary.kill()
            await asyncio.to_thread(standby.promote)
            await work.until_acknowledged(1)
            await asyncio.to_thread(primary.start)  # the old primary comes back, and can be written to
            await asyncio.to_thread(primary.wait_for_nobody)
            await work.until_acknowledged(50)
            with pytest.raises(StoreUnavailable, match=f"{primary.port} is on timeline 1, and 2 has been seen"):
                await _only(work.app.database, primary)
        finally:
            submitting.cancel()
        await work.until_all_ran()
    assert sorted(work.ran) == sorted(set(work.ran)), "no agent died, so nothing runs twice"
    assert await asyncio.to_thread(standby.ask, "select count(*) from mainspring.task_history") >= len(
        work.acknowledged
    )
    strangers = "select count(*) from pg_stat_activity where application_name like 'mainspring%'"
    assert await asyncio.to_thread(primary.ask, strangers) == 0


async def _only(database: Database, server: PostgreSQL) -> Connection:
    """A connection to this server alone, with what the process knows."""
    return await PrimaryConnector(server.dsn, database._connector._timelines).connect({}, {}, None, direct=True)


async def test_two_primaries_are_distinguished_and_connections_to_the_old_one_are_cut(
    primary: PostgreSQL, standby: PostgreSQL, tmp_path: Path
) -> None:
    database = Database(dsn_of(primary, standby), timeline_file=tmp_path / "timelines")
    dedicated = database.dedicated()
    began = asyncio.Event()

    async def wait() -> None:
        async with dedicated as conn:
            assert await conn.fetchval("select inet_server_port()") == primary.port
            began.set()
            await conn.execute("select pg_sleep(60)")

    waiting = asyncio.create_task(wait())
    await began.wait()
    standby.promote()  # and nobody tells the old one
    await (await _only(database, standby)).close()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(waiting, 20)
    async with dedicated as conn:
        assert await conn.fetchval("select inet_server_port()") == standby.port
    await dedicated.close()
    after_a_restart = Database(dsn_of(primary, standby), timeline_file=tmp_path / "timelines")
    assert await port_of(after_a_restart) == standby.port
    await after_a_restart.close()
    with pytest.raises(StoreUnavailable, match="the old primary is back; stop it .*remove"):
        await Database(primary.dsn, timeline_file=tmp_path / "timelines").open()


async def test_a_primary_that_becomes_read_only_is_left_by_dedicated_connections_and_by_the_pool(
    lasting: PostgreSQL, lasting_standby: PostgreSQL
) -> None:
    database = Database(dsn_of(lasting, lasting_standby))
    dedicated = database.dedicated()
    async with dedicated as conn, database.acquire() as other:
        for mine in (conn, other):
            await mine.execute("create table if not exists public.entry (number integer)")
            await mine.execute("set default_transaction_read_only = on")  # as a demotion does, for those who are in
    with pytest.raises(StoreUnavailable, match="read-only here"):
        async with dedicated as conn, conn.transaction():
            await conn.execute("insert into public.entry values (1)")
    with pytest.raises(StoreUnavailable, match="read-only here"):
        async with database.acquire() as conn, conn.transaction():
            await conn.execute("insert into public.entry values (1)")
    async with dedicated as conn:
        await conn.execute("insert into public.entry values (1)")
    async with database.acquire() as conn:
        await conn.execute("insert into public.entry values (1)")
    await dedicated.close()
    await database.close()


# ── a restart ─────────────────────────────────────────────────────────────────────────────────────────


async def test_an_engine_is_back_at_work_after_a_restart(primary: PostgreSQL) -> None:
    work = Work(primary.dsn)
    async with work.app.running():
        submitting = asyncio.create_task(work.submit())
        try:
            await work.until_acknowledged(20)
            primary.kill()
            await asyncio.sleep(1.0)
            await asyncio.to_thread(primary.start)
            already = len(work.ran)
            await work.until_acknowledged(1)
            newest = work.acknowledged[-1]

            async def at_work() -> bool:
                return newest in work.ran

            await eventually(at_work)
            assert len(work.ran) > already
        finally:
            submitting.cancel()
        await work.until_all_ran()
    assert sorted(work.ran) == sorted(set(work.ran))
