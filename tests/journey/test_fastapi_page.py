"""docs/fastapi.md, followed word by word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.journey.pages import Page, newcomer, run, type_check

PAGE = Page("docs/fastapi.md")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    written = PAGE.write_files(tmp_path)
    assert written == ["shop/database.py", "shop/jobs.py", "shop/web.py", "tests/test_orders.py", "pyproject.toml"]
    return tmp_path


def test_the_shop_takes_an_order_and_sends_its_receipt(project: Path, server_directory: Path) -> None:
    said = run(PAGE.blocks("bash")[0], newcomer(project, server_directory), project, timeout=120)
    access_log = "INFO:"
    taken, sent, shown, *listed = [line for line in said.splitlines() if not line.startswith(access_log)]
    assert json.loads(taken) == {"number": "A-1", "receipt": 1}
    assert sent == "sent to ada@shop.example"
    assert json.loads(shown) == {
        "number": "A-1",
        "state": "confirmed",
        "receipt": {"state": "succeeded", "result": "sent to ada@shop.example"},
    }
    assert listed[-1].startswith("1\tsend_receipt\tsucceeded")


def test_its_own_tests_pass(project: Path, server_directory: Path) -> None:
    said = run(PAGE.blocks("bash")[1], newcomer(project, server_directory), project, timeout=120)
    assert "2 passed" in said


def test_it_passes_a_strict_type_check(project: Path) -> None:
    type_check(project, "shop", "tests")


def test_there_is_no_block_that_is_not_run() -> None:
    assert sorted(PAGE.languages) == ["bash"] * 2 + ["console"] + ["python"] * 4 + ["toml"]
