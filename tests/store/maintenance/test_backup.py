"""Backup and restore: everything comes back, or what was there stays."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import MakeTask
from tests.debian import debians_postgresql, needs_debians
from tests.postgres import Primary

from mainspring.errors import AccessDenied, BackupFailed, Conflict, NotFound, SchemaMismatch, ValidationError
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.store.cluster.settings import database_id
from mainspring.store.maintenance import restore as restoring
from mainspring.store.maintenance.backup import back_up, programs_of
from mainspring.store.maintenance.dump_programs import programs_for
from mainspring.store.maintenance.restore import restore
from mainspring.store.postgres import migrate as migrations
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs

Eventually = Callable[..., Awaitable[Any]]

pytestmark = pytest.mark.usefixtures("no_servers")

_TABLES = "select relname from pg_class where relnamespace = 'mainspring'::regnamespace and relkind = 'r' order by 1"
_LIVING_SERVER = """
    insert into mainspring.server (id, name, version, status, host, started_at, heartbeat_at, lease_until)
    values (gen_random_uuid(), 'left', '1', 'active', 'here', now(), now(), now() + interval '1 minute')
"""
_LIVING_AGENT = """
    insert into mainspring.agent (name, slots, lease_until) values ('right', 1, now() + interval '1 minute')
"""


@pytest.fixture
async def target(empty_dsn: str) -> AsyncIterator[Database]:
    """Where a backup is restored to; it is empty."""
    database = Database(empty_dsn)
    yield database
    await database.close()


async def contents(database: Database) -> dict[str, list[str]]:
    """Each row of each table, as text."""
    async with database.acquire() as conn:
        return {
            row[0]: [one[0] for one in await conn.fetch(f'select t::text from mainspring."{row[0]}" t order by 1')]
            for row in await conn.fetch(_TABLES)
        }


async def save(database: Database, file: Path, **options: Any) -> int:
    programs = await programs_of(database, embedded=False)
    return await back_up(database, programs, file, lambda size: None, **options)


async def bring_back(database: Database, file: Path, **options: Any) -> None:
    programs = await programs_of(database, embedded=False, file=file)
    await restore(database, programs, file, lambda size: None, **options)


@pytest.fixture
async def file(tmp_path: Path, database: Database, make_task: MakeTask) -> Path:
    """A backup of a database with a job and three tasks."""
    for _ in range(3):
        await make_task()
    await save(database, tmp_path / "backup")
    return tmp_path / "backup"


async def first_job(database: Database) -> str:
    """Other contents than those of the backup."""
    await migrations.migrate(database)
    async with database.acquire() as conn:
        await jobs.register(conn, {"other": Definition(Python("other"))})
        await conn.execute("select mainspring.enqueue('other')")
        return str(await database_id(conn))


# ── backup ──────────────────────────────────────────────────────────────────────────────────────────


async def test_all_that_was_there_comes_back(database: Database, target: Database, file: Path) -> None:
    await bring_back(target, file)
    before = await contents(database)
    assert await contents(target) == before
    assert len(before["task"]) == 3
    assert len(before["installation"]) == 1
    assert await migrations.plan(target) == []


async def test_the_file_is_private_and_nothing_lies_beside_it(file: Path) -> None:
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == [file.name]


async def test_a_file_that_is_there_is_replaced_only_when_asked_for(database: Database, file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(Conflict, match="is there already; .*--force"):
        await save(database, file)
    assert file.read_bytes() == before
    assert await save(database, file, replace=True) == file.stat().st_size
    assert os.listdir(file.parent) == [file.name]


async def test_a_file_that_comes_in_the_meantime_is_not_replaced(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    (tmp_path / "backup").write_text("mine")
    with pytest.raises(Conflict, match="is there already"):
        await save(database, tmp_path / "backup")
    assert (tmp_path / "backup").read_text() == "mine"
    assert os.listdir(tmp_path) == ["backup"]


async def test_a_database_without_a_schema_has_nothing_to_back_up(target: Database, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nothing to back up"):
        await save(target, tmp_path / "backup")
    assert os.listdir(tmp_path) == []


async def test_what_pg_dump_may_not_read_is_no_backup(server_directory: Path, tmp_path: Path) -> None:
    with Primary(server_directory / "a") as primary:
        await migrations.migrate(Database(primary.dsn))
        primary.ask("create role clerk login")
        primary.ask("grant usage on schema mainspring to clerk")
        outsider = Database(primary.dsn.replace("mainspring@", "clerk@"))
        with pytest.raises(AccessDenied, match="permission denied"):
            await save(outsider, tmp_path / "backup")
        primary.ask("revoke usage on schema mainspring from clerk")
        with pytest.raises(AccessDenied, match="permission denied for schema mainspring.*use the role that owns"):
            await save(outsider, tmp_path / "backup")
        async with outsider.acquire() as conn:
            with pytest.raises(AccessDenied, match="use the role that owns the schema"):
                await restoring.look(conn)
        await outsider.close()
    assert os.listdir(tmp_path) == []


async def test_what_a_killed_backup_left_is_removed_by_the_next(database: Database, tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left, others, lives = (tmp_path / name for name in (f".a.{gone.pid}.part", ".b.1.part", f".a.{os.getppid()}.part"))
    for draft in (left, others, lives):
        draft.touch()
    await save(database, tmp_path / "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a", others.name, lives.name])


def test_programs_must_be_as_new_as_the_server() -> None:
    with pytest.raises(BackupFailed, match="PostgreSQL is 99, .*18.*; install postgresql-client-99"):
        programs_for(99, embedded=False)


# ── restore ─────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_there_is_replaced_only_when_asked_for(database: Database, target: Database, file: Path) -> None:
    await first_job(target)
    before = await contents(target)
    with pytest.raises(Conflict, match=r"holds jobs \(1\) and live tasks \(1\); --force"):
        await bring_back(target, file)
    assert await contents(target) == before
    await bring_back(target, file, replace=True)
    assert await contents(target) == await contents(database)


async def test_what_is_not_known_is_replaced_only_when_asked_for(
    database: Database, target: Database, file: Path
) -> None:
    async with target.acquire() as conn:
        await conn.execute("create schema mainspring")
        await conn.execute("create table mainspring.task (mine text)")
    with pytest.raises(Conflict, match="holds another schema `mainspring`; --force"):
        await bring_back(target, file)
    await bring_back(target, file, replace=True)
    assert await contents(target) == await contents(database)


async def test_a_schema_without_jobs_counts_as_empty(database: Database, target: Database, file: Path) -> None:
    await migrations.migrate(target)
    await bring_back(target, file)
    assert await contents(target) == await contents(database)


@pytest.mark.parametrize(("living", "name"), [(_LIVING_SERVER, "server left"), (_LIVING_AGENT, "agent right")])
@pytest.mark.parametrize("comes", ["before", "in the meantime"])
async def test_nothing_is_restored_under_who_lives(
    target: Database, file: Path, monkeypatch: pytest.MonkeyPatch, living: str, name: str, comes: str
) -> None:
    await first_job(target)
    async with target.acquire() as conn:
        await conn.execute(living)
    if comes == "in the meantime":

        async def nobody_yet(conn: Connection) -> restoring.Found:
            return restoring.Found(1, 1, [])

        monkeypatch.setattr(restoring, "look", nobody_yet)
    before = await contents(target)
    with pytest.raises(Conflict, match=f"in use by {name}; stop what runs"):
        await bring_back(target, file, replace=True)
    assert await contents(target) == before


@pytest.mark.parametrize("size", [0, 4_000_000], ids=["small", "larger than the pipes"])
async def test_who_reads_the_tables_is_not_waited_for_for_long(
    database: Database, target: Database, file: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    async with database.acquire() as conn:  # in parts that do not compress
        await conn.execute(
            "insert into mainspring.setting (name, value) "
            "select 'big' || n, to_jsonb(string_agg(md5(random()::text), '')) from generate_series(1, $1) n, "
            "generate_series(1, 1000) group by n",
            size // 32_000,
        )
    await save(database, file, replace=True)
    monkeypatch.setattr(restoring, "_BEFORE", restoring._BEFORE.replace(b"'10s'", b"'100ms'"))
    await first_job(target)
    before = await contents(target)
    async with target.acquire() as reader, reader.transaction():
        await reader.fetch("select * from mainspring.task")
        async with asyncio.timeout(30):
            with pytest.raises(Conflict, match="an application uses the tables; stop"):
                await bring_back(target, file, replace=True)
    assert await contents(target) == before


async def test_a_damaged_backup_changes_nothing(target: Database, file: Path) -> None:
    await first_job(target)
    before = await contents(target)
    whole = file.read_bytes()
    for size, error, said in (
        (len(whole) - 2000, BackupFailed, r"cannot be read to its end \(pg_restore: error: .*\); nothing was changed"),
        (100, ValidationError, "is no backup that can be read"),
        (0, ValidationError, "is no backup that can be read"),
    ):
        file.write_bytes(whole[:size])
        with pytest.raises(error, match=said):
            await bring_back(target, file, replace=True)
        assert await contents(target) == before


async def test_a_backup_of_something_else_is_refused(target: Database, tmp_path: Path) -> None:
    programs = await programs_of(target, embedded=False)
    async with target.acquire() as conn:
        await conn.execute("create table public.other (x int)")
    async with programs.running("pg_dump", "--format=custom", f"--file={tmp_path / 'other'}", dsn=target.dsn) as dump:
        assert await dump.wait() == 0
    with pytest.raises(ValidationError, match="holds no schema of Mainspring"):
        await bring_back(target, tmp_path / "other")


async def test_a_backup_of_a_newer_program_changes_nothing(
    conn: Connection, database: Database, target: Database, tmp_path: Path
) -> None:
    await conn.execute("insert into mainspring.migration (number, name, checksum) values (9999, 'later', 'x')")
    await save(database, tmp_path / "backup")
    await first_job(target)
    before = await contents(target)
    with pytest.raises(SchemaMismatch, match=r"is of migration 9999, .*Upgrade mainspring"):
        await bring_back(target, tmp_path / "backup", replace=True)
    assert await contents(target) == before


async def test_an_older_backup_is_brought_up_to_date(
    target: Database, server_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Primary(server_directory / "a") as primary:
        old = Database(primary.dsn)
        await migrations.migrate(old)
        await save(old, tmp_path / "backup")
        await old.close()
    ours = migrations.known()
    newer = migrations.Migration(ours[-1].number + 1, "newer", "create table mainspring.newer ();")
    monkeypatch.setattr(migrations, "known", lambda *_: [*ours, newer])
    await bring_back(target, tmp_path / "backup")
    assert await migrations.plan(target) == []
    assert (await contents(target))["newer"] == []


async def test_numbers_that_were_given_out_are_not_given_out_again(
    database: Database, target: Database, file: Path
) -> None:
    async def next_id(of: Database) -> int:
        async with of.acquire() as conn:
            return int(await conn.fetchval("select mainspring.enqueue('job')"))

    for expected in range(4, 9):
        assert await next_id(database) == expected
    await bring_back(database, file, replace=True)  # what the same database has given out is known
    assert await next_id(database) == 9
    await bring_back(target, file)  # elsewhere it is not
    assert await next_id(target) > restoring._AT_LEAST


async def test_a_copy_keeps_the_id_unless_it_is_renewed(database: Database, target: Database, file: Path) -> None:
    async def id_of(of: Database) -> object:
        async with of.acquire() as conn:
            return await database_id(conn)

    await bring_back(target, file)
    assert await id_of(target) == await id_of(database)
    await bring_back(target, file, replace=True, renew_id=True)
    assert await id_of(target) != await id_of(database)


async def test_rights_come_back_and_can_be_left_out(server_directory: Path, tmp_path: Path) -> None:
    with Primary(server_directory / "a") as here, Primary(server_directory / "b") as there:
        await migrations.migrate(Database(here.dsn))
        here.ask("create role clerk login")
        here.ask("grant usage on schema mainspring to clerk")
        source, copy = Database(here.dsn), Database(there.dsn)
        await save(source, tmp_path / "backup")
        with pytest.raises(BackupFailed, match='role "clerk" does not exist; create the role, or .*--no-privileges'):
            await bring_back(copy, tmp_path / "backup")
        assert there.ask("select to_regnamespace('mainspring')") is None
        await bring_back(copy, tmp_path / "backup", privileges=False)
        await bring_back(source, tmp_path / "backup")
        assert here.ask("select has_schema_privilege('clerk', 'mainspring', 'usage')")
        await source.close()
        await copy.close()


# Beside the two tables that are locked to see who lives: the old schema has been dropped.
_HAS_DROPPED = """
    select count(*) > 10 from pg_stat_activity join pg_locks using (pid)
     where datname = current_database() and application_name = 'mainspring psql'
       and locktype = 'relation' and mode = 'AccessExclusiveLock' and granted
