"""Mainspring's own driver in `benchmarks.peers`, with few tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from benchmarks.peers.catalogue import MAINSPRING
from benchmarks.peers.installation import command
from benchmarks.peers.parts import Entrant, Sizes, _check, _drain, pickup
from benchmarks.peers.places import Places
from benchmarks.peers.process import DriverFailed

from mainspring.store.postgres.database import Database

SIZES = Sizes(idle=0.0, pickups=5, pickup_every=0.01)


@pytest.fixture
async def entrant(server_dsn: str) -> AsyncIterator[Entrant]:
    found = Entrant(MAINSPRING, command(MAINSPRING), Places(server_dsn, None))
    await found.prepare()
    yield found
    conn = await Database(server_dsn).connect()
    for name in ("peer_mainspring", "peer_mainspring_template"):
        await conn.execute(f"drop database if exists {name} with (force)")
    await conn.close()


async def test_our_driver_submits_in_one_process_and_runs_every_task_once_in_others(entrant: Entrant) -> None:
    assert await _drain(entrant, tasks=50, processes=2) > 0
    assert (await pickup(entrant, SIZES)).keys() == {"p50_ms", "p99_ms", "max_ms"}


def test_a_peer_that_lost_a_task_or_ran_one_twice_has_no_figure() -> None:
    _check({0: [1.0], 1: [1.1]}, tasks=2)
    with pytest.raises(DriverFailed, match="1 did not run and 0 ran more than once"):
        _check({0: [1.0]}, tasks=2)
    with pytest.raises(DriverFailed, match="0 did not run and 1 ran more than once"):
        _check({0: [1.0, 1.2], 1: [1.1]}, tasks=2)
