"""The command line as a whole: help, shared options, closed pipes, no terminal, no server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import click
import pytest

import mainspring
from mainspring.cli.main import cli as root
from tests.cli.conftest import Cli, command, environment, process


def _paths(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, item in group.commands.items():
        found += _paths(item, (*path, name)) if isinstance(item, click.Group) else [(*path, name)]
    return found


@pytest.mark.parametrize("path", _paths(root), ids=" ".join)
def test_every_command_has_help_with_the_shared_options(path: tuple[str, ...], offline: Cli) -> None:
    outcome = offline(*path, "--help")
    assert outcome.code == 0
    assert outcome.err == ""
    assert all(option in outcome.out for option in ("--dsn", "--data", "--json"))


_EACH_ALONE = """
import json, os
import click
from mainspring.cli.main import cli

for name in cli.commands:
    read, write = os.pipe()
    if not os.fork():  # each loads one command, as a process does
        command = cli.commands[name]
        os.write(write, json.dumps(sorted(command.commands) if isinstance(command, click.Group) else []).encode())
        os._exit(0)
    os.close(write)
    print(json.dumps([name, json.loads(os.read(read, 65536))]))
    os.close(read)
    os.wait()
"""


def test_a_group_has_all_its_commands_although_a_process_loads_no_other() -> None:
    told = subprocess.run([sys.executable, "-c", _EACH_ALONE], capture_output=True, text=True, check=True).stdout
    alone = dict(map(json.loads, told.splitlines()))
    _paths(root)  # loads all
    assert alone == {
        name: sorted(found.commands) if isinstance(found, click.Group) else [] for name, found in root.commands.items()
    }


@pytest.mark.parametrize("path", _paths(root), ids=" ".join)
def test_help_fits_80_columns(path: tuple[str, ...], offline: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, offline(*path, "--help").out.splitlines())) <= 80


@pytest.mark.parametrize(
    "path", [path for path in _paths(root) if path not in {("job",), ("task",), ("schedule",)}], ids=" ".join
)
def test_every_command_shows_an_example(path: tuple[str, ...], offline: Cli) -> None:
    assert "mainspring " + " ".join(path) in offline(*path, "--help").out.partition("Examples:")[2]


def test_help_loads_nothing_heavy() -> None:
    heavy = {"asyncio", "asyncpg", "msgspec", "rich", "uvloop", "mainspring.compose.local", "mainspring.sdk.app"}
    script = f"""
