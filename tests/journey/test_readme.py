"""Every block of the README is run as a reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.journey.pages import ROOT, Block, Page, clone, run

README = Page("README.md")
(FILE,) = README.of("python")
ON_THE_PATH, APPLICATION, OVER_HTTP = README.of("bash")


@pytest.fixture
def place(tmp_path: Path, server_directory: Path) -> dict[str, str]:
    """The environment of somebody who has just set it up: nothing but the clone."""
    return clone(tmp_path) | {"MAINSPRING_DATA_DIRECTORY": str(server_directory)}


def test_the_application_runs_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    assert run(ON_THE_PATH, FILE, APPLICATION, directory=tmp_path, environment=place) == "10\n"


def test_a_task_is_submitted_over_http_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    said = run(ON_THE_PATH, FILE, OVER_HTTP, directory=tmp_path, environment=place)
    assert '"state":"succeeded","created":true' in said


_DUE = Block(
    "bash",
    """
mainspring task list --job report --state pending --json > waiting.json
id=$(python -c 'import json; print(json.load(open("waiting.json"))[0]["id"])')
mainspring task edit $id --now
mainspring task wait $id --timeout 40
mainspring doctor
""",
)


def test_nothing_that_the_application_leaves_behind_degrades_the_cluster(place: dict[str, str], tmp_path: Path) -> None:
    *submit, kill = OVER_HTTP.text.rstrip("\n").split("\n")
    assert kill == "kill $up"
    up, end = Block("bash", "\n".join(submit) + "\n"), Block("bash", f"{kill}\n")
    said = run(ON_THE_PATH, FILE, APPLICATION, up, _DUE, end, directory=tmp_path, environment=place)
    assert "degraded" not in said
    assert "unrunnable\thealthy" in said


def test_there_is_no_block_that_nobody_runs() -> None:
    assert [block.language for block in README.blocks] == ["console", "bash", "python", "bash", "bash"]
    assert FILE.file == "shop.py"


def test_the_two_commands_of_the_first_block_are_targets() -> None:
    targets = re.findall(r"^\$ make (\w+)", README.of("console")[0].text, re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
