"""Janitor: chores are bounded and measured, and one that fails does not stop the others."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from mainspring.server.cluster import janitor as janitor_module
from mainspring.server.cluster.janitor import Chore, Janitor
from mainspring.store.cluster import agents
from mainspring.store.maintenance import chore_log, vacuum
from mainspring.store.postgres.database import Connection, Database

pytestmark = pytest.mark.usefixtures("no_servers")

DAY = timedelta(days=1)


@pytest.fixture
async def janitor(database: Database) -> Janitor:
    return Janitor(database, keep_succeeded=DAY, keep_failed=2 * DAY)


async def ten_days_later(conn: Connection) -> None:
    await conn.execute("""
        create or replace function mainspring.now() returns timestamptz language sql volatile
            as 'select clock_timestamp() + interval ''10 days'''
    """)


async def told(conn: Connection) -> dict[str, dict[str, Any]]:
    return {chore.name: msgspec.structs.asdict(chore) for chore in await chore_log.listing(conn)}


async def expired_keys(conn: Connection, count: int) -> None:
    await conn.execute(
        """
        insert into mainspring.task_key (job_id, key, task_id, expires_at)
        select 1, n::text, n, mainspring.now() from generate_series(1, $1::int) n
        """,
        count,
    )


async def keys(conn: Connection) -> int:
    return int(await conn.fetchval("select count(*) from mainspring.task_key"))


async def days(conn: Connection) -> list[str]:
    partitions = "select relname from pg_class where relname ~ '^task_history_succeeded_[0-9]+$' order by 1"
    return [row["relname"] for row in await conn.fetch(partitions)]


async def test_a_round_makes_drops_and_forgets(conn: Connection, janitor: Janitor) -> None:
    await expired_keys(conn, 1)
    await conn.execute("""
        insert into mainspring.agent (name, slots, lease_until, ended_at)
        values ('old', 1, now(), now() - interval '3 days'), ('new', 1, now() + interval '20 days', null);
        insert into mainspring.server (id, name, version, status, ended_at)
        values (gen_random_uuid(), 'old', '1', 'dead', now()), (gen_random_uuid(), 'new', '1', 'active', null);
        insert into mainspring.shared_pool (server, pool) select id, 1 from mainspring.server;
        insert into mainspring.segment_move (at, term, reason, segments)
        values (now() - interval '25 days', 1, 'free', '{1}'), (now(), 1, 'free', '{1}');
        insert into mainspring.claim (session, batch, tasks) values (10000, 1, '{1}');
        insert into mainspring.stop_order (session, task_id, token)
        select session, 1, 1 from mainspring.agent;
        insert into mainspring.submission (id, tasks, at)
        values (gen_random_uuid(), '{1}', now()), (gen_random_uuid(), '{2}', now() + interval '10 days');
    """)
    await ten_days_later(conn)
    before = await days(conn)
    assert await janitor.step() == 0, "nothing left"
    after = await days(conn)
    assert len(after) == 5
    assert not set(after) & set(before)
    assert await keys(conn) == 0
    for table in ("agent", "server", "shared_pool", "stop_order", "segment_move", "submission"):
        assert await conn.fetchval(f"select count(*) from mainspring.{table}") == 1, table
    assert await conn.fetchval("select count(*) from mainspring.claim") == 0
    rows = {name: chore["rows"] for name, chore in (await told(conn)).items() if chore["rows"]}
    assert rows.pop("drop partitions") > 5
    assert rows.pop("make partitions") > 5
    assert set(rows.values()) == {1}
    assert await janitor.step() == 0


async def test_what_still_holds_something_is_not_forgotten(conn: Connection, janitor: Janitor) -> None:
    """An ended session whose task could not be rescued yet, and an ended server whose segments nobody has taken."""
    await conn.execute("""
        insert into mainspring.agent (session, name, slots, lease_until, ended_at) values (7, 'old', 1, now(), now());
        insert into mainspring.claim (session, batch, tasks) values (7, 1, '{1}');
        insert into mainspring.server (id, name, version, status, ended_at)
        values (gen_random_uuid(), 'old', '1', 'dead', now());
        update mainspring.segment set owner = (select id from mainspring.server) where id = 3;
    """)
    await ten_days_later(conn)
    await janitor.step()
    for table in ("agent", "claim", "server"):
        assert await conn.fetchval(f"select count(*) from mainspring.{table}") == 1, table
    assert not any(chore["failures"] for chore in (await told(conn)).values())


async def test_a_round_is_bounded_and_says_that_there_is_more(
    conn: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor_module, "AT_ONCE", 4)
    janitor = Janitor(database, keep_succeeded=DAY, keep_failed=DAY)
    janitor._chores = [chore._replace(most=4) for chore in janitor._chores if chore.name == "forget keys"]
    await expired_keys(conn, 10)
    assert [(await janitor.step(), await keys(conn)) for _ in range(3)] == [(1, 6), (1, 2), (0, 0)]
    chore = (await told(conn))["forget keys"]
    assert (chore["runs"], chore["rows"], chore["last_rows"]) == (3, 10, 2)


async def test_a_chore_that_fails_is_told_of_and_the_others_are_done(
    conn: Connection, janitor: Janitor, caplog: pytest.LogCaptureFixture
) -> None:
    await conn.execute("alter table mainspring.schedule_version rename to hidden")
    await expired_keys(conn, 1)
    assert await janitor.step() == 0
    failed = (await told(conn))["forget versions"]
    assert (failed["runs"], failed["failures"]) == (1, 1)
    assert failed["last_error"].startswith("UndefinedTableError: ")
    assert "maintenance, forget versions: UndefinedTableError" in caplog.text
    assert await keys(conn) == 0
    assert (await told(conn))["watch vacuum"]["failures"] == 0, "those after it too"
    await conn.execute("alter table mainspring.hidden rename to schedule_version")
    await janitor.step()
    assert (await told(conn))["forget versions"]["failures"] == 1


async def test_a_chore_that_takes_too_long_is_given_up_and_the_others_are_done(
    conn: Connection, janitor: Janitor
) -> None:
    async def slow(conn: Connection) -> int:
        await conn.execute("select pg_sleep(20)", timeout=0.05)
        return 0

    janitor._chores.insert(0, Chore("slow", slow))
    await expired_keys(conn, 1)
    await janitor.step()
    assert await keys(conn) == 0
    assert (await told(conn))["slow"]["last_error"] == "TimeoutError"


async def test_the_janitor_lets_a_reader_finish(dsn: str, conn: Connection, janitor: Janitor) -> None:
    await ten_days_later(conn)
    reader = await Database(dsn).connect()
    async with reader.transaction():
        await reader.fetch("select * from mainspring.task_history")
        await janitor.step()
    await reader.close()
    assert len(await days(conn)) > 5, "made ahead, and nothing dropped yet"
    await janitor.step()
    assert len(await days(conn)) == 5


async def test_chores_without_work_are_told_of_once_a_minute(
    conn: Connection, janitor: Janitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(janitor_module, "boottime", lambda: now)
    runs = []
    for now in (1000.0, 1010.0, 1020.0, 1061.0):  # noqa: B007 — the clock reads it
        await janitor.step()
        runs.append((await told(conn))["forget moves"]["runs"])
    assert runs == [1, 1, 1, 4]


async def test_two_janitors_at_once_share_the_work(conn: Connection, database: Database, janitor: Janitor) -> None:
    other = Janitor(database, keep_succeeded=DAY, keep_failed=2 * DAY)
    await expired_keys(conn, 1000)
    await ten_days_later(conn)
    await asyncio.gather(janitor.step(), other.step())
    await asyncio.gather(janitor.step(), other.step())
    assert await keys(conn) == 0
    found = await told(conn)
    assert found["forget keys"]["rows"] == 1000
    assert [chore["last_error"] for chore in found.values() if chore["failures"]] == []
    assert len(await days(conn)) == 5


# ── statistics and vacuum ───────────────────────────────────────────────────────────────────────


async def test_statistics_are_renewed_where_much_has_changed_and_nobody_looked(conn: Connection) -> None:
    await conn.execute("alter table mainspring.task_key set (autovacuum_enabled = off)")
    await expired_keys(conn, 2000)
    await conn.execute("select pg_stat_force_next_flush()")
    assert await vacuum.analyze(conn, 3) == 1
    await conn.execute("select pg_stat_force_next_flush()")
    assert await vacuum.analyze(conn, 3) == 0, "not twice within an hour"
    [table] = [table for table in await vacuum.tables(conn) if table.table == "task_key"]
    assert table.analyzed_at is not None
    assert table.live == 2000


async def test_who_keeps_dead_rows_is_told_of_once(
    dsn: str, conn: Connection, janitor: Janitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(janitor_module, "MANY_DEAD", -1)
    monkeypatch.setattr(janitor_module, "LONG", 0.0)
    sleeper = await Database(dsn, application="somebody's report").connect()
    with caplog.at_level(logging.WARNING):
        async with sleeper.transaction():
            await sleeper.execute("select txid_current()")
            await janitor._watch_vacuum(conn)
            await janitor._watch_vacuum(conn)
        await sleeper.close()
        await janitor._watch_vacuum(conn)
    [warning] = [record.getMessage() for record in caplog.records]
    assert "somebody's report" in warning
    assert "end it" in warning


async def test_renewals_of_leases_touch_no_index(conn: Connection) -> None:
    """What is renewed every few seconds must be updated in its page: see decision 20."""
    session = await agents.begin(conn, agents.AgentInfo("agent", 1, {}), 60.0)
    async with conn.transaction():
        for _ in range(5):
            await agents.renew(conn, [agents.Vital(session)], 60.0)
        renewed = "select pg_stat_get_xact_tuples_hot_updated('mainspring.agent'::regclass)"
        assert await conn.fetchval(renewed) == 5
