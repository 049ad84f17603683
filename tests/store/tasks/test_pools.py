"""Pools: the schema refuses a task whose state does not go with its kind of pool."""

from __future__ import annotations

from itertools import product
from typing import Any

import asyncpg
import pytest
from tests.conftest import MakeTask

from mainspring.model.tasks.pools import DAEMON, PARKED
from mainspring.model.tasks.states import ASSIGNED, BLOCKED, LIVE, PENDING, RUNNING, CancelMode, TaskState
from mainspring.store.postgres.database import Connection

POOL = 7
HELD = (ASSIGNED, RUNNING)

# The states that go with a pool. A run of a broadcast is in a blocked pool in all its states.
KINDS: dict[str, tuple[int, set[TaskState]]] = {
    "served or gated": (POOL, {PENDING, *HELD}),
    "parked": (PARKED, {PENDING}),
    "blocked": (-POOL, {BLOCKED, PENDING, *HELD}),
    "a replica": (DAEMON, {PENDING, *HELD}),
}


async def accepts(conn: Connection, task: int, **columns: Any) -> bool:
    assignments = ", ".join(f"{name} = ${number}" for number, name in enumerate(columns, 2))
    try:
        await conn.execute(f"update mainspring.task set {assignments} where id = $1", task, *columns.values())
    except asyncpg.CheckViolationError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kind_of_pool_goes_with_some_states(conn: Connection, make_task: MakeTask, kind: str) -> None:
    pool, states = KINDS[kind]
    task = await make_task()
    assert {state for state in LIVE if await accepts(conn, task, pool=pool, state=int(state))} == states


async def test_there_are_no_other_states_and_cancel_modes(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task()
    found = {state for state in range(-1, 20) if await accepts(conn, task, state=state, pool=POOL if state else -POOL)}
    assert found == set(LIVE)
    modes = [None, *range(-1, 6)]
    assert [mode for mode in modes if await accepts(conn, task, cancel_mode=mode)] == [None, *CancelMode]


async def test_a_submission_is_of_a_kind(conn: Connection, make_task: MakeTask) -> None:
    """Every way that `enqueue` creates a task passes the check."""
    parent = await make_task()
    for after, key in product((None, [parent]), (None, "k")):
        assert await conn.fetchval("select mainspring.enqueue('job', after => $1, concurrency_key => $2)", after, key)
