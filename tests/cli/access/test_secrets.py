"""`mainspring secret`, on the database and over HTTP: the value comes from the standard input and never comes out."""

from __future__ import annotations

import io
import sys

import pytest
from tests.cli.conftest import Cli
from tests.secret_keys import TEXT

VALUE = "hunter2-hunter2"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAINSPRING_SECRET_KEYS", TEXT)


def type_in(monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(value)))


def test_a_secret_is_set_listed_used_and_deleted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, f"{VALUE}\n".encode())
    made = cli("secret", "set", "db", "--label", "zone=eu", "--json")
    assert (made.code, made.json["created"], made.json["secret"]["labels"]) == (0, True, {"zone": "eu"})
    create = ("job", "create", "dump", "--secret-env", "PGPASSWORD=db")
    refused = cli(*create, "--", "true")
    assert (refused.code, "zone=eu" in refused.err) == (2, True)
    assert cli(*create, "--requires", "zone=eu", "--", "true").code == 0
    shown = cli("secret", "show", "db", "--json")
    assert (shown.json["version"], shown.json["jobs"], shown.json["key_id"]) == (1, ["dump"], "1")
    listed, job, audit = cli("secret", "list"), cli("job", "show", "dump", "--json"), cli("audit", "--json")
    assert "zone=eu" in listed.out
    assert job.json["definition"]["run"]["env"] == {"PGPASSWORD": {"$secret": "db"}}
    kept = cli("secret", "delete", "db")
    assert (kept.code, "job 'dump' refers to it" in kept.err) == (4, True)
    rotated = cli("secret", "rotate", "--json")
    assert rotated.json == {"key_id": "1", "rotated": 0, "secrets": 1}
    exported = cli("export", "--reveal")
    assert "$secret" in exported.out
    for outcome in (made, refused, shown, listed, job, audit, kept, rotated, exported):
        assert VALUE not in outcome.out + outcome.err
    assert cli("job", "delete", "dump").code == 0
    assert cli("secret", "delete", "db").code == 0
    assert cli("secret", "show", "db").code == 3


def test_an_http_job_refers_to_a_secret_in_a_header(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, b"abc")
    short = cli("secret", "set", "token")
    assert "less than 4 bytes is not hidden" in short.err
    made = cli("job", "create", "ping", "--http", "GET https://a.example", "--secret-header", "Authorization=token")
    assert made.code == 0
    assert "$secret" in cli("job", "show", "ping").out


def test_a_channel_refers_to_secrets_for_its_url_and_for_what_signs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("url", b"https://hooks.example/T0/hunter2hunter2"), ("sign", b"0123456789abcdef")):
        type_in(monkeypatch, value)
        assert cli("secret", "set", name).code == 0
    made = cli("channel", "set", "ops", "--secret-url", "url", "--secret", "sign", "--json")
    assert (made.code, made.json["channel"]["url"], made.json["channel"]["is_signed"]) == (0, "secret url", True)
    assert cli("secret", "show", "url", "--json").json["channels"] == ["ops"]
    assert cli("channel", "set", "ops", "https://a.example", "--secret-url", "url").code == 2
    assert cli("channel", "set", "ops", "--unsigned", "--secret", "sign").code == 2
    assert cli("channel", "set", "ops", "--secret-url", "nobody").code == 2
    assert cli("channel", "set", "ops", "https://a.example", "--unsigned").code == 0
    assert cli("secret", "delete", "url").code == 0


@pytest.mark.parametrize("value", [b"", b"a\0b", b"\xff\xfe", b"x" * 70_000])
def test_a_bad_value_is_refused(cli: Cli, monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
    type_in(monkeypatch, value)
    refused = cli("secret", "set", "db")
    assert (refused.code, refused.out) == (2, "")
    assert "value" in refused.err or "NUL" in refused.err


def test_a_new_key_is_printed_and_bad_ids_are_refused(cli: Cli) -> None:
    assert cli("secret", "key", "2026-11").out.startswith("2026-11:")
    assert cli("secret", "key", "a b").code == 2
