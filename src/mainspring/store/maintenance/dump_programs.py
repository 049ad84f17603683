"""pg_dump, pg_restore and psql: which of those on this machine fit a server, and how they are run.

The embedded PostgreSQL comes with its own. For others, one that is installed goes first: it may speak TLS, the wheel's
does not.

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

_REST = 1 << 16
_NEEDED = ("pg_dump", "pg_restore", "psql")
_DEBIAN = "/usr/lib/postgresql"
_VERSION = re.compile(r"\b(\d+)")
_ERROR = re.compile(r"(?:ERROR|FATAL):  (?:([0-9A-Z]{5}): )?(.*)")
_SAID_LINES = 3


@dataclass(frozen=True)
class Programs:
    """A folder with all three, of one version."""

    folder: Path
    major: int

    @asynccontextmanager
    async def running(
        self, name: str, *arguments: str | Path, dsn: str | None = None, **pipes: Any
    ) -> AsyncIterator[Process]:
        """One of them at work; it does not outlive the block. Passwords go by the environment."""
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
            while process.stdout is not None and await process.stdout.read(_REST):
                pass  # `wait` waits for the pipes too, and nobody would find the end of one that is full
            await process.wait()

    async def run(self, name: str, *arguments: str | Path) -> tuple[int, bytes, bytes]:
        """Run one of them to its end: status, output, errors."""
        async with self.running(name, *arguments, stdout=PIPE) as process:
            output, errors = await process.communicate()
            return process.returncode or 0, output, errors


def programs_for(major: int, *, embedded: bool) -> list[Programs]:
    """Programs for a server of this version, as new as it is or newer; the best ones first."""
    folders = [_of_the_wheel()] if embedded else [*_installed(), _of_the_wheel()]
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
    # On Debian the one on the path is a script that looks for the right version; the real ones are beside each other.
    return [*by_version, *([Path(on_path).resolve().parent] if on_path else [])]


def _of_the_wheel() -> Path | None:
    with suppress(EmbeddedUnavailable):
        return find_wheel() / f"pginstall{MAJOR}" / "bin"
    return None


def _major(folder: Path) -> int:
    said = subprocess.run([folder / "pg_dump", "--version"], capture_output=True, text=True, check=False).stdout
    return _number(said)


def _number(text: str) -> int:
    match = _VERSION.search(text)
    return int(match[1]) if match else 0


def said(errors: bytes) -> str:
    """The last lines that a program wrote, as one."""
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return "; ".join(lines[-_SAID_LINES:]) or "it did not say why"


def failure(what: str, errors: bytes) -> AccessDenied | BackupFailed | StoreUnavailable:
    """Our error for what one of the programs wrote before it gave up."""
    match = _ERROR.search(errors.decode(errors="replace"))
    state, message = (match[1] or "", match[2]) if match else ("", "")
    if state == "42501" or message.startswith("permission denied"):
        return AccessDenied(f"{what}: {message}; use a role that owns the schema and may create one in the database")
    return BackupFailed(f"{what}: {message or said(errors)}")
