"""Every block of the README is run as a reader would run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def place(tmp_path: Path, server_directory: Path) -> dict[str, str]:
    """The environment of somebody who has just set it up: nothing but the commands."""
    (tmp_path / "shop.py").write_text(blocks("python")[0], encoding="utf-8")
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "MAINSPRING_DATA_DIRECTORY": str(server_directory),
    }


def run(script: str, place: dict[str, str], tmp_path: Path) -> str:
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_application_runs_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    assert run(blocks("bash")[0], place, tmp_path) == "10\n"


def test_the_machines_run_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    said = run(blocks("bash")[2], place, tmp_path)
    report = json.loads(next(line for line in said.splitlines() if "spread_ms" in line))
    assert (report["agents"], report["succeeded"]) == (2, 2)
    assert re.search(r"^ticker\s+2/2", said, re.MULTILINE), "both replicas are up"
    assert re.search(r"^alpha\s.*disk=ssd", said, re.MULTILINE)
    assert said.count('{"exit_code":0}') == 2, "also after one of the servers was killed"


def test_the_commands_run_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    said = run(blocks("bash")[1], place, tmp_path)
    assert "Filesystem" in said, "the output of the command"
    figures = json.loads(said[said.rindex('{"live') if '{"live' in said else said.rindex("\n{") :])
    assert figures["last_hour"]["succeeded"] >= 2, "the one that was submitted, and those of the schedule"
    assert "At 09:00 on Monday and Thursday" in said
    assert re.search(r"task \d+ fired at .*, [0-9.]+ ms late", said), "explain"


def test_the_application_passes_a_strict_type_check(tmp_path: Path, place: dict[str, str]) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_there_is_no_block_that_nobody_runs() -> None:
    assert len(re.findall(r"^```\w+$", README, re.MULTILINE)) == len(
        blocks("python") + blocks("bash") + blocks("console")
    )
    assert (len(blocks("python")), len(blocks("bash")), len(blocks("console"))) == (1, 3, 1)


def test_the_two_commands_of_the_first_block_are_targets() -> None:
    targets = re.findall(r"^\$ make (\w+)", blocks("console")[0], re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_every_page_that_is_linked_exists() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
