"""`mainspring agents …`, and what other commands say of agents, on a real database."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import UUID

import pytest
from tests.cli.conftest import Cli
from tests.cluster import add_server

from mainspring.store.postgres.database import Database


@pytest.fixture
def connect(dsn: str) -> Any:
    """An agent that is there: `connect("alpha", zone="b", gpu=2)`."""

    async def insert(name: str, facts: dict[str, Any]) -> None:
        conn = await Database(dsn).connect()
        labels = {key: value for key, value in facts.items() if isinstance(value, str)}
        offers = {key: value for key, value in facts.items() if not isinstance(value, str)}
        await conn.execute(
            """insert into mainspring.agent (name, slots, labels, offers, lease_until, cpu, memory, ack_time, version)
               values ($1, 10, $2, $3, mainspring.now() + interval '1 hour', 0.25, 0.5, 0.0125, '0.1.0')""",
            name,
            json.dumps(labels),
            json.dumps(offers),
        )
        await conn.close()

    return lambda name, **facts: asyncio.run(insert(name, facts))


def test_agents_are_listed_and_shown(cli: Cli, connect: Any) -> None:
    assert cli("agents", "--json").json == []
    connect("alpha", zone="b", gpu=2)
    connect("beta")
    for arguments in (("agents",), ("agents", "list")):
        header, alpha, beta = cli(*arguments).out.splitlines()
        assert header.replace("\t", " ") == "name status runs labels offers cpu memory skew ack_ms server"
        assert alpha.split("\t")[:5] == ["alpha", "active", "0/10", "zone=b", "gpu=2"]
        assert beta.split("\t")[0] == "beta"
    shown = cli("agents", "show", "alpha").out
    assert "offers\tgpu: 0 of 2 used\n" in shown
    assert "holds\t0, of which 0 run, in 10 slots\n" in shown
    [view] = cli("agents", "show", "alpha", "--json").json
    assert (view["name"], view["offers"], view["status"]) == ("alpha", {"gpu": 2.0}, "active")
    assert cli("agents", "show", "gamma").code == 3


def test_an_agent_shows_the_server_that_it_is_connected_to(cli: Cli, connect: Any, dsn: str) -> None:
    async def connect_to_server() -> UUID:
        conn = await Database(dsn).connect()
        server = await add_server(conn, "north")
        await conn.execute("update mainspring.agent set server = $1 where name = 'alpha'", server)
        await conn.close()
        return server

    connect("alpha")
    connect("beta")
    server = asyncio.run(connect_to_server())
    _, alpha, beta = cli("agents").out.splitlines()
    assert (alpha.split("\t")[-1], beta.split("\t")[-1]) == ("north", "")
    assert "server\tnorth\n" in cli("agents", "show", "alpha").out
    [view] = cli("agents", "show", "alpha", "--json").json
    assert (view["server"], view["server_id"]) == ("north", str(server))


def test_an_agent_is_drained_and_undrained(cli: Cli, connect: Any) -> None:
    connect("alpha")
    told = cli("agents", "drain", "alpha").err
    assert told == "alpha takes nothing new; its daemons go elsewhere, and what else runs goes on\n"
    assert cli("agents", "drain", "alpha").err.endswith(", as before\n")
    assert cli("agents", "list", "--json").json[0]["status"] == "draining"
    assert cli("agents", "undrain", "alpha", "--json").json == {"name": "alpha", "status": "active", "changed": True}
    assert cli("agents", "list", "--json").json[0]["status"] == "active"
    assert cli("agents", "drain", "nobody").code == 3


def test_the_strategy_is_shown_and_set(cli: Cli) -> None:
    assert cli("agents", "strategy").out == "round_robin\n"
    assert cli("agents", "strategy", "least_tasks").out == "least_tasks\n"
    assert cli("agents", "strategy", "--json").json == {"strategy": "least_tasks"}
    refused = cli("agents", "strategy", "luck")
    assert refused.code == 2
    assert "use round_robin, least_tasks, resources, capability" in refused.err


def test_a_name_that_cannot_be_one_is_refused_before_anybody_is_asked(offline: Cli) -> None:
    for command in ("show", "drain", "undrain"):
        assert offline("agents", command, "a\x07b").code == 2
    assert offline("agents", "strategy", "luck").code == 2


def test_a_job_is_created_with_its_placement(cli: Cli, connect: Any) -> None:
    connect("alpha", zone="b", gpu=2)
    created = cli(
        *("job", "create", "train", "--needs", "gpu=1", "--needs", "memory_gb=0.5", "--prefer", "zone=b"),
        *("--sticky", "customer", "--placement", "capability", "--", "true"),
    )
    assert created.code == 0, created.err
    definition = cli("job", "show", "train", "--json").json["definition"]
    assert definition["placement"] == {
        "strategy": "capability",
        "needs": {"gpu": 1.0, "memory_gb": 0.5},
        "prefer": {"zone": "b"},
        "sticky": "customer",
    }
    assert (
        "agents\tno agent offers memory_gb=0.5; the most that one offers is memory_gb=0\n"
        in cli("job", "show", "train").out
    )
    connect("beta", gpu=1, memory_gb=1)
    assert "agents\tbeta\n" in cli("job", "show", "train").out


@pytest.mark.parametrize(
    "option",
    ["--needs=gpu", "--needs=gpu=many", "--needs=gpu=0", "--needs=gpu=nan", "--needs=@x=1", "--prefer=zone"],
)
def test_a_placement_that_makes_no_sense_is_refused(offline: Cli, option: str) -> None:
    refused = offline("job", "create", "train", option, "--", "true")
    assert refused.code == 2
    assert option.partition("=")[0].lstrip("-") in refused.err


def test_a_task_that_nobody_can_run_says_so_everywhere(cli: Cli, connect: Any) -> None:
    connect("alpha", zone="b")
    cli("job", "create", "train", "--requires", "gpu=a100", "--", "true")
    id = cli("task", "submit", "train").out.strip()
    reason = "no agent has gpu=a100; agents there are: alpha (zone=b)"
    assert f"waits\t{reason}\n" in cli("task", "show", id).out
    assert cli("task", "show", id, "--json").json["waits"] == {"code": "no_labels", "reason": reason}
    assert cli("task", "list").out.splitlines()[1].endswith("\tno agent has gpu=a100")
    waited = cli("task", "wait", id, "--timeout", "0")
    assert waited.code == 124
    assert f"task {id} cannot start yet: {reason}" in waited.err
    assert f"1 task of train cannot start: {reason}" in cli("stats").err
    assert f"agents\t{reason}\n" in cli("job", "show", "train").out
