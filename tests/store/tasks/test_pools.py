"""Pools: the schema refuses a task whose state, cancel mode or origin does not go with its kind of pool."""

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

# What a task may be: its pool, what else its row holds, and the states that go with them.
KINDS: dict[str, tuple[int, dict[str, Any], set[TaskState]]] = {
    "served or gated": (POOL, {}, {PENDING, *HELD}),
    "parked": (PARKED, {"gate": POOL}, {PENDING}),
    "parked, of no gate": (PARKED, {}, set()),
    "blocked": (-POOL, {}, {BLOCKED}),
    "a run of a broadcast": (-POOL, {"parent_id": 1}, {PENDING, *HELD}),
    "a run of a broadcast that any claim could take": (POOL, {"parent_id": 1}, set()),
    "a replica": (DAEMON, {"origin": "daemon"}, {PENDING, *HELD}),
    "a replica that any claim could take": (POOL, {"origin": "daemon"}, set()),
    "no replica": (DAEMON, {}, set()),
    "no replica, but planned": (DAEMON, {"origin": "plan"}, set()),
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
    pool, others, states = KINDS[kind]
    nothing = {"gate": None, "parent_id": None, "origin": None}
    task = await make_task()
    accepted = set()
    for state in LIVE:
        if await accepts(conn, task, **nothing | others, pool=pool, state=int(state)):
            accepted.add(state)
    assert accepted == states


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
