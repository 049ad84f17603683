"""Agents: list, show, drain, undrain; the placement strategy."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from tests.conftest import MakeTask
from tests.operations.conftest import ACTOR, BAD_NAME, add_agent, echo

from mainspring.errors import NotFound, ValidationError
from mainspring.model.tasks.states import TaskState
from mainspring.operations.condition import fleet
from mainspring.operations.definitions import jobs
from mainspring.store.postgres.database import Connection


async def test_an_agent_is_listed_and_drained(conn: Connection) -> None:
    await add_agent(conn)
    assert [(view.name, view.status) for view in (await fleet.listing(conn, ACTOR)).items] == [("eve", "active")]
    assert (await fleet.drain(conn, ACTOR, "eve")).changed
    assert not (await fleet.drain(conn, ACTOR, "eve")).changed, "it drains already"
    assert [view.status for view in await fleet.show(conn, ACTOR, "eve")] == ["draining"]
    assert (await fleet.undrain(conn, ACTOR, "eve")).changed
    assert not (await fleet.undrain(conn, ACTOR, "eve")).changed


async def test_what_all_agents_are_armed_with_is_bounded_for_each(conn: Connection, make_task: MakeTask) -> None:
    for session, name in ((7, "eve"), (8, "adam"), (9, "idle")):
        await add_agent(conn, name, session)
    now = await conn.fetchval("select mainspring.now()")
    armed = [
        await make_task(TaskState.ASSIGNED, session=7, run_at=now + timedelta(seconds=3 - number))
        for number in range(3)
    ]
    running = [await make_task(TaskState.RUNNING, session=session) for session in (7, 8)]
    await claim(conn, 7, [*armed, running[0]])
    await claim(conn, 7, armed[:1])  # returned and claimed again
    await claim(conn, 8, [running[1], armed[0]])  # the last one is another's by now
    found = await fleet.armed_fleet(conn, ACTOR, each=2)
    assert [(one.name, one.armed, one.running) for one in found.agents] == [("adam", 0, 1), ("eve", 3, 1)]
    assert [task.id for task in found.agents[1].tasks] == [armed[2], armed[1]], "the soonest first"
    assert found.counted_at >= now
    narrow = await fleet.armed_fleet(conn, msgspec.structs.replace(ACTOR, jobs=("other",)))
    assert [(one.armed, one.tasks) for one in narrow.agents] == [(0, []), (3, [])]
    for each in (0, 101):
        with pytest.raises(ValidationError):
            await fleet.armed_fleet(conn, ACTOR, each=each)


async def test_what_an_agent_is_armed_with_is_cut_after_the_jobs_of_others_were_left_out(
    conn: Connection, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_agent(conn, "eve", 7)
    await jobs.put(conn, ACTOR, "mine", echo())
    mine = await conn.fetchval("select id from mainspring.job where name = 'mine'")
    tasks = [await make_task(TaskState.ASSIGNED, session=7) for _ in range(3)]
    await conn.execute("update mainspring.task set job_id = $1 where id = $2", mine, tasks[2])
    await claim(conn, 7, tasks)
    monkeypatch.setattr(fleet, "MOST_ARMED", 2)
    assert [task.id for task in await fleet.armed(conn, ACTOR, "eve")] == tasks[:2]
    narrow = msgspec.structs.replace(ACTOR, jobs=("mi*",))
    assert [task.id for task in await fleet.armed(conn, narrow, "eve")] == tasks[2:]


async def test_the_sessions_of_an_agent_tell_how_they_ended(conn: Connection) -> None:
    ends = {
        3: ("lost", "ended_at = lease_until + interval '1 s'"),
        4: ("stopped", "ended_at = lease_until - interval '1 s'"),
        5: ("resumed", "ended_at = lease_until - interval '1 s', successor = 6"),
        6: ("active", "reliability = 0.5"),
    }
    for session, (_, change) in ends.items():
        await add_agent(conn, "eve", session)
        await conn.execute(f"update mainspring.agent set {change} where session = $1", session)
    first = await fleet.sessions(conn, ACTOR, "eve", limit=3)
    rest = await fleet.sessions(conn, ACTOR, "eve", limit=3, cursor=first.next)
    found = [*first.items, *rest.items]
    assert {one.session: one.status for one in found} == {session: status for session, (status, _) in ends.items()}
    assert [one.session for one in found] == [6, 5, 4, 3]
    assert [one.ended_at is None for one in found] == [True, False, False, False]
    assert (found[0].reliability, found[1].successor, rest.next) == (0.5, 6, None)


async def claim(conn: Connection, session: int, tasks: list[int]) -> None:
    batch = "nextval('mainspring.claim_batch')"
    await conn.execute(f"insert into mainspring.claim (session, batch, tasks) values ($1, {batch}, $2)", session, tasks)


async def test_an_agent_that_was_never_there_is_not_found(conn: Connection) -> None:
    for operation in (fleet.show, fleet.sessions, fleet.drain, fleet.undrain):
        with pytest.raises(NotFound):
            await operation(conn, ACTOR, "adam")
        with pytest.raises(ValidationError):
            await operation(conn, ACTOR, BAD_NAME)
