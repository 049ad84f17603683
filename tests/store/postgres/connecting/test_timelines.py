"""Timelines: what has been seen is not forgotten, and the past is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from mainspring.errors import StoreUnavailable
from mainspring.store.postgres.connecting.timelines import Timelines
from mainspring.store.postgres.database import Connection, Database


@pytest.fixture
async def other(dsn: str) -> Connection:
    return await Database(dsn).connect()


def test_an_older_timeline_of_the_same_system_is_refused_with_advice(conn: Connection) -> None:
    timelines = Timelines()
    timelines.admit(conn, "a:5432", "system", 2)
    timelines.admit(conn, "b:5432", "another", 1)
    timelines.admit(conn, "a:5432", "system", 2)
    with pytest.raises(
        StoreUnavailable, match="a:5432 is on timeline 1, and 2 has been seen.*stop it or let it follow"
    ):
        timelines.admit(conn, "a:5432", "system", 1)


async def test_a_newer_timeline_cuts_connections_to_the_old_one(conn: Connection, other: Connection) -> None:
    timelines = Timelines()
    timelines.admit(other, "a:5432", "system", 1)
    timelines.admit(conn, "b:5432", "system", 2)
    assert other.is_closed()
    assert not conn.is_closed()


def test_what_was_seen_survives_the_process(conn: Connection, tmp_path: Path) -> None:
    file = tmp_path / "timelines"
    Timelines(file).admit(conn, "b", "system", 2)
    with pytest.raises(StoreUnavailable, match=f"remove {file}"):
        Timelines(file).admit(conn, "a", "system", 1)
    assert list(tmp_path.iterdir()) == [file]


def test_two_processes_with_one_file_keep_the_newest_of_both(conn: Connection, tmp_path: Path) -> None:
    file = tmp_path / "timelines"
    first, second = Timelines(file), Timelines(file)
    first.admit(conn, "b", "system", 3)
    second.admit(conn, "b", "another", 1)
    for timelines in (second, Timelines(file)):
        with pytest.raises(StoreUnavailable):
            timelines.admit(conn, "a", "system", 2)


def test_a_timeline_that_another_process_has_seen_counts(conn: Connection, tmp_path: Path) -> None:
    file = tmp_path / "timelines"
    ours = Timelines(file)
    Timelines(file).admit(conn, "b", "system", 3)
    with pytest.raises(StoreUnavailable, match="3 has been seen"):
        ours.admit(conn, "a", "system", 2)


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"system": "x"}', '{"system": null}', "\x00", "7"])
def test_a_broken_file_is_harmless_and_replaced(conn: Connection, tmp_path: Path, broken: str) -> None:
    file = tmp_path / "timelines"
    file.write_text(broken)
    Timelines(file).admit(conn, "b", "system", 2)
    with pytest.raises(StoreUnavailable):
        Timelines(file).admit(conn, "a", "system", 1)


def test_a_file_that_cannot_be_written_is_logged_and_harmless(
    conn: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    timelines = Timelines(tmp_path / "file" / "timelines")
    timelines.admit(conn, "b", "system", 2)
    assert "could not be noted" in caplog.text
    with pytest.raises(StoreUnavailable):
        timelines.admit(conn, "a", "system", 1)
