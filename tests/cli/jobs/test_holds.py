"""`mainspring job hold | release` and `mainspring hold | release`, on a real database and over HTTP."""

from __future__ import annotations

from tests.cli.conftest import Cli


def test_a_job_is_held_listed_and_released(cli: Cli, caller: str) -> None:
    cli("job", "create", "backup", "--", "true")
    cli("task", "submit", "backup")
    assert cli("hold", "--list").out.splitlines() == ["job\tsince\tby\tskips\treleased\tnote"]
    held = cli("job", "hold", "backup", "--note", "disk full")
    assert held.err == "backup is held; `mainspring job release backup` lets it go on\n"
    assert cli("job", "hold", "backup", "--note", "disk full").err.startswith("backup is held, as before; ")
    [row] = cli("hold", "--list").out.splitlines()[1:]
    assert (row.split("\t")[0], row.split("\t")[2].startswith(caller), row.split("\t")[-1]) == (
        "backup",
        True,
        "disk full",
    )
    assert f"held\tby {caller}" in cli("job", "show", "backup").out
    assert f"\tby {caller}" in cli("job", "list").out
    assert "`mainspring job release backup`" in cli("task", "show", "1").out
    assert "held" in cli("doctor").out
    told = cli("job", "release", "backup", "--json").json
    assert (told["changed"], told["waiting"], told["hold"]["job"]) == (True, 1, "backup")
    assert cli("job", "release", "backup").err == "backup was released before\n"
    assert cli("job", "release", "backup", "--at-once").err == "backup is released; waiting: 1, which start now\n"
    cli("job", "hold", "backup")
    assert cli("job", "release", "backup", "--at-once").err == "backup is released; waiting: 1, which start now\n"
    cli("job", "hold", "backup")
    assert "waiting: 1, which start one after another, by " in cli("job", "release", "backup").err
    assert cli("job", "hold", "none").code == 3


def test_everything_is_held_and_released(cli: Cli) -> None:
    assert cli("release").err == "everything was not held\n"
    assert cli("hold", "--skip", "--note", "tonight").err == "everything is held; `mainspring release` lets it go on\n"
    found = cli("hold", "--list", "--json").json
    assert (found["everything"]["note"], found["everything"]["skip"], found["jobs"]) == ("tonight", True, [])
    assert cli("release", "--at-once").err == "everything is released\n"
