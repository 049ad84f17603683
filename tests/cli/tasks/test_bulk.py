"""`mainspring task submit --from FILE` on a real database."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, Outcome


@pytest.fixture
def job(cli: Cli) -> str:
    assert cli("job", "create", "hello", "--", "echo", "hello").code == 0
    return "hello"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks.ndjson"


def lines_of(outcome: Outcome) -> list[Any]:
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_each_line_is_submitted_and_a_second_time_with_the_same_key_finds_it(cli: Cli, job: str, file: Path) -> None:
    file.write_text('{"job": "hello", "args": {"n": 1}}\n\n{"job": "hello", "priority": "high"}')
    first = cli("task", "submit", "--from", str(file), "--key", "load")
    assert first.code == 0, first.err
    assert lines_of(first) == [
        {"lines": [1, 3], "ids": [1, None, 2]},
        {"done": True, "accepted": 2, "refused": 0},
    ]
    assert lines_of(cli("task", "submit", "--from", str(file), "--key", "load")) == lines_of(first)
    assert cli("task", "show", "2", "--json").json["key"] == "load:3"


@pytest.mark.parametrize("member", ['"timeout": "90s"', '"retries": 7', '"stalls_after": "90s"', '"expires": "1h"'])
def test_what_a_line_says_of_its_run_is_kept(cli: Cli, job: str, file: Path, member: str) -> None:
    file.write_text(f'{{"job": "hello", {member}}}\n')
    assert cli("task", "submit", "--from", str(file)).code == 0
    name = member.split('"')[1]
    view = cli("task", "show", "1", "--json").json
    assert view["expires_at" if name == "expires" else name] is not None


def test_a_refused_line_is_told_and_the_exit_code_says_so(cli: Cli, job: str, file: Path) -> None:
    file.write_text('{"job": "hello"}\n{"job": "nothing"}\n{"job": "hello"}')
    some = cli("task", "submit", "--from", str(file))
    assert (some.code, lines_of(some)[-1]) == (1, {"done": True, "accepted": 2, "refused": 1})
    stopped = cli("task", "submit", "--from", str(file), "--on-error", "stop")
    assert (stopped.code, lines_of(stopped)[-1]) == (1, {"done": False, "accepted": 1, "refused": 1})
    none = cli("task", "submit", "--from", str(file), "--atomic")
    assert none.code != 0
    assert "line 2" in none.err
    assert len(cli("task", "list", "--json").json) == 3


def test_what_does_not_go_with_a_file_is_refused(cli: Cli, job: str, file: Path) -> None:
    file.write_text('{"job": "hello"}')
    for arguments in (
        ("hello", "--from", str(file)),
        ("--from", str(file), "--delay", "1m"),
        ("hello", "--atomic"),
        (),
    ):
        assert cli("task", "submit", *arguments).code == 2, arguments
    missing = cli("task", "submit", "--from", str(file.with_name("nothing")))
    assert missing.code != 0
    assert "cannot be read" in missing.err
