"""Batches: when they end, how they count what ends, and which callbacks come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest
from tests.store.batches.helpers import (
    FAILED,
    SUCCEEDED,
    called,
    close,
    end,
    member,
    opened,
    settle,
    stands,
    view,
)

from mainspring.errors import BatchNotFound
from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import CancelMode, TaskState
from mainspring.store.batches import batches, settling
from mainspring.store.flows import expiry
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import broadcasts, control, dependencies, jobs, tasks, transitions


@pytest.fixture(autouse=True)
async def registered(conn: Connection) -> None:
    await jobs.register(conn, {name: Definition(Python(name)) for name in ("job", "callback")})


# ── when it ends ────────────────────────────────────────────────────────────────────────────────


async def test_an_empty_batch_has_succeeded_as_soon_as_it_is_closed(conn: Connection) -> None:
    batch = await opened(conn)
    assert await stands(conn, batch) == ("open", None)
    assert await batches.close(conn, batch)
    shown = await view(conn, batch)
    assert (shown.state, shown.outcome, shown.progress) == ("ended", "succeeded", 1.0)
    assert await called(conn) == ["success", "complete"]


async def test_a_batch_whose_tasks_all_end_before_it_is_closed_ends_when_it_is_closed(conn: Connection) -> None:
    batch = await opened(conn)
    await end(conn, await member(conn, batch))
    assert await stands(conn, batch) == ("open", None)
    assert await called(conn) == []
    await close(conn, batch)
    assert await stands(conn, batch) == ("ended", "succeeded")
    assert await called(conn) == ["success", "complete"]


async def test_to_close_a_batch_twice_has_no_effect(conn: Connection) -> None:
    batch = await opened(conn)
    task = await member(conn, batch)
    assert await close(conn, batch)
    closed_at = (await view(conn, batch)).closed_at
    assert not await close(conn, batch)
    await end(conn, task)
    assert await stands(conn, batch) == ("ended", "succeeded")
    assert not await close(conn, batch)
    await settle(conn)
    assert (await view(conn, batch)).closed_at == closed_at
    assert await called(conn) == ["success", "complete"]


async def test_a_closed_batch_takes_tasks_while_one_of_its_own_is_live_and_none_after_its_end(conn: Connection) -> None:
    batch = await opened(conn)
    first = await member(conn, batch)
    await close(conn, batch)
    second = await member(conn, batch)
    await end(conn, first)
    assert await stands(conn, batch) == ("closed", None)
    await end(conn, second)
    assert await stands(conn, batch) == ("ended", "succeeded")
    with pytest.raises(asyncpg.PostgresError, match="has ended; it takes no more tasks") as refused:
        async with conn.transaction():
            await member(conn, batch)
    assert refused.value.sqlstate == "MSB02"
    assert (await view(conn, batch)).total == 2


async def test_a_batch_that_does_not_exist_is_not_found(conn: Connection) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        async with conn.transaction():
            await member(conn, 999)
    assert refused.value.sqlstate == "MSB01"
    with pytest.raises(BatchNotFound):
        await batches.get(conn, 999)


# ── what is counted ─────────────────────────────────────────────────────────────────────────────


async def _cancel(conn: Connection, batch: int) -> None:
    await tasks.cancel(conn, await member(conn, batch))


async def _cancel_many(conn: Connection, batch: int) -> None:
    await tasks.cancel_each(conn, [await member(conn, batch)])


async def _depend(conn: Connection, batch: int) -> None:
    parent = int(await conn.fetchval("select mainspring.enqueue('job')"))
    await member(conn, batch, after=[parent])
    await end(conn, parent, FAILED)
    await dependencies.settle(conn, [parent])


async def _complete(conn: Connection, batch: int) -> None:
    """By the handler's own transaction; its result comes later."""
    task = await member(conn, batch)
    await conn.execute("update mainspring.task set state = 3, token = id where id = $1", task)
    ending = Ending(task, task, 1, 1, SUCCEEDED, 1.0, 2.0)
    async with conn.transaction():
        assert await transitions.complete(conn, [ending])
    assert await transitions.add_results(conn, [ending])


