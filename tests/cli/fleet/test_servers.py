"""`mainspring servers …`, and what `stats` says of servers, on a real database."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from tests.cli.conftest import Cli, Stage
from tests.cluster import add_server, lead, own

from mainspring.cli import render
from mainspring.cli.layout import Room
from mainspring.store.postgres.database import Connection

pytestmark = pytest.mark.usefixtures("no_servers")

ALPHA = UUID("3f2a91c0-0000-4000-8000-000000000000")
BETA = UUID("3f2a0000-0000-4000-8000-000000000000")


async def two_servers(conn: Connection) -> None:
    """Alpha leads."""
    figures: dict[str, Any] = {"scanned": 1, "planned": 22, "dispatched": 333, "recorded": 4444, "agents": 2}
    await add_server(conn, "alpha", id=ALPHA, host="a.example", url="ws://a.example:7070", **figures)
    await add_server(conn, "beta", id=BETA)
    await own(conn, ALPHA, [*range(34), 67])
    await lead(conn, ALPHA, term=7)


def test_servers_are_listed_with_the_leader_marked(cli: Cli, stage: Stage) -> None:
    stage(two_servers)
    header, alpha, beta = cli("servers").out.splitlines()
    assert header.split("\t") == [
        *("name", "id", "status", "leader", "segments", "agents", "heartbeat", "up", "version"),
        *("scanned", "planned", "dispatched", "recorded", "last_scan", "host", "url"),
    ]
    assert alpha.split("\t")[:6] == ["alpha", "3f2a91c0", "active", "term 7", "35", "2"]
    assert alpha.split("\t")[8:] == ["0.1.0", "1", "22", "333", "4444", "", "a.example", "ws://a.example:7070"]
    assert beta.split("\t")[:6] == ["beta", "3f2a0000", "active", "", "0", "0"]
    first, second = cli("servers", "--json").json
    assert (first["name"], first["segments"]) == ("alpha", [*range(34), 67])
    assert (first["leadership"]["term"], second["leadership"]) == (7, None)


def test_what_somebody_should_see_to_is_said(cli: Cli, stage: Stage) -> None:
    async def alpha_falls_silent(conn: Connection) -> None:
        await conn.execute("update mainspring.server set lease_until = mainspring.now() where name = 'alpha'")
        await conn.execute("update mainspring.leader set lease_until = mainspring.now()")

    async def beta_stops(conn: Connection) -> None:
        await conn.execute(
            "update mainspring.server set status = 'stopped', ended_at = mainspring.now() where name = 'beta'"
        )

    nobody = "no server is active, and nothing is dispatched; start one with `mainspring server`, `worker` or `up`\n"
    assert cli("servers").err == nobody
    stage(two_servers)
    assert cli("servers").err == ""
    stage(alpha_falls_silent)
    told = cli("servers").err
    assert "there is no leader: one is being elected" in told
    assert "alpha (3f2a91c0) has not been heard of for " in told
    stage(beta_stops)
    assert cli("servers").err.startswith(nobody)
    assert cli("servers", "--json").err == ""


def test_those_that_ended_long_ago_are_shown_when_asked_for(cli: Cli, stage: Stage) -> None:
    async def scene(conn: Connection) -> None:
        await add_server(conn, "alpha", status="dead")
        await conn.execute("update mainspring.server set ended_at = mainspring.now() - interval '2 h'")

    stage(scene)
    assert cli("servers", "--json").json == []
    assert [view["status"] for view in cli("servers", "--all", "--json").json] == ["dead"]


def test_one_server_is_shown_by_name_or_id(cli: Cli, stage: Stage) -> None:
    async def opened(conn: Connection) -> None:
        await two_servers(conn)
        await conn.execute(
            """with pool as (insert into mainspring.pool (requirements) values ('{"gpu": "a100"}') returning id)
               insert into mainspring.shared_pool (server, pool) select $1, id from pool""",
            ALPHA,
        )
        await conn.execute(
            "insert into mainspring.agent (name, slots, lease_until, server) values ('one', 1, 'infinity', $1)", ALPHA
        )

    stage(opened)
    shown = cli("servers", "show", "alpha").out
    assert "segments\t35: 0-33, 67\n" in shown
    assert "agents\tone\n" in shown
    assert "leader\tterm 7, since 20" in shown
    assert ": gpu=a100\n" in shown.partition("open pools\t")[2]
    assert cli("servers", "show", "3f2a91").out.startswith(f"name\talpha\nid\t{ALPHA}\n")
    found = cli("servers", "show", "alpha", "--json").json
    assert found["server"]["id"] == str(ALPHA)
    assert found["shared_pools"][0]["requirements"]["labels"] == {"gpu": "a100"}
    assert found["agents"][0]["name"] == "one"
    assert "segments\tnone\n" in cli("servers", "show", "beta").out


def test_a_server_that_cannot_be_told_is_an_error_that_says_what_to_do(cli: Cli, stage: Stage) -> None:
    stage(two_servers)
    missing = cli("servers", "show", "gamma")
    assert (missing.code, missing.out) == (3, "")
    assert "`mainspring servers --all` shows all" in missing.err
    assert "at least 4 characters" in cli("servers", "show", "3f2").err
    ambiguous = cli("servers", "show", "3f2a")
    assert ambiguous.code == 4
    assert "give the id of one: 3f2a91c0, 3f2a0000" in ambiguous.err


def test_a_name_that_cannot_be_one_is_refused_before_anybody_is_asked(offline: Cli) -> None:
    assert offline("servers", "show", "a\x07b").code == 2


def test_stats_tell_of_servers_and_the_leader(cli: Cli, stage: Stage) -> None:
    assert "servers\tnone\nleader\tnone\n" in cli("stats").out
    stage(two_servers)
    assert "servers\t2 active\nleader\talpha, term 7, since 20" in cli("stats").out
    found = cli("stats", "--json").json
    assert found["servers"] == {"active": 2}
    assert (found["leader"]["id"], found["leader"]["term"]) == (str(ALPHA), 7)


@pytest.mark.parametrize(("columns", "shown"), [(20, "NAME STATUS"), (60, "NAME STATUS URL"), (10, "NAME")])
def test_a_narrow_terminal_shows_the_columns_that_fit(
    columns: int, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    row = ["alpha", "active", "ws://a.example:7070/with/a/path"]
    render.table(["NAME", "STATUS", "URL"], [row], empty="none", room=Room(cut=["URL"], drop=["URL", "STATUS"]))
    header = next(line for line in capsys.readouterr().out.splitlines() if "NAME" in line)
    assert header.split() == shown.split()


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.44, "0.4 s"), (11.9, "11 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172800, "2 d"), (-3, "0.0 s")],
)
def test_ages_are_told_as_exactly_as_anybody_wants_to_know(seconds: float, told: str) -> None:
    assert render.age(seconds) == told
