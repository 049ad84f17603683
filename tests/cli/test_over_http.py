"""Every command on the database and over HTTP: the same output, the same exit codes."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import mainspring.cli
from mainspring import operations
from mainspring.api.rows import ROWS
from mainspring.cli.main import cli as commands
from mainspring.cli.tasks.control import _COMMANDS as CONTROLS
from mainspring.model.access.actors import Role
from mainspring.store.postgres.database import Connection
from tests.cli.conftest import NOWHERE, Cli, Stage, make_token
from tests.cluster import add_server
from tests.served import served_in_thread

# Those that are a process, or work on the database itself; with arguments that a parser takes.
ON_THE_DATABASE = {
    "up": (),
    "worker": ("shop:app",),
    "server": (),
    "api": (),
    "demo": (),
    "migrate": (),
    "backup": ("x",),
    "restore": (__file__,),
    "db": (),
    "grant": ("viewer", "somebody"),
    "revoke": ("viewer", "somebody"),
}
OF_ITS_OWN = {"agent", "secret", "logout"}  # --server is what it connects to; cli/access/test_{secrets,logins}.py
WITHOUT_ROW = {operations.access.grant_role, operations.access.revoke_role}

# In this order, each line with its exit code; where there is none it is 0.
JOURNEY: tuple[tuple[str, int | tuple[int, ...]] | str, ...] = (
    "job create hello --retries 1 -- echo hello",
    ("job create hello -- echo hello", 4),
    "job list",
    "job show hello",
    ("job show nothing", 3),
    "task submit hello --arg day=mon --key monday --priority high",
    "task submit hello --arg day=mon --key monday --priority high",
    "task submit hello --delay 1h",
    "task list",
    "task list --job hello --state pending",
    "task show 1",
    ("task wait 1 --timeout 0.05", 124),
    "task edit 1 --priority low --run-at 2030-01-01T10:00:00+01:00",
    "task show 1 --json",
    "task logs 1",
    "task skip 1 --note 'release night'",
    ("task skip 1", 4),
    "task retry 1",
    "task skip --job hello --yes",
    "task retry 1",
    ("task pause 1", 4),
    ("task resume 1", 4),
    ("task restart 1", 4),
    "task cancel 1",
    "task retry 1",
    "task kill 1",
    ("task wait 1", 7),
    ("task kill 4711", 3),
    'batch create import --on-success hello --on-failure hello --failure-args \'{"day": "mon"}\'',
    ("batch create import --on-success nothing", 3),
    ("batch create import --success-args '{}'", 2),
    "task submit hello --batch 1 --delay 1h",
    ("task submit hello --batch 4711", 3),
    "task list --batch 1",
    "batch list",
    "batch list --state open --name 'im*' --json",
    ("batch list --cursor nonsense", 2),
    "batch show 1",
    "batch show 1 --json",
    ("batch show 4711", 3),
    ("batch wait 1 --timeout 0.05", 124),
    "batch close 1",
    "batch close 1",
    "batch retry 1",
    "batch cancel 1",
    ("batch create nothing --parent 4711", 3),
    "batch create empty",
    "batch close 2",
    "batch wait 2",
    ("batch cancel 2", 4),
    ("task submit hello --batch 2", 4),
    "schedule calendar set holidays 12-25 sun",
    "schedule calendar list",
    "rule set urgent --when 'tag in hotfix,urgent' --priority critical --force",
    ("rule set urgent --when tag --priority critical", 2),
    "rule list",
    "rule show urgent",
    ("rule show other", 3),
    "rule test hello --arg name=x --tag hotfix",
    "rule examples",
    "rule delete urgent",
    "schedule calendar show holidays",
    "schedule create nightly hello --cron '0 2 * * *' --tz Europe/Berlin --calendar holidays --enable",
    "schedule list",
    "schedule show nightly",
    "schedule show nightly --json",
    "schedule edit nightly --jitter 5s",
    "schedule preview every 30m",
    "schedule explain nightly",
    "schedule explain nightly --at 2026-01-05T02:00:00+01:00",
    "schedule check",
    "schedule forecast --from 2030-01-01 --to 2030-01-02 --cell 6h",
    "schedule backfill nightly --from 2026-01-01 --to 2026-01-08 --dry-run",
    "schedule run-now nightly",
    "schedule skip nightly --next 2 --note 'release night'",
    "schedule skip nightly --at '2031-07-01 02:00'",
    ("schedule skip nightly --at '2031-07-01 03:00'", 2),
    ("schedule skip nightly", 2),
    "schedule show nightly",
    "schedule unskip nightly --next 1",
    "schedule unskip nightly --json",
    "schedule pause nightly",
    "schedule resume nightly",
    "schedule disable nightly",
    "schedule enable nightly",
    ("schedule calendar delete holidays", 4),
    "schedule delete nightly",
    "schedule calendar delete holidays",
    "daemon create watcher --replicas 2 -- sleep 600",
    "daemon list",
    "daemon show watcher",
    "daemon scale watcher 1",
    "daemon restart watcher",
    ("daemon logs watcher", 3),  # it has no replica yet
    "daemon stop watcher",
    "daemon start watcher",
    "daemon delete watcher",
    "agents",
    "agents list",
    "agents show alpha",
    "agents drain alpha",
    "agents undrain alpha",
    "agents strategy least_tasks",
    "agents strategy",
    "job hold hello --note 'for a while'",
    "hold --list",
    "job release hello --at-once",
    "hold --skip",
    "release",
    "release --at-once",
    "settings",
    "settings list",
    "settings get aging",
    "settings set aging 30s",
    "settings reset aging",
    ("settings set aging never", 2),
    "channel set ops https://hooks.example/alerts",
    "channel set ops --disable",
    "channel list",
    ("channel test ops --timeout 0.1", 1),  # no server runs, and it is disabled
    ("channel test nothing", 3),
    "alert rules",
    "alert rule set slow --kind late -p after=30s --name 'hel*' --for 1m --channel ops --repeat 1h",
    "alert rule set slow --severity critical --repeat off",
    ("alert rule set other", 2),
    ("alert rule set other --kind lat", 2),
    "alert rule show slow",
    "alert rule test failed --since 10m",
    "alert rule delete slow",
    ("alert rule show slow", 3),
    "alert list",
    "alert list --all --json",
    ("alert show 4711", 3),
    "alert messages --channel ops",
    "alert mute --rule 'slow*' --for 2h 'new hosts'",
    "alert mutes",
    "alert unmute 1",
    ("alert unmute 1", 3),
    "channel delete ops",
    "servers --all",
    "servers show north",
    "segments",
    "autoscale",
    "stats",
    ("doctor", (0, 1)),  # by how long no server has led
    "login --role viewer",
    "token create ci --role submitter --jobs 'hello*'",
    "token list",
    ("token revoke 4711", 3),
    "sessions",
    "sessions list",
    ("sessions revoke 4711", 3),
    "audit --limit 3",
    "export",
    "export --json",
    ("export --set nothing", 3),
    ("plan -f nowhere.yaml", 2),
    ("apply -f nowhere.yaml --yes", 2),
    ("job delete hello", 4),
    "task cancel --job hello --yes",
    "job delete hello",
)


def words(line: str) -> tuple[str, ...]:
    return tuple(one.strip("'") for one in re.findall(r"'[^']*'|\S+", line))


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield (*path, name)
            yield from leaves(command, (*path, name))
        else:
            yield (*path, name)


async def a_fleet(conn: Connection) -> None:
    server = await add_server(conn, "north", url="ws://127.0.0.1:7071")
    await conn.execute(
        """insert into mainspring.agent (name, slots, server, lease_until, version)
           values ('alpha', 10, $1, mainspring.now() + interval '1 hour', '0.1.0')""",
        server,
    )


def test_every_command_works_on_the_database_and_over_http(
    cli: Cli, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAINSPRING_PUBLIC_URL", "https://jobs.example")  # where login links lead: no server runs
    stage(a_fleet)
    for step in JOURNEY:
        line, code = (step, 0) if isinstance(step, str) else step
        outcome = cli(*words(line))
        assert outcome.code in (code if isinstance(code, tuple) else (code,)), (line, outcome.out, outcome.err)


def test_every_command_is_on_the_journey() -> None:
    travelled = [words(step if isinstance(step, str) else step[0]) for step in JOURNEY]
    elsewhere = ON_THE_DATABASE.keys() | OF_ITS_OWN
    wanted = [path for path in leaves(commands) if path[0] not in elsewhere]
    missing = [path for path in wanted if not any(line[: len(path)] == path for line in travelled)]
    assert missing == []


# ── the same words ──────────────────────────────────────────────────────────────────────────────

READS = [
    *("job list", "job show hello", "task list", "task show 1", "task show 2", "task logs 1", "task show 4711"),
    *("schedule list", "schedule show nightly", "schedule explain nightly", "schedule check", "daemon list"),
    *("daemon show watcher", "agents", "agents show alpha", "agents show beta", "servers", "servers show north"),
    *("alert list --all", "alert rules", "alert rule show no-agents", "alert mutes", "channel list", "alert messages"),
    *("segments", "stats", "doctor", "token list", "sessions", "audit", "schedule calendar show holidays"),
    *("schedule show nothing", "task list --job nothing", "schedule explain nightly --tz Asia/Tokyo"),
    "schedule forecast --from 2030-01-01 --to 2030-01-02 --cell 6h",
    *("batch list", "batch show 1", "batch show 4711", "export"),
]

# What passes while a test runs: ages, and the token's last use.
PASSING = re.compile(r'\d+(\.\d+)?( ?(ms|s|min)\b)? ago|"(\w*age|uptime|last_used_at|counted_at)":[^,}]*')


@pytest.mark.parametrize("cli", ["database"], indirect=True)
def test_the_words_are_the_same(cli: Cli, stage: Stage, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(a_fleet)
    for step in (
        "job create hello -- echo hello",
        "task submit hello --arg day=mon",
        "task submit hello --key x --run-at 2030-07-01T10:00:00+02:00",
        "task cancel 1",
        "schedule calendar set holidays 12-25",
        "schedule create nightly hello --cron '0 2 * * *' --tz Europe/Berlin --calendar holidays --enable",
        "daemon create watcher -- sleep 600",
        "schedule run-now nightly",
        "channel set ops https://somebody:password@hooks.example/alerts?token=abc",
        "alert mute --rule slow --for 2h 'new hosts'",
        "batch create import --on-success hello",
        "task submit hello --batch 1 --delay 1h",
        "schedule skip nightly --until 2030-01-01 --note 'release night'",
    ):
        assert cli(*words(step)).code == 0, step
    token = asyncio.run(make_token(dsn, "viewer", Role.ADMIN))
    lines = [(*words(line), *more) for line in READS for more in ((), ("--json",))]
    expected = [cli(*line) for line in lines]
    with served_in_thread(dsn) as url:
        monkeypatch.setenv("MAINSPRING_DSN", NOWHERE)
        monkeypatch.setenv("MAINSPRING_TOKEN", token)
        for line, there in zip(lines, expected, strict=True):
            here = cli(*line, "--server", url)
            assert here.code == there.code, (line, here.err)
            assert PASSING.sub("…", here.out) == PASSING.sub("…", there.out), line
            assert PASSING.sub("…", here.err) == PASSING.sub("…", there.err), line


# ── what a server cannot be asked for ───────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ON_THE_DATABASE)
def test_what_works_on_the_database_itself_says_so(offline: Cli, name: str) -> None:
    outcome = offline(name, *ON_THE_DATABASE[name], "--server", "http://127.0.0.1:1")
    assert outcome.code == 2
    assert "works on the database itself" in outcome.err


@pytest.mark.parametrize("name", ["migrate", "backup", "restore", "grant", "revoke"])
def test_the_database_is_not_another_than_that_of_the_server_in_the_environment(
    offline: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.delenv("MAINSPRING_DSN")
    monkeypatch.delenv("MAINSPRING_DATA_DIRECTORY")
    monkeypatch.setattr("mainspring.compose.stores.default_directory", lambda: tmp_path)
    monkeypatch.setenv("MAINSPRING_URL", "http://127.0.0.1:1")
    outcome = offline(name, *ON_THE_DATABASE[name])
    assert (outcome.code, "works on the database itself" in outcome.err) == (2, True), outcome.err


def test_what_the_command_line_calls_has_a_row() -> None:
    offered = {row.operation for row in ROWS}
    named = set(_operations_in(Path(mainspring.cli.__file__).parent))
    named |= {getattr(operations.tasks, name) for name in CONTROLS if name != "kill"}
    assert len(named) > 40
    assert {one.__qualname__ for one in named - offered - WITHOUT_ROW} == set()


def _operations_in(directory: Path) -> Iterator[Any]:
    """The async functions of `operations` that the sources name."""
    for file in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and (found := _resolved(ast.unparse(node))) is not None:
                yield found


def _resolved(text: str) -> Any:
    first, *names = text.split(".")
    if first != "operations" or len(names) != 2:
        return None
    found: Any = operations
    for name in names:
        found = getattr(found, name, None)
    is_operation = inspect.iscoroutinefunction(found) and list(inspect.signature(found).parameters)[:1] == ["conn"]
    return found if is_operation else None


# ── away, and not allowed ───────────────────────────────────────────────────────────────────────


def test_a_server_that_is_away_is_told(offline: Cli) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        outcome = offline("token", "revoke", "1", "--server", url)
    assert outcome.code == 6
    assert f"{url} cannot be reached" in outcome.err


def test_what_a_token_may_not_do_is_told(
    offline: Cli, dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with served_in_thread(dsn) as url:
        stranger = offline("task", "list", "--server", url)
        assert stranger.code == 5
        assert f"`mainspring login {url}`" in stranger.err
        assert "Authorization" not in stranger.err, "that is for those who write requests"
        monkeypatch.setenv("MAINSPRING_TOKEN", asyncio.run(make_token(dsn, "v", Role.VIEWER)))
        assert offline("task", "list", "--server", url).code == 0
        refused = offline("job", "create", "x", "--server", url, "--", "true")
    assert refused.code == 5
    assert "admin" in refused.err


@pytest.mark.parametrize("server", ["nowhere", "ftp://x", "http://jobs.example", "http://127.0.0.1:1/?a=b"])
def test_what_is_no_server_is_refused(
    offline: Cli, server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert offline("task", "list", "--server", server).code in (2, 3)