async def _broadcast(conn: Connection, batch: int) -> None:
    """Without an agent that matches."""
    task = await member(conn, batch)
    assert await broadcasts.end_without_agents(conn, [task]) == [task]


async def _expire(conn: Connection, batch: int) -> None:
    await member(conn, batch, expires=timedelta(seconds=1))
    await conn.execute("update mainspring.task set expires_at = mainspring.now() - interval '1 s'")
    assert await expiry.expire(conn, 10) == 1


async def _skip(conn: Connection, batch: int) -> None:
    await control.skip(conn, await member(conn, batch), "not needed")


async def _many(conn: Connection, batch: int) -> None:
    task = await member(conn, batch)
    await conn.execute("update mainspring.task set state = 3, token = id where id = $1", task)
    assert await transitions.finish_many(conn, [Ending(task, task, 1, 1, TaskState.LOST, 1.0, 2.0)])


@pytest.mark.parametrize(
    ("act", "counted"),
    [
        (_cancel, "cancelled"),
        (_cancel_many, "cancelled"),
        (_depend, "skipped"),
        (_complete, "succeeded"),
        (_broadcast, "failed"),
        (_many, "lost"),
        (_expire, "skipped"),
        (_skip, "skipped"),
    ],
)
async def test_every_way_to_end_counts_once(
    conn: Connection, act: Callable[[Connection, int], Awaitable[None]], counted: str
) -> None:
    batch = await opened(conn)
    await act(conn, batch)
    shown = await view(conn, batch)
    assert (shown.total, shown.live, getattr(shown, counted)) == (1, 0, 1), "before it is added up"
    await close(conn, batch)
    outcome = {"lost": "failed"}.get(counted, counted)
    assert await stands(conn, batch) == ("ended", outcome)
    shown = await view(conn, batch)
    assert (shown.total, shown.live, getattr(shown, counted)) == (1, 0, 1)
    assert await called(conn) == {
        "succeeded": ["success", "complete"],
        "failed": ["failure", "complete"],
    }.get(outcome, ["complete"])


async def test_a_repeated_or_stale_report_counts_nothing(conn: Connection) -> None:
    batch = await opened(conn)
    task = await member(conn, batch)
    await end(conn, task)
    again = Ending(task, task, 1, 1, FAILED, 1.0, 2.0)
    assert await transitions.finish(conn, [again]) == []
    assert (await view(conn, batch)).succeeded == 1
    assert (await view(conn, batch)).failed == 0


async def test_many_in_one_statement_and_each_for_itself_are_counted(conn: Connection) -> None:
    batch, other = await opened(conn), await opened(conn)
    await conn.fetchval("select mainspring.enqueue_many('job', array['{}', '{}']::jsonb[], batch => $1)", batch)
    ids = await conn.fetchval(
        """select mainspring.enqueue_each(array['job', 'job', 'job', 'job'], array_fill('{}'::jsonb, array[4]),
                                          keys => array[null, 'k', 'k', null],
                                          key_ttls => array_fill(interval '1 h', array[4]),
                                          batches => array[$1, $1, $1, $2]::bigint[])""",
        batch,
        other,
    )
    assert ids[2] is None, "its key is given in the same statement: it was left out"
    assert [(await view(conn, one)).total for one in (batch, other)] == [4, 1]


async def test_a_task_that_has_the_key_already_does_not_join(conn: Connection) -> None:
    batch = await opened(conn)
    first = int(await conn.fetchval("select mainspring.enqueue('job', key => 'k')"))
    assert await member(conn, batch, key="k") == first
    assert (await view(conn, batch)).total == 0


# ── callbacks ───────────────────────────────────────────────────────────────────────────────────


