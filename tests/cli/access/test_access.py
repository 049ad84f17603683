"""`mainspring token | sessions | audit | login`"""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import stat
from pathlib import Path

import pytest
from tests.cli.conftest import COMMAND_LINE, Cli, Stage, make_token, on_the_database
from tests.cluster import add_server
from tests.served import served_in_thread

from mainspring.cli.access.logins import check_server
from mainspring.compose.private_files import write_private
from mainspring.errors import ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.operations import access
from mainspring.store.postgres.database import Connection, Database

TOKEN = "ms_" + "x" * 43


@pytest.fixture
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "mainspring" / "logins.json"


def given(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_token_has_a_role_and_the_list_shows_it(cli: Cli, caller: str) -> None:
    made = cli("token", "create", "ci", "--role", "submitter", "--jobs", "report*", "--expires", "30d", "--rate", "5")
    assert made.code == 0, made.err
    assert made.out.startswith("ms_")
    cli("token", "create", "rack-7")
    first, second = [one for one in cli("token", "list", "--json").json if one["name"] != COMMAND_LINE]
    assert (first["role"], first["jobs"], first["rate"], first["last_used_at"]) == ("submitter", ["report*"], 5.0, None)
    assert first["created_by"].startswith(caller)
    assert second["role"] == "agent"
    shown = cli("token", "list").out
    assert "submitter\treport*" in shown
    assert made.out.strip() not in shown


@pytest.mark.parametrize(
    "line",
    [
        ("token", "create", "x", "--role", "king"),
        ("token", "create", "x", "--role", "viewer", "--once"),
        ("token", "create", "x", "--jobs", "report*"),
        ("token", "create", "x", "--rate", "0"),
        ("login", "--name", "prod"),
        ("login", "https://jobs.example", "--role", "viewer"),
        ("audit", "--since", "2026-11-15T09:00:00"),
        ("audit", "--since", "soon"),
        ("audit", "--limit", "0"),
        ("sessions", "revoke", "x"),
    ],
)
def test_bad_input_is_refused(cli: Cli, line: tuple[str, ...]) -> None:
    assert cli(*line).code == 2


def test_a_change_is_in_the_audit_with_who_made_it(cli: Cli, caller: str) -> None:
    cli("job", "create", "report", "--env", "TOKEN=hunter2", "--", "true")
    cli("job", "create", "report", "--env", "TOKEN=hunter3", "--retries", "2", "--replace", "--", "true")
    task = cli("task", "submit", "report", "--json").json["id"]
    cli("task", "cancel", str(task))
    found = cli("audit", "--json").json
    assert [entry["action"] for entry in found] == ["task.cancel", "job.change", "job.create"]
    assert found[0]["subject"] == f"task:{task}"
    assert found[0]["actor"].startswith(caller)
    assert found[1]["changes"] == {
        "run.env.TOKEN": {"old": "***", "new": "***"},
        "retry.retries": {"old": 0, "new": 2},
        "retries_by_default": {"old": True, "new": None},
    }
    shown = cli("audit", "--action", "job.*", "--since", "1h").out
    assert "retry.retries 0 → 2" in shown
    assert "task.cancel" not in shown
    assert "hunter" not in shown
    limited = cli("audit", "--limit", "2")
    assert len(limited.out.splitlines()) == 3
    assert "--limit shows more" in limited.err


def test_a_link_is_printed_once_and_its_session_is_listed_and_revoked(
    cli: Cli, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "MAINSPRING_URL" not in os.environ:
        nowhere = cli("login", "--role", "viewer")
        assert nowhere.code == 6
        assert "no server of this database serves the console" in nowhere.err
    monkeypatch.setenv("MAINSPRING_PUBLIC_URL", "https://jobs.example")
    link = cli("login", "--role", "viewer", "--json").json["url"]
    base, code = link.split("/login#")
    assert base == os.environ.get("MAINSPRING_URL", "https://jobs.example")
    assert len(code) >= 43

    async def open_link() -> None:
        conn = await Database(dsn).connect()
        await access.exchange_login(conn, Actor("browser", address="10.0.0.7"), code=code)
        await conn.close()

    asyncio.run(open_link())
    [session] = cli("sessions", "--json").json
    assert (session["role"], session["address"]) == ("viewer", "10.0.0.7")
    assert "viewer" in cli("sessions", "list").out
    assert cli("sessions", "revoke", str(session["id"])).code == 0
    assert cli("sessions", "revoke", str(session["id"])).code == 3
    assert cli("sessions", "list", "--json").json == []


def test_the_token_of_a_server_is_checked_and_kept_in_a_file_of_its_owner(
    offline: Cli, dsn: str, logins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = asyncio.run(make_token(dsn, "laptop", Role.VIEWER))
    with served_in_thread(dsn) as url:
        given(monkeypatch, f"{token}\n")
        made = offline("login", f"{url}/", "--name", "prod")
        assert made.code == 0, made.err
        assert made.err.startswith("you are token:laptop, viewer; kept in ")
        given(monkeypatch, f"{token}\n")
        told = offline("login", url, "--json").json
        assert (told["who"], told["role"], told["jobs"]) == ("token:laptop", "viewer", [])
        for server in ("prod", url, f"{url}/", url.removeprefix("http://")):
            assert offline("job", "list", "--server", server).code == 0
        monkeypatch.setenv("MAINSPRING_URL", "prod")
        assert offline("job", "list").code == 0
    kept = {"url": url, "token": token}
    assert json.loads(logins.read_text()) == {"prod": kept, url.removeprefix("http://"): kept}
    assert stat.S_IMODE(logins.stat().st_mode) == 0o600
    assert stat.S_IMODE(logins.parent.stat().st_mode) == 0o700


def test_a_token_that_the_server_refuses_is_not_kept(
    offline: Cli, dsn: str, logins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_in_thread(dsn) as url:
        for token in (TOKEN, asyncio.run(make_token(dsn, "rack-7", Role.AGENT))):
            given(monkeypatch, token)
            assert offline("login", url).code == 5
    given(monkeypatch, TOKEN)
    assert offline("login", url).code == 6  # it is gone
    assert not logins.exists()


def test_on_the_machine_of_the_server_its_admin_token_is_found(
    offline: Cli, dsn: str, logins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = asyncio.run(make_token(dsn, "admin.token", Role.ADMIN))
    monkeypatch.setenv("MAINSPRING_DATA_DIRECTORY", str(tmp_path))
    with served_in_thread(dsn) as url:
        assert offline("token", "list", "--server", url).code == 5
        write_private(tmp_path / "admin.token", f"{token}\n")
        assert offline("token", "list", "--server", url).code == 0


@on_the_database
def test_a_link_leads_to_a_server_that_runs(cli: Cli, stage: Stage) -> None:
    async def add(conn: Connection) -> None:
        await add_server(conn, "a", host="elsewhere", api_url="http://127.0.0.1:7072")
        await add_server(conn, "b", host="elsewhere", api_url="https://jobs.example")

    async def add_here(conn: Connection) -> None:
        await add_server(conn, "c", host=socket.gethostname(), api_url="http://127.0.0.1:7073")

    stage(add)
    assert cli("login").out.startswith("https://jobs.example/login#")
    stage(add_here)
    assert cli("login").out.startswith("http://127.0.0.1:7073/login#")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://10.0.0.1:7070", TOKEN),  # in plain text
        ("ftp://jobs.example", TOKEN),
        ("https://jobs.example?x=1", TOKEN),
        ("https://jobs.example", ""),
        ("https://jobs.example", "ms_short"),
        ("https://jobs.example", "hunter2"),
    ],
)
def test_what_is_no_server_or_no_token_is_not_kept(
    offline: Cli, logins: Path, monkeypatch: pytest.MonkeyPatch, url: str, text: str
) -> None:
    given(monkeypatch, text)
    outcome = offline("login", url)
    assert outcome.code == 2, outcome
    assert not text or text not in outcome.err
    assert not logins.exists()


def test_plain_text_to_another_machine_has_to_be_asked_for() -> None:
    with pytest.raises(ValidationError, match="plain text"):
        check_server("http://10.0.0.1:7070")
    assert check_server("http://10.0.0.1:7070", without_tls=True) == "http://10.0.0.1:7070"


def test_a_file_that_others_can_read_is_neither_used_nor_written(
    offline: Cli, logins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logins.parent.mkdir()
    logins.write_text("{}")
    logins.chmod(0o644)
    given(monkeypatch, TOKEN)
    outcome = offline("login", "https://jobs.example")
    assert outcome.code == 5
    assert "chmod 600" in outcome.err
    assert logins.read_text() == "{}"
