"""Migrations: numbered SQL files, each applied once, under an advisory lock on a pinned connection.

The first file is the whole schema; later ones change what a release has made. The lock belongs to the session, so
closing the connection frees it: a cancelled migration leaves no lock behind.

During a rollout, programs of the release before run on the new schema, and may be started on it again. A migration that
allows that has the line `-- runs with programs since migration 0001` (the newest that such a program knows).
Next: store/tasks/jobs.py
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

import asyncpg

from mainspring.errors import AccessDenied, Conflict, SchemaMismatch
from mainspring.store.postgres import roles
from mainspring.store.postgres.database import Connection, Database, close
from mainspring.store.postgres.errors import first_line, translating

PATIENCE = 3600.0  # seconds, for each migration
LOCK_PATIENCE = 10.0  # seconds, for another process that migrates
LOCK = 0x6D61696E  # "main"; held to change the schema as a whole
FOLDER = resources.files("mainspring.store.postgres").joinpath("migrations")
_OLDEST = re.compile(r"^-- runs with programs since migration (\d{4})$", re.MULTILINE)
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")

_BOOTSTRAP = """
    create schema if not exists mainspring;
    create table if not exists mainspring.migration (
        number     integer     primary key,
        name       text        not null,
        checksum   text        not null,
        oldest     integer,        -- the newest migration that a program must know to run on this one; null: this one
        applied_at timestamptz not null default clock_timestamp()
    );
"""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def oldest(self) -> int:
        """The newest migration that a program must know to run on the schema that this one makes."""
        match = _OLDEST.search(self.sql)
        return self.number if match is None else int(match[1])


def known(folder: Traversable = FOLDER) -> list[Migration]:
    """The migrations of this program, in order."""
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in folder.iterdir()
        if (match := _NAME.fullmatch(file.name))
    ]
    return sorted(found, key=lambda migration: migration.number)


def fingerprint() -> str:
    """Short, and the same for all programs that make the same schema."""
    return hashlib.sha256("".join(migration.checksum for migration in known()).encode()).hexdigest()[:8]


async def plan(database: Database, folder: Traversable = FOLDER) -> list[Migration]:
    """What `migrate` would apply. Changes nothing."""
    async with database.brief() as conn:
        try:
            return await _missing(conn, folder)
        except asyncpg.InsufficientPrivilegeError as error:
            raise await _not_allowed(conn, error) from error


async def missing(conn: Connection) -> list[Migration]:
    """The same on this connection. SchemaMismatch if this program cannot run on the schema."""
    return await _missing(conn, FOLDER)


async def migrate(database: Database, folder: Traversable = FOLDER) -> list[Migration]:
    """Bring the schema up to date; returns what was applied. Any number of callers at once.

    If nothing is missing it only reads, which also works through PgBouncer.
    """
    missing = await plan(database, folder)
    if not missing:
        return []
    if database.behind_pooler:
        raise SchemaMismatch(
            f"the schema lacks {_listed(missing)}, and PgBouncer stands in the way; run `mainspring migrate --dsn` "
            "with the DSN of PostgreSQL itself"
        )
    conn = await database.connect()
    try:
        with translating():
            return await _migrate(conn, folder)
    except asyncpg.InsufficientPrivilegeError as error:
        async with database.brief() as other:
            raise await _not_allowed(other, error) from error


def lacks(missing: list[Migration]) -> str:
    """What is wrong where migrations are missing, and what to type."""
    return f"the schema lacks {_listed(missing)}; run `mainspring migrate`"


def _listed(missing: list[Migration]) -> str:
    if len(missing) == 1:
        return f"migration {missing[0].number}"
    return f"migrations {missing[0].number} to {missing[-1].number}"


_RIGHTS = """
    select quote_ident(current_user) as role, quote_ident(current_database()) as database,
           (select quote_ident(pg_get_userbyid(nspowner)) from pg_namespace where nspname = 'mainspring') as owner
"""


async def _not_allowed(conn: Connection, error: asyncpg.InsufficientPrivilegeError) -> AccessDenied:
    """What the role lacks, and what to type to give it that."""
    found = await conn.fetchrow(_RIGHTS)
    role, owner = found["role"], found["owner"]
    if owner is None:
        way_out = f"who owns the database can type: GRANT CREATE ON DATABASE {found['database']} TO {role}"
    else:
        way_out = f"the schema belongs to {owner}: use that role, or type there: mainspring grant server {role}"
    return AccessDenied(f"the role {role} may not do that in PostgreSQL ({first_line(error)}); {way_out}")


async def _migrate(conn: Connection, folder: Traversable) -> list[Migration]:
    """Apply what is missing, then close the connection."""
    try:
        await _lock(conn)
        await conn.execute("set statement_timeout = 0")  # a migration may take long
        missing = await _missing(conn, folder)
        for migration in missing:
            async with conn.transaction():
                await conn.execute(_BOOTSTRAP)
                await conn.execute(migration.sql, timeout=PATIENCE)
                await conn.execute(
                    "insert into mainspring.migration (number, name, checksum, oldest) values ($1, $2, $3, $4)",
                    migration.number,
                    migration.name,
                    migration.checksum,
                    migration.oldest,
                )
                await roles.grant_again(conn)
        return missing
    finally:
        # close() also cancels the running statement; PostgreSQL would not notice a cut connection and keep the lock.
        await asyncio.shield(close(conn))


_HOLDER = """
    select a.pid, a.usename, a.application_name
      from pg_locks l join pg_stat_activity a on a.pid = l.pid
     where l.locktype = 'advisory' and l.classid = 0 and l.objid = $1 and l.objsubid = 1 and l.granted
       and l.database = (select oid from pg_database where datname = current_database())
"""


async def _lock(conn: Connection) -> None:
    """Take the lock for migrations. Conflict names the process that holds it: any role can take an advisory lock."""
    await conn.execute(f"set lock_timeout = {LOCK_PATIENCE * 1000:.0f}")
    try:
        await conn.execute("select pg_advisory_lock($1)", LOCK, timeout=LOCK_PATIENCE + 5)
    except asyncpg.LockNotAvailableError as error:
        holder = await conn.fetchrow(_HOLDER, LOCK)
        by = "another process"
        if holder is not None:
            application = holder["application_name"] or "no application name"
            by = f"process {holder['pid']} of PostgreSQL ({application}, user {holder['usename']})"
        raise Conflict(
            f"a migration is missing, and {by} holds the lock for migrations since {LOCK_PATIENCE:g} s or more: if it "
            "migrates, try again when it is done; if not, end it with pg_terminate_backend()"
        ) from error
    await conn.execute("set lock_timeout = 0")


async def _missing(conn: Connection, folder: Traversable) -> list[Migration]:
    """Migrations not applied yet; SchemaMismatch if this program cannot run on the schema, or a migration differs."""
    exists = await conn.fetchval("select to_regclass('mainspring.migration') is not null")
    rows = await conn.fetch("select * from mainspring.migration") if exists else []
    applied = {row["number"]: row for row in rows}
    ours = known(folder)
    last = ours[-1].number
    if any((row["oldest"] or number) > last for number, row in applied.items() if number > last):
        raise SchemaMismatch(
            f"the schema is at migration {max(applied)}, this program knows {last}; "
            "it was left untouched. Upgrade mainspring."
        )
    for migration in ours:
        row = applied.get(migration.number)
        if row is not None and row["checksum"] != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.number} ({row['name']}) was applied with other contents than this "
                "program has; nothing was changed. Use the version that made this schema, or a fresh database."
            )
    return [migration for migration in ours if migration.number not in applied]