async def test_on_failure_comes_with_the_first_failure_and_only_once(conn: Connection) -> None:
    batch = await opened(conn)
    ids = [await member(conn, batch) for _ in range(4)]
    await close(conn, batch)
    await end(conn, ids[0], FAILED)
    assert await stands(conn, batch) == ("closed", None)
    assert await called(conn) == ["failure"]
    await end(conn, ids[1], TaskState.TIMED_OUT)
    await settle(conn)
    await end(conn, ids[2])
    await end(conn, ids[3], FAILED)
    assert await stands(conn, batch) == ("ended", "failed")
    assert await called(conn) == ["failure", "complete"]


async def test_a_callback_knows_the_counts_and_what_failed_and_is_no_member(conn: Connection) -> None:
    batch = await opened(conn)
    failed = await member(conn, batch)
    await end(conn, failed, FAILED)
    await end(conn, await member(conn, batch))
    await close(conn, batch)
    assert await stands(conn, batch) == ("ended", "failed")
    row = await conn.fetchrow("""
        select batch_id, options->'callback' as it from mainspring.task
         where options #>> '{callback,event}' = 'complete'
    """)
    assert row["batch_id"] is None
    assert '"failed_ids": [' + str(failed) + "]" in row["it"]
    assert '"total": 2' in row["it"]
    assert (await view(conn, batch)).total == 2


async def test_a_callback_is_not_refused_by_a_full_queue_and_obeys_rules_of_its_origin(conn: Connection) -> None:
    await conn.execute("""
        insert into mainspring.priority_rule (name, position, jobs, job_like, conditions, condition, fields, priority)
        values ('callbacks first', 1, '*', '%', '[]', '$.origin == "batch"', '{origin}', 9)
    """)
    await conn.execute("""
        update mainspring.job set definition = definition || '{"max_queued": 1}' where name = 'callback'
    """)
    await conn.fetchval("select mainspring.enqueue('callback')")
    batch = await opened(conn)
    await close(conn, batch)
    assert await stands(conn, batch) == ("ended", "succeeded")
    rows = await conn.fetch(
        "select priority, is_bounded, options->>'rule' from mainspring.task where options ? 'callback'"
    )
    assert [tuple(row) for row in rows] == [(9, True, "callbacks first")] * 2


async def test_a_callback_whose_job_is_gone_is_told_and_does_not_keep_the_batch_from_ending(conn: Connection) -> None:
    batch = await opened(conn)
    await conn.execute("delete from mainspring.job where name = 'callback'")
    await close(conn, batch)
    assert await stands(conn, batch) == ("ended", "succeeded")
    errors = {one.event: one.error for one in (await view(conn, batch)).callbacks}
    assert errors == {"failure": None, "success": "no job named 'callback'", "complete": "no job named 'callback'"}


@pytest.mark.parametrize(
    ("callback", "state"),
    [
        ('{"job": "unknown"}', "MSJ01"),
        ('{"args": {}}', "MSJ01"),
        ('["callback"]', "MSV01"),
        ('{"job": "callback", "args": [1]}', "MSV01"),
        ('{"job": "callback", "priority": "soon"}', "MSV01"),
        ('{"job": "callback", "delay": 1}', "MSV01"),
    ],
)
async def test_a_wrong_callback_is_refused_when_the_batch_is_opened(
    conn: Connection, callback: str, state: str
) -> None:
    with pytest.raises(asyncpg.PostgresError) as refused:
        async with conn.transaction():
            await conn.fetchval("select mainspring.open_batch('b', on_success => $1)", callback)
    assert refused.value.sqlstate == state


async def test_nulls_in_the_arguments_of_a_callback_stay(conn: Connection) -> None:
    callback = '{"job": "callback", "args": {"month": null}}'
    batch = await conn.fetchval("select mainspring.open_batch('b', on_success => $1)", callback)
    await close(conn, batch)
    await settle(conn)
    assert await conn.fetchval("select args from mainspring.task") == '{"month": null}'


# ── again ───────────────────────────────────────────────────────────────────────────────────────


