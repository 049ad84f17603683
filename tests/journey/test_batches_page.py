"""docs/how-to/batches.md: its application, its commands and its SQL, as they stand."""

from __future__ import annotations

import re
from pathlib import Path

from mainspring.model.tasks.jobs import Definition, Python
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import jobs
from tests.journey.pages import Block, Page, clone, run
from tests.store.batches.helpers import settle

PAGE = Page("docs/how-to/batches.md")
UP = Block("bash", "mainspring up > up.log 2>&1 &\nwhile ! mainspring agents | grep -q active; do sleep 0.2; done\n")
STOP = Block("bash", "kill %1\nwait\n")


def test_the_application_runs_as_written(tmp_path: Path, dsn: str) -> None:
    fresh = clone(tmp_path)
    (application,) = PAGE.of("python")
    environment = fresh | {"PATH": f"{tmp_path}/.venv/bin:{fresh['PATH']}", "MAINSPRING_DSN": dsn}
    said = run(application, Block("bash", "python shop.py\n"), directory=tmp_path, environment=environment)
    assert sorted(said.splitlines()) == sorted(
        [
            "succeeded 5 of 5",
            "2026-11: 5 files",
            "failed 1 of 2",
            *re.findall(r"import 2026-12: 1 failed, such as task \d+", said),
        ]
    )
    assert len(said.splitlines()) == 4


def test_the_commands_run_as_written(tmp_path: Path, server_directory: Path) -> None:
    fresh = clone(tmp_path)
    environment = fresh | {"PATH": f"{tmp_path}/.venv/bin:{fresh['PATH']}"}
    environment["MAINSPRING_DATA_DIRECTORY"] = str(server_directory)
    said = run(UP, *PAGE.of("bash"), STOP, directory=tmp_path, environment=environment, timeout=90.0)
    assert "state\tsucceeded" in said
    assert "complete\tall-welcome" in said
    assert said.count("\twelcome\tsucceeded") == 2


async def test_the_sql_runs_as_written(conn: Connection) -> None:
    await jobs.register(conn, {name: Definition(Python(name)) for name in ("load", "publish")})
    (block,) = PAGE.of("sql")
    statements = [line.partition(";")[0] for line in block.text.splitlines() if line.startswith("select")]
    batch = await conn.fetchval(statements[0])
    for statement in statements[1:]:
        await conn.fetchval(statement.replace("17", str(batch)))
    await settle(conn)
    assert await conn.fetchval("select state from mainspring.batch where id = $1", batch) == 1


def test_there_is_no_block_that_is_not_run() -> None:
    assert [block.language for block in PAGE.blocks] == ["python", "bash", "sql"]
