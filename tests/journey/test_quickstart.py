"""Every block of docs/tutorial/quickstart.md is run as a reader would run it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.journey.pages import Page, clone, run

PAGE = Page("docs/tutorial/quickstart.md")
ON_THE_PATH, COMMANDS, MACHINES = PAGE.of("bash")


@pytest.fixture
def place(tmp_path: Path, server_directory: Path) -> dict[str, str]:
    """The environment of somebody who has just set it up: nothing but the clone."""
    return clone(tmp_path) | {"MAINSPRING_DATA_DIRECTORY": str(server_directory)}


def test_the_commands_run_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    said = run(ON_THE_PATH, COMMANDS, directory=tmp_path, environment=place)
    assert "Filesystem" in said, "the output of the command"
    checks = [line.split("\t") for line in said[said.rindex("check\tstatus\t") :].splitlines()[1:]]
    assert {status for _, status, *_ in checks} == {"healthy"}
    assert "At 09:00 on Monday and Thursday" in said
    assert re.search(r"task \d+ fired at .*, [0-9.]+ ms late", said), "explain"


@pytest.mark.usefixtures("default_ports")
def test_the_machines_run_as_shown(place: dict[str, str], tmp_path: Path) -> None:
    del place["MAINSPRING_LISTEN"]  # the page names the ports
    said = run(ON_THE_PATH, MACHINES, directory=tmp_path, environment=place)
    report = json.loads(next(line for line in said.splitlines() if "spread_ms" in line))
    assert (report["agents"], report["succeeded"]) == (2, 2)
    assert re.search(r"^ticker\s+2/2", said, re.MULTILINE), "both replicas are up"
    assert re.search(r"^alpha\s.*disk=ssd", said, re.MULTILINE)
    assert said.count('{"exit_code":0}') == 2, "also after one of the servers was killed"


def test_there_is_no_block_that_is_not_run() -> None:
    assert [block.language for block in PAGE.blocks] == ["bash", "bash", "bash"]
