"""A part of the suite against Debian's PostgreSQL 15, in a cluster that is thrown away afterwards.

`scripts/debian-postgres` installs it where that is possible.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

import mainspring
from tests.journey.conftest import ROOT

BIN = Path("/usr/lib/postgresql/15/bin")
AS_ROOT = os.geteuid() == 0
ACCOUNT = "nobody"  # PostgreSQL refuses to run as root
# What has SQL of its own that an older planner may see in another way. Each test copies a database, which takes longer
# there: all of it would take minutes.
STORE = (
    "agents",
    "claims",
    "gates",
    "leases",
    "migrate",
    "outcomes",
    "partitions",
    "recalls",
    "segments",
    "submit",
    "turns",
)
SDK = ("submit", "drivers", "once")
PART = [*(f"tests/store/test_{name}.py" for name in STORE), *(f"tests/sdk/test_{name}.py" for name in SDK)]

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
def debians_postgresql() -> Iterator[str]:
    """A new cluster on a socket of its own, run by an account without rights."""
    directory = Path(tempfile.mkdtemp(prefix="mainspring-pg15-"))
    data, log = directory / "data", directory / "log"
    if AS_ROOT:
        shutil.chown(directory, ACCOUNT, "nogroup")
    try:
        run(BIN / "initdb", f"--pgdata={data}", "--username=tester", "--auth=trust", "--encoding=UTF8", "--no-sync")
        settings = f"-c listen_addresses= -c unix_socket_directories={directory} -c fsync=off -c max_connections=200"
        run(BIN / "pg_ctl", "start", f"--pgdata={data}", f"--log={log}", "--silent", "--no-wait", "-o", settings)
        try:
            dsn = f"postgresql:///postgres?host={quote(str(directory), safe='')}&user=tester"
            until_it_answers(dsn, log)
            yield dsn
        finally:
            run(BIN / "pg_ctl", "stop", f"--pgdata={data}", "--mode=immediate", "--silent")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@needs_debians
def test_the_store_and_the_sdk_work_on_debians_postgresql() -> None:
    with debians_postgresql() as dsn:
        with psycopg.connect(dsn) as conn:
            assert conn.info.server_version // 10_000 == 15
        source = str(Path(mainspring.__file__).parents[1])
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *PART],
            cwd=ROOT,
            env={**os.environ, "MAINSPRING_TEST_DSN": dsn, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout
