"""docs/how-to/http-bodies.md, followed with curl."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from mainspring.api.openapi import document
from mainspring.api.rows import ROWS
from tests.journey.pages import Page, clone, run

PAGE = Page("docs/how-to/http-bodies.md")


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="there is no curl or no jq")
def test_the_page_runs_as_written(tmp_path: Path, server_directory: Path) -> None:
    fresh = clone(tmp_path)
    environment = fresh | {"PATH": f"{tmp_path}/.venv/bin:{fresh['PATH']}"}
    environment["MAINSPRING_DATA_DIRECTORY"] = str(server_directory)
    said = re.sub(r"\s+", " ", run(*PAGE.of("bash"), directory=tmp_path, environment=environment, timeout=90.0))
    assert '{ "created": true, "job": "greet", "version": 1 }' in said
    assert '{ "created": true, "days": [ "2026-12-24", "12-25", "01-01", "sun" ] }' in said
    assert '{ "created": true, "version": 1 }' in said
    assert '{ "created": false, "version": 2 }' in said
    assert '{ "created": true, "daemon": "watcher" }' in said
    assert '{"done":2,"skipped":[]} {"done":1,"skipped":[],"next":null}' in said
    assert '"secret": true' in said


def test_the_page_names_the_body_of_each_operation() -> None:
    paths = document(ROWS)["paths"]
    told = re.findall(r"^## .*`(\w+) (/\S+)`\n\n`(\w+)`", PAGE.text, re.MULTILINE)
    assert len(told) == 6
    for method, path, name in told:
        body = paths[f"/api/v1{path}"][method.lower()]["requestBody"]
        assert body["content"]["application/json"]["schema"]["$ref"].endswith(f"/{name}")
