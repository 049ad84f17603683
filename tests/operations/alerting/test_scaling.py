"""The kind `wanted_agents`: found while the connected agents have too few slots, and told in figures."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.operations.conftest import ACTOR, echo

from mainspring.errors import ValidationError
from mainspring.model.alerts.findings import Finding, Look
from mainspring.model.alerts.rules import read_parameters
from mainspring.operations.alerting.kinds import FIND
from mainspring.operations.condition import autoscale
from mainspring.operations.definitions import jobs
from mainspring.store.postgres.database import Connection


async def find(conn: Connection, **parameters: Any) -> list[Finding]:
    autoscale._kept.clear()
    now = await conn.fetchval("select mainspring.now()")
    look = Look(None, read_parameters("wanted_agents", parameters), now - timedelta(minutes=1), now)
    return list((await FIND["wanted_agents"](conn, look)).findings)


async def add_agent(conn: Connection, slots: int, labels: str = "{}") -> None:
    await conn.execute(
        """insert into mainspring.agent (name, slots, labels, lease_until)
           values ('a', $1, $2, mainspring.now() + interval '1 hour')""",
        slots,
        labels,
    )


async def test_it_is_found_until_there_are_slots_enough(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "train", echo(requires={"gpu": "a100"}))
    assert await find(conn) == []
    await conn.execute("select mainspring.enqueue('train') from generate_series(1, 960)")
    [finding] = await find(conn, labels={"gpu": "a100"}, slots_per_agent=15)
    assert finding.subject == "cluster"
    assert finding.details == {
        "wanted_agents": 3, "wanted_slots": 40, "agents": 0, "slots": 0, "missing_agents": 3,
    }  # fmt: skip
    assert finding.message.startswith(
        "3 more agents of 15 slots wanted: 40 slots are wanted and 0 are connected; 960 due"
    )
    assert await find(conn, labels={"gpu": "h100"}) == []
    await add_agent(conn, 30)
    assert len(await find(conn, labels={"gpu": "a100"})) == 1, "that one has no such label"
    await add_agent(conn, 30, '{"gpu": "a100"}')
    [finding] = await find(conn, labels={"gpu": "a100"})
    assert finding.details["missing_agents"] == 1
    assert finding.message.startswith("1 more agent of 20 slots")
    assert await find(conn) == [], "together they have 60"


async def test_parameters_beyond_the_bounds_of_the_signal_are_refused(conn: Connection) -> None:
    with pytest.raises(ValidationError, match="horizon"):
        await find(conn, horizon="2h")