async def _failed_batch(conn: Connection) -> tuple[int, int]:
    batch = await opened(conn)
    failed = await member(conn, batch)
    await end(conn, failed, FAILED)
    await end(conn, await member(conn, batch))
    await close(conn, batch)
    assert await stands(conn, batch) == ("ended", "failed")
    return batch, failed


async def test_the_retry_of_a_failed_task_reopens_its_batch_and_calls_only_what_was_not_called(
    conn: Connection,
) -> None:
    batch, failed = await _failed_batch(conn)
    await tasks.run_again(conn, failed)
    shown = await view(conn, batch)
    assert (shown.state, shown.outcome, shown.live, shown.failed, shown.total) == ("closed", None, 1, 0, 2)
    assert await stands(conn, batch) == ("closed", None)
    await end(conn, failed)
    assert await stands(conn, batch) == ("ended", "succeeded")
    assert await called(conn) == ["failure", "complete", "success"]


async def test_retry_of_all_that_failed_calls_everything_again_where_that_is_asked_for(conn: Connection) -> None:
    batch, failed = await _failed_batch(conn)
    assert await batches.retry(conn, batch, callbacks_again=True) == [batch]
    assert await stands(conn, batch) == ("closed", None), "it cannot end before its failed tasks were retried"
    for command in await settling.commands(conn, 10):
        assert (await settling.retry_step(conn, command, 0)).tasks == 1
    await end(conn, failed, FAILED)
    assert await stands(conn, batch) == ("ended", "failed")
    assert await called(conn) == ["failure", "complete", "failure", "complete"]


async def test_retry_of_a_batch_without_failures_changes_nothing(conn: Connection) -> None:
    batch = await opened(conn)
    await batches.close(conn, batch)
    assert await batches.retry(conn, batch, callbacks_again=True) == []
    assert await stands(conn, batch) == ("ended", "succeeded")
    assert await called(conn) == ["success", "complete"]


# ── cancel ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_cancel_closes_the_batch_takes_no_more_and_asks_each_held_task_once(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "STEP", 2)
    monkeypatch.setattr(settling, "_LIVE", settling._LIVE.replace("limit 1000", "limit 2"))
    batch = await opened(conn)
    ids = [await member(conn, batch) for _ in range(5)]
    await conn.execute("update mainspring.task set state = 3, token = 1, session = 1 where id = $1", ids[0])
    assert await batches.cancel(conn, batch, kill=False)
    with pytest.raises(asyncpg.PostgresError, match="been cancelled"):
        async with conn.transaction():
            await member(conn, batch)
    [command] = await settling.commands(conn, 10)
    reached, steps = 0, []
    while True:
        step = await settling.cancel_step(conn, command, reached)
        steps.append(step.tasks)
        reached = step.reached
        if not step.has_more:
            break
    assert steps == [2, 2, 1]
    assert (await settling.cancel_step(conn, command, 0)).tasks == 0
    assert await stands(conn, batch) == ("closed", None), "one is still running"
    await end(conn, ids[0])
    assert await stands(conn, batch) == ("ended", "cancelled"), "whatever became of the rest"
    assert await called(conn) == ["complete"]
    assert not await batches.cancel(conn, batch, kill=False)
    assert await settling.commands(conn, 10) == []


# ── batches in batches ──────────────────────────────────────────────────────────────────────────


async def test_a_batch_in_a_batch_is_one_member_that_ends_when_it_ends(conn: Connection) -> None:
    outer = await opened(conn, "outer")
    inner = await opened(conn, "inner", parent=outer)
    task = await member(conn, inner)
    await close(conn, outer)
    assert await stands(conn, outer) == ("closed", None)
    assert (await view(conn, outer)).total == 1
    await end(conn, task)
    await settle(conn)
    assert await stands(conn, outer) == ("closed", None), "the inner one is open"
    await close(conn, inner)
    await settle(conn)
    assert await stands(conn, outer) == ("ended", "succeeded")


