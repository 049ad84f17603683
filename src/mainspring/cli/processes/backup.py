"""`mainspring backup`, `mainspring restore`, and `mainspring db`: the embedded PostgreSQL by itself

Next: store/maintenance/backup.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import click

from mainspring.cli.base import command, run_async, shared
from mainspring.cli.render import confirm, counted, note, print_if_json
from mainspring.errors import NotFound

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring.store.maintenance.dump_programs import Programs
    from mainspring.store.postgres.database import Database

_REPORT_SECONDS = 5.0
_CHECK_SECONDS = 1.0


@command(
    "backup",
    "mainspring backup /backups/monday.dump",
    "mainspring backup --force latest.dump --dsn postgresql://scheduler@db/shop",
)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@run_async
async def backup(file: str, force: bool) -> None:
    """Write all data of Mainspring to FILE, while it runs.

    FILE is an archive of pg_dump's, of one instant, and was read again before it got its name.
    """
    from mainspring.store.maintenance.backup import back_up

    if not file or file == "-":
        raise click.UsageError("FILE: name a file; it is written under another name, and renamed when it is complete")
    async with _opened() as (database, programs):
        size = await back_up(database, programs, _absolute(file), _report("written"), replace=force)
    confirm({"file": file, "bytes": size}, f"{file}: {_megabytes(size)}; `mainspring restore` brings it back")


@command(
    "restore",
    "mainspring restore /backups/monday.dump --data ./fresh",
    "mainspring restore --force /backups/monday.dump  in place of what is there",
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace jobs and tasks that are there.")
@click.option("--no-privileges", is_flag=True, help="Leave out what was granted to other roles.")
@click.option("--renew-id", is_flag=True, help="For a copy whose original lives on: idempotency keys of its own.")
@run_async
async def restore(file: str, force: bool, no_privileges: bool, renew_id: bool) -> None:
    """Bring back what `mainspring backup` wrote to FILE.

    All of it or nothing, whatever happens on the way. Stop servers, workers and `mainspring up` first.
    """
    from mainspring.store.maintenance import restore as restoring

    path = _absolute(file)
    options = {"replace": force, "privileges": not no_privileges, "renew_id": renew_id}
    async with _opened(path) as (database, programs):
        await restoring.restore(database, programs, path, _report("read"), **options)
        async with database.acquire() as conn:
            found = await restoring.look(conn)
    told = f"{counted(found.jobs, 'job')}, {counted(found.tasks, 'live task')}"
    confirm({"file": file, "jobs": found.jobs, "tasks": found.tasks}, f"restored: {told}; now start what runs them")


@command(
    "db",
    "mainspring db                      until Ctrl-C; prints its DSN",
    "mainspring db --data ./mainspring  of another directory",
)
@run_async
async def db() -> None:
    """Run the embedded PostgreSQL by itself, for psql, pg_dump and the like.

    It stays up until Ctrl-C, and as long as anything else uses it.
    """
    import asyncio

    from mainspring.cli.runtime import StopSignals
    from mainspring.compose.stores import data_directory
    from mainspring.config import load
    from mainspring.store.embedded.server import Embedded

    settings = load(shared().overrides())
    if settings.dsn is not None:
        raise click.UsageError(
            "db runs the embedded PostgreSQL, and a DSN is set (--dsn, MAINSPRING_DSN or mainspring.toml); name a "
            "directory with --data, and no DSN"
        )
    signals = StopSignals()
    embedded = await asyncio.to_thread(Embedded.start, data_directory(settings))
    try:
        if not print_if_json({"dsn": embedded.dsn, "data": str(embedded.directory)}):
            click.echo(embedded.dsn)
        sys.stdout.flush()
        note("PostgreSQL is up, for psql and others with this DSN; Ctrl-C stops it")
        while not signals.asked.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await signals.asked.wait()
            await asyncio.to_thread(embedded.revive)  # if it died
    finally:
        await asyncio.to_thread(embedded.stop)
    note("stopped")


@asynccontextmanager
async def _opened(file: Path | None = None) -> AsyncIterator[tuple[Database, Programs]]:
    """The database, and programs of its version that can read `file`."""
    from mainspring.compose.stores import data_directory, open_database
    from mainspring.config import load
    from mainspring.store.maintenance.backup import programs_of

    settings = load(shared().of_database())
    directory = data_directory(settings)
    if file is None and settings.dsn is None and not (directory / "data").exists():
        raise NotFound(f"{directory} holds no data; name another directory with --data, or a PostgreSQL with --dsn")
    async with open_database(settings, prepare=False) as database:
        yield database, await programs_of(database, embedded=settings.dsn is None, file=file)


def _report(what: str) -> Callable[[int], None]:
    """Prints the progress every few seconds."""
    last = time.monotonic()

    def report(size: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _REPORT_SECONDS:
            last = now
            note(f"{_megabytes(size)} {what}")

    return report


def _absolute(file: str) -> Path:
    from pathlib import Path

    return Path(file).absolute()


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
