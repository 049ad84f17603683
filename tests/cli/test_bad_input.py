"""Bad input: exit code 2, one line that says what is wrong, and no database asked."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Cli, process

HUGE = "9" * 5000
CREATE = ("job", "create", "x")

LINES: list[tuple[str, ...]] = [
    ("nothing",),
    ("task", "nothing"),
    ("task", "list", "--nothing"),
    ("task", "list", "--limit", "0"),
    ("task", "list", "--limit", "501"),
    ("task", "list", "--limit", HUGE),
    ("task", "list", "--limit", "ten"),
    ("task", "list", "--before", str(2**63)),
    ("task", "list", "--before", "-1"),
    ("task", "list", "--state", "done"),
    ("task", "list", "--state", "\udcff"),
    ("task", "list", "--job", "\udcff"),
    ("task", "list", "--job", "a\x00b"),
    ("task", "list", "extra"),
    (
        "task",
        "show",
    ),
    ("task", "show", "x"),
    ("task", "show", "0"),
    ("task", "show", str(2**63)),
    ("task", "show", HUGE),
    ("task", "show", "\udcff"),
    ("task", "logs", "1e3"),
    (
        "task",
        "cancel",
    ),
    ("task", "cancel", "1", "two"),
    ("task", "wait", "1", "--timeout", "soon"),
    ("task", "wait", "1", "--timeout", HUGE),
    (
        "task",
        "submit",
    ),
    ("task", "submit", ""),
    ("task", "submit", "\udcff"),
    ("task", "submit", "a\x00b"),
    ("task", "submit", "n" * 201),
    ("task", "submit", "x", "--timeout", "1s"),
    ("task", "submit", "x", "--args", "{"),
    ("task", "submit", "x", "--args", "\udcff"),
    ("task", "submit", "x", "--arg", "\udcff=1"),
    ("task", "submit", "x", "--delay", "-1s"),
    ("task", "submit", "x", "--delay", HUGE),
    ("task", "submit", "x", "--run-at", "2026-11-15T09:00:00"),
    ("task", "submit", "x", "--run-at", "9999999-01-01T00:00:00Z"),
    ("task", "submit", "x", "--priority", HUGE),
    ("task", "submit", "x", "--key", "a\x00b"),
    ("task", "submit", "x", "--after", str(2**63)),
    ("job", "show", "\udcff"),
    ("job", "delete", "a\x00b"),
    CREATE,
    ("job", "create", "a\x00b", "--", "true"),
    ("job", "create", " x ", "--", "true"),
    (*CREATE, "--", ""),
    (*CREATE, "--", "a\x00b"),
    (*CREATE, "--", "\udcff"),
    (*CREATE, "--env", "A", "--", "true"),
    (*CREATE, "--env", "=b", "--", "true"),
    (*CREATE, "--env", "MAINSPRING_ARGS=1", "--", "true"),
    (*CREATE, "--env", "A=\udcff", "--", "true"),
    (*CREATE, "--timeout", "0", "--", "true"),
    (*CREATE, "--timeout", HUGE, "--", "true"),
    (*CREATE, "--retries", "-1", "--", "true"),
    (*CREATE, "--retries", "1001", "--", "true"),
    (*CREATE, "--retries", HUGE, "--", "true"),
    (*CREATE, "--retries", "many", "--", "true"),
    (*CREATE, "--backoff", "sometimes", "--", "true"),
    (*CREATE, "--backoff", "1s,,2s", "--", "true"),
    (*CREATE, "--backoff", "", "--", "true"),
    (*CREATE, "--backoff", ",", "--", "true"),
    (*CREATE, "--priority", "urgent", "--", "true"),
    (*CREATE, "--delivery", "exactly_once", "--", "true"),
    (*CREATE, "--delivery", "at_most_once", "--retries", "1", "--", "true"),
    (*CREATE, "--requires", "zone", "--", "true"),
    (*CREATE, "--description", "\x00", "--", "true"),
    (*CREATE, "--description", "d" * 10_001, "--", "true"),
    (*CREATE, "--cwd", "\udcff", "--", "true"),
    (*CREATE, "--stdin", "s" * (2**20 + 1), "--", "true"),
    ("demo", "--seconds", "0"),
    ("demo", "--seconds", HUGE),
    ("up", "no_such_module_of_ours:app"),
    ("up", "\udcff"),
    ("up", "--slots", "0"),
    ("up", "--slots", HUGE),
    ("up", "--data", "a\x00b"),
    ("worker",),
    ("worker", "json:loads"),
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(line).encode("unicode_escape").decode()[:60])
def test_bad_input_is_refused_in_one_line(offline: Cli, line: tuple[str, ...]) -> None:
    outcome = offline(*line)
    assert outcome.code == 2, outcome.err
    assert outcome.out == ""
    assert outcome.err.startswith("mainspring: ")
    assert outcome.err.count("\n") == 1
    assert "bug" not in outcome.err


@pytest.mark.parametrize("line", [("task", "show", "x"), ("task", "list", "--limit", "0"), ("tusk",)], ids=" ".join)
def test_bad_input_is_told_to_programs_as_json(offline: Cli, line: tuple[str, ...]) -> None:
    told = json.loads(offline("--json", *line).err)
    assert told.keys() >= {"code", "message"}


def test_bytes_that_are_no_text_are_refused(dsn: str) -> None:
    done = process("job", "show", b"\xff", "--dsn", dsn, text=False)  # type: ignore[arg-type]
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr  # type: ignore[operator]


STEERING = "\x1b]0;owned\x07"


@pytest.mark.parametrize("line", [("task", "show", STEERING), (STEERING,), ("task", "list", STEERING)], ids=repr)
def test_no_option_lets_a_terminal_be_steered(offline: Cli, line: tuple[str, ...]) -> None:
    outcome = offline(*line)
    assert outcome.code == 2
    assert "\x1b" not in outcome.err
