"""Debian's PostgreSQL 15, in clusters that are thrown away afterwards.

`scripts/debian-postgres` installs it where that is possible.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.places import memory

BIN = Path("/usr/lib/postgresql/15/bin")
AS_ROOT = os.geteuid() == 0
ACCOUNT = "nobody"  # PostgreSQL refuses to run as root

needs_debians = pytest.mark.skipif(
    not (BIN / "initdb").exists(), reason="PostgreSQL 15 is not installed; scripts/debian-postgres does that"
)


def run(*command: str | Path, as_account: bool = AS_ROOT) -> None:
    user = {"user": ACCOUNT, "group": "nogroup", "extra_groups": []} if as_account else {}
    ended = subprocess.run(  # type: ignore[call-overload]
        [str(part) for part in command],
        cwd="/",
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **user,
    )
    assert ended.returncode == 0, f"{command[0]}: {ended.stdout}{ended.stderr}"


def until_it_answers(dsn: str, log: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(dsn).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)


@contextmanager
def debians_postgresql(
    files: Mapping[str, str] | None = None, settings: Sequence[str] = (), port: int = 5432
) -> Iterator[str]:
    """A new cluster on a socket of its own, run by an account without rights.

    `files` go into its data directory before it starts, and belong to that account; `settings` are for postgresql.conf.
    """
    directory = Path(tempfile.mkdtemp(prefix="mainspring-pg15-", dir=memory()))
    data, log = directory / "data", directory / "log"
    if AS_ROOT:
        shutil.chown(directory, ACCOUNT, "nogroup")
    try:
        run(BIN / "initdb", f"--pgdata={data}", "--username=tester", "--auth=trust", "--encoding=UTF8", "--no-sync")
        for name, text in (files or {}).items():
            (data / name).write_text(text)
            (data / name).chmod(0o600)
            if AS_ROOT:
                shutil.chown(data / name, ACCOUNT, "nogroup")
        given = (
            f"port={port}",
            "listen_addresses=",
            f"unix_socket_directories={directory}",
            "fsync=off",
            "max_connections=200",
            *settings,
        )
        options = " ".join(f"-c {setting}" for setting in given)  # the last one counts
        run(BIN / "pg_ctl", "start", f"--pgdata={data}", f"--log={log}", "--silent", "--no-wait", "-o", options)
        try:
            dsn = f"postgresql:///postgres?host={quote(str(directory), safe='')}&port={port}&user=tester"
            until_it_answers(dsn, log)
            yield dsn
        finally:
            run(BIN / "pg_ctl", "stop", f"--pgdata={data}", "--mode=immediate", "--silent")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
