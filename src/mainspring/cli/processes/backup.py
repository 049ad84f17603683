"""`mainspring backup`, `mainspring restore`, and `mainspring db`: the embedded PostgreSQL by itself

Next: store/maintenance/backup.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from mainspring.cli.base import Command, examples, shared
from mainspring.cli.render import confirm, counted, note, print_if_json

if TYPE_CHECKING:
    from pathlib import Path

    from mainspring.store.maintenance.dump_programs import Programs
    from mainspring.store.postgres.database import Database

_REPORT_SECONDS = 5.0
_CHECK_SECONDS = 1.0


@click.command(
    cls=Command,
    epilog=examples(
        "mainspring backup /backups/monday.dump",
        "mainspring backup --force latest.dump --dsn postgresql://scheduler@db/shop",
    ),
)
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
def backup(file: str, force: bool) -> None:
    """Write all that Mainspring keeps to FILE, while everything goes on.

    FILE is an archive of pg_dump's, of one instant, and was read again before it got its name.
    """
    import asyncio
    from pathlib import Path

    if not file or file == "-":
        raise click.UsageError("FILE: name a file; it is written under another name, and renamed when it is complete")
    size = asyncio.run(_back_up(Path(file).absolute(), shared().overrides(), force))
    confirm({"file": file, "bytes": size}, f"{file}: {_megabytes(size)}; `mainspring restore` brings it back")


@click.command(
    cls=Command,
    epilog=examples(
        "mainspring restore /backups/monday.dump --data ./fresh",
        "mainspring restore --force /backups/monday.dump  in place of what is there",
    ),
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--force", is_flag=True, help="Replace jobs and tasks that are there.")
@click.option("--no-privileges", is_flag=True, help="Leave out what was granted to other roles.")
@click.option("--renew-id", is_flag=True, help="For a copy whose original lives on: idempotency keys of its own.")
def restore(file: str, force: bool, no_privileges: bool, renew_id: bool) -> None:
    """Bring back what `mainspring backup` wrote to FILE.

    All of it or nothing, whatever happens on the way. Stop servers, workers and `mainspring up` first.
    """
    import asyncio
    from pathlib import Path

    options = {"replace": force, "privileges": not no_privileges, "renew_id": renew_id}
    tasks = asyncio.run(_restore(Path(file).absolute(), shared().overrides(), options))
    found = f"{counted(tasks['jobs'], 'job')}, {counted(tasks['tasks'], 'live task')}"
    confirm({"file": file, **tasks}, f"restored: {found}; now start what runs them")


@click.command(
    cls=Command,
    epilog=examples(
        "mainspring db                      until Ctrl-C; prints its DSN",
        "mainspring db --data ./mainspring  of another directory",
    ),
)
def db() -> None:
    """Run the embedded PostgreSQL by itself, for psql, pg_dump and the like.

    It stays up until Ctrl-C, and as long as anything else uses it.
    """
    import asyncio

    from mainspring.compose.local import data_directory, load

    settings = load(shared().overrides())
    if settings.dsn is not None:
        raise click.UsageError(
            "db runs the embedded PostgreSQL, and a DSN is set (--dsn, MAINSPRING_DSN or mainspring.toml); name a "
            "directory with --data, and no DSN"
        )
    asyncio.run(_run_alone(data_directory(settings)))


async def _back_up(file: Path, overrides: dict[str, str], force: bool) -> int:
    from mainspring.store.maintenance.backup import back_up

    async with _opened(overrides) as (database, programs):
        return await back_up(database, programs, file, _report("written"), replace=force)


async def _restore(file: Path, overrides: dict[str, str], options: dict[str, bool]) -> dict[str, int]:
    from mainspring.store.maintenance.restore import look, restore

    async with _opened(overrides, file) as (database, programs):
        await restore(database, programs, file, _report("read"), **options)
        async with database.acquire() as conn:
            found = await look(conn)
        return {"jobs": found.jobs, "tasks": found.tasks}


@asynccontextmanager
async def _opened(overrides: dict[str, str], file: Path | None = None) -> AsyncIterator[tuple[Database, Programs]]:
    """The database, and programs of its version that can read `file`."""
    from mainspring.compose.local import data_directory, load, open_database
    from mainspring.errors import NotFound
    from mainspring.store.maintenance.backup import programs_of

    settings = load(overrides)
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


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


async def _run_alone(directory: Path) -> None:
    """Run until a signal. If PostgreSQL dies, start it again, as every user of it does."""
    import asyncio
    from contextlib import suppress

    from mainspring.cli.runtime import Signals
    from mainspring.store.embedded.server import Embedded

    signals = Signals()
    embedded = await asyncio.to_thread(Embedded.start, directory)
    try:
        if not print_if_json({"dsn": embedded.dsn, "data": str(embedded.directory)}):
            click.echo(embedded.dsn)
        sys.stdout.flush()
        note("PostgreSQL is up, for psql and others with this DSN; Ctrl-C stops it")
        while not signals.asked.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):
                    await signals.asked.wait()
            await asyncio.to_thread(embedded.revive)
    finally:
        await asyncio.to_thread(embedded.stop)
    note("stopped")
