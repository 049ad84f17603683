"""Backup: a consistent dump of the schema in a file, which appears once it is complete and verified.

pg_dump reads in one transaction while everything runs; only the dropping of old partitions waits for it.

Writes  FILE, mode 0600; until it is complete, a hidden file beside it
Next:   store/maintenance/restore.py
"""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import asyncpg
import psutil

from mainspring.errors import AccessDenied, BackupFailed, Conflict, NotFound, ValidationError
from mainspring.store.embedded.data_directory import sync
from mainspring.store.maintenance.dump_programs import Programs, failure, last_lines, programs_for
from mainspring.store.postgres.connecting.connect_errors import needs_direct
from mainspring.store.postgres.database import Database
from mainspring.store.postgres.dsn import hosts_of
from mainspring.store.postgres.errors import first_line

# A line of our archives' table of contents: "3412; 0 16405 TABLE DATA mainspring migration owner".
_OURS = b" TABLE DATA mainspring migration "
_STEP_SECONDS = 0.5

Progress = Callable[[int], None]  # bytes so far


async def programs_of(database: Database, *, embedded: bool, file: Path | None = None) -> Programs:
    """Programs that fit the server of this database and can read `file`. ValidationError behind a pooler."""
    async with database.acquire() as conn:
        major = conn.get_server_version().major
    if database.behind_pooler:
        hosts = hosts_of(database.dsn)
        raise needs_direct(str(hosts[0]) if hosts else "the host of the DSN")
    fitting = await asyncio.to_thread(programs_for, major, embedded=embedded)
    if file is not None:
        for programs in fitting:
            if (await programs.run("pg_restore", "--list", file))[0] == 0:
                return programs
    return fitting[0]


async def back_up(
    database: Database, programs: Programs, file: Path, progress: Progress, *, replace: bool = False
) -> int:
    """Write the schema to `file`; returns its size. Conflict if the file exists, unless `replace`."""
    if not replace and await asyncio.to_thread(file.exists):
        raise _taken(file)
    async with database.acquire() as conn:
        try:
            has_schema = await conn.fetchval("select to_regclass('mainspring.migration') is not null")
        except asyncpg.InsufficientPrivilegeError as error:
            raise not_allowed(error) from error
        if not has_schema:
            raise NotFound("this database has no schema of Mainspring, so there is nothing to back up")
    await asyncio.to_thread(_remove_stale_drafts, file)
    draft = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ValidationError(f"file: {file.parent} cannot be written to ({error.strerror})", field="file") from error
    try:
        await _dump(database.dsn, programs, draft, progress)
        await check_archive(programs, draft, thoroughly=True)
        await asyncio.to_thread(os.fsync, descriptor)
        size = os.fstat(descriptor).st_size
        _put(draft, file, replace=replace)
        return size
    finally:
        os.close(descriptor)
        draft.unlink(missing_ok=True)


def not_allowed(error: asyncpg.InsufficientPrivilegeError) -> AccessDenied:
    return AccessDenied(f"PostgreSQL does not allow it ({first_line(error)}); use the role that owns the schema")


def _remove_stale_drafts(file: Path) -> None:
    """Remove the drafts of killed backups of this file."""
    for draft in file.parent.glob(f".{glob.escape(file.name)}.*.part"):
        process = draft.name.removesuffix(".part").rpartition(".")[2]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            draft.unlink(missing_ok=True)


async def _dump(dsn: str, programs: Programs, draft: Path, progress: Progress) -> None:
    # With --file, not on stdout: there pg_dump repeats its table of contents, and a truncated file would pass.
    options = ("--format=custom", "--schema=mainspring", "--no-password", f"--file={draft}")
    async with programs.running("pg_dump", *options, dsn=dsn) as process:
        ended = asyncio.create_task(process.communicate())
        while not (await asyncio.wait([ended], timeout=_STEP_SECONDS))[0]:
            progress(await asyncio.to_thread(os.path.getsize, draft))
        _, errors = await ended
        if process.returncode:
            raise failure("pg_dump failed", errors)


async def check_archive(programs: Programs, file: Path, *, thoroughly: bool = False) -> None:
    """ValidationError if it is no archive of ours; `thoroughly` also reads all of it, or raises BackupFailed."""
    status, contents, errors = await programs.run("pg_restore", "--list", file)
    if status:
        raise ValidationError(f"file: {file} is no backup that can be read ({last_lines(errors)})", field="file")
    if not any(_OURS in line for line in contents.splitlines()):
        raise ValidationError(f"file: {file} holds no schema of Mainspring", field="file")
    if thoroughly:
        status, _, errors = await programs.run("pg_restore", f"--file={os.devnull}", file)
        if status:
            raise BackupFailed(f"the backup cannot be read again ({last_lines(errors)}); is the disk in order?")


def _taken(file: Path) -> Conflict:
    return Conflict(f"{file} is there already; take another name, or --force to replace it", field="file")


def _put(draft: Path, file: Path, *, replace: bool) -> None:
    """Give the draft its final name, durably."""
    if not replace:
        try:
            os.link(draft, file)  # unlike a rename, it never replaces a file
        except FileExistsError:
            raise _taken(file) from None
        except OSError:  # a file system without hard links
            draft.replace(file)
    else:
        draft.replace(file)
    with suppress(OSError):
        sync(file.parent)
