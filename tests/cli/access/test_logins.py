"""The file of logins: written whole, by many at once, readable by its owner alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mainspring.cli.access import logins
from mainspring.cli.access.logins import Login, find_login, keep_login, read_logins
from mainspring.cli.main import main
from mainspring.errors import AccessDenied, NotFound, ValidationError


def test_logins_that_are_kept_at_once_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "mainspring" / "logins.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: keep_login(path, f"s{n}", Login(f"https://s{n}", f"ms_{n}")), range(40)))
    assert read_logins(path) == {f"s{n}": Login(f"https://s{n}", f"ms_{n}") for n in range(40)}
    assert sorted(file.name for file in path.parent.iterdir()) == ["logins.json", "logins.lock"]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "logins.json"
    keep_login(path, "prod", Login("https://a", "ms_a"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        keep_login(path, "prod", Login("https://b", "ms_b"))
    assert read_logins(path)["prod"].url == "https://a"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["logins.json", "logins.lock"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_for_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "logins.json"
    keep_login(path, "prod", Login("https://a", "ms_a"))
    path.chmod(mode)
    with pytest.raises(AccessDenied):
        find_login(path, "prod")


@pytest.mark.parametrize("text", ["", "[]", '{"prod": {"url": "https://a"}}', '{"prod": "ms_hunter2"}', "\x00"])
def test_a_broken_file_is_named_and_not_quoted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "logins.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ValidationError, match="logins.json") as raised:
        read_logins(path)
    assert "hunter2" not in raised.value.message


def test_a_login_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    keep_login(tmp_path / "logins.json", "prod", Login("https://a", "ms_a"))
    with pytest.raises(NotFound, match="there are: prod"):
        find_login(tmp_path / "logins.json", "lab")


@pytest.mark.parametrize("address", ["127.0.0.1:7070", "localhost", "jobs.example"])
def test_an_address_is_told_how_to_be_written(tmp_path: Path, address: str) -> None:
    with pytest.raises(NotFound, match=f"write http://{address}"):
        find_login(tmp_path / "logins.json", address)


def test_a_login_that_is_forgotten_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = logins.logins_file()
    for name in ("prod", "lab"):
        keep_login(path, name, Login(f"https://{name}", "ms_a"))
    assert main(["logout", "prod"]) == 0
    assert list(read_logins(path)) == ["lab"]
    assert main(["logout", "prod"]) == 3


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logins.logins_file({"XDG_CONFIG_HOME": "/etc/x"}) == Path("/etc/x/mainspring/logins.json")
    monkeypatch.setenv("HOME", "/home/alice")
    for given in ({}, {"XDG_CONFIG_HOME": "relative"}):
        assert logins.logins_file(given) == Path("/home/alice/.config/mainspring/logins.json")