async def test_the_retry_in_an_inner_batch_reopens_the_outer_one(conn: Connection) -> None:
    outer = await opened(conn, "outer")
    inner = await opened(conn, "inner", parent=outer)
    task = await member(conn, inner)
    await close(conn, inner)
    await close(conn, outer)
    await end(conn, task, FAILED)
    await settle(conn)
    assert await stands(conn, outer) == ("ended", "failed")
    assert await batches.retry(conn, outer, callbacks_again=False) == [inner]
    assert [(await view(conn, one)).state for one in (outer, inner)] == ["closed", "closed"]
    [command] = await settling.commands(conn, 10)
    await settling.retry_step(conn, command, 0)
    await end(conn, task)
    await settle(conn)
    assert await stands(conn, outer) == ("ended", "succeeded")
    assert ((await view(conn, outer)).total, (await view(conn, outer)).succeeded) == (1, 1)


async def test_callbacks_come_again_for_the_batches_in_between_and_not_for_those_above(conn: Connection) -> None:
    above = await opened(conn, "above")
    chain = [above]
    for name in ("outer", "middle", "inner"):
        chain.append(await opened(conn, name, parent=chain[-1]))
    task = await member(conn, chain[-1])
    for batch in chain:
        await close(conn, batch)
    await end(conn, task, FAILED)
    for _ in chain:
        await settle(conn)
    assert await stands(conn, above) == ("ended", "failed")
    assert await _calls(conn) == dict.fromkeys(chain, 2)
    assert await batches.retry(conn, chain[1], callbacks_again=True) == [chain[-1]]
    [command] = await settling.commands(conn, 10)
    await settling.retry_step(conn, command, 0)
    await end(conn, task, FAILED)
    for _ in chain:
        await settle(conn)
    assert await stands(conn, above) == ("ended", "failed")
    assert await _calls(conn) == {above: 2} | dict.fromkeys(chain[1:], 4)


async def _calls(conn: Connection) -> dict[int, int]:
    """How many callbacks of each batch were enqueued."""
    return dict(
        await conn.fetch("""
            select (options #>> '{callback,batch}')::bigint, count(*) from mainspring.task
             where options ? 'callback' group by 1
        """)
    )


async def test_a_cancel_reaches_the_batches_within(conn: Connection) -> None:
    outer = await opened(conn, "outer")
    inner = await opened(conn, "inner", parent=outer)
    await member(conn, inner)
    await batches.cancel(conn, outer, kill=False)
    for _ in range(2):
        for command in await settling.commands(conn, 10):
            await settling.cancel_step(conn, command, 0)
    await settle(conn)
    assert await stands(conn, inner) == ("ended", "cancelled")
    assert await stands(conn, outer) == ("ended", "cancelled")


async def test_a_kill_after_a_cancel_asks_the_tasks_that_still_run_once_more(conn: Connection) -> None:
    outer = await opened(conn, "outer")
    inner = await opened(conn, "inner", parent=outer)
    held = [await member(conn, outer), await member(conn, inner)]
    await conn.execute("update mainspring.task set state = 3, token = id, session = 1 where id = any ($1)", held)
    await batches.cancel(conn, outer, kill=False)
    assert await _carry_out(conn) == {outer: 1, inner: 1}
    asked = await conn.fetch("select cancel_at, cancel_mode from mainspring.task order by id")
    assert [row["cancel_mode"] for row in asked] == [None, None]
    cancelled_at = (await view(conn, inner)).cancelled_at
    await batches.cancel(conn, outer, kill=True)
    assert await _carry_out(conn) == {outer: 1, inner: 1}
    rows = await conn.fetch("select cancel_at, cancel_mode from mainspring.task order by id")
    assert [row["cancel_mode"] for row in rows] == [CancelMode.KILL] * 2
    assert [row["cancel_at"] for row in rows] == [row["cancel_at"] for row in asked]
    assert (await view(conn, inner)).cancelled_at == cancelled_at
    await batches.cancel(conn, outer, kill=False)
    assert await _carry_out(conn) == {}, "each was asked, and a kill is not taken back"


