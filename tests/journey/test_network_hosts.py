"""Stories with cables that are pulled: nobody gets a reset. See tests/namespaces.py for what they need.

tests/journey/test_network_faults.py tells the same through a proxy, for machines where there are no namespaces.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from mainspring.store.postgres.database import Connection
from tests.conftest import eventually
from tests.journey import invariants
from tests.journey.network import Network, open_network
from tests.namespaces import Host, Hosts, why_not

if why_not():
    pytest.skip(str(why_not()), allow_module_level=True)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with Hosts(3) as hosts:
        yield hosts


@pytest.fixture
async def network(hosts: list[Host], dsn: str, tmp_path: Path) -> AsyncIterator[Network]:
    """Closed before the hosts are: its processes live on them."""
    if "host=/" not in unquote(dsn):
        pytest.skip("PostgreSQL listens on no socket file, and the hosts have no other way to it")
    async with open_network(dsn, tmp_path) as network:
        yield network


@pytest.mark.parametrize("fault", ["unplugged", "the server is not heard"])
async def test_a_cable_that_is_pulled_past_the_lease_ends_attempts_before_others_begin(
    network: Network, conn: Connection, hosts: list[Host], fault: str
) -> None:
    here, there, elsewhere = hosts
    server = await network.server(here)
    cut_off = await network.agent(server.told["url"], host=there)
    tasks = await network.app["work"].enqueue_many([(8.0,)] * 3)
    commands = await network.app["command"].enqueue_many([()] * 3)
    await network.until_begun([*tasks, *commands])
    await network.agent(server.told["url"], host=elsewhere)
    match fault:
        case "unplugged":
            there.unplug()
        case "the server is not heard":
            here.deafen(there)
        case _:
            there.deafen(here)
    everything = [*tasks, *commands]
    await network.until_ended(everything)
    match fault:
        case "unplugged":
            there.plug()
        case "the server is not heard":
            here.hear(there)
        case _:
            there.hear(here)
    await cut_off.stop()
    await network.check(conn, everything)


async def test_a_cable_that_is_pulled_for_a_moment_costs_no_attempt(
    network: Network, conn: Connection, hosts: list[Host]
) -> None:
    server = await network.server(hosts[0], lease=15.0)
    await network.agent(server.told["url"], host=hosts[1])
    tasks = await network.app["work"].enqueue_many([(1.0,)] * 10)
    await network.until_begun(tasks)
    hosts[1].unplug()

    async def all_had_their_effect() -> bool:
        return sum(line.event == "effect" for line in network.ledger()) == len(tasks)

    await eventually(all_had_their_effect, timeout=30)
    hosts[1].plug()
    await network.until_ended(tasks)
    await network.check(conn, tasks)
    assert {task.attempt for task in await invariants.ended(conn)} == {1}
