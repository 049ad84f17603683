"""`--reveal`: an admin, as everybody on the database itself is, sees what is masked for all others."""

from __future__ import annotations

from tests.cli.conftest import Cli

URL = "https://hc.example/0123456789abcdef0123"


def test_secrets_are_shown_with_reveal_only(cli: Cli) -> None:
    cli("job", "create", "hello", "--", "echo", "hello")
    cli("schedule", "create", "nightly", "hello", "--every", "1h", "--arg", "password=hunter2")
    cli("settings", "set", "heartbeat_url", URL)
    task = str(cli("task", "submit", "hello", "--args", '{"password": "hunter2"}', "--json").json["id"])
    for shown in (("schedule", "show", "nightly"), ("task", "show", task)):
        assert "hunter2" not in cli(*shown).out
        assert "hunter2" not in cli(*shown, "--json").out
        assert "hunter2" in cli(*shown, "--reveal").out
    for setting in (["list"], ["get", "heartbeat_url"]):
        assert URL not in cli("settings", *setting, "--json").out
        assert URL in cli("settings", *setting, "--json", "--reveal").out
    revealed = cli("audit", "--action", "*.reveal", "--json").json
    assert {entry["action"] for entry in revealed} == {"schedule.reveal", "task.reveal", "setting.reveal"}