import sys
from mainspring.cli.main import main
main(["--help"])
print(sorted({heavy} & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == "[]\n"


def test_a_command_loads_no_module_of_another_one() -> None:
    script = """
import sys
from mainspring.cli.main import main
main(["up", "--help"])
rooms = ("access", "alerts", "fleet", "jobs", "schedules", "tasks")
others = tuple(f"mainspring.cli.{room}" for room in rooms)
print([name for name in sys.modules if name.startswith(others)], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == "[]\n"


def test_the_public_names_are_all_there() -> None:
    assert all(getattr(mainspring, name).__name__ == name for name in mainspring.__all__)
    assert set(mainspring.__all__) <= set(dir(mainspring))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = mainspring.Nothing  # type: ignore[attr-defined]


def test_the_version_is_told(offline: Cli) -> None:
    assert offline("--version").out == f"mainspring {mainspring.__version__}\n"


def test_without_a_command_the_help_is_shown(offline: Cli) -> None:
    outcome = offline()
    assert outcome.code == 2
    assert "Usage: mainspring" in outcome.err


def test_shared_options_go_anywhere_and_the_last_one_counts(offline: Cli, dsn: str) -> None:
    for arguments in (
        ("--dsn", dsn, "--json", "task", "list"),
        ("task", "--dsn", dsn, "--json", "list"),
        ("task", "list", "--dsn", dsn, "--json"),
        ("--dsn", "postgresql://127.0.0.1:1/x", "--json", "task", "list", "--dsn", dsn),
    ):
        outcome = offline(*arguments)
        assert (outcome.code, outcome.err, outcome.json) == (0, "", [])


def test_a_dsn_and_a_directory_are_not_for_the_same_command(offline: Cli) -> None:
    outcome = offline("stats", "--dsn", "postgresql://x/y", "--data", "z")
    assert outcome.code == 2
    assert "not both" in outcome.err


@pytest.mark.parametrize(
    ("dsn", "code", "told"),
    [
        ("postgresql://127.0.0.1:1/x", 6, "PostgreSQL at 127.0.0.1:1 does not answer (connection refused); check"),
        ("postgresql:///x?host=/no/such/directory", 6, "PostgreSQL at /no/such/directory:5432 does not answer"),
        ("shop", 2, "dsn: cannot be read"),
        ("postgresql://host:port/x", 2, "dsn: cannot be read"),
        ("postgresql://127.0.0.1:999999/x", 2, "dsn: cannot be read"),
        ("postgresql://[::1/x", 2, "dsn: cannot be read"),
        ("", 2, "dsn: is empty"),
        ("postgresql://\udcff@127.0.0.1:1/x", 2, "lone surrogate"),
        ("postgresql://a\x00b@127.0.0.1:1/x", 2, "NUL"),
    ],
)
def test_a_database_that_cannot_be_had_is_told_in_one_line(offline: Cli, dsn: str, code: int, told: str) -> None:
    outcome = offline("stats", "--dsn", dsn)
    assert outcome.code == code
    assert told in outcome.err
    assert outcome.err.startswith("mainspring: ")
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_a_database_that_does_not_exist_is_unreachable(offline: Cli, dsn: str) -> None:
    outcome = offline("stats", "--dsn", dsn.replace("/mainspring_", "/no_such_"))
    assert outcome.code == 6
    assert "does not exist; create it" in outcome.err


def test_a_user_that_is_refused_has_no_access(offline: Cli, dsn: str) -> None:
    outcome = offline("stats", "--dsn", f"{dsn}&user=nobody_of_ours" if "?" in dsn else f"{dsn}?user=nobody_of_ours")
    assert outcome.code == 5, outcome.err


def test_a_database_without_the_schema_points_to_migrate(offline: Cli, empty_dsn: str) -> None:
    outcome = offline("task", "list", "--dsn", empty_dsn, "--json")
    assert outcome.code == 1
    assert json.loads(outcome.err)["code"] == "schema_mismatch"
    assert "mainspring migrate" in outcome.err


def test_a_configuration_that_cannot_be_read_is_a_usage_error(
    offline: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_CONFIG", str(tmp_path / "none.toml"))
    assert offline("stats").code == 2


def test_a_closed_pipe_ends_quietly(dsn: str) -> None:
    for arguments in (("task", "list"), ("task", "list", "--json"), ("--help",)):
        reader, writer = os.pipe()
        os.close(reader)
        try:
            child = {"stdout": writer, "stderr": subprocess.PIPE, "env": environment(MAINSPRING_DSN=dsn)}
            done = process(*arguments, capture_output=False, **child)
        finally:
            os.close(writer)
        assert (done.returncode, done.stderr) == (0, "")


BARE = {"PATH": os.defpath}  # no PYTHONUNBUFFERED, with which nothing is left to be flushed at the end


@pytest.mark.parametrize("environ", [BARE, BARE | {"PYTHONUNBUFFERED": "1"}], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize(
    "arguments", [("task", "list"), ("stats", "--json"), ("job", "--help"), ("--version",)], ids=" ".join
)
def test_a_full_disk_is_told_in_one_line(dsn: str, arguments: tuple[str, ...], environ: dict[str, str]) -> None:
    with open("/dev/full", "w") as full:
        child = {"stdout": full, "stderr": subprocess.PIPE, "env": environ | {"MAINSPRING_DSN": dsn}}
        done = process(*arguments, capture_output=False, **child)
    told = "cannot write output: No space left on device"
    line = json.dumps({"code": "output", "message": told}) if "--json" in arguments else f"mainspring: {told}"
    assert (done.returncode, done.stderr) == (1, f"{line}\n")


def test_output_that_is_still_buffered_at_the_end_is_checked_too() -> None:
    script = """
import sys
from mainspring.cli.main import cli, main
cli.command("write")(lambda: sys.stdout.write("left in the buffer"))
sys.exit(main(["write"]))
"""
    with open("/dev/full", "w") as full:
        streams = {"stdout": full, "stderr": subprocess.PIPE, "text": True, "env": BARE}
        done = subprocess.run([sys.executable, "-c", script], check=False, timeout=30, **streams)  # type: ignore[call-overload]
    assert (done.returncode, done.stderr) == (1, "mainspring: cannot write output: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "code"), [((), 2), (("schedule", "preview", "nonsense"), 2), (("--version",), 0)]
)
def test_a_full_stderr_changes_no_exit_code(arguments: tuple[str, ...], code: int) -> None:
    with open("/dev/full", "w") as full:
        done = process(*arguments, capture_output=False, stdout=subprocess.PIPE, stderr=full, env=BARE)
    assert done.returncode == code


def test_standard_streams_may_be_closed(dsn: str) -> None:
    line = " ".join(f"'{part}'" for part in command("task", "list", "--dsn", dsn))
    done = subprocess.run(["/bin/sh", "-c", f"{line} <&- >&- 2>&-"], check=False, timeout=30)
    assert done.returncode == 0


def test_a_terminal_gets_a_table_and_words_where_there_is_nothing(dsn: str) -> None:
    process("job", "create", "hello", "--dsn", dsn, "--", "echo", "hello")
    assert "│" not in process("job", "list", "--dsn", dsn).stdout
    assert "\t" in process("job", "list", "--dsn", dsn).stdout
    shown = _on_terminal("job", "list", "--dsn", dsn)
    assert "NAME" in shown
    assert "\t" not in shown
    assert "no such tasks" in _on_terminal("task", "list", "--dsn", dsn)


def _on_terminal(*arguments: str) -> str:
    """What the command line writes to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(*arguments), stdout=theirs, stderr=theirs, stdin=theirs) as child:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # so does Linux tell that the other side is closed
            pass
        finally:
            os.close(ours)
        assert child.wait(30) == 0
    return shown.decode()


def test_python_m_mainspring_tells_its_exit_code() -> None:
    line = [sys.executable, "-m", "mainspring", "schedule", "preview", "*/0 * * * *"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 2


INTERRUPTED_IMPORT = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv[1]
sys.meta_path.insert(0, Interrupting())
sys.argv[1:] = ["task", "--help"]
runpy.run_module("mainspring", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["mainspring.cli.main", "click", "mainspring.cli.tasks.tasks"])
def test_ctrl_c_during_the_imports_ends_without_a_traceback(module: str) -> None:
    line = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    done = subprocess.run(line, env=os.environ | BARE, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")
