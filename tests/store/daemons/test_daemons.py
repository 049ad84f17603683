"""Daemons: as many replicas as are wanted, never one of them twice, restarted one by one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace
from tests.cluster import OWNER
from tests.schedules import at, create, set_clock

from mainspring.errors import InvalidTransition
from mainspring.model.messages import Armed, Chunk, Ending, Note, Start
from mainspring.model.schedules.schedules import Schedule
from mainspring.model.tasks.jobs import Definition, Health, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.cluster.catalogue import Catalogue
from mainspring.server.recording.recorder import Recorder
from mainspring.store.daemons import daemons, replicas
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.schedules import schedules
from mainspring.store.tasks import claims, jobs, partitions, session_tasks, tasks, transitions


async def rows(conn: Connection) -> list[Any]:
    return list(await conn.fetch("select * from mainspring.task order by scope::integer"))


async def scaled(conn: Connection, replicas: int, name: str = "report") -> None:
    await schedules.change(conn, name, lambda schedule: replace(schedule, expression=str(replicas)))


async def placed(conn: Connection, session: int = 1) -> list[Armed]:
    """Claim for a session all that is due, and start it."""
    due = [one for one in await replicas.due(conn, within=0.0, limit=100) if one.due_in <= 0]
    claim, _ = await replicas.claim(conn, {one.task: session for one in due})
    armed = claim.tasks.get(session, [])
    await transitions.start(conn, [Start(a.task, a.token, at(0).timestamp()) for a in armed])
    return armed


def ending(armed: Armed, state: TaskState = TaskState.FAILED, code: str | None = "exit_code") -> Ending:
    now = at(0).timestamp()
    return Ending(armed.task, armed.token, armed.job, armed.attempt, state, now, now + 1.0, code=code)


@pytest.fixture
async def recorder(database: Database, conn: Connection) -> Any:
    await set_clock(conn, 0)
    await partitions.make_ahead(conn, days=1)
    await jobs.register(conn, {"job": Definition(Python("job"))})
    catalogue = Catalogue(database)
    await catalogue.refresh()
    return Recorder(database, catalogue)


# ── as many as are wanted ───────────────────────────────────────────────────────────────────────────


async def test_missing_replicas_are_made_once(conn: Connection) -> None:
    id = await create(conn, daemon=3, args={"port": 80})
    assert await daemons.make(conn) == 3
    assert await daemons.make(conn) == 0
    made = await rows(conn)
    assert [(r["scope"], r["schedule_id"], r["pool"], r["state"], r["origin"]) for r in made] == [
        (number, id, 0, 1, "daemon") for number in ("1", "2", "3")
    ]
    assert {r["args"] for r in made} == {'{"port": 80}'}
    assert await conn.fetchval("select count(*) from mainspring.fire") == 0


async def test_two_servers_that_make_replicas_at_once_make_each_once(dsn: str, conn: Connection) -> None:
    await create(conn, daemon=50)
    others = [await Database(dsn).connect() for _ in range(4)]
    assert sum(await asyncio.gather(*(daemons.make(other) for other in others))) == 50
    for other in others:
        await other.close()


async def test_a_disabled_daemon_and_other_schedules_get_none(conn: Connection) -> None:
    await create(conn, "paused", daemon=3, enabled=False)
    await create(conn, "cron", cron="0 9 * * *")
    assert await daemons.make(conn) == 0


@pytest.mark.usefixtures("dsn")
async def test_the_cost_grows_with_the_daemons_and_not_with_the_schedules(conn: Connection) -> None:
    await create(conn, daemon=1)
    await conn.execute("""
        insert into mainspring.schedule (name, job_id, kind, expression, enabled, segment)
        select 'other ' || number, 1, 'cron', '0 9 * * *', true, 0 from generate_series(1, 20000) number
    """)
    plan = await conn.fetch(f"explain {daemons._MAKE}")
    assert "schedule_daemon" in "\n".join(line[0] for line in plan), plan


async def test_an_ordinary_claim_never_meets_a_replica(conn: Connection) -> None:
    await create(conn, daemon=1)
    await daemons.make(conn)
    pool = await conn.fetchval("select pool from mainspring.job")
    claim = await claims.claim(conn, OWNER, pool, [1], 10, [(0.0, 0)] * 10, ahead=60.0)
    assert claim.size == 0


async def test_a_replica_that_waits_ends_at_once_when_it_is_not_wanted(conn: Connection) -> None:
    await create(conn, daemon=3)
    await daemons.make(conn)
    await scaled(conn, 1)
    assert await daemons.stop_surplus(conn) == 2
    assert [r["scope"] for r in await rows(conn)] == ["1"]
    ended = await conn.fetch("select scope, state, error_code, origin from mainspring.task_history order by scope")
    assert [tuple(row) for row in ended] == [("2", 13, "stopped", "daemon"), ("3", 13, "stopped", "daemon")]


@pytest.mark.parametrize("how", ["paused", "deleted", "scaled down", "made another kind"])
async def test_a_replica_that_runs_is_asked_to_stop_once_it_is_not_wanted(conn: Connection, how: str) -> None:
    await create(conn, daemon=2)
    await daemons.make(conn)
    await placed(conn)
    match how:
        case "paused":
            await schedules.change(conn, "report", lambda schedule: schedule, enabled=False)
        case "deleted":
            await schedules.delete(conn, "report")
        case "scaled down":
            await scaled(conn, 1)
        case _:
            change = lambda schedule: Schedule("report", "job", "every", "60")  # noqa: E731
            await schedules.change(conn, "report", change)
    assert await daemons.stop_surplus(conn) == (1 if how == "scaled down" else 2)
    assert await daemons.stop_surplus(conn) == 0
    [*_, last] = await rows(conn)
    assert (last["state"], last["cancel_mode"]) == (3, None)
    assert last["cancel_at"] is not None
    assert await daemons.make(conn) == 0, "not while it is still there"


# ── the lives of a replica ──────────────────────────────────────────────────────────────────────────


async def test_the_next_life_of_a_paused_replica_is_not_paused(conn: Connection, recorder: Recorder) -> None:
    await create(conn, daemon=1)
    await daemons.make(conn)
    [armed] = await placed(conn)
    await conn.execute("update mainspring.task set paused_at = mainspring.now()")
    await replicas.restart(conn, [ending(armed)])
    [row] = await rows(conn)
    assert (row["state"], row["paused_at"]) == (1, None)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (TaskState.SUCCEEDED, None),
        (TaskState.FAILED, "exit_code"),
        (TaskState.FAILED, "unhealthy"),
        (TaskState.FAILED, "shutdown"),
        (TaskState.TIMED_OUT, "timeout"),
        (TaskState.CANCELLED, "cancelled"),
        (TaskState.LOST, "lost"),
    ],
)
async def test_whatever_an_attempt_came_to_the_replica_runs_again(
    conn: Connection, recorder: Recorder, state: TaskState, code: str | None
) -> None:
    await create(conn, daemon=1)
    await daemons.make(conn)
    [armed] = await placed(conn)
    assert armed.daemon
    written = await recorder.record(conn, [ending(armed, state, code)])
    assert ([each.state for each in written.again], written.moved) == ([state], []), "for the figures"
    [row] = await rows(conn)
    assert (row["state"], row["session"], row["restarts"], row["attempt"]) == (1, None, 1, 1)
    [attempt] = await tasks.attempts(conn, armed.task)
    assert (attempt.state, attempt.error_code) == (state.label, code)
    assert await conn.fetchval("select count(*) from mainspring.task_history") == 0
    written = await recorder.record(conn, [ending(armed, state, code)])
    assert (written.again, written.moved) == ([], [])
    assert len(await tasks.attempts(conn, armed.task)) == 1, "said twice, kept once"


async def test_short_lives_wait_longer_each_time(conn: Connection, recorder: Recorder) -> None:
    await create(conn, daemon=1, restart_delay="10s")
    await daemons.make(conn)
    waits = []
    for life in range(3):
        [armed] = await placed(conn)
        await recorder.record(conn, [ending(armed)])
        [row] = await rows(conn)
        waits.append((row["run_at"] - at(100 * life)).total_seconds())
        await set_clock(conn, 100 * (life + 1))
    assert 5 <= waits[0] <= 10 <= waits[1] <= 20 <= waits[2] <= 40


async def test_a_lost_agent_gives_its_replicas_up_at_once(conn: Connection, recorder: Recorder) -> None:
    await create(conn, daemon=1)
    await daemons.make(conn)
    [armed] = await placed(conn)
    await recorder.record(conn, [ending(armed, TaskState.LOST, "lost")])
    [again] = await placed(conn, session=2)
    assert again.token > armed.token
    assert again.careful


async def test_a_stale_life_changes_nothing(conn: Connection, recorder: Recorder) -> None:
    await create(conn, daemon=1)
    await daemons.make(conn)
    [old] = await placed(conn)
    await recorder.record(conn, [ending(old, TaskState.LOST, "lost")])
    [new] = await placed(conn, session=2)
    await recorder.record(conn, [ending(old, TaskState.SUCCEEDED, None), ending(old)])
    [row] = await rows(conn)
    assert (row["state"], row["token"], row["session"]) == (3, new.token, 2)


async def test_a_replica_that_is_held_is_not_placed_a_second_time(conn: Connection) -> None:
    await create(conn, daemon=1)
    await daemons.make(conn)
    [armed] = await placed(conn)
    claim, _ = await replicas.claim(conn, {armed.task: 2})
    assert claim.size == 0


async def test_two_servers_that_place_a_replica_at_once_place_it_once(dsn: str, conn: Connection) -> None:
    await create(conn, daemon=20)
    await daemons.make(conn)
    due = [one.task for one in await replicas.due(conn, within=0.0, limit=100)]
    others = [await Database(dsn).connect() for _ in range(4)]
    taken = await asyncio.gather(
        *(replicas.claim(other, dict.fromkeys(due, session)) for session, other in enumerate(others, 1))
    )
    assert sum(claim.size for claim, _ in taken) == 20
    noted = await conn.fetch("select session, unnest(tasks) as id from mainspring.claim")
    held = await conn.fetch("select session, id from mainspring.task")
    assert {tuple(row) for row in noted} == {tuple(row) for row in held}
    for other in others:
        await other.close()


async def test_a_replica_that_is_to_stop_ends_whatever_its_agent_reports(conn: Connection, recorder: Recorder) -> None:
    await create(conn, daemon=3)
    await daemons.make(conn)
    first, second, third = await placed(conn)
    await schedules.change(conn, "report", lambda schedule: schedule, enabled=False)
    await daemons.stop_surplus(conn)
    await recorder.record(conn, [ending(first, TaskState.SUCCEEDED, None), ending(second)])
    await recorder.record(conn, [ending(third, TaskState.CANCELLED, "cancelled")])
    assert await rows(conn) == []
    ended = await conn.fetch("select state from mainspring.task_history")
    assert {row["state"] for row in ended} == {TaskState.CANCELLED}
    with pytest.raises(InvalidTransition):
        await tasks.run_again(conn, first.task)


async def test_the_number_of_attempts_never_outgrows_its_column(conn: Connection, recorder: Recorder) -> None:
    await create(conn, daemon=1)
    await daemons.make(conn)
    await conn.execute("update mainspring.task set attempt = 32000, failures = 30000, crashes = 30000")
    [armed] = await placed(conn)
    assert armed.attempt == 1
    await recorder.record(conn, [ending(armed)])
    [row] = await rows(conn)
    assert (row["failures"], row["crashes"]) == (30000, 30000)


async def test_what_a_health_check_says_is_kept_for_this_life_only(conn: Connection, recorder: Recorder) -> None:
    await create(conn, daemon=1)
    await daemons.make(conn)
    [armed] = await placed(conn)
    await session_tasks.note(conn, [Note(armed.task, armed.token, None, None, True)])
    await session_tasks.note(conn, [Note(armed.task, armed.token, "1", None)])
    assert (await rows(conn))[0]["healthy"] is True
    await recorder.record(conn, [ending(armed, code="shutdown")])
    assert (await rows(conn))[0]["healthy"] is None


# ── one after another ───────────────────────────────────────────────────────────────────────────────


async def restarting(conn: Connection) -> list[str]:
    return [r["scope"] for r in await rows(conn) if r["cancel_mode"] == 3]


@pytest.mark.parametrize("why", ["asked for", "the job", "the arguments"])
async def test_replicas_are_renewed_one_after_another(conn: Connection, recorder: Recorder, why: str) -> None:
    id = await create(conn, daemon=3)
    await daemons.make(conn)
    held = {armed.scope: armed for armed in await placed(conn)}
    assert await daemons.roll(conn) == 0
    match why:
        case "asked for":
            await daemons.renew(conn, id)
        case "the job":
            await jobs.register(conn, {"job": Definition(Python("job"), timeout=9.0)})
        case _:
            await schedules.change(
                conn, "report", lambda s: replace(s, policies=replace(s.policies, args={"port": 81}))
            )
    for number, scope in enumerate(("1", "2", "3")):
        assert await daemons.roll(conn) == 1
        assert await restarting(conn) == [scope]
        assert await daemons.roll(conn) == 0, "the one before has not stopped"
        await recorder.record(conn, [ending(held[scope], code="restarted")])
        assert await daemons.roll(conn) == 0, "it waits for its next life"
        await set_clock(conn, 10 * number + 0.1)
        [armed] = await placed(conn)
        await transitions.start(conn, [Start(armed.task, armed.token, at(0).timestamp())])
        await conn.execute("update mainspring.task set started_at = mainspring.now() where id = $1", armed.task)
        assert await daemons.roll(conn) == 0, "it is not up yet"
        await set_clock(conn, 10 * (number + 1))
    assert await daemons.roll(conn) == 0
    if why == "the arguments":
        assert {r["args"] for r in await rows(conn)} == {'{"port": 81}'}


async def test_a_replica_that_no_agent_has_room_for_does_not_keep_the_others_from_being_renewed(
    conn: Connection, recorder: Recorder
) -> None:
    id = await create(conn, daemon=2)
    await daemons.make(conn)
    await placed(conn)
    await scaled(conn, 3)
    await daemons.make(conn)
    await daemons.renew(conn, id)
    assert await daemons.roll(conn) == 2, "the one that waits is the new one from now on, and the first restarts"
    assert await restarting(conn) == ["1"]


async def test_with_a_health_check_the_next_waits_until_the_one_before_is_well(
    conn: Connection, recorder: Recorder
) -> None:
    id = await create(conn, daemon=2)
    await jobs.register(conn, {"job": Definition(Python("job"), health=Health(argv=("true",)))})
    await daemons.make(conn)
    held = {armed.scope: armed for armed in await placed(conn)}
    await daemons.renew(conn, id)
    await daemons.roll(conn)
    await recorder.record(conn, [ending(held["1"], code="restarted")])
    [armed] = await placed(conn)
    await set_clock(conn, 3600)
    assert await daemons.roll(conn) == 0
    await session_tasks.note(conn, [Note(armed.task, armed.token, None, None, True)])
    assert await daemons.roll(conn) == 1
    assert await restarting(conn) == ["2"]


async def test_scaling_restarts_no_replica(conn: Connection) -> None:
    await create(conn, daemon=2)
    await daemons.make(conn)
    await placed(conn)
    await scaled(conn, 3)
    await daemons.make(conn)
    assert await daemons.roll(conn) == 0


async def test_a_replica_that_waits_begins_at_once_when_its_job_is_mended(conn: Connection, recorder: Recorder) -> None:
    await create(conn, daemon=1, restart_delay="1m")
    await daemons.make(conn)
    [armed] = await placed(conn)
    await recorder.record(conn, [ending(armed)])
    assert await placed(conn) == []
    await jobs.register(conn, {"job": Definition(Python("job"), timeout=9.0)})
    assert await daemons.roll(conn) == 1
    assert len(await placed(conn)) == 1


async def test_one_that_is_to_restart_and_has_not_started_is_given_back(conn: Connection) -> None:
    id = await create(conn, daemon=1)
    await daemons.make(conn)
    [due] = await replicas.due(conn, within=0.0, limit=10)
    claim, _ = await replicas.claim(conn, {due.task: 1})
    [armed] = claim.tasks[1]
    await daemons.renew(conn, id)
    await daemons.roll(conn)
    [wanted] = await session_tasks.cancelled(conn, [1])
    assert wanted.mode == 3
    assert await claims.give_back(conn, [armed.task], [armed.token]) == 1
    [row] = await rows(conn)
    assert (row["state"], row["cancel_at"], row["cancel_mode"]) == (1, None, None)


async def test_a_replica_that_restarts_and_is_not_wanted_any_more_ends(conn: Connection, recorder: Recorder) -> None:
    id = await create(conn, daemon=1)
    await daemons.make(conn)
    [armed] = await placed(conn)
    await daemons.renew(conn, id)
    await daemons.roll(conn)
    await schedules.change(conn, "report", lambda schedule: schedule, enabled=False)
    assert await daemons.stop_surplus(conn) == 1
    await recorder.record(conn, [ending(armed, code="restarted")])
    assert await rows(conn) == []


# ── output ──────────────────────────────────────────────────────────────────────────────────────────


async def test_the_newest_output_of_each_replica_is_kept(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "KEPT_OUTPUT", 30)
    await create(conn, daemon=2)
    await daemons.make(conn)
    first, second = await placed(conn)
    chunks = [Chunk(first.task, first.token, number, 1, 0.0, b"0123456789") for number in range(1, 6)]
    chunks += [Chunk(second.task, second.token, 1, 1, 0.0, b"x")]
    chunks += [Chunk(10**6, 1, number, 1, 0.0, b"0123456789") for number in range(1, 6)]
    await partitions.write(conn, lambda: session_tasks.output(conn, chunks))
    assert await daemons.trim(conn) == 2
    assert await daemons.trim(conn) == 0
    assert [piece.number for piece in await tasks.output(conn, first.task)] == [3, 4, 5]
    assert len(await tasks.output(conn, second.task)) == 1
    assert len(await tasks.output(conn, 10**6)) == 5, "no daemon's"


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────

_MANY = "array_fill(7::bigint, array[100])"
STATEMENTS = {
    "make": daemons._MAKE,
    "end surplus": daemons._END_SURPLUS,
    "stop surplus": daemons._STOP_SURPLUS,
    "hurry": daemons._HURRY,
    "roll": daemons._ROLL,
    "due": replicas._DUE.replace("$1", "1.0").replace("$2", "100"),
    "held": replicas._HELD,
    "claim": replicas._CLAIM.replace("$1::bigint[]", _MANY).replace("$2::bigint[]", _MANY),
    "lives": replicas._LIVES.replace("$1::bigint[]", _MANY).replace("$2::bigint[]", _MANY),
}


@pytest.mark.usefixtures("dsn")
@pytest.mark.parametrize("analysed", [False, True])
async def test_no_statement_reads_all_tasks_or_all_schedules(conn: Connection, analysed: bool) -> None:
    await create(conn, daemon=1)
    await daemons.make(conn)
    await conn.execute("""
        insert into mainspring.schedule (name, job_id, kind, expression, enabled, segment)
        select 'other ' || number, 1, 'cron', '0 9 * * *', true, 0 from generate_series(1, 20000) number
    """)
    await conn.execute("""
        insert into mainspring.task
            (run_at, created_at, job_id, pool, state, priority, args, schedule_id, scope, origin)
        select now(), now(), 1, 1, 1, 5, '{}', number, '', 'plan' from generate_series(2, 20001) number
    """)
    if analysed:
        await conn.execute("analyze mainspring.task, mainspring.schedule")
    for name, statement in STATEMENTS.items():
        plan = "\n".join(line[0] for line in await conn.fetch(f"explain {statement}"))
        assert "Seq Scan on task" not in plan, f"{name}:\n{plan}"
        assert "Seq Scan on schedule" not in plan, f"{name}:\n{plan}"


async def test_replicas_on_an_agent_that_drains_are_asked_to_go_elsewhere_once(conn: Connection) -> None:
    await create(conn, daemon=2)
    await daemons.make(conn)
    await placed(conn, 7)
    assert await replicas.leave(conn, [8]) == 0
    assert await replicas.leave(conn, [7]) > 0
    assert await replicas.leave(conn, [7]) == 0
    assert {row["cancel_mode"] for row in await conn.fetch("select cancel_mode from mainspring.task")} == {3}
