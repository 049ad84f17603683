"""docs/how-to/fastapi.md, followed word by word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.journey.pages import Page, clone, run

PAGE = Page("docs/how-to/fastapi.md")
RUNNING, TESTING = PAGE.of("bash")


def environment(project: Path, data: Path) -> dict[str, str]:
    """With the virtual environment of the clone on the path, as the page says."""
    fresh = clone(project)
    return fresh | {"PATH": f"{project}/.venv/bin:{fresh['PATH']}", "MAINSPRING_DATA_DIRECTORY": str(data)}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    assert PAGE.save(tmp_path) == [
        "shop/database.py",
        "shop/jobs.py",
        "shop/web.py",
        "tests/test_orders.py",
        "pyproject.toml",
    ]
    return tmp_path


def test_the_shop_takes_an_order_and_sends_its_receipt(project: Path, server_directory: Path) -> None:
    said = run(RUNNING, directory=project, environment=environment(project, server_directory), timeout=120)
    taken, shown, *listed = [line for line in said.splitlines() if not line.startswith("INFO:")]  # uvicorn's own
    assert json.loads(taken) == {"number": "A-1", "receipt": 1}
    assert json.loads(shown) == {
        "number": "A-1",
        "state": "confirmed",
        "receipt": {"state": "succeeded", "result": "sent to ada@shop.example"},
    }
    assert listed[-1].startswith("1\tsend_receipt\tsucceeded")


def test_its_own_tests_pass(project: Path, server_directory: Path) -> None:
    said = run(TESTING, directory=project, environment=environment(project, server_directory), timeout=120)
    assert "2 passed" in said


def test_there_is_no_block_that_is_not_run() -> None:
    assert [block.language for block in PAGE.blocks if block.language not in ("console", "text")] == [
        "python", "python", "python", "bash", "python", "toml", "bash",
    ]  # fmt: skip