"""
_KILLED = """
import asyncio, sys, time
from pathlib import Path
from mainspring.store.maintenance import restore as restoring
from mainspring.store.maintenance.backup import programs_of
from mainspring.store.postgres.database import Database

def in_the_middle(size):
    time.sleep(600)

async def main():
    database = Database(sys.argv[1])
    programs = await programs_of(database, embedded=False)
    await restoring.restore(database, programs, Path(sys.argv[2]), in_the_middle, replace=True)

asyncio.run(main())
"""


async def test_a_kill_in_the_middle_leaves_what_was_there(
    database: Database, target: Database, file: Path, eventually: Eventually
) -> None:
    await first_job(target)
    before = await contents(target)
    restorer = subprocess.Popen([sys.executable, "-c", _KILLED, target.dsn, file])
    try:
        async with target.acquire() as conn:
            await eventually(lambda: conn.fetchval(_HAS_DROPPED), timeout=30)
    finally:
        restorer.send_signal(signal.SIGKILL)
        restorer.wait()
    assert await contents(target) == before
    await bring_back(target, file, replace=True)
    assert await contents(target) == await contents(database)


@needs_debians
async def test_a_backup_of_the_embedded_postgresql_goes_into_an_older_one(database: Database, file: Path) -> None:
    with debians_postgresql() as dsn:
        older = Database(dsn)
        await bring_back(older, file)
        assert await contents(older) == await contents(database)
        await older.close()
