"""An operator's first hour, followed word for word: docs/tutorial/first-hour.md."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.journey.pages import Page, clone, run

PAGE = Page("docs/tutorial/first-hour.md")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl; scripts/debian-network installs it")
def test_the_first_hour_runs_as_written(tmp_path: Path, server_directory: Path) -> None:
    environment = clone(tmp_path) | {"MAINSPRING_DATA_DIRECTORY": str(server_directory)}
    said = run(*PAGE.blocks, directory=tmp_path, environment=environment, timeout=120.0)
    assert "Filesystem" in said, "the output of a first job"
    assert "At 03:15 every day, in Europe/Paris" in said
    assert re.search(r"^disk-often\tdisk\tevery 2 seconds\tenabled\t.*\tsucceeded 20", said, re.MULTILINE), (
        "its last result"
    )
    assert re.search(r"task \d+ fired at .* late, on ", said), "explain"
    assert "exit code 7\n" in said, "a failure is seen"
    assert re.search(r"^\d+\tsync\tfailed\t", said, re.MULTILINE)
    assert said.count("synced\n") == 1, "and mended"
    assert re.search(r"^\d+\tindex\tsucceeded\track-7\t", said, re.MULTILINE), "on the second machine"
    assert "step 1\nstep 2\nstep 3\n" in said
    listed = re.findall(r"^tidy-nightly\ttidy\t.*\tenabled\t", said, re.MULTILINE)
    assert len(listed) == 2, "as made, and as restored; not between"
    assert said.count('{"exit_code":0}') == 4, "disk, sync after its repair, index before and after the restore"
    assert "connected to wss://" in (tmp_path / "rack-7" / "agent.log").read_text()


def test_every_command_of_the_page_fits_a_line_of_100_columns() -> None:
    assert max(len(line) for block in PAGE.of("bash") for line in block.text.splitlines()) <= 100
