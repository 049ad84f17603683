"""Restore: replace the schema by the contents of a backup, in one transaction.

pg_restore writes SQL. This process passes it to psql inside its own BEGIN and COMMIT, with checks before it and
corrections after it. If any of the processes dies before the COMMIT, nothing has changed.

Writes  the whole schema `mainspring`
Next:   store/postgres/migrate.py
"""

from __future__ import annotations

import asyncio
import re
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import asyncpg

from mainspring.errors import BackupFailed, Conflict, MainspringError, SchemaMismatch
from mainspring.store.maintenance.backup import Progress, check_archive, not_allowed
from mainspring.store.maintenance.dump_programs import Programs, failure, last_lines
from mainspring.store.postgres import migrate as migrations
from mainspring.store.postgres.database import Connection, Database

_CHUNK = 1 << 20
_HEADER = 1 << 14
# Written by pg_dump 17 and newer; older servers do not know it.
_NEWER_SETTING, _SETTING_SINCE = re.compile(rb"^SET transaction_timeout = 0;$", re.MULTILINE), 17

_LIVES, _NEWER = "MSC01", "MSC02"  # SQLSTATEs, as MSV01 in the schema

_ALIVE = """
    select 'server ' || name from mainspring.server
     where status in ('active', 'draining') and lease_until > mainspring.now()
    union all
    select 'agent ' || name from mainspring.agent where ended_at is null and lease_until > mainspring.now()
"""

# Numbers issued after the backup are never issued again: an agent may still hold such a token, and a receiver of an
# idempotency key must not take another task for a retry.
_SEQUENCES = ("task_id", "claim_batch", "session")
_AT_LEAST, _PER_SECOND = 100_000, 10_000  # numbers skipped where it is unknown how many were issued since

_BEFORE = f"""
begin;
set local lock_timeout = '10s';
set local client_min_messages = warning;
select pg_advisory_xact_lock({migrations.LOCK});
create temporary table mainspring_before (id uuid, {", ".join(f"{name} bigint" for name in _SEQUENCES)}) on commit drop;
do $before$
declare alive text;
begin
    if to_regclass('mainspring.installation') is null then
        return;
    end if;
    lock table mainspring.server, mainspring.agent in access exclusive mode;
    select string_agg(one, ', ') into alive from ({_ALIVE}) as found (one);
    if alive is not null then
        raise exception using errcode = '{_LIVES}', message = alive;
    end if;
    insert into pg_temp.mainspring_before
    select id, {", ".join(f"(select last_value from mainspring.{name})" for name in _SEQUENCES)}
      from mainspring.installation;
end $before$;
drop schema if exists mainspring cascade;
""".encode()

_AFTER = """
do $after$
declare
    newest integer;
    last_seen timestamptz;
    known record;
    left_out bigint := 0;
begin
    select max(number) into newest from mainspring.migration;
    if newest > {newest} then
        raise exception using errcode = '{error}', message = newest::text;
    end if;
    if {renew} then
        update mainspring.installation set id = gen_random_uuid();
    end if;
    select before.* into known from pg_temp.mainspring_before before join mainspring.installation using (id);
    if known.id is null then
        select max(at) into last_seen
          from (select max(heartbeat_at) from mainspring.server union all select max(created_at) from mainspring.task
                union all select max(recorded_at) from mainspring.task_history) as seen (at);
        left_out := {at_least} + {per_second} * greatest(0, extract(epoch from clock_timestamp() - last_seen))::bigint;
    end if;
{sequences}
end $after$;
commit;
"""
_SEQUENCE = """
    perform setval('mainspring.{name}', greatest(last_value, known.{name}) + left_out)
       from mainspring.{name};
"""


_TABLES = "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'mainspring'"


class Found(NamedTuple):
    """What a restore would replace."""

    jobs: int
    tasks: int
    alive: list[str]  # servers and agents with a lease
    readable: bool = True  # False: there is a schema, and it is not ours

    @property
    def empty(self) -> bool:
        return self.readable and not self.jobs


async def look(conn: Connection) -> Found:
    """What is in the database."""
    if not await conn.fetchval(_TABLES):
        return Found(0, 0, [])
    try:
        jobs = await conn.fetchval("select count(*) from mainspring.job")
        tasks = await conn.fetchval("select count(*) from mainspring.task")
        return Found(jobs, tasks, [row[0] for row in await conn.fetch(_ALIVE)])
    except asyncpg.InsufficientPrivilegeError as error:
        raise not_allowed(error) from error
    except asyncpg.SyntaxOrAccessError:  # a table or a column is missing
        return Found(0, 0, [], readable=False)


