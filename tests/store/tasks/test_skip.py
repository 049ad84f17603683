"""Skip: a task that has not started ends as skipped, at once or when its agent has given it back."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.cluster import OWNER
from tests.conftest import MakeTask
from tests.schedules import claimed, create, planned, set_clock

from mainspring.errors import InvalidTransition, TaskNotFound
from mainspring.model.messages import Ending, Start
from mainspring.model.tasks.claim_floors import BOTTOM
from mainspring.model.tasks.define_job import define
from mainspring.model.tasks.jobs import PRIORITY_LEVELS, Definition, Python
from mainspring.model.tasks.states import TERMINAL, CancelMode, TaskState
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import revoke, schedules
from mainspring.store.tasks import claims, control, dependencies, jobs, partitions, rescue, tasks, transitions

WHY = "skipped by os:alice@host: release"


async def row(conn: Connection, task: int) -> dict[str, Any]:
    return dict(await conn.fetchrow("select * from mainspring.task where id = $1", task) or {})


async def ended(conn: Connection, make_task: MakeTask, state: TaskState) -> int:
    task = await make_task(TaskState.RUNNING)
    ending = Ending(task, 1, 1, 1, state, 1.0, 2.0)
    assert await partitions.write(conn, lambda: transitions.finish(conn, [ending]))
    return task


async def test_a_waiting_task_is_skipped_at_once(conn: Connection, make_task: MakeTask) -> None:
    for state in (TaskState.BLOCKED, TaskState.PENDING):
        task = await make_task(state)
        assert await control.skip(conn, task, WHY) is TaskState.SKIPPED
        view = await tasks.get(conn, task)
        assert (view.state, view.error_code, view.error) == ("skipped", "skipped", WHY)
    notes = await conn.fetch("select outcome, count from mainspring.figure_note")
    assert [tuple(note) for note in notes] == [(TaskState.SKIPPED, 1)] * 2, "the figures count it"


@pytest.mark.parametrize("limits", [{"max_running": 1}, {"concurrency_key": "k"}])
async def test_a_gated_or_parked_task_is_skipped(conn: Connection, limits: dict[str, Any]) -> None:
    await jobs.register(conn, {"job": define(Python("job"), limits)})  # type: ignore[arg-type]
    task = await conn.fetchval("select mainspring.enqueue('job')")
    if "concurrency_key" in limits:
        await conn.execute("update mainspring.task set gate = pool, pool = 2147483647, concurrency_key = 'k'")
    assert await control.skip(conn, task, WHY) is TaskState.SKIPPED


async def test_children_follow_as_those_of_a_task_that_did_not_succeed(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    parent = await conn.fetchval("select mainspring.enqueue('job')")
    child = await conn.fetchval("select mainspring.enqueue('job', after => array[$1::bigint])", parent)
    await control.skip(conn, parent, WHY)
    assert await dependencies.left_over(conn, 10) == [parent]
    await dependencies.settle(conn, [parent])
    view = await tasks.get(conn, child)
    assert (view.state, view.error_code) == ("skipped", "dependency")


async def test_a_child_that_is_skipped_waits_for_nothing(conn: Connection) -> None:
    await jobs.register(conn, {"job": Definition(Python("job"))})
    parent = await conn.fetchval("select mainspring.enqueue('job')")
    child = await conn.fetchval("select mainspring.enqueue('job', after => array[$1::bigint])", parent)
    await control.skip(conn, child, WHY)
    assert not await dependencies.any_there(conn)


# ── what an agent has ───────────────────────────────────────────────────────────────────────────


async def test_an_armed_task_is_skipped_once_its_agent_has_given_it_back(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.ASSIGNED)
    assert await control.skip(conn, task, WHY) is TaskState.ASSIGNED
    held = await row(conn, task)
    assert (held["cancel_mode"], held["cancel_at"] is not None) == (CancelMode.RECALL, True)
    assert await claims.give_back(conn, [task], [1]) == 0, "it does not go back to its pool"
    assert await control.confirm_skips(conn, [task], [2]) == [], "another token"
    assert await control.confirm_skips(conn, [task], [1]) == [task]
    view = await tasks.get(conn, task)
    assert (view.state, view.error_code, view.error) == ("skipped", "skipped", WHY)
    assert await control.confirm_skips(conn, [task], [1]) == []


async def test_a_task_that_started_first_runs(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.ASSIGNED)
    await control.skip(conn, task, WHY)
    await transitions.start(conn, [Start(task, 1, 1.0)])
    assert await control.confirm_skips(conn, [task], [1]) == []
    held = await row(conn, task)
    assert (held["state"], held["cancel_at"], held["cancel_mode"]) == (TaskState.RUNNING, None, None)


async def test_a_recall_of_its_schedule_does_not_plan_it_again(conn: Connection) -> None:
    await set_clock(conn, 10)
    report = await create(conn, every=10)
    await set_clock(conn, 18)
    await planned(conn)
    [armed] = await claimed(conn)
    await control.skip(conn, armed.task, WHY)
    await schedules.change(conn, "report", lambda schedule: schedule, enabled=False)
    assert await revoke.confirm(conn, [armed.task], [armed.token]) == []
    assert await control.confirm_skips(conn, [armed.task], [armed.token]) == [armed.task]
    fire = await conn.fetchrow("select task_id, reason from mainspring.fire where schedule_id = $1", report)
    assert tuple(fire or ()) == (armed.task, None), "as for one that was cancelled, the ledger names the task"


async def test_a_task_whose_agent_is_lost_may_have_started_and_is_cancelled(
    conn: Connection, make_task: MakeTask
) -> None:
    task = await make_task(TaskState.ASSIGNED)
    await conn.execute(
        "insert into mainspring.claim (session, batch, tasks) select session, 1, array[id] from mainspring.task"
    )
    await control.skip(conn, task, WHY)
    assert await rescue.recalled(conn, 1, 10) == []
    async with conn.transaction():
        [held] = await rescue.held(conn, 1, 10)
    assert (held.task, held.cancelled, held.recalled) == (task, True, False)


REFUSED = {
    TaskState.RUNNING: "is running; only what has not started can be skipped. `mainspring task cancel",
    TaskState.SUCCEEDED: "has already ended",
    TaskState.SKIPPED: "has already ended",
}


@pytest.mark.parametrize("state", [TaskState.RUNNING, *sorted(TERMINAL)])
async def test_what_has_started_or_ended_is_refused(conn: Connection, make_task: MakeTask, state: TaskState) -> None:
    task = await (make_task(state) if state not in TERMINAL else ended(conn, make_task, state))
    with pytest.raises(InvalidTransition, match=REFUSED.get(state, "has already ended")) as caught:
        await control.skip(conn, task, WHY)
    assert caught.value.details["allowed"] == ["blocked", "pending", "assigned"]
    assert await control.skip_each(conn, [task], WHY) == set()
    assert (await tasks.get(conn, task)).state == state.label


async def test_what_is_being_cancelled_is_refused(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.ASSIGNED)
    await tasks.cancel(conn, task)
    with pytest.raises(InvalidTransition, match="is being cancelled"):
        await control.skip(conn, task, WHY)


async def test_a_cancel_replaces_a_skip(conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.ASSIGNED)
    await control.skip(conn, task, WHY)
    await tasks.cancel(conn, task)
    assert await control.confirm_skips(conn, [task], [1]) == []
    assert (await row(conn, task))["cancel_mode"] is None


async def test_replicas_and_runs_of_broadcasts_are_refused(conn: Connection, make_task: MakeTask) -> None:
    replica = await make_task(TaskState.PENDING, pool=0)
    with pytest.raises(InvalidTransition, match="replica of a daemon"):
        await control.skip(conn, replica, WHY)
    run = await make_task(TaskState.PENDING, parent_id=replica, pool=-1)
    with pytest.raises(InvalidTransition, match="is a run of the broadcast"):
        await control.skip(conn, run, WHY)


async def test_a_task_that_does_not_exist_is_not_found(conn: Connection) -> None:
    with pytest.raises(TaskNotFound):
        await control.skip(conn, 4711, WHY)


async def test_many_are_skipped_in_two_statements(conn: Connection, make_task: MakeTask) -> None:
    states = (TaskState.BLOCKED, TaskState.PENDING, TaskState.ASSIGNED, TaskState.RUNNING)
    ids = [*[await make_task(state) for state in states], await ended(conn, make_task, TaskState.FAILED)]
    assert await control.skip_each(conn, ids, WHY) == set(ids[:3])
    assert [(await tasks.get(conn, id)).state for id in ids] == ["skipped", "skipped", "assigned", "running", "failed"]


# ── all at once ─────────────────────────────────────────────────────────────────────────────────


async def test_skips_against_claims_and_starts(dsn: str, conn: Connection) -> None:
    """Agents claim, start, give back and finish, while two people skip everything: each task ends once, and one that
    is skipped has never started."""
    await jobs.register(conn, {"job": Definition(Python("job"))})
    count, chance = 300, random.Random(7)
    ids: list[int] = await conn.fetchval(
        "select mainspring.enqueue_many('job', array_fill('{}'::jsonb, array[$1::integer]))", count
    )
    pool = await conn.fetchval("select pool from mainspring.job")
    hands = [await Database(dsn).connect() for _ in range(4)]
    begun: set[int] = set()

    async def agent(hand: Connection, session: int) -> None:
        while await hand.fetchval("select exists (select from mainspring.task)"):
            claim = await claims.claim(hand, OWNER, pool, [session], 5, [BOTTOM] * len(PRIORITY_LEVELS), ahead=1.0)
            for armed in claim.tasks.get(session, []):
                await asyncio.sleep(chance.random() * 0.002)  # a recall may come
                modes = await hand.fetchrow("select cancel_mode from mainspring.task where id = $1", armed.task)
                if modes is not None and modes["cancel_mode"] == CancelMode.RECALL and chance.random() < 0.7:
                    await control.confirm_skips(hand, [armed.task], [armed.token])
                    continue
                begun.add(armed.task)
                await transitions.start(hand, [Start(armed.task, armed.token, 1.0)])
                ending = Ending(armed.task, armed.token, armed.job, 1, TaskState.SUCCEEDED, 1.0, 2.0)
                await partitions.write(hand, lambda: transitions.finish(hand, [ending]))  # noqa: B023

    async def person(hand: Connection, mine: list[int]) -> None:
        for task in mine:
            await asyncio.sleep(chance.random() * 0.004)
            try:
                await control.skip(hand, task, WHY)
            except InvalidTransition:
                continue

    half = [ids[0::2], ids[1::2]]
    shuffled = [chance.sample(some, len(some)) for some in half]
    await asyncio.wait_for(
        asyncio.gather(
            *(agent(hand, number) for number, hand in enumerate(hands[:2], 1)),
            *(person(hand, some) for hand, some in zip(hands[2:], shuffled, strict=True)),
        ),
        60,
    )
    history = await conn.fetch("select id, state from mainspring.task_history")
    assert sorted(row["id"] for row in history) == ids, "each once"
    skipped = {row["id"] for row in history if row["state"] == TaskState.SKIPPED}
    assert skipped
    assert begun
    assert skipped.isdisjoint(begun)
    assert skipped | begun == set(ids)
    for hand in hands:
        await hand.close()