async def test_cancelled_batches_that_wait_for_running_tasks_do_not_hold_up_later_commands(conn: Connection) -> None:
    outer = await opened(conn, "outer")
    first = [await opened(conn, parent=outer) for _ in range(3)]
    held = [await member(conn, batch) for batch in first]
    await conn.execute("update mainspring.task set state = 3, token = id, session = 1 where id = any ($1)", held)
    await batches.cancel(conn, outer, kill=False)
    assert await _carry_out(conn) == dict.fromkeys(first, 1)
    assert await settling.commands(conn, 2) == [], "each was asked; the rest is for their agents"
    last = await opened(conn)
    await member(conn, last)
    await batches.cancel(conn, last, kill=False)
    assert [command.batch for command in await settling.commands(conn, 2)] == [last]
    await conn.execute("update mainspring.task set state = 1, session = null where id = $1", held[1])
    assert [command.batch for command in await settling.commands(conn, 2)] == [first[1], last], "requeued, not ended"
    await batches.cancel(conn, outer, kill=True)
    assert [command.batch for command in await settling.commands(conn, 1)] == [outer]


async def _carry_out(conn: Connection) -> dict[int, int]:
    """Two steps of all commands, the second for batches within; returns how many tasks of which batches they asked."""
    asked: Counter[int] = Counter()
    for _ in range(2):
        for command in await settling.commands(conn, 10):
            asked[command.batch] += (await settling.cancel_step(conn, command, 0)).tasks
    return {batch: tasks for batch, tasks in asked.items() if tasks}


# ── should a count be wrong ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", [-1, 1])
async def test_a_wrong_count_neither_ends_a_batch_early_nor_keeps_it_from_ending(conn: Connection, wrong: int) -> None:
    batch = await opened(conn)
    task = await member(conn, batch)
    await conn.execute("update mainspring.batch_count set total = total + $1", wrong)
    await close(conn, batch)
    assert await stands(conn, batch) == ("closed", None)
    await end(conn, task)
    await settle(conn)
    await settling.recount(conn, 10)
    assert await stands(conn, batch) == ("ended", "succeeded")


async def test_changes_of_a_batch_that_is_gone_are_dropped(conn: Connection) -> None:
    batch = await opened(conn)
    task = await member(conn, batch)
    await conn.execute("delete from mainspring.batch")
    await end(conn, task, FAILED)
    await settle(conn)
    await tasks.run_again(conn, task)
    await settling.forget_orphans(conn)
    assert await conn.fetchval("select count(*) from mainspring.batch_change") == 0


# ── retention ───────────────────────────────────────────────────────────────────────────────────


async def test_a_batch_goes_with_its_last_task_and_failures_are_kept_longer(conn: Connection) -> None:
    succeeded, empty, open_one = await opened(conn), await opened(conn), await opened(conn)
    task = await member(conn, succeeded)
    await end(conn, task)
    failed, _ = await _failed_batch(conn)
    for batch in (succeeded, empty):
        await close(conn, batch)
        assert await stands(conn, batch) == ("ended", "succeeded")
    await conn.execute(
        "update mainspring.batch set ended_at = ended_at - interval '8 d', created_at = created_at - '31 d'::interval"
    )
    assert await settling.forget(conn, timedelta(days=7), timedelta(days=30), 100) == 2
    left = [row["id"] for row in await conn.fetch("select id from mainspring.batch order by id")]
    assert left == [succeeded, failed], "the task of the first is still there; the empty ones are gone"
    assert open_one not in left
    await conn.execute("delete from mainspring.task_history where id = $1", task)
    assert await settling.forget(conn, timedelta(days=7), timedelta(days=30), 100) == 1
    assert await conn.fetchval("select count(*) from mainspring.batch_count") == 1
