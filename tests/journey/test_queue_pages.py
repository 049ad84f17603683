"""docs/how-to/chunks.md and docs/how-to/queues.md: their applications, commands and SQL, as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


OTHERS = """
import asyncio, sys
import products

async def main():
    async with products.app.running(), products.app.database.acquire() as conn:
        task = await products.load.enqueue(id=6, name="sofa")  # by name
        await task.result(timeout=60)
        await products.load.task(await conn.fetchval(sys.stdin.read())).result(timeout=60)
        print(*[row["name"] for row in await conn.fetch("select name from public.product order by id")])

asyncio.run(main())
"""


def test_a_chunk_takes_what_is_submitted_by_name_and_with_sql(place: dict[str, str], tmp_path: Path) -> None:
    CHUNKS.save(tmp_path)
    (block,) = CHUNKS.of("sql")
    (tmp_path / "others.py").write_text(OTHERS)
    (tmp_path / "load.sql").write_text(block.text)
    script = Block("bash", "python products.py > /dev/null\npython others.py < load.sql\n")
    said = run(script, directory=tmp_path, environment=place)
    assert said.splitlines()[-1] == "chair table lamp shelf desk sofa"


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
