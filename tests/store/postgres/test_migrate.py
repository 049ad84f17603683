"""Migrations: the real schema, and a second migration that only these tests have."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import MakeTask

from mainspring.cli.main import main
from mainspring.errors import Conflict, SchemaMismatch
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.store.postgres import migrate as migrations
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.migrate import Migration, known, migrate, plan
from mainspring.store.tasks import jobs

Eventually = Callable[..., Awaitable[Any]]

_LOCKS = """
    select count(*) from pg_locks l join pg_database d on d.oid = l.database
     where d.datname = current_database() and l.locktype = 'advisory'
"""
_CONTENTS = """
    select coalesce(string_agg(format('%s %s %s', c.oid, c.relname, c.relfilenode), ' ' order by c.oid), '')
      from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'mainspring'
"""


_SECOND = "create table mainspring.second (id integer primary key); insert into mainspring.second values (1);"
_BROKEN = "create table mainspring.half (); select 1/0;"
_UNRECORDABLE = "create table mainspring.half (); alter table mainspring.migration add check (name <> 'broken');"


def add(folder: Path, name: str, sql: str) -> Migration:
    """The next migration in `folder`."""
    number = known(folder)[-1].number + 1
    (folder / f"{number:04}_{name}.sql").write_text(sql)
    return known(folder)[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The migrations of this program, to which a test can add others."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    for migration in known():
        (folder / f"{migration.number:04}_{migration.name}.sql").write_text(migration.sql)
    return folder


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


async def test_a_plan_names_only_what_an_existing_schema_lacks(dsn: str, conn: Connection, folder: Path) -> None:
    second = add(folder, "second", _SECOND)
    assert [(m.number, m.name) for m in await plan(Database(dsn), folder)] == [(second.number, "second")]
    assert await conn.fetchval("select to_regclass('mainspring.second')") is None


async def test_only_what_is_missing_is_applied(dsn: str, conn: Connection, folder: Path, make_task: MakeTask) -> None:
    await make_task()
    second = add(folder, "second", _SECOND)
    contents = await conn.fetchval(_CONTENTS)
    assert await migrate(Database(dsn), folder) == [second]
    assert (await conn.fetchval(_CONTENTS)).startswith(contents)  # the tables there were are untouched
    assert await conn.fetchval("select count(*) from mainspring.task") == 1
    assert await conn.fetchval("select id from mainspring.second") == 1
    assert await applied(conn) == [m.number for m in known(folder)]
    assert await plan(Database(dsn), folder) == await migrate(Database(dsn), folder) == []


async def test_a_fresh_database_gets_the_schema_and_then_the_second(
    empty_dsn: str, empty: Connection, folder: Path
) -> None:
    add(folder, "second", _SECOND)
    assert await migrate(Database(empty_dsn), folder) == known(folder)
    assert await applied(empty) == [m.number for m in known(folder)]


async def test_a_newer_schema_is_refused_and_left_untouched(dsn: str, conn: Connection) -> None:
    await conn.execute("insert into mainspring.migration (number, name, checksum) values (9999, 'later', 'x')")
    contents = await conn.fetchval(_CONTENTS)
    for call in (migrate, plan):
        with pytest.raises(SchemaMismatch, match=r"at migration 9999, .*Upgrade mainspring"):
            await call(Database(dsn))
    assert await conn.fetchval(_CONTENTS) == contents
    assert await conn.fetchval(_LOCKS) == 0


async def test_a_program_without_the_last_migration_refuses_the_schema(
    dsn: str, conn: Connection, folder: Path
) -> None:
    second = add(folder, "second", _SECOND)
    await migrate(Database(dsn), folder)
    contents = await conn.fetchval(_CONTENTS)
    for call in (migrate, plan):
        with pytest.raises(SchemaMismatch, match=f"at migration {second.number}, .* knows {second.number - 1}; "):
            await call(Database(dsn))
    assert await conn.fetchval(_CONTENTS) == contents


async def test_a_program_of_the_release_before_starts_on_a_schema_that_allows_it(
    dsn: str, conn: Connection, folder: Path
) -> None:
    last = known()[-1].number
    add(folder, "second", f"-- What it is for.\n-- runs with programs since migration {last:04}\n{_SECOND}")
    await migrate(Database(dsn), folder)
    contents = await conn.fetchval(_CONTENTS)
    assert await plan(Database(dsn)) == await migrate(Database(dsn)) == []
    assert await conn.fetchval(_CONTENTS) == contents
    add(folder, "third", f"-- runs with programs since migration {last + 1:04}\ncreate table mainspring.third ();")
    await migrate(Database(dsn), folder)
    with pytest.raises(SchemaMismatch, match=f"at migration {last + 2}, this program knows {last}"):
        await migrate(Database(dsn))  # of the release before that one


async def test_a_migration_that_was_changed_after_the_fact_is_refused(dsn: str, conn: Connection, folder: Path) -> None:
    second = add(folder, "second", _SECOND)
    await migrate(Database(dsn), folder)
    contents = await conn.fetchval(_CONTENTS)
    (folder / f"{second.number:04}_second.sql").write_text(_SECOND.replace("values (1)", "values (2)"))
    add(folder, "third", "create table mainspring.third ();")
    for call in (migrate, plan):
        with pytest.raises(SchemaMismatch, match=rf"migration {second.number} \(second\) .* other contents"):
            await call(Database(dsn), folder)
    assert await conn.fetchval(_CONTENTS) == contents


async def test_a_changed_schema_file_is_refused(dsn: str, folder: Path) -> None:
    first = known(folder)[0]
    (folder / f"{first.number:04}_{first.name}.sql").write_text(f"{first.sql}-- changed\n")
    for call in (migrate, plan):
        with pytest.raises(SchemaMismatch, match=rf"migration 1 \({first.name}\) .* other contents"):
            await call(Database(dsn), folder)


@pytest.mark.parametrize(
    ("sql", "error"), [(_BROKEN, "division by zero"), (_UNRECORDABLE, "violates check constraint")]
)
async def test_a_migration_that_fails_leaves_nothing_of_itself(
    empty_dsn: str, empty: Connection, folder: Path, sql: str, error: str
) -> None:
    broken = add(folder, "broken", sql)
    for _ in range(2):
        with pytest.raises(Exception, match=error):
            await migrate(Database(empty_dsn), folder)
        assert await applied(empty) == [m.number for m in known()]
        assert await empty.fetchval("select to_regclass('mainspring.half')") is None
        assert await empty.fetchval("select count(*) from mainspring.segment") == 100
    assert await empty.fetchval(_LOCKS) == 0
    assert await plan(Database(empty_dsn), folder) == [broken]
    assert await migrate(Database(empty_dsn)) == []


async def test_ten_at_once_apply_each_of_them_once(empty_dsn: str, empty: Connection, folder: Path) -> None:
    add(folder, "second", _SECOND)
    done = await asyncio.gather(*(migrate(Database(empty_dsn), folder) for _ in range(10)))
    assert sorted(len(migrated) for migrated in done) == [0] * 9 + [len(known(folder))]
    assert await applied(empty) == [m.number for m in known(folder)]


_PROCESS = """
import asyncio, pathlib, sys
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.migrate import migrate
print("ready", flush=True)
sys.stdin.readline()
print(len(asyncio.run(migrate(Database(sys.argv[1]), pathlib.Path(sys.argv[2])))))
"""


async def test_two_processes_at_once_apply_each_of_them_once(
    empty_dsn: str, empty: Connection, folder: Path, eventually: Eventually
) -> None:
    add(folder, "second", _SECOND)
    arguments = ("-c", _PROCESS, empty_dsn, str(folder))
    processes = [
        await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE) for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    await empty.execute("select pg_advisory_lock($1)", migrations.LOCK)
    answers = [asyncio.ensure_future(process.communicate(b"go\n")) for process in processes]
    await eventually(lambda: _is(empty, "select count(*) = 2 from pg_locks where not granted"))
    await empty.execute("select pg_advisory_unlock($1)", migrations.LOCK)
    assert sorted([int(out) for out, _ in await asyncio.gather(*answers)]) == [0, len(known(folder))]
    assert await applied(empty) == [m.number for m in known(folder)]


async def _cancelled_migration(
    database: Database, has_begun: Callable[[], Awaitable[bool]], wait: Eventually, folder: Path
) -> None:
    migrating = asyncio.ensure_future(migrate(database, folder))
    await wait(has_begun)
    migrating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await migrating


async def test_a_stranger_that_holds_the_lock_is_named_after_seconds(
    empty_dsn: str, empty: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any role that can connect may take an advisory lock, and keep it."""
    monkeypatch.setattr(migrations, "LOCK_PATIENCE", 0.2)
    await empty.execute("set application_name = 'nosy tool'")
    await empty.execute("select pg_advisory_lock($1)", migrations.LOCK)
    pid, user = empty.get_server_pid(), await empty.fetchval("select current_user::text")
    said = re.escape(f"process {pid} of PostgreSQL (nosy tool, user {user}) holds the lock for migrations")
    with pytest.raises(Conflict, match=said):
        await migrate(Database(empty_dsn))
    assert not await empty.fetchval("select to_regclass('mainspring.migration') is not null")
    await empty.execute("select pg_advisory_unlock($1)", migrations.LOCK)
    assert await migrate(Database(empty_dsn))


