"""docs/how-to/chunks.md and docs/how-to/queues.md: their applications, commands and SQL, as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mainspring.model.tasks.jobs import Definition, Python
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import jobs
from tests.journey.pages import Block, Page, clone, run

CHUNKS = Page("docs/how-to/chunks.md")
QUEUES = Page("docs/how-to/queues.md")
UP = Block(
    "bash",
    "mainspring up shop:app > up.log 2>&1 &\nwhile ! mainspring agents | grep -q active; do sleep 0.2; done\n",
)
STOP = Block("bash", "kill %1\nwait\n")


@pytest.fixture
def place(tmp_path: Path, server_directory: Path) -> dict[str, str]:
    fresh = clone(tmp_path)
    return fresh | {"PATH": f"{tmp_path}/.venv/bin:{fresh['PATH']}", "MAINSPRING_DATA_DIRECTORY": str(server_directory)}


def test_the_applications_of_chunks_run_as_written(place: dict[str, str], tmp_path: Path) -> None:
    assert CHUNKS.save(tmp_path) == ["products.py", "files.py"]
    said = run(Block("bash", "python products.py\npython products.py\n"), directory=tmp_path, environment=place)
    assert sum(map(int, re.findall(r"^one call for (\d+)$", said, re.MULTILINE))) == 8, "also a second time"
    found, missing = run(Block("bash", "python files.py\n"), directory=tmp_path, environment=place).splitlines()
    assert found == f"{(tmp_path / 'files.py').stat().st_size} bytes"
    assert "No such file or directory" in missing


async def test_the_sql_of_chunks_runs_as_written(conn: Connection) -> None:
    await jobs.register(conn, {"load": Definition(Python("load"))})
    (block,) = CHUNKS.of("sql")
    assert await conn.fetchval(block.text) is not None


def test_the_application_and_the_commands_of_queues_run_as_written(place: dict[str, str], tmp_path: Path) -> None:
    assert QUEUES.save(tmp_path) == ["shop.py"]
    alone = run(Block("bash", "python shop.py\n"), directory=tmp_path, environment=place)
    assert alone == "2 wait, 2 may; again in 60 s\nreminded user 7\n"
    said = run(UP, *QUEUES.of("bash"), STOP, directory=tmp_path, environment=place, timeout=90.0)
    assert re.search(r"^core\tyes\t", said, re.MULTILINE), "the rule that decides"
    assert re.search(r"^priority\t7.*by rule 'core'", said, re.MULTILINE)


def test_there_is_no_block_that_is_not_run() -> None:
    assert [block.language for block in CHUNKS.blocks] == ["python", "sql", "python"]
    assert [block.language for block in QUEUES.blocks] == ["python", "bash", "bash", "bash"]
