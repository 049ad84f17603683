"""`mainspring segments …` on a real database."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from tests.cli.conftest import Cli, Stage
from tests.cluster import add_server, lead, note_move, own

from mainspring.store.postgres.database import Connection

pytestmark = pytest.mark.usefixtures("no_servers")

ALPHA = UUID("3f2a91c0-0000-4000-8000-000000000000")
BETA = UUID("77777777-0000-4000-8000-000000000000")


async def shared_out(conn: Connection) -> None:
    """Two servers own all segments but three."""
    await add_server(conn, "alpha", id=ALPHA)
    await add_server(conn, "beta", id=BETA)
    await lead(conn, ALPHA, term=7)
    await own(conn, ALPHA, range(50))
    await own(conn, BETA, [*range(50, 90), *range(93, 100)])


def test_segments_are_shown_by_owner_with_what_lies_in_them(cli: Cli, stage: Stage) -> None:
    stage(shared_out)
    cli("job", "create", "hello", "--", "true")
    for _ in range(3):
        cli("task", "submit", "hello", "--delay", "1h")
    cli("task", "submit", "hello")
    cli("schedule", "create", "often", "hello", "--every", "1h", "--enable")
    header, *lines = [line.split("\t") for line in cli("segments").out.splitlines()]
    assert header == ["owner", "id", "status", "owns", "segments", "schedules", "due", "waiting", "armed", "running"]
    assert [line[:5] for line in lines] == [
        ["nobody", "", "unowned", "3", "90-92"],
        ["alpha", "3f2a91c0", "active", "50", "0-49"],
        ["beta", "77777777", "active", "47", "50-89, 93-99"],
    ]
    sums = [sum(map(int, column)) for column in zip(*(line[5:] for line in lines), strict=True)]
    assert sums == [1, 1, 3, 0, 0]


def test_segments_that_nobody_works_on_are_told_with_the_reason(cli: Cli, stage: Stage) -> None:
    told = cli("segments").err
    assert told.startswith(
        "nobody works on 100 segments (0-99): no server is active; start one with `mainspring server`"
    )
    stage(shared_out)
    told = cli("segments").err
    assert told == "nobody works on 3 segments (90-92): the leader, alpha, has assigned no owner yet\n"
    found = cli("segments", "--json").json
    assert {view["id"] for view in found if view["problem"]} == {90, 91, 92}


def test_each_segment_can_be_shown(cli: Cli, stage: Stage) -> None:
    stage(shared_out)
    header, *lines = [line.split("\t") for line in cli("segments", "--each").out.splitlines()]
    assert header[:6] == ["segment", "owner", "id", "status", "epoch", "since"]
    assert [line[0] for line in lines] == [str(number) for number in range(100)]
    assert lines[0][1:5] == ["alpha", "3f2a91c0", "active", "1"]
    assert lines[91][1:5] == ["nobody", "", "unowned", "0"]
    found = cli("segments", "--json").json
    assert [view["id"] for view in found] == list(range(100))
    assert (found[50]["owner"], found[50]["owner_name"], found[50]["due"]) == (str(BETA), "beta", 0)


def test_moves_are_shown(cli: Cli, stage: Stage) -> None:
    async def moved(conn: Connection) -> None:
        await shared_out(conn)
        await note_move(conn, range(100), None, ALPHA, "free", term=6)
        await note_move(conn, [*range(50, 90), 93], ALPHA, BETA, "balance", term=7)
        await note_move(conn, [90], uuid4(), None, "released", term=0)

    assert cli("segments", "--events", "--json").json == []
    stage(moved)
    header, released, balance, free = [line.split("\t") for line in cli("segments", "--events").out.splitlines()]
    assert header == ["when", "moved", "segments", "from", "to", "why", "term"]
    assert balance[1:] == ["41", "50-89, 93", "alpha 3f2a91c0", "beta 77777777", "balance", "7"]
    assert released[3].startswith("forgotten ")
    assert released[4:] == ["nobody", "released", "0"]
    assert free[3:5] == ["nobody", "alpha 3f2a91c0"]
    [last] = cli("segments", "--events", "1", "--json").json
    assert (last["segments"], last["reason"], last["new_owner"]) == ([90], "released", None)


@pytest.mark.parametrize("options", [("--events", "0"), ("--events", "501"), ("--events", "x"), ("--each", "--events")])
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(offline: Cli, options: tuple[str, ...]) -> None:
    assert offline("segments", *options).code == 2
