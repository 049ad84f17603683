"""Daemons: create, scale, start, stop, restart, delete."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, echo

from mainspring.errors import Conflict, InvalidTransition, ScheduleNotFound, ValidationError
from mainspring.model.schedules.define_schedule import define_schedule
from mainspring.operations import daemons, jobs, schedules
from mainspring.store.postgres.database import Connection

GATEWAY = define_schedule("gateway", "gateway", {"daemon": 2})


async def test_a_daemon_is_created_with_its_job_and_changed_only_on_demand(conn: Connection) -> None:
    await daemons.create(conn, ACTOR, echo(), GATEWAY)
    assert (await jobs.show(conn, ACTOR, "gateway")).version == 1
    with pytest.raises(Conflict):
        await daemons.create(conn, ACTOR, echo(description="new"), GATEWAY)
    await daemons.create(conn, ACTOR, echo(description="new"), GATEWAY, replace=True, enabled=False)
    found = await daemons.show(conn, ACTOR, "gateway")
    assert (found.enabled, found.wanted, found.up, found.replicas) == (False, 0, 0, [])
    assert await daemons.listing(conn, ACTOR) == [found]


async def test_a_conflict_leaves_no_job_behind(conn: Connection) -> None:
    await jobs.create(conn, ACTOR, "hello", echo())
    await schedules.create(conn, ACTOR, define_schedule("gateway", "hello", {"every": "1h"}))
    with pytest.raises(Conflict, match="give the daemon another name"):
        await daemons.create(conn, ACTOR, echo(), GATEWAY)
    assert [view.name for view in await jobs.listing(conn, ACTOR)] == ["hello"]


async def test_start_stop_and_scale_tell_whether_they_changed_anything(conn: Connection) -> None:
    await daemons.create(conn, ACTOR, echo(), GATEWAY)
    assert not await daemons.start(conn, ACTOR, "gateway")
    assert await daemons.scale(conn, ACTOR, "gateway", 3)
    assert not await daemons.scale(conn, ACTOR, "gateway", 3)
    assert (await daemons.show(conn, ACTOR, "gateway")).wanted == 3
    assert await daemons.stop(conn, ACTOR, "gateway")
    await daemons.restart(conn, ACTOR, "gateway")
    await daemons.delete(conn, ACTOR, "gateway")
    with pytest.raises(ScheduleNotFound):
        await daemons.show(conn, ACTOR, "gateway")


async def test_a_replica_without_an_agent_says_why_it_is_not_up(conn: Connection) -> None:
    await daemons.create(conn, ACTOR, echo(), GATEWAY)
    await conn.execute(
        """
        insert into mainspring.task (id, run_at, created_at, job_id, pool, state, priority, args, schedule_id, scope,
                                     origin, generation)
        select 1, mainspring.now(), mainspring.now(), s.job_id, 0, 1, 5, '{}', s.id, '1', 'daemon', s.generation
          from mainspring.schedule s
        """
    )
    found = await daemons.show(conn, ACTOR, "gateway")
    assert (await daemons.why_not_up(conn, ACTOR, found))[1].startswith("waits: no agent is connected")


async def test_another_kind_of_schedule_is_no_daemon(conn: Connection) -> None:
    await jobs.create(conn, ACTOR, "hello", echo())
    await schedules.create(conn, ACTOR, define_schedule("hourly", "hello", {"every": "1h"}))
    for operation in (daemons.show, daemons.start, daemons.stop, daemons.restart, daemons.delete):
        with pytest.raises(InvalidTransition, match="is no daemon"):
            await operation(conn, ACTOR, "hourly")
        with pytest.raises(ValidationError):
            await operation(conn, ACTOR, BAD_NAME)
