"""`mainspring daemon`: made, seen, scaled, restarted, stopped."""

from __future__ import annotations

import asyncio

import pytest
from tests.cli.conftest import Cli

from mainspring.store.daemons import daemons, replicas
from mainspring.store.postgres.database import Database

CREATE = ("daemon", "create", "gateway", "--replicas", "2")


def placed(dsn: str) -> None:
    """What a server would do."""

    async def act() -> None:
        conn = await Database(dsn).connect()
        await daemons.make(conn)
        due = await replicas.due(conn, within=1.0, limit=10)
        await replicas.claim(conn, {one.task: 1 for one in due})
        await conn.execute("update mainspring.task set state = 3, started_at = mainspring.now()")
        await conn.close()

    asyncio.run(act())


def well(dsn: str) -> None:
    """What their agents would say."""

    async def act() -> None:
        conn = await Database(dsn).connect()
        await conn.execute("update mainspring.task set healthy = true")
        await conn.close()

    asyncio.run(act())


def test_a_daemon_is_changed_explained_and_deleted(cli: Cli, dsn: str) -> None:
    cli(*CREATE, "--requires", "foo=bar", "--", "true")
    assert cli("daemon", "create", "gateway", "--replace", "--requires", "foo=bar", "--", "false").code == 0
    job = cli("job", "show", "gateway", "--json").json
    assert (job["version"], job["definition"]["run"]["argv"]) == (2, ["false"])

    async def make() -> None:
        conn = await Database(dsn).connect()
        await daemons.make(conn)
        await conn.close()

    asyncio.run(make())
    assert "replica 1 waits: no agent is connected" in cli("daemon", "show", "gateway").err
    assert cli("daemon", "logs", "gateway").code == 0
    assert "has no replica 9" in cli("daemon", "logs", "gateway", "--replica", "9").err
    assert cli("daemon", "delete", "gateway").err == "deleted\n"
    assert cli("daemon", "list", "--json").json == []


def test_a_daemon_from_its_making_to_its_stop(cli: Cli, dsn: str) -> None:
    made = cli(*CREATE, "--health-http", "http://127.0.0.1:80/", "--health-every", "2s", "--", "./gateway", "--port")
    assert (made.code, made.err) == (0, "created; see it with `mainspring daemon show gateway`\n")
    job = cli("job", "show", "gateway", "--json").json["definition"]
    assert job["run"]["argv"] == ["./gateway", "--port"]
    assert (job["health"]["url"], job["health"]["every"]) == ("http://127.0.0.1:80/", 2.0)
    placed(dsn)
    [found] = cli("daemon", "list", "--json").json
    assert (found["wanted"], found["up"], len(found["replicas"])) == (2, 0, 2), "nobody has found them well yet"
    well(dsn)
    [found] = cli("daemon", "list", "--json").json
    assert found["up"] == 2
    lines = cli("daemon", "list").out.splitlines()
    assert lines[0].split("\t")[:4] == ["name", "up", "replica", "state"]
    assert lines[1].split("\t")[:4] == ["gateway", "2/2", "1", "running"]
    assert cli("daemon", "scale", "gateway", "5").err == "scaled to 5\n"
    assert cli("daemon", "scale", "gateway", "5").err == "unchanged: it is scaled to 5 already\n"
    assert cli("daemon", "restart", "gateway").err == "restarting\n"
    shown = cli("daemon", "show", "gateway")
    assert "up\t2 of 5\n" in shown.out
    assert "running, outdated" in shown.out
    assert cli("daemon", "stop", "gateway", "--json").json == {"name": "gateway", "changed": True}
    assert cli("daemon", "show", "gateway", "--json").json["wanted"] == 0
    assert cli("daemon", "stop", "gateway").err == "unchanged: it is stopped already\n"
    assert cli("daemon", "start", "gateway").err == "started\n"


def test_one_that_is_made_stopped_waits_for_its_start(cli: Cli) -> None:
    assert cli(*CREATE, "--stopped", "--", "true").err == "created; start it with `mainspring daemon start gateway`\n"
    assert cli("daemon", "list").out.splitlines()[1].startswith("gateway\t0/0\t\tstopped")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("show", "nothing"), 3, "no daemon named 'nothing'"),
        (("restart", "tick"), 4, "is no daemon but every"),
        (("scale", "tick", "2"), 4, "is no daemon but every"),
        (("stop", "tick"), 4, "is no daemon but every"),
        (("scale", "gateway", "0"), 2, "give 1 to 1,000"),
        (("create", "gateway", "--", "false"), 4, "there is a job named 'gateway'"),
        (("create", "new", "--replicas", "0", "--", "true"), 2, "give 1 to 1,000"),
        (("create", "new", "--health-every", "1s", "--", "true"), 2, "give one of command"),
        (("create", "new", "--health-command", "'", "--", "true"), 2, "is no command line"),
        (("create", "tick", "--", "true"), 4, "there is a schedule named 'tick'"),
    ],
)
def test_each_refusal_says_what_is_wrong(cli: Cli, arguments: tuple[str, ...], code: int, message: str) -> None:
    cli(*CREATE, "--", "true")
    cli("schedule", "create", "tick", "gateway", "--every", "1h")
    refused = cli("daemon", *arguments)
    assert (refused.code, message in refused.err) == (code, True), refused
    assert "new" not in cli("job", "list").out


@pytest.mark.parametrize("made", [["--broadcast", "--", "true"], ["--http", "GET https://shop.example/"]])
def test_what_cannot_stay_up_is_not_made_a_daemon(cli: Cli, made: list[str]) -> None:
    """Nobody would ever place a replica of a broadcast, and an HTTP call ends."""
    assert cli("job", "create", "sweep", *made).code == 0
    refused = cli("schedule", "create", "sweep", "sweep", "--daemon", "2")
    assert (refused.code, refused.err.startswith("mainspring: daemon: job 'sweep' is a")) == (2, True)
    assert cli("schedule", "create", "sweep", "sweep", "--every", "1h").code == 0
    assert cli("schedule", "edit", "sweep", "--daemon", "2").code == 2
