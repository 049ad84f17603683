"""A part of the suite against Debian's PostgreSQL 15, in a cluster that is thrown away afterwards.

`scripts/debian-postgres` installs it where that is possible.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg

import mainspring
from tests.debian import debians_postgresql, needs_debians
from tests.journey.conftest import ROOT

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
