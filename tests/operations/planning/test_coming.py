"""What fires next, what was missed, and strips: of all schedules together, in few statements."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from tests.operations.conftest import ACTOR, echo

from mainspring.errors import ScheduleNotFound, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.planning import coming
from mainspring.store.postgres.database import Connection

NARROWED = Actor(name="narrowed", role=Role.VIEWER, jobs=("other*",))


async def make(conn: Connection, name: str, **spec: object) -> int:
    await jobs.put(conn, ACTOR, "hello", echo())
    await schedules.put(conn, ACTOR, name, ScheduleSpec(job="hello", enabled=True, **{"every": "1h", **spec}))  # type: ignore[arg-type]
    id: int = await conn.fetchval("select id from mainspring.schedule where name = $1", name)
    return id


async def decide(conn: Connection, schedule: int, ago: str, *, reason: str | None = None, late: str = "2 ms") -> None:
    """A plan time so long ago, with a task that succeeded unless there is a reason."""
    task = None
    if reason is None:
        task = await conn.fetchval("select nextval('mainspring.task_id')")
        await conn.execute(
            """
            insert into mainspring.task_history
                (id, run_at, created_at, started_at, finished_at, recorded_at, job_id, pool, state, priority, attempt,
                 crashes, args)
            select $1, at, at, at + $3::text::interval, at + interval '1 s', mainspring.now(), j.id, j.pool, 10, 5, 1,
                   0, '{}'
              from mainspring.job j, (select mainspring.now() - $2::text::interval as at) t
            """,
            task, ago, late,
        )  # fmt: skip
    await conn.execute(
        """
        insert into mainspring.fire (schedule_id, plan_time, task_id, reason)
        values ($1, mainspring.now() - $2::text::interval, $3, $4)
        """,
        schedule, ago, task, reason,
    )  # fmt: skip


async def test_the_next_fires_are_those_that_are_decided_and_those_that_are_not(conn: Connection) -> None:
    later, soon = await make(conn, "later"), await make(conn, "soon")
    await conn.execute(
        "update mainspring.schedule set next_plan_at = mainspring.now() + interval '20 min',"
        " look_at = mainspring.now() + interval '19 min 52.5 s' where id = $1",
        later,
    )
    await conn.execute(
        "update mainspring.schedule set next_plan_at = mainspring.now() + interval '40 min',"
        " look_at = mainspring.now() + interval '39 min' where id = $1",
        soon,
    )
    await conn.execute(  # planned three seconds ahead: its cursor is at the plan time behind that
        """
        insert into mainspring.task
            (created_at, job_id, pool, priority, state, run_at, schedule_id, plan_time, scope, origin, args)
        select at, j.id, j.pool, 5, 1, at + interval '3 s', $1, at + interval '3 s', '', 'plan', '{}'
          from mainspring.job j, (select mainspring.now() as at) now
        """,
        soon,
    )
    found = await coming.next_fires(conn, ACTOR, n=2)
    assert [one.schedule for one in found] == ["soon", "later"]
    assert found[0].task_id is not None
    assert found[1].task_id is None
    assert [one.name for one in (await schedules.listing(conn, ACTOR, order="next", limit=2)).items] == [
        "soon",
        "later",
    ]
    assert await coming.next_fires(conn, NARROWED) == []
    with pytest.raises(ValidationError):
        await coming.next_fires(conn, ACTOR, n=101)


async def test_pages_by_plan_time_have_each_schedule(conn: Connection) -> None:
    for number in range(5):
        id = await make(conn, f"s{number}")
        at = f"mainspring.now() + interval '{60 - number} min'"
        await conn.execute(f"update mainspring.schedule set next_plan_at = {at}, look_at = {at} where id = {id}")
    found: list[str] = []
    cursor = None
    while True:
        page = await schedules.listing(conn, ACTOR, order="next", limit=2, cursor=cursor)
        found += [one.name for one in page.items]
        if (cursor := page.next) is None:
            break
    assert found == ["s4", "s3", "s2", "s1", "s0"]


async def test_what_did_not_run_in_time_is_told(conn: Connection) -> None:
    id, overdue = await make(conn, "nightly"), await make(conn, "overdue")
    await decide(conn, id, "2 hours", reason="misfire")
    await decide(conn, id, "1 hour", reason="overlap")  # by policy: not missed
    await conn.execute(
        "update mainspring.schedule set next_plan_at = mainspring.now() - interval '5 min',"
        " look_at = mainspring.now() - interval '5 min' where id = $1",
        overdue,
    )
    found = await coming.missed(conn, ACTOR)
    assert [(one.schedule, one.why) for one in found] == [("overdue", "overdue"), ("nightly", "misfire")]
    assert [one.why for one in await coming.missed(conn, ACTOR, since=timedelta(hours=1))] == ["overdue"]
    assert await coming.missed(conn, NARROWED) == []


async def test_a_strip_has_what_came_of_the_last_plan_times(conn: Connection) -> None:
    id = await make(conn, "nightly", slo={"lateness": "5s"})
    await decide(conn, id, "4 hours", late="6 s")
    await decide(conn, id, "3 hours", late="4 s")
    await decide(conn, id, "2 hours", reason="overlap")
    await decide(conn, id, "1 hour", reason="misfire")
    [strip] = await coming.strips(conn, ACTOR, schedule=["nightly"])
    assert [mark.came for mark in strip.marks] == ["late", "on_time", "skipped", "missed"]
    assert (strip.late_after, strip.p99_ms, strip.starts) == (5.0, 6000.0, 2)
    with pytest.raises(ScheduleNotFound):
        await coming.strips(conn, NARROWED, schedule=["nightly"])
    with pytest.raises(ValidationError):
        await coming.strips(conn, ACTOR, schedule=[])


async def test_a_strip_ends_with_the_latest(conn: Connection) -> None:
    id = await make(conn, "nightly")
    for minutes in range(coming.MARKS + 5):
        await decide(conn, id, f"{minutes + 1} min", reason="paused")
    [strip] = await coming.strips(conn, ACTOR, schedule=["nightly"])
    assert len(strip.marks) == coming.MARKS
    assert strip.marks == sorted(strip.marks, key=lambda mark: mark.at)
    now: datetime = await conn.fetchval("select mainspring.now()")
    assert now - strip.marks[-1].at < timedelta(minutes=2)


async def test_schedules_are_counted_by_the_filters_of_the_list(conn: Connection) -> None:
    await make(conn, "a-1")
    await make(conn, "a-2")
    await schedules.disable(conn, ACTOR, "a-2")
    assert (await schedules.count(conn, ACTOR)).count == 2
    assert (await schedules.count(conn, ACTOR, state=["disabled"])).count == 1
    assert (await schedules.count(conn, ACTOR, name=["*-1"], state=["enabled"])).count == 1
    assert (await schedules.count(conn, NARROWED)).count == 0


async def test_neighbours_are_the_schedules_beside_it_by_name(conn: Connection) -> None:
    for name in ("a", "b", "c"):
        await make(conn, name)
    found = [await schedules.show(conn, ACTOR, name) for name in ("a", "b", "c")]
    assert [(one.before, one.after) for one in found] == [(None, "b"), ("a", "c"), ("b", None)]