async def restore(
    database: Database,
    programs: Programs,
    file: Path,
    progress: Progress,
    *,
    replace: bool = False,
    privileges: bool = True,
    renew_id: bool = False,
) -> None:
    """Replace the schema by the backup, then migrate it.

    Conflict if a server or an agent has a lease, or if there are jobs, unless `replace`.
    """
    await check_archive(programs, file)
    async with database.acquire() as conn:
        found = await look(conn)
        major = conn.get_server_version().major
    if found.alive:
        raise _in_use(", ".join(found.alive))
    if not (found.empty or replace):
        holds = (
            f"jobs ({found.jobs}) and live tasks ({found.tasks})" if found.readable else "another schema `mainspring`"
        )
        raise Conflict(f"the database holds {holds}; --force puts the backup in its place")
    after = _AFTER.format(
        newest=migrations.known()[-1].number,
        error=_NEWER,
        renew="true" if renew_id else "false",
        at_least=_AT_LEAST,
        per_second=_PER_SECOND,
        sequences="".join(_SEQUENCE.format(name=name) for name in _SEQUENCES),
    )
    await _transfer(database.dsn, programs, file, progress, major, after.encode(), privileges=privileges)
    await migrations.migrate(database)


async def _transfer(
    dsn: str, programs: Programs, file: Path, progress: Progress, major: int, after: bytes, *, privileges: bool
) -> None:
    """pg_restore → this process → psql."""
    reading = ("--file=-", "--no-owner", *(() if privileges else ("--no-privileges",)), file)
    strict = ("--set=ON_ERROR_STOP=1", "--set=VERBOSITY=verbose")
    writing = ("--no-psqlrc", "--quiet", "--no-password", *strict, "--file=-")
    async with (
        programs.running("pg_restore", *reading, stdout=PIPE) as source,
        programs.running("psql", *writing, dsn=dsn, stdin=PIPE) as target,
    ):
        source_errors = asyncio.create_task(_all_of(source.stderr))
        target_errors = asyncio.create_task(_all_of(target.stderr))
        with suppress(BrokenPipeError, ConnectionResetError):  # psql has ended; its errors say why
            await _pass_on(source, target, major, progress)
            if await source.wait():
                why = last_lines(await source_errors)
                raise BackupFailed(f"{file} cannot be read to its end ({why}); nothing was changed")
            await _write(target, after)
        if target.stdin is not None:
            target.stdin.close()
            with suppress(BrokenPipeError, ConnectionResetError):
                await target.stdin.wait_closed()
        status, errors = await target.wait(), await target_errors
        source_errors.cancel()
        if status:
            raise _refused(errors)


async def _pass_on(source: Process, target: Process, major: int, progress: Progress) -> None:
    assert source.stdout is not None
    await _write(target, _BEFORE)
    header = await _first(source.stdout, _HEADER)  # where pg_restore sets what the rest depends on
    await _write(target, _NEWER_SETTING.sub(b"", header, count=1) if major < _SETTING_SINCE else header)
    passed = _HEADER
    while chunk := await source.stdout.read(_CHUNK):
        await _write(target, chunk)
        passed += len(chunk)
        progress(passed)


async def _first(stream: asyncio.StreamReader, size: int) -> bytes:
    try:
        return await stream.readexactly(size)
    except asyncio.IncompleteReadError as error:
        return error.partial


async def _write(target: Process, data: bytes) -> None:
    assert target.stdin is not None
    target.stdin.write(data)
    await target.stdin.drain()


async def _all_of(stream: asyncio.StreamReader | None) -> bytes:
    return b"" if stream is None else await stream.read()


def _in_use(alive: str) -> Conflict:
    return Conflict(
        f"in use by {alive}; stop what runs on this database first (what was killed counts until its lease is over)"
    )


def _refused(errors: bytes) -> MainspringError:
    """The error of ours for what psql wrote; nothing was changed."""
    text = errors.decode(errors="replace")
    if match := re.search(rf"ERROR:  {_LIVES}: (.*)", text):
        return _in_use(match[1])
    if match := re.search(rf"ERROR:  {_NEWER}: (.*)", text):
        return SchemaMismatch(
            f"the backup is of migration {match[1]}, and this program knows {migrations.known()[-1].number}; nothing "
            "was changed. Upgrade mainspring."
        )
    if "ERROR:  55P03" in text:
        return Conflict("an application uses the tables; stop what is connected to the database, then try again")
    if 'role "' in text and "does not exist" in text:
        return BackupFailed(
            f"{failure('nothing was changed', errors).message}; create the role, or leave rights out: --no-privileges"
        )
    return failure("nothing was changed", errors)
