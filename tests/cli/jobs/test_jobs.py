"""`mainspring job …` on a real database."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Cli

CREATE = ("job", "create", "backup", "--timeout", "1h", "--retries", "2", "--", "pg_dump", "--verbose", "shop")


def test_a_job_is_created_listed_shown_and_deleted(cli: Cli) -> None:
    assert cli(*CREATE).code == 0
    assert cli("job", "list").out.splitlines() == [
        "name\tkind\truns\tlive\tlast_ended\tdescription\theld",
        "backup\tcommand\tpg_dump --verbose shop\t0\t\t\t",
    ]
    shown = cli("job", "show", "backup").out
    assert "timeout\t3600 s\n" in shown
    assert "retries\t2 (jitter, from 1 s)\n" in shown
    assert cli("job", "delete", "backup").code == 0
    assert cli("job", "show", "backup").code == 3


def test_show_tells_the_retries_that_a_kind_of_job_has_by_itself(cli: Cli) -> None:
    cli("job", "create", "hello", "--", "true")
    cli("job", "create", "ping", "--http", "https://shop.example/ping")
    assert "retries\tnone (the default of commands)\n" in cli("job", "show", "hello").out
    assert "retries\t3 (jitter, from 1 s; the default of HTTP calls)\n" in cli("job", "show", "ping").out
    assert "timeout\t86400 s (the default of the cluster)\n" in cli("job", "show", "ping").out
    for name, value in ("default_retries", "2"), ("default_expires", "1h"), ("default_timeout", "off"):
        cli("settings", "set", name, value)
    shown = cli("job", "show", "hello").out
    assert "retries\t2 (jitter, from 1 s; the default of the cluster)\n" in shown
    assert "expires\t3600 s after its time (the default of the cluster)\n" in shown
    assert "timeout" not in shown
    cli("job", "create", "own", "--retries", "1", "--expires", "1m", "--timeout", "5s", "--", "true")
    assert "the default of" not in cli("job", "show", "own").out


def test_job_commands_speak_json(cli: Cli) -> None:
    assert cli("--json", *CREATE).json == {"name": "backup", "changed": True}
    (listed,) = cli("job", "list", "--json").json
    assert listed["live"] == 0
    shown = cli("job", "show", "backup", "--json").json
    assert (shown["name"], shown["version"]) == ("backup", 1)
    assert shown["definition"]["run"] == {"type": "command", "argv": ["pg_dump", "--verbose", "shop"]}
    assert cli("job", "delete", "backup", "--json").json == {"name": "backup", "deleted": True}


def test_every_option_of_a_job_is_stored(cli: Cli) -> None:
    options = {
        "--cwd": "/tmp",
        "--stdin": "words",
        "--grace": "2s",
        "--backoff": "10s,1m",
        "--retry-delay": "2",
        "--max-retry-delay": "1m",
        "--delivery": "at_least_once",
        "--priority": "high",
        "--keep-succeeded": "0",
        "--keep-failed": "90d",
        "--description": "what for",
    }
    pairs = [part for option in options.items() for part in option]
    more = ["--env", "A=1", "--env", "B=x=y", "--retry-on", "75", "--abort-on", "2", "--requires", "zone=eu"]
    assert cli("job", "create", "sync", "--shell", *pairs, *more, "--", "sync $1", "all").code == 0
    definition = cli("job", "show", "sync", "--json").json["definition"]
    assert definition["run"] == {
        "type": "command",
        "argv": ["sync $1", "all"],
        "shell": True,
        "cwd": "/tmp",
        "env": {"A": "1", "B": "x=y"},
        "stdin": "words",
    }
    assert definition["retry"]["delays"] == [10.0, 60.0]
    assert definition["retry"]["retry_on"] == ["75"]
    assert definition["retry"]["abort_on"] == ["2"]
    assert definition["requires"] == {"zone": "eu"}
    assert (definition["priority"], definition["grace"], definition["description"]) == (7, 2.0, "what for")
    assert (definition["keep_succeeded"], definition["keep_failed"]) == (0.0, 7_776_000.0)
    assert "keep failed\t90 d\n" in cli("job", "show", "sync").out


def test_user_limits_and_warm_modules_are_stored_and_shown(cli: Cli) -> None:
    options = ("--user", "backup", "--limit", "memory=512MB", "--limit", "cpu=60s", "--limit", "files=256")
    warm = ("--python", "--warm", "json", "--warm", "email.message")
    assert cli("job", "create", "quotes", *options, *warm, "--", "quotes.py", "--all").code == 0
    assert cli("job", "show", "quotes", "--json").json["definition"]["run"] == {
        "type": "command",
        "argv": ["quotes.py", "--all"],
        "user": "backup",
        "limits": {"memory": 512 << 20, "cpu": 60.0, "files": 256},
        "python": True,
        "warm": ["json", "email.message"],
    }
    shown = cli("job", "show", "quotes").out
    assert "runs\tpython quotes.py --all\n" in shown
    assert "limits\tmemory 512 MB, cpu 60 s, files 256\n" in shown
    assert "user\tbackup\n" in shown
    assert "warm\tjson email.message\n" in shown


def test_a_limit_that_makes_no_sense_is_refused(offline: Cli) -> None:
    for limit in ("memory=much", "disk=1GB", "memory"):
        outcome = offline("job", "create", "quotes", "--limit", limit, "--", "true")
        assert outcome.code == 2
        assert "limit" in outcome.err


def test_creating_a_job_again_is_a_conflict_only_if_it_differs(cli: Cli) -> None:
    cli(*CREATE)
    again = cli("--json", *CREATE)
    assert (again.code, again.json["changed"]) == (0, False)
    other = cli("job", "create", "backup", "--json", "--", "true")
    assert other.code == 4
    assert json.loads(other.err)["code"] == "name_taken"
    assert cli("job", "show", "backup", "--json").json["version"] == 1
    assert cli("job", "create", "backup", "--replace", "--", "true").code == 0
    assert cli("job", "show", "backup", "--json").json["definition"]["run"]["argv"] == ["true"]


def test_a_job_with_live_tasks_cannot_be_deleted(cli: Cli) -> None:
    cli(*CREATE)
    cli("task", "submit", "backup")
    outcome = cli("job", "delete", "backup")
    assert outcome.code == 4
    assert "have not ended" in outcome.err
    assert cli("job", "list", "--json").json[0]["live"] == 1


def test_what_looks_like_an_option_behind_two_dashes_belongs_to_the_command(cli: Cli) -> None:
    outcome = cli("job", "create", "odd", "--", "tool", "--json", "--dsn", "x")
    assert outcome.code == 0
    assert outcome.out == ""
    assert cli("job", "show", "odd", "--json").json["definition"]["run"]["argv"] == ["tool", "--json", "--dsn", "x"]


CALL = ("job", "create", "ping", "--http", "POST https://shop.example/ping")


def test_an_http_job_is_created_listed_and_shown(cli: Cli) -> None:
    options = ("--header", "X-Shop: 7", "--header", "Authorization: Bearer secret", "--body-json", '{"a": 1}')
    assert cli(*CALL, *options, "--expect", "204", "--expect", "3xx", "--redirects", "0", "--abort-on", "4xx").code == 0
    assert cli("job", "list").out.splitlines()[1] == "ping\thttp\tPOST https://shop.example/ping\t0\t\t\t"
    shown = cli("job", "show", "ping").out
    assert "runs\tPOST https://shop.example/ping\n" in shown
    assert '"X-Shop":"7"' in shown
    assert '"Authorization":"***"' in shown
    assert "secret" not in shown
    assert "expects\t204, 3xx\n" in shown
    assert "secret" not in cli("job", "show", "ping", "--json").out
    definition = cli("job", "show", "ping", "--json", "--reveal").json["definition"]
    assert definition["run"] == {
        "type": "http",
        "method": "POST",
        "url": "https://shop.example/ping",
        "headers": {"X-Shop": "7", "Authorization": "Bearer secret", "Content-Type": "application/json"},
        "body": '{"a":1}',
        "expect": ["204", "3xx"],
        "redirects": 0,
    }
    assert definition["retry"]["abort_on"] == ["4xx"]


def test_a_url_alone_is_asked_with_get(cli: Cli) -> None:
    assert cli("job", "create", "ping", "--http", "https://shop.example/").code == 0
    assert cli("job", "show", "ping", "--json").json["definition"]["run"]["method"] == "GET"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("job", "create", "ping"), "argv"),
        (("job", "create", "ping", "--header", "X: y", "--", "true"), "header"),
        (("job", "create", "ping", "--body-json", "{}", "--", "true"), "body-json"),
        ((*CALL, "--", "true"), "http"),
        ((*CALL, "--shell"), "http"),
        ((*CALL, "--header", "no colon"), "header"),
        ((*CALL, "--header", "X: y\r\nZ: a"), "headers"),
        ((*CALL, "--body", "a", "--body-json", "1"), "body"),
        ((*CALL, "--body-json", "{"), "body_json"),
        ((*CALL, "--expect", "ok"), "expect"),
        (("job", "create", "ping", "--http", "POST"), "url"),
        (("job", "create", "ping", "--http", ""), "url"),
        (("job", "create", "ping", "--http", "GET ftp://shop.example/"), "url"),
        (("job", "create", "ping", "--http", "GET POST https://shop.example/"), "method"),
    ],
)
def test_an_http_job_that_cannot_be_is_refused_by_its_field(cli: Cli, arguments: tuple[str, ...], field: str) -> None:
    outcome = cli("--json", *arguments)
    assert outcome.code == 2
    assert json.loads(outcome.err)["field"] == field


@pytest.mark.parametrize("create", [("job", "create"), ("daemon", "create")])
def test_a_second_word_before_the_dashes_is_refused(cli: Cli, create: tuple[str, ...]) -> None:
    refused = cli(*create, "two", "words", "--grace", "5s", "--", "echo", "words")
    assert refused.code == 2
    assert "words is too much before --: NAME is one word" in refused.err
    assert f"`mainspring {' '.join(create)} 'two words' -- …`" in refused.err
    assert cli("job", "list", "--json").json == []
    assert cli(*create, "two words", "--description", "--", "--", "echo", "--", "words").code == 0
    assert cli("job", "show", "two words", "--json").json["definition"]["run"]["argv"] == ["echo", "--", "words"]


def test_no_retries_are_none_and_not_the_default(cli: Cli) -> None:
    assert cli("job", "create", "once", "--retries", "0", "--", "true").code == 0
    assert cli("job", "show", "once", "--json").json["definition"]["retry"]["retries"] == 0
    assert "retries\tnone" in cli("job", "show", "once").out
    assert cli("job", "create", "once", "--replace", "--retries", "2", "--", "true").err.startswith("changed")
