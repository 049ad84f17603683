"""How data is shown."""

from __future__ import annotations

from uuid import UUID

import click
import pytest

from mainspring.cli import render
from mainspring.cli.processes.demo import percentile
from mainspring.cli.processes.run import mask
from mainspring.cli.render import cell, fields, table, visible


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert visible("\x1b[31mred\x07 é\u202e") == "\\x1b[31mred\\x07 é\\u202e"


def test_an_id_stands_as_it_is_typed_again() -> None:
    id = "b5b64ce6-e008-4162-bedf-3ef475379456"
    assert cell(UUID(id)) == id


def test_a_table_in_a_pipe_has_one_line_per_row_and_tabs_between_cells(capsys: pytest.CaptureFixture[str]) -> None:
    table(["ID", "LATE MS"], [[1, 0.25], ["a\tb\nc", None]], empty="none")
    assert capsys.readouterr().out == "id\tlate_ms\n1\t0.2\na b c\t\n"


def test_only_states_have_colours(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    monkeypatch.setattr(click, "echo", lambda text: print(text))  # click drops colours where there is no terminal
    table(["NAME", "KIND", "STATE"], [["failed", "failed", "failed"], ["lost", "late", "succeeded 5 s ago"]])
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.count("\x1b[1m") == 3
    assert rows == [
        "failed  failed  \x1b[31m\x1b[1mfailed\x1b[0m",
        "lost    late    \x1b[32msucceeded 5 s ago\x1b[0m",
    ]


def test_fields_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    fields({"id": 1, "error": None, "key": "", "result": {"a": [1]}})
    assert capsys.readouterr().out == 'id\t1\nresult\t{"a":[1]}\n'


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://me:secret@db:5432/shop", "postgresql://me:***@db:5432/shop"),
        ("postgresql://me:p@ss:w@db/shop", "postgresql://me:***@db/shop"),
        ("postgresql://db/shop?user=me&password=secret&sslmode=require", None),
        ("postgresql://me@db/shop", "postgresql://me@db/shop"),
        ("postgresql://me:secret@a:5432,b:5433/shop", "postgresql://me:***@a:5432,b:5433/shop"),
        ("postgresql://a,b/shop?sslpassword=secret", "postgresql://a,b/shop?sslpassword=***"),
        ("postgresql:///shop?host=/run/x", "postgresql:///shop?host=/run/x"),
    ],
)
def test_a_dsn_is_shown_without_its_password(dsn: str, shown: str | None) -> None:
    assert mask(dsn) == (shown or "postgresql://db/shop?user=me&password=***&sslmode=require")


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.99, 3.0), (1.0, 3.0)])
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([3.0, 1.0, 2.0], share) == value


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([], 0.5) is None


def test_a_long_line_is_broken_for_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "  expected: " + "word " * 20
    assert render.wrapped(line) == line
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    first, second = render.wrapped(line).splitlines()
    assert len(first) <= 60
    assert second.startswith("    word")


def test_things_are_counted_in_grammar() -> None:
    assert [render.counted(count, "run") for count in (0, 1, 2000)] == ["0 runs", "1 run", "2,000 runs"]