async def test_the_lock_is_not_even_looked_at_where_nothing_is_missing(
    dsn: str, conn: Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    await conn.execute("select pg_advisory_lock($1)", migrations.LOCK)
    async with asyncio.timeout(20):
        assert await migrate(Database(dsn)) == []
        for command in (["migrate"], ["task", "submit", "job"], ["task", "list"], ["stats"]):
            assert await asyncio.to_thread(main, [*command, "--dsn", dsn]) == 0
    capsys.readouterr()


async def test_a_migration_cancelled_while_it_waits_for_its_turn_leaves_no_lock(
    empty_dsn: str, empty: Connection, eventually: Eventually, folder: Path
) -> None:
    await empty.execute("select pg_advisory_lock($1)", migrations.LOCK)

    async def waits() -> bool:
        return bool(await empty.fetchval("select exists (select from pg_locks where not granted)"))

    await _cancelled_migration(Database(empty_dsn), waits, eventually, folder)
    assert await eventually(lambda: _is(empty, f"select ({_LOCKS}) = 1"))  # ours
    await empty.execute("select pg_advisory_unlock($1)", migrations.LOCK)
    await asyncio.wait_for(migrate(Database(empty_dsn)), 10)


@pytest.mark.parametrize("table", ["migration", "task"])
async def test_a_migration_cancelled_while_a_table_is_locked_leaves_no_lock(
    empty_dsn: str, empty: Connection, eventually: Eventually, folder: Path, table: str
) -> None:
    await migrate(Database(empty_dsn))
    add(folder, "second", "alter table mainspring.task add column second integer;")

    async def waits() -> bool:
        return bool(await empty.fetchval("select exists (select from pg_locks where not granted)"))

    async with empty.transaction():
        await empty.execute(f"lock table mainspring.{table} in access exclusive mode")
        await _cancelled_migration(Database(empty_dsn), waits, eventually, folder)
        assert await eventually(lambda: _is(empty, f"select ({_LOCKS}) = 0"))
    assert await applied(empty) == [m.number for m in known()]


async def _is(conn: Connection, question: str) -> bool:
    return bool(await conn.fetchval(question))
