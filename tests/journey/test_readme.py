"""Every block of the README is run as a reader would run it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.journey.pages import ROOT, Page, newcomer, run, type_check

README = Page("README.md")


@pytest.fixture
def place(tmp_path: Path, server_directory: Path) -> dict[str, str]:
    assert README.write_files(tmp_path) == ["shop.py"]
    return newcomer(tmp_path, server_directory)


def test_the_application_runs_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    assert run(README.blocks("bash")[0], place, tmp_path) == "10\n"


def test_the_machines_run_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    said = run(README.blocks("bash")[2], place, tmp_path)
    report = json.loads(next(line for line in said.splitlines() if "spread_ms" in line))
    assert (report["agents"], report["succeeded"]) == (2, 2)
    assert re.search(r"^ticker\s+2/2", said, re.MULTILINE), "both replicas are up"
    assert re.search(r"^alpha\s.*disk=ssd", said, re.MULTILINE)
    assert said.count('{"exit_code":0}') == 2, "also after one of the servers was killed"


def test_the_commands_run_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    said = run(README.blocks("bash")[1], place, tmp_path)
    assert "Filesystem" in said, "the output of the command"
    figures = json.loads(said[said.rindex('{"live') if '{"live' in said else said.rindex("\n{") :])
    assert figures["last_hour"]["succeeded"] >= 2, "the one that was submitted, and those of the schedule"
    assert "At 09:00 on Monday and Thursday" in said
    assert re.search(r"task \d+ fired at .*, [0-9.]+ ms late", said), "explain"


def test_the_application_passes_a_strict_type_check(tmp_path: Path, place: dict[str, str]) -> None:
    type_check(tmp_path, "shop.py")


def test_there_is_no_block_that_nobody_runs() -> None:
    assert sorted(README.languages) == ["bash"] * 3 + ["console", "python"]


def test_the_two_commands_of_the_first_block_are_targets() -> None:
    targets = re.findall(r"^\$ make (\w+)", README.blocks("console")[0], re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_every_page_that_is_linked_exists() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README.text):
        assert (ROOT / link).exists(), link
