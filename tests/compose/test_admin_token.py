"""The admin token: made once, by one of those that start at once, and replaced when it is of no use."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from pathlib import Path

import pytest

from mainspring.compose import admin_token as admin_token_module
from mainspring.compose.admin_token import NAME, admin_token, ensure_admin_token, listeners, token_for
from mainspring.compose.private_files import write_private
from mainspring.model.access.actors import Role
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database


async def valid(conn: Connection) -> list[int]:
    return [token.id for token in (await tokens.listing(conn)).items if token.revoked_at is None]


async def test_the_first_start_makes_it_and_the_next_ones_keep_it(
    database: Database, conn: Connection, tmp_path: Path
) -> None:
    path = tmp_path / NAME
    assert await ensure_admin_token(database, tmp_path) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secret = admin_token(tmp_path)
    assert secret is not None
    found = await tokens.find(conn, secret)
    assert found is not None
    assert (found.name, found.role, found.jobs, found.expires_at) == (NAME, Role.ADMIN, [], None)
    await ensure_admin_token(database, tmp_path)
    assert admin_token(tmp_path) == secret
    assert await valid(conn) == [found.id]


async def test_of_those_that_start_at_once_one_makes_it(database: Database, conn: Connection, tmp_path: Path) -> None:
    await asyncio.gather(*(ensure_admin_token(database, tmp_path) for _ in range(5)))
    secret = admin_token(tmp_path)
    assert secret is not None
    found = await tokens.find(conn, secret)
    assert found is not None
    assert len((await tokens.listing(conn)).items) == 1
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


@pytest.mark.parametrize("loss", ["file", "row", "revoked", "mode", "text"])
async def test_it_is_replaced_when_it_is_of_no_use(
    database: Database, conn: Connection, tmp_path: Path, loss: str
) -> None:
    path = tmp_path / NAME
    await ensure_admin_token(database, tmp_path)
    before = admin_token(tmp_path)
    assert before is not None
    match loss:
        case "file":
            path.unlink()
        case "row":
            await conn.execute("delete from mainspring.token")
        case "revoked":
            await conn.execute("update mainspring.token set revoked_at = mainspring.now()")
        case "mode":
            path.chmod(0o644)
        case "text":
            path.write_text("\x00garbage")
    await ensure_admin_token(database, tmp_path)
    secret = admin_token(tmp_path)
    assert secret not in (None, before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert await tokens.find(conn, before) is None, "who has the old one is shut out"
    assert len(await valid(conn)) == 1


async def test_a_file_that_cannot_be_written_stops_no_server_and_leaves_no_token(
    database: Database, conn: Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("")
    assert await ensure_admin_token(database, tmp_path / "taken") is None
    assert "no admin token" in caplog.text
    assert (await tokens.listing(conn)).items == []


async def test_a_narrower_token_in_the_file_is_not_taken_for_it(
    database: Database, conn: Connection, tmp_path: Path
) -> None:
    _, secret = await tokens.create(conn, "ci", role=Role.VIEWER)
    write_private(tmp_path / NAME, secret)
    await ensure_admin_token(database, tmp_path)
    assert admin_token(tmp_path) != secret
    assert await tokens.find(conn, secret) is not None, "it was not this file's own"


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="Linux only")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_it_is_for_what_listens_as_the_owner_of_the_directory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    """Any user may listen where no server does."""
    write_private(tmp_path / NAME, "ms_x\n")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with listener:
        port = listener.getsockname()[1]
        assert listeners(port) == {os.geteuid()}
        assert token_for(port, tmp_path) == "ms_x"
        monkeypatch.setattr(admin_token_module, "listeners", lambda port: listeners(port) | {4711})
        assert token_for(port, tmp_path) is None
    monkeypatch.undo()
    assert token_for(port, tmp_path) is None, "nobody listens"


def test_a_file_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    assert admin_token(tmp_path) is None
    write_private(tmp_path / NAME, "ms_x\n")
    assert admin_token(tmp_path) == "ms_x"
    (tmp_path / NAME).chmod(0o640)
    assert admin_token(tmp_path) is None
