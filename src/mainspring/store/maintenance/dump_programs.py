"""Dump programs: find the pg_dump, pg_restore and psql that fit a server, and run them.

The embedded PostgreSQL brings its own. For other servers installed programs come first: the wheel's have no TLS.

Runs  pg_dump, pg_restore, psql
Next: store/maintenance/backup.py
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mainspring.errors import AccessDenied, BackupFailed, EmbeddedUnavailable, StoreUnavailable
from mainspring.store.embedded.account import MAJOR, find_wheel
from mainspring.store.postgres.dsn import without_password

_CHUNK = 1 << 16
_NEEDED = ("pg_dump", "pg_restore", "psql")
_DEBIAN = "/usr/lib/postgresql"
_VERSION = re.compile(r"\b(\d+)")
_ERROR = re.compile(r"(?:ERROR|FATAL):  (?:([0-9A-Z]{5}): )?(.*)")
_LAST_LINES = 3


@dataclass(frozen=True)
class Programs:
    """A folder with all three, of one version."""

    folder: Path
    major: int

    @asynccontextmanager
    async def running(
        self, name: str, *arguments: str | Path, dsn: str | None = None, **pipes: Any
    ) -> AsyncIterator[Process]:
        """Run one of them; it is killed at the end of the block. The password goes by the environment."""
        environment = {**os.environ, "LC_ALL": "C", "PGAPPNAME": f"mainspring {name}"}
        if dsn is not None:
            shown, password = without_password(dsn)
            arguments = (*arguments, f"--dbname={shown}")
            environment |= {"PGTARGETSESSIONATTRS": "read-write"} | ({"PGPASSWORD": password} if password else {})
        pipes = {"stdin": DEVNULL, "stdout": DEVNULL, "stderr": PIPE, **pipes}
        process = await asyncio.create_subprocess_exec(self.folder / name, *arguments, env=environment, **pipes)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            while process.stdout is not None and await process.stdout.read(_CHUNK):
                pass  # `wait` also waits for the pipe, which must be drained
            await process.wait()

    async def run(self, name: str, *arguments: str | Path) -> tuple[int, bytes, bytes]:
        """Run one of them to its end: exit status, output, errors."""
        async with self.running(name, *arguments, stdout=PIPE) as process:
            output, errors = await process.communicate()
            return process.returncode or 0, output, errors


def programs_for(major: int, *, embedded: bool) -> list[Programs]:
    """Programs as new as a server of this version, or newer; the best ones first."""
    folders = [_bundled()] if embedded else [*_installed(), _bundled()]
    complete = [folder for folder in folders if folder and all((folder / name).is_file() for name in _NEEDED)]
    found = [Programs(folder, _major(folder)) for folder in complete]
    fitting = [programs for programs in found if programs.major >= major]
    if fitting:
        return fitting
    have = ", ".join(str(programs.major) for programs in found) or "none"
    raise BackupFailed(
        f"PostgreSQL is {major}, and pg_dump must be as new (found here: {have}); install postgresql-client-{major}"
    )


def _installed() -> list[Path]:
    on_path = shutil.which("pg_dump")
    by_version = sorted(Path(_DEBIAN).glob("*/bin"), key=lambda folder: _number(folder.parent.name), reverse=True)
    # On Debian the one on the path is a wrapper script; the real ones are under /usr/lib/postgresql.
    return [*by_version, *([Path(on_path).resolve().parent] if on_path else [])]


def _bundled() -> Path | None:
    with suppress(EmbeddedUnavailable):
        return find_wheel() / f"pginstall{MAJOR}" / "bin"
    return None


def _major(folder: Path) -> int:
    version = subprocess.run([folder / "pg_dump", "--version"], capture_output=True, text=True, check=False)
    return _number(version.stdout)


def _number(text: str) -> int:
    match = _VERSION.search(text)
    return int(match[1]) if match else 0


def last_lines(errors: bytes) -> str:
    """The last lines of a program's errors, joined."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return "; ".join(lines[-_LAST_LINES:]) or "it did not say why"


def failure(what: str, errors: bytes) -> AccessDenied | BackupFailed | StoreUnavailable:
    """The error of ours for what a program wrote before it failed."""
    match = _ERROR.search(errors.decode(errors="replace"))
    state, message = (match[1] or "", match[2]) if match else ("", "")
    if state == "42501" or message.startswith("permission denied"):
        return AccessDenied(f"{what}: {message}; use a role that owns the schema and may create one in the database")
    return BackupFailed(f"{what}: {message or last_lines(errors)}")
