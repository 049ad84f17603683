"""An operator holds a running command still, lets it go on, and ends one that stands still."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.journey.processes import forked, mainspring, until, until_state


def process_state(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def started(dsn: str, pid_file: Path) -> str:
    """Submit the command, and give the number of its process once it runs."""
    mainspring("job", "create", "long", "--dsn", dsn, "--shell", "--", f"echo $$ > {pid_file}; exec sleep 600")
    mainspring("task", "submit", "long", "--dsn", dsn)
    until_state("1", "running", dsn)
    until(lambda: pid_file.exists() and pid_file.read_text())
    return pid_file.read_text().strip()


def test_a_paused_command_stands_still_until_it_is_resumed(dsn: str, tmp_path: Path) -> None:
    with forked("up", "--json", "--dsn", dsn) as up:
        up.ready()
        pid = started(dsn, tmp_path / "pid")
        assert mainspring("task", "pause", "1", "--dsn", dsn).returncode == 0
        until(lambda: process_state(pid) == "T")
        shown = json.loads(mainspring("task", "show", "1", "--dsn", dsn, "--json").stdout)
        assert (shown["state"], shown["paused_at"] is not None) == ("running", True)
        assert mainspring("task", "resume", "1", "--dsn", dsn).returncode == 0
        until(lambda: process_state(pid) != "T")
        mainspring("task", "kill", "1", "--dsn", dsn)
        until_state("1", "cancelled", dsn)


@pytest.mark.parametrize("verb", ["cancel", "kill"])
def test_a_command_that_stands_still_can_be_ended(dsn: str, tmp_path: Path, verb: str) -> None:
    with forked("up", "--json", "--dsn", dsn) as up:
        up.ready()
        pid = started(dsn, tmp_path / "pid")
        mainspring("task", "pause", "1", "--dsn", dsn)
        until(lambda: process_state(pid) == "T")
        mainspring("task", verb, "1", "--dsn", dsn)
        until_state("1", "cancelled", dsn)
        assert not Path(f"/proc/{pid}").exists()
