"""Revoke: what becomes of planned tasks when their schedule is edited, paused or deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cluster import OWNER
from tests.schedules import Entry, at, claimed, create, finished, ledger, live, planned, set_clock, started

from mainspring.model.messages import Ending
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.states import CancelMode, TaskState
from mainspring.model.tasks.verdict import Again
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.server.recovery.rescuer import Rescuer
from mainspring.store.cluster import agents
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import backfill, plans, revoke, schedules
from mainspring.store.schedules.revoke import Recalled
from mainspring.store.tasks import claims, partitions, tasks, transitions
from mainspring.wire.clock import Clock

Change = Callable[[Connection], Awaitable[Recalled | None]]


def edited(schedule: Schedule) -> Schedule:
    return replace(schedule, expression="4")


async def edit(conn: Connection) -> Recalled | None:
    return (await schedules.change(conn, "report", edited)).recalled


async def pause(conn: Connection) -> Recalled | None:
    return (await schedules.change(conn, "report", lambda schedule: schedule, enabled=False)).recalled


async def delete(conn: Connection) -> Recalled | None:
    return await schedules.delete(conn, "report")


CHANGES: dict[str, Change] = {"edit": edit, "pause": pause, "delete": delete}


@pytest.fixture
async def report(conn: Connection) -> int:
    """Every five seconds. It is 0, and 5 and 10 are planned."""
    await set_clock(conn, 0)
    await partitions.make_ahead(conn, days=1)
    report = await create(conn, every=5)
    await planned(conn)
    assert [second for second, _ in await live(conn, report)] == [5, 10]
    return report


async def history(conn: Connection) -> list[tuple[int, str | None]]:
    rows = await conn.fetch("select state, error_code from mainspring.task_history order by id")
    return [(row["state"], row["error_code"]) for row in rows]


# ── what no agent has ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("change", CHANGES)
async def test_what_is_pending_is_taken_back_at_once(conn: Connection, report: int, change: str) -> None:
    assert await CHANGES[change](conn) == Recalled(taken_back=2, asked_back=0, running=0)
    assert await live(conn, report) == []
    assert await ledger(conn, report) == []
    assert await history(conn) == [(13, "recalled")] * 2


async def test_after_an_edit_the_new_version_is_planned(conn: Connection, report: int) -> None:
    await edit(conn)
    assert (await schedules.find(conn, "report")).runs == 0
    await planned(conn)
    assert await ledger(conn, report) == [Entry(4, "", None), Entry(8, "", None)]
    assert (await schedules.find(conn, "report")).runs == 2


async def test_a_blocked_task_is_revoked_too(conn: Connection, report: int) -> None:
    await schedules.change(
        conn, "report", lambda schedule: replace(schedule, policies=replace(schedule.policies, overlap="skip"))
    )
    await planned(conn)
    assert [state for _, state in await live(conn, report)] == [TaskState.PENDING, TaskState.BLOCKED]
    assert await edit(conn) == Recalled(2, 0, 0)
    pools = await conn.fetch("select distinct pool from mainspring.task_history")
    assert [row["pool"] > 0 for row in pools] == [True]


async def test_an_edit_leaves_plan_times_that_have_passed_and_a_pause_takes_them_back_as_paused(
    conn: Connection, report: int
) -> None:
    await set_clock(conn, 7)
    assert await edit(conn) == Recalled(1, 0, 0)
    assert await live(conn, report) == [(5, TaskState.PENDING)]
    assert await pause(conn) == Recalled(1, 0, 0)
    assert await live(conn, report) == []
    assert await ledger(conn, report) == [Entry(5, "", "paused")]


async def test_a_plan_time_that_has_passed_stays_in_the_ledger_of_a_deleted_schedule(
    conn: Connection, report: int
) -> None:
    await set_clock(conn, 7)
    assert await delete(conn) == Recalled(2, 0, 0)
    assert await ledger(conn, report) == [Entry(5, "", "paused")]


@pytest.mark.parametrize(("now", "left"), [(0, []), (6, [Entry(5, "", "paused")])])
async def test_what_comes_back_to_a_deleted_schedule_is_kept_if_its_time_had_passed(
    conn: Connection, report: int, now: float, left: list[Entry]
) -> None:
    [armed] = await claimed(conn)
    await set_clock(conn, now)
    await delete(conn)
    await set_clock(conn, 8)
    assert await revoke.confirm(conn, [armed.task], [armed.token]) == [armed.task]
    assert await ledger(conn, report) == left


# ── what an agent has ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("change", CHANGES)
async def test_what_is_armed_is_asked_back(conn: Connection, report: int, change: str) -> None:
    [armed] = await claimed(conn)
    assert await CHANGES[change](conn) == Recalled(taken_back=1, asked_back=1, running=0)
    row = await conn.fetchrow("select state, cancel_at, cancel_mode from mainspring.task")
    assert tuple(row) == (2, at(0), CancelMode.RECALL)
    assert await ledger(conn, report) == [Entry(5, "", None)], "it may start yet"
    assert await revoke.confirm(conn, [armed.task], [armed.token]) == [armed.task]
    assert await live(conn, report) == []
    assert await revoke.confirm(conn, [armed.task], [armed.token]) == [], "an answer that comes twice"


async def test_one_that_is_given_back_is_planned_anew_and_once(conn: Connection, report: int) -> None:
    [armed] = await claimed(conn)
    later = await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, jitter=1.0)))
    assert later.recalled == Recalled(1, 1, 0)
    await planned(conn)
    assert await ledger(conn, report) == [Entry(5, "", None), Entry(10, "", None)]
    assert (await schedules.find(conn, "report")).next_plan_at == at(15)
    await revoke.confirm(conn, [armed.task], [armed.token])
    assert await ledger(conn, report) == [Entry(10, "", None)]
    stored = await schedules.find(conn, "report")
    assert (stored.next_plan_at, stored.runs) == (at(5), 1)
    assert [due.id for due in await plans.due(conn, OWNER, 10)] == [report], "at once"
    await planned(conn)
    await planned(conn)
    assert await ledger(conn, report) == [Entry(5, "", None), Entry(10, "", None)]
    assert len(await live(conn, report)) == 2
    stored = await schedules.find(conn, "report")
    assert (stored.next_plan_at, stored.runs) == (at(15), 2)


async def test_a_schedule_that_has_ended_continues_with_revoked_plan_times(conn: Connection) -> None:
    await set_clock(conn, 0)
    await partitions.make_ahead(conn, days=1)
    report = await create(conn, once=at(5))
    await planned(conn)
    [armed] = await claimed(conn)
    await pause(conn)
    await schedules.change(conn, "report", lambda schedule: schedule, enabled=True)
    await planned(conn)
    assert (await schedules.find(conn, "report")).next_plan_at is None
    await revoke.confirm(conn, [armed.task], [armed.token])
    await planned(conn)
    assert await ledger(conn, report) == [Entry(5, "", None)]
    assert await live(conn, report) == [(5, TaskState.PENDING)]


async def test_what_is_given_back_to_a_paused_schedule_waits_for_it(conn: Connection, report: int) -> None:
    [armed] = await claimed(conn)
    await pause(conn)
    await revoke.confirm(conn, [armed.task], [armed.token])
    assert await ledger(conn, report) == []
    await set_clock(conn, 7)
    assert await plans.due(conn, OWNER, 10) == []
    await schedules.change(conn, "report", lambda schedule: schedule, enabled=True)
    await planned(conn)
    assert await ledger(conn, report) == [Entry(5, "", "paused"), Entry(10, "", None), Entry(15, "", None)]


async def test_what_comes_back_after_its_time_has_passed_in_a_later_version_stays_as_paused(
    conn: Connection, report: int
) -> None:
    [armed] = await claimed(conn)
    await pause(conn)
    await set_clock(conn, 7)
    await schedules.change(conn, "report", lambda schedule: schedule, enabled=True)
    await revoke.confirm(conn, [armed.task], [armed.token])
    await planned(conn)
    assert (await ledger(conn, report))[0] == Entry(5, "", "paused")


async def test_what_comes_back_after_a_second_edit_is_decided_by_the_version_of_its_time(
    conn: Connection, report: int
) -> None:
    """Nobody paused it: its plan time is planned anew although it has passed."""
    [armed] = await claimed(conn)
    await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, jitter=1.0)))
    await set_clock(conn, 7)
    await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, jitter=2.0)))
    assert await revoke.confirm(conn, [armed.task], [armed.token]) == [armed.task]
    await planned(conn)
    assert (await ledger(conn, report))[0] == Entry(5, "", None)
    assert (await live(conn, report))[0] == (5, TaskState.PENDING)


async def test_what_comes_back_after_a_second_edit_leaves_nothing_where_the_first_took_its_plan_time_away(
    conn: Connection, report: int
) -> None:
    [armed] = await claimed(conn)
    await edit(conn)  # every four seconds: 5 is no plan time any more
    await set_clock(conn, 7)
    await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, jitter=2.0)))
    await revoke.confirm(conn, [armed.task], [armed.token])
    await planned(conn)
    assert [entry.at for entry in await ledger(conn, report)] == [4, 8, 12, 16]


async def test_one_that_started_before_the_recall_arrived_runs_on_and_keeps_its_retries(
    conn: Connection, report: int
) -> None:
    [armed] = await claimed(conn)
    await edit(conn)
    await set_clock(conn, 5)
    await started(conn, [armed])
    assert await revoke.confirm(conn, [armed.task], [armed.token]) == []
    failed = Ending(armed.task, armed.token, armed.job, 1, TaskState.FAILED, 1.0, 2.0)
    assert len(await transitions.retry(conn, [Again(failed, 0.0, True, False)])) == 1
    row = await conn.fetchrow(
        "select state, attempt, cancel_at, cancel_mode from mainspring.task where id = $1", armed.task
    )
    assert tuple(row) == (1, 1, None, None)
    again = [a for a in await claimed(conn, ahead=0) if a.task == armed.task]
    assert await finished(conn, again) == 1
    await planned(conn)
    assert [entry.at for entry in await ledger(conn, report)] == [4, 5, 8, 12]


@pytest.mark.parametrize("change", CHANGES)
async def test_what_has_started_once_is_left_alone(conn: Connection, report: int, change: str) -> None:
    """Running, waiting for a retry, or snoozed."""
    await create(conn, "more", every=1)
    await planned(conn)
    await conn.execute("update mainspring.task set schedule_id = $1, scope = 'more' where schedule_id <> $1", report)
    await conn.execute("update mainspring.fire set schedule_id = $1, scope = 'more' where schedule_id <> $1", report)
    await set_clock(conn, 3)
    running, retried, snoozed = await claimed(conn, ahead=0)
    await started(conn, [running, retried, snoozed])
    failed = Ending(retried.task, retried.token, retried.job, 1, TaskState.FAILED, 1.0, 2.0)
    slept = Ending(snoozed.task, snoozed.token, snoozed.job, 1, TaskState.SKIPPED, 1.0, 2.0)
    assert len(await transitions.retry(conn, [Again(failed, 60.0, True, False), Again(slept, 60.0, False, False)])) == 2
    before = await conn.fetch("select id, state, attempt, cancel_at from mainspring.task where plan_time <= $1", at(3))
    assert sorted((row["state"], row["attempt"]) for row in before) == [(1, 0), (1, 1), (3, 1)]
    recalled = await CHANGES[change](conn)
    assert recalled is not None
    assert recalled.running == 1
    after = await conn.fetch("select id, state, attempt, cancel_at from mainspring.task")
    assert sorted(map(tuple, after)) == sorted(map(tuple, before))


@pytest.mark.parametrize("rearmed", [False, True], ids=["pending", "armed again"])
@pytest.mark.parametrize(("now", "is_taken_back"), [(2, True), (6, False)], ids=["before its time", "after it"])
async def test_what_was_only_armed_when_its_agent_died_is_taken_back(
    conn: Connection, report: int, now: float, is_taken_back: bool, rearmed: bool
) -> None:
    """Of one that was lost after its time nobody knows whether it had started."""
    [armed] = await claimed(conn)
    await set_clock(conn, now)
    lost = Ending(armed.task, armed.token, armed.job, 1, TaskState.LOST, 0.0, 2.0, code="lost")
    assert len(await transitions.retry(conn, [Again(lost, 0.0, False, True)])) == 1
    if rearmed:
        await claimed(conn)
    await pause(conn)
    waiting = await conn.fetchrow("select state, cancel_mode from mainspring.task where id = $1", armed.task)
    if is_taken_back:
        assert (waiting and tuple(waiting)) == ((2, CancelMode.RECALL) if rearmed else None)
    else:
        assert tuple(waiting) == (2 if rearmed else 1, None)


async def test_a_snoozed_task_that_is_armed_again_is_left_alone(conn: Connection, report: int) -> None:
    await set_clock(conn, 5)
    [armed] = await claimed(conn, ahead=0)
    await started(conn, [armed])
    slept = Ending(armed.task, armed.token, armed.job, 1, TaskState.SKIPPED, 1.0, 2.0)
    await transitions.retry(conn, [Again(slept, 0.0, False, False)])
    [again] = await claimed(conn, ahead=0)
    assert again.attempt == 1
    assert await pause(conn) == Recalled(1, 0, 0)
    assert (5, TaskState.ASSIGNED) in await live(conn, report)


@pytest.mark.parametrize("change", CHANGES)
async def test_what_a_person_asked_for_is_left_alone(conn: Connection, report: int, change: str) -> None:
    [task] = await backfill.run_now(conn, "report")
    recalled = await CHANGES[change](conn)
    assert recalled == Recalled(2, 0, 0)
    assert [row["id"] for row in await conn.fetch("select id from mainspring.task")] == [task]
    [entry] = await ledger(conn, report, origin="manual")
    assert entry == Entry(0.000001, "", None), "beside the plan time of that instant"


class Interrupted:
    """A connection on which something happens before its first statement of a kind."""

    def __init__(self, conn: Connection, statement: str, happening: Callable[[], Awaitable[Any]]) -> None:
        self._conn = conn
        self._statement = statement
        self._happening: Callable[[], Awaitable[Any]] | None = happening

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    async def fetch(self, query: str, *args: Any) -> Any:
        if query == self._statement and self._happening is not None:
            happening, self._happening = self._happening, None
            await happening()
        return await self._conn.fetch(query, *args)


async def test_one_that_is_claimed_before_it_is_taken_back_is_asked_back(
    dsn: str, conn: Connection, report: int
) -> None:
    elsewhere = await Database(dsn).connect()
    interrupted: Any = Interrupted(conn, revoke._TAKE_BACK, lambda: claimed(elsewhere))
    assert await revoke.recall(interrupted, report, at=at(0)) == Recalled(taken_back=1, asked_back=1, running=0)
    await elsewhere.close()


async def test_one_that_is_given_back_before_it_is_asked_back_is_taken_back(
    dsn: str, conn: Connection, report: int
) -> None:
    elsewhere = await Database(dsn).connect()
    armed = await claimed(elsewhere, ahead=20)

    async def give_back() -> None:
        assert await claims.give_back(elsewhere, [a.task for a in armed], [a.token for a in armed]) == 2

    interrupted: Any = Interrupted(conn, revoke._ASK_BACK, give_back)
    assert await revoke.recall(interrupted, report, at=at(0)) == Recalled(taken_back=2, asked_back=0, running=0)
    assert await live(conn, report) == []
    await elsewhere.close()


async def test_claims_that_race_with_recalls_lose_no_plan_time_and_double_none(
    dsn: str, conn: Connection, report: int
) -> None:
    """Whoever wins: each plan time has one task in the end, and none that was taken back was run."""
    hands = [await Database(dsn).connect() for _ in range(3)]

    async def claim_and_run(hand: Connection) -> None:
        for armed in await claimed(hand, ahead=20):
            if not await revoke.confirm(hand, [armed.task], [armed.token]):
                await started(hand, [armed])

    for number in range(30):
        change = schedules.change(
            hands[0],
            "report",
            lambda s, n=number: replace(s, policies=replace(s.policies, description=str(n))),  # type: ignore[misc]
        )
        await asyncio.gather(change, claim_and_run(hands[1]), planned(hands[2]))
    for _ in range(3):
        for row in await conn.fetch("select id, token from mainspring.task where cancel_mode = 1 and state = 2"):
            await revoke.confirm(conn, [row["id"]], [row["token"]])
        await planned(conn)
    for hand in hands:
        await hand.close()
    assert await ledger(conn, report) == [Entry(5, "", None), Entry(10, "", None)]
    assert len(await live(conn, report)) == 2


# ── nobody waits in a circle ────────────────────────────────────────────────────────────────────


async def test_a_confirmation_and_a_planner_do_not_wait_for_each_other(dsn: str, conn: Connection, report: int) -> None:
    """The planner holds the schedule and meets the fire; the confirmation removes the fire and wants the schedule."""
    [armed] = await claimed(conn)
    await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, jitter=1.0)))
    planner, recorder = [await Database(dsn).connect(hash_joins=True) for _ in range(2)]
    pid = await recorder.fetchval("select pg_backend_pid()")
    async with planner.transaction():
        await planner.execute("select from mainspring.schedule where id = $1 for update", report)
        confirming = asyncio.create_task(revoke.confirm(recorder, [armed.task], [armed.token]))
        async with asyncio.timeout(20):
            while not await conn.fetchval("select cardinality(pg_blocking_pids($1)) > 0", pid):
                await asyncio.sleep(0.005)
        assert await asyncio.wait_for(planned(planner), 20) == {report}
    assert await confirming == [armed.task]
    await planned(conn)
    assert await ledger(conn, report) == [Entry(5, "", None), Entry(10, "", None)]
    assert (await schedules.find(conn, "report")).runs == 2
    await planner.close()
    await recorder.close()


# ── an agent that is gone ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fits", [True, False], ids=["", "which cannot be written: then it runs"])
async def test_an_agent_that_dies_with_what_was_asked_back_has_given_it_back(
    database: Database, conn: Connection, report: int, fits: bool
) -> None:
    catalogue = Catalogue(database)
    await catalogue.refresh()
    recorder = Recorder(database, catalogue)
    rescuer = Rescuer(database, catalogue, recorder, Clock(), 60.0)
    session = await agents.begin(conn, agents.AgentInfo("agent", 5, {}, None), 60.0)
    [armed] = await claimed(conn)
    await conn.execute("update mainspring.task set session = $1 where id = $2", session, armed.task)
    await conn.execute("update mainspring.claim set session = $1", session)
    await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, jitter=1.0)))
    await planned(conn)
    await agents.end(conn, [session])
    if not fits:
        await conn.execute("alter table mainspring.task_history add constraint bad check (state <> 13) not valid")
    assert await rescuer.step() == 1
    if not fits:
        assert (await tasks.get(conn, armed.task)).state == "pending"
    await planned(conn)
    assert await ledger(conn, report) == [Entry(5, "", None), Entry(10, "", None)]
    assert await live(conn, report) == [(5, TaskState.PENDING), (10, TaskState.PENDING)]
    kept = 0 if fits else 1
    assert await conn.fetchval("select count(*) from mainspring.attempt") == kept, "it never started"


# ── runs ────────────────────────────────────────────────────────────────────────────────────────


async def test_scopes_that_come_back_one_by_one_are_one_run(conn: Connection) -> None:
    await set_clock(conn, 0)
    await partitions.make_ahead(conn, days=1)
    report = await create(conn, every=5, scopes=["a", "b", "c"])
    await planned(conn)
    armed = await claimed(conn)
    assert len(armed) == 3
    await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, jitter=1.0)))
    await planned(conn)
    assert (await schedules.find(conn, "report")).runs == 2
    for one in armed:
        await revoke.confirm(conn, [one.task], [one.token])
    await planned(conn)
    assert (await schedules.find(conn, "report")).runs == 2
    assert len(await ledger(conn, report)) == 6
    assert await tasks_of(conn, report) == 6


async def test_a_scope_that_comes_back_alone_is_planned_anew_without_another_run(conn: Connection) -> None:
    await set_clock(conn, 0)
    await partitions.make_ahead(conn, days=1)
    await create(conn, every=5, scopes=["a", "b", "c"])
    await planned(conn)
    armed = await claimed(conn)
    await schedules.change(conn, "report", lambda s: replace(s, policies=replace(s.policies, jitter=1.0)))
    await planned(conn)
    for one in armed:
        await revoke.confirm(conn, [one.task], [one.token])
        await planned(conn)
        assert (await schedules.find(conn, "report")).runs == 2


async def test_an_answer_about_an_earlier_attempt_takes_nothing_back(conn: Connection, report: int) -> None:
    """It was given back, armed again, and asked back then."""
    [before] = await claimed(conn)
    await claims.give_back(conn, [before.task], [before.token])
    [armed] = await claimed(conn)
    await edit(conn)
    assert await revoke.confirm(conn, [before.task], [before.token]) == []
    assert await live(conn, report) == [(5, TaskState.ASSIGNED)]
    assert await revoke.confirm(conn, [armed.task], [armed.token]) == [armed.task]


async def tasks_of(conn: Connection, report: int) -> int:
    return int(await conn.fetchval("select count(*) from mainspring.task where schedule_id = $1", report))


async def test_cancelling_what_was_asked_back_stops_it_in_any_case(conn: Connection, report: int) -> None:
    [armed] = await claimed(conn)
    await edit(conn)
    await tasks.cancel(conn, armed.task)
    assert await conn.fetchval("select cancel_mode from mainspring.task where id = $1", armed.task) is None
    assert await revoke.confirm(conn, [armed.task], [armed.token]) == []


async def test_runs_asked_for_at_the_instant_of_a_plan_time_take_nothing_from_the_plan(conn: Connection) -> None:
    await set_clock(conn, 0.5)
    id = await create(conn, every="10s")
    await set_clock(conn, 10)
    tasks = [task for _ in range(3) for task in await backfill.run_now(conn, "report")]
    await planned(conn)
    assert len(set(tasks)) == 3
    assert len(await ledger(conn, id, origin="manual")) == 3
    assert (await ledger(conn, id))[0] == (10, "", None)
