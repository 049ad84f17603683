"""docs/tutorial/http-api.md, followed by a newcomer with curl."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.journey.pages import Page, clone, run

PAGE = Page("docs/tutorial/http-api.md")
pytestmark = pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="there is no curl or no jq")


def test_the_page_runs_as_written(tmp_path: Path, server_directory: Path) -> None:
    fresh = clone(tmp_path)
    environment = fresh | {"PATH": f"{tmp_path}/.venv/bin:{fresh['PATH']}"}
    environment["MAINSPRING_DATA_DIRECTORY"] = str(server_directory)
    said = run(*PAGE.of("bash"), directory=tmp_path, environment=environment, timeout=90.0)
    assert '"status":"ready"' in said
    made, again = re.search(r'"id": (\d+),\s+"created": true,\s+"state": "succeeded"\s+}\n(\d+)\n', said).groups()  # type: ignore[union-attr]
    assert made == again, "the same key is the same task"
    assert "hello\nbye\n" in said, "its output"
    assert re.search(r'"created",\s+"due",.*"recorded"', said, re.DOTALL), "its phases"
    assert said.count("event: bye") == 2, "both streams were told to their end"
    assert re.search(r'data: {.*"text":"hello\\n"', said)
    assert '"state":"cancelled"' in said
    refused = re.findall(r'"status": (\d+),\s+"code": "(\w+)"', said)
    wanted = [("409", "invalid_transition"), ("422", "validation"), ("403", "forbidden"), ("401", "unauthorized")]
    assert refused == wanted
    assert "did you mean priority?" in said


def test_there_is_no_block_that_is_not_run() -> None:
    assert {block.language for block in PAGE.blocks} == {"bash"}
