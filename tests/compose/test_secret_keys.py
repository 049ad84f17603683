"""Where a process has the keys of secrets: settings, a private file, one of its own beside the embedded database."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mainspring.compose.secret_keys import NAME, SecretKeys, _make
from mainspring.config import Settings
from mainspring.errors import AccessDenied, ValidationError
from mainspring.model.secrets.keys import new_key


def test_the_embedded_database_gets_a_private_key_once(tmp_path: Path) -> None:
    source = SecretKeys(Settings(data_directory=str(tmp_path)))
    assert source.read().ids == []
    made = source.read_or_make()
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    _make(tmp_path / NAME)  # by another process at the same time
    assert source.read().first == made.first == source.read_or_make().first
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_database_of_its_own_gets_no_key_by_itself(tmp_path: Path) -> None:
    source = SecretKeys(Settings(dsn="postgresql://x", data_directory=str(tmp_path)))
    assert source.read_or_make().ids == []
    assert list(tmp_path.iterdir()) == []


def test_keys_of_the_environment_come_before_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{new_key('old')}\n")
    file.chmod(0o600)
    source = SecretKeys(Settings(dsn="postgresql://x", secret_keys=new_key("new"), secret_keys_file=str(file)))
    assert source.read().ids == ["new", "old"]
    file.write_text(f"{new_key('newer')}\n{new_key('old')}\n")  # seen without a restart
    assert source.read().ids == ["new", "newer", "old"]


def test_a_file_that_others_can_read_or_that_is_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    source = SecretKeys(Settings(dsn="postgresql://x", secret_keys_file=str(file)))
    with pytest.raises(ValidationError, match="there is no file"):
        source.read()
    file.write_text(new_key("1"))
    file.chmod(0o644)
    with pytest.raises(AccessDenied, match="chmod 600"):
        source.read()
