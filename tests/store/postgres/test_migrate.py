"""Migrations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mainspring.errors import SchemaMismatch
from mainspring.store.postgres import migrate as migrations
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.migrate import Migration, known, migrate, plan

Eventually = Callable[..., Awaitable[Any]]

_LOCKS = """
    select count(*) from pg_locks l join pg_database d on d.oid = l.database
     where d.datname = current_database() and l.locktype = 'advisory'
"""
_CONTENTS = """
    select coalesce(string_agg(format('%s %s %s', c.oid, c.relname, c.relfilenode), ' ' order by c.oid), '')
      from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'mainspring'
"""


@pytest.fixture
async def empty(empty_dsn: str) -> Any:
    conn = await Database(empty_dsn).connect()
    yield conn
    await conn.close()


async def applied(conn: Connection) -> list[int]:
    return [row["number"] for row in await conn.fetch("select number from mainspring.migration order by number")]


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [migration.number for migration in known()] == list(range(1, len(known()) + 1))


async def test_a_fresh_database_gets_all_of_them_once(empty_dsn: str, empty: Connection) -> None:
    database = Database(empty_dsn)
    assert [m.number for m in await migrate(database)] == [m.number for m in known()]
    contents = await empty.fetchval(_CONTENTS)
    assert await migrate(database) == []
    assert await applied(empty) == [m.number for m in known()]
    assert await empty.fetchval(_CONTENTS) == contents
    assert await empty.fetchval(_LOCKS) == 0


async def test_a_plan_tells_what_is_missing_and_changes_nothing(empty_dsn: str, empty: Connection) -> None:
    assert await plan(Database(empty_dsn)) == known()
    assert not await empty.fetchval("select to_regnamespace('mainspring') is not null")


async def test_only_what_is_missing_is_applied(
    empty_dsn: str, empty: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = known()
    monkeypatch.setattr(migrations, "known", lambda: ours[:2])
    await migrate(Database(empty_dsn))
    monkeypatch.undo()
    assert await plan(Database(empty_dsn)) == ours[2:]
    assert await migrate(Database(empty_dsn)) == ours[2:]


async def test_a_newer_schema_is_refused_and_left_untouched(dsn: str, conn: Connection) -> None:
    await conn.execute("insert into mainspring.migration (number, name, checksum) values (9999, 'later', 'x')")
    contents = await conn.fetchval(_CONTENTS)
    for call in (migrate, plan):
        with pytest.raises(SchemaMismatch, match=r"at migration 9999, .*Upgrade mainspring"):
            await call(Database(dsn))
    assert await conn.fetchval(_CONTENTS) == contents
    assert await conn.fetchval(_LOCKS) == 0


async def test_a_migration_that_was_changed_after_the_fact_is_refused(dsn: str, conn: Connection) -> None:
    await conn.execute("update mainspring.migration set checksum = 'other' where number = 2")
    for call in (migrate, plan):
        with pytest.raises(SchemaMismatch, match="migration 2 .* other contents"):
            await call(Database(dsn))


async def test_a_migration_that_fails_leaves_nothing_of_itself(
    empty_dsn: str, empty: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = known()
    broken = Migration(ours[-1].number + 1, "broken", "create table mainspring.half (); select 1/0;")
    monkeypatch.setattr(migrations, "known", lambda: [*ours, broken])
    with pytest.raises(Exception, match="division by zero"):
        await migrate(Database(empty_dsn))
    assert await applied(empty) == [m.number for m in ours]
    assert await empty.fetchval("select to_regclass('mainspring.half')") is None


async def test_ten_at_once_apply_each_of_them_once(empty_dsn: str, empty: Connection) -> None:
    done = await asyncio.gather(*(migrate(Database(empty_dsn)) for _ in range(10)))
    assert sorted(len(migrated) for migrated in done) == [0] * 9 + [len(known())]
    assert await applied(empty) == [m.number for m in known()]


async def _cancelled_migration(database: Database, has_begun: Callable[[], Awaitable[bool]], wait: Eventually) -> None:
    migrating = asyncio.ensure_future(migrate(database))
    await wait(has_begun)
    migrating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await migrating


async def test_a_migration_cancelled_while_it_waits_for_its_turn_leaves_no_lock(
    empty_dsn: str, empty: Connection, eventually: Eventually
) -> None:
    await empty.execute("select pg_advisory_lock($1)", migrations.LOCK)

    async def waits() -> bool:
        return bool(await empty.fetchval("select exists (select from pg_locks where not granted)"))

    await _cancelled_migration(Database(empty_dsn), waits, eventually)
    assert await eventually(lambda: _is(empty, f"select ({_LOCKS}) = 1"))  # ours
    await empty.execute("select pg_advisory_unlock($1)", migrations.LOCK)
    await asyncio.wait_for(migrate(Database(empty_dsn)), 10)


async def test_a_migration_cancelled_while_a_table_is_locked_leaves_no_lock(
    empty_dsn: str, empty: Connection, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = known()
    monkeypatch.setattr(migrations, "known", lambda: ours[:-1])
    await migrate(Database(empty_dsn))
    monkeypatch.undo()

    async def waits() -> bool:
        return bool(await empty.fetchval("select exists (select from pg_locks where not granted)"))

    async with empty.transaction():
        await empty.execute("lock table mainspring.migration in access exclusive mode")
        await _cancelled_migration(Database(empty_dsn), waits, eventually)
        assert await eventually(lambda: _is(empty, f"select ({_LOCKS}) = 0"))
    assert await applied(empty) == [m.number for m in ours[:-1]]


async def _is(conn: Connection, question: str) -> bool:
    return bool(await conn.fetchval(question))
