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

# SQL that an older planner may plan in another way. Not all tests: a database takes longer to make there.
STORE = (
    "cluster/test_agents",
    "cluster/test_leases",
    "cluster/test_segments",
    "limits/test_release",
    "postgres/test_migrate",
    "schedules/test_overlap",
    "schedules/test_revoke",
    "tasks/test_claims",
    "submission/test_enqueue",
    "tasks/test_partitions",
    "tasks/test_transitions",
)
SDK = ("test_submit",)
PART = [*(f"tests/store/{name}.py" for name in STORE), *(f"tests/sdk/{name}.py" for name in SDK)]


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
