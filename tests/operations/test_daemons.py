"""Daemons: put, list, show, scale, start, stop, restart, delete."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR, BAD_NAME, echo, same_in_json

from mainspring.errors import Conflict, InvalidTransition, NotFound, ScheduleNotFound, StaleVersion, ValidationError
from mainspring.model.access.actors import Actor
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import daemons, jobs, schedules
from mainspring.operations.definitions.daemons import DaemonChange
from mainspring.operations.pages import Page
from mainspring.store.daemons.daemon_views import Daemon
from mainspring.store.postgres.database import Connection

HOURLY = ScheduleSpec(job="hello", every="1h")


async def test_a_daemon_is_created_with_its_job_and_changed_only_on_demand(conn: Connection) -> None:
    made = await daemons.put(conn, ACTOR, "gateway", echo(), replicas=2, stable="2m", replace=False)
    assert (made.created, made.changed, made.daemon.wanted, made.daemon.enabled) == (True, True, 2, True)
    assert same_in_json(made, DaemonChange)
    assert (await jobs.show(conn, ACTOR, "gateway")).version == 1
    assert (await schedules.show(conn, ACTOR, "gateway")).schedule.policies.stable == 120.0
    new = echo(description="new")
    for definition in (echo(), new):
        with pytest.raises(Conflict):
            await daemons.put(conn, ACTOR, "gateway", definition, replicas=2, replace=False)
    same = await daemons.put(conn, ACTOR, "gateway", echo(), replicas=2, stable=120)
    assert (same.created, same.changed) == (False, False)
    changed = await daemons.put(conn, ACTOR, "gateway", new, replicas=2, enabled=False, version=1)
    assert (changed.created, changed.changed, changed.daemon.version) == (False, True, 2)
    found = await daemons.show(conn, ACTOR, "gateway")
    assert (found.enabled, found.wanted, found.up, found.replicas) == (False, 0, 0, [])
    assert (await daemons.listing(conn, ACTOR)).items == [found]
    kept = await daemons.put(conn, ACTOR, "gateway", new, replicas=3)
    assert (kept.changed, kept.daemon.enabled) == (True, False), "it stays as it was, unless said otherwise"
    for change in (
        daemons.put(conn, ACTOR, "gateway", echo(), version=1),
        daemons.delete(conn, ACTOR, "gateway", version=1),
    ):
        with pytest.raises(StaleVersion):
            await change
    assert (await jobs.show(conn, ACTOR, "gateway")).definition == new, "and its job is as it was"
    with pytest.raises(ScheduleNotFound):
        await daemons.put(conn, ACTOR, "other", echo(), version=1)


async def test_a_daemon_that_was_deleted_is_made_again_around_the_job_that_stayed(conn: Connection) -> None:
    await daemons.put(conn, ACTOR, "gateway", echo(), replace=False)
    await daemons.delete(conn, ACTOR, "gateway")
    with pytest.raises(Conflict):
        await daemons.put(conn, ACTOR, "gateway", echo(description="new"), replace=False)
    assert (await daemons.put(conn, ACTOR, "gateway", echo(), replace=False)).created


async def test_a_conflict_leaves_no_job_behind(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    await schedules.put(conn, ACTOR, "gateway", HOURLY)
    with pytest.raises(Conflict, match="give the daemon another name"):
        await daemons.put(conn, ACTOR, "gateway", echo(), replace=False)
    with pytest.raises(InvalidTransition, match="is no daemon"):
        await daemons.put(conn, ACTOR, "gateway", echo())
    assert [view.name for view in (await jobs.listing(conn, ACTOR)).items] == ["hello"]


async def test_start_stop_and_scale_tell_whether_they_changed_anything(conn: Connection) -> None:
    await daemons.put(conn, ACTOR, "gateway", echo(), replicas=2)
    assert not (await daemons.start(conn, ACTOR, "gateway")).changed
    assert (await daemons.scale(conn, ACTOR, "gateway", 3)).changed
    again = await daemons.scale(conn, ACTOR, "gateway", 3)
    assert (again.changed, again.daemon.wanted) == (False, 3)
    assert (await daemons.stop(conn, ACTOR, "gateway")).changed
    assert (await daemons.restart(conn, ACTOR, "gateway")).daemon.name == "gateway"
    await daemons.delete(conn, ACTOR, "gateway")
    for operation in (daemons.show, daemons.start, daemons.stop, daemons.restart, daemons.delete):
        with pytest.raises(ScheduleNotFound, match="no daemon named 'gateway'; `mainspring daemon list`") as missing:
            await operation(conn, ACTOR, "gateway")
        assert missing.value.field == "daemon"


async def test_a_list_comes_in_pages_with_all_replicas(conn: Connection) -> None:
    for name in ("a", "b", "c"):
        await daemons.put(conn, ACTOR, name, echo(), replicas=2)
    await conn.execute(
        """
        insert into mainspring.task (run_at, created_at, job_id, pool, state, priority, args, schedule_id, scope,
                                     origin, generation)
        select mainspring.now(), mainspring.now(), s.job_id, 0, 1, 5, '{}', s.id, scope, 'daemon', s.generation
          from mainspring.schedule s, unnest('{1,2}'::text[]) scope
        """
    )
    first = await daemons.listing(conn, ACTOR, limit=2)
    second = await daemons.listing(conn, ACTOR, limit=2, cursor=first.next)
    told = [[(one.name, len(one.replicas)) for one in page.items] for page in (first, second)]
    assert told == [[("a", 2), ("b", 2)], [("c", 2)]]
    assert second.next is None
    assert same_in_json(first, Page[Daemon])


async def test_a_replica_without_an_agent_says_why_it_is_not_up(conn: Connection) -> None:
    await daemons.put(conn, ACTOR, "gateway", echo(), replicas=2)
    await conn.execute(
        """
        insert into mainspring.task (id, run_at, created_at, job_id, pool, state, priority, args, schedule_id, scope,
                                     origin, generation)
        select 1, mainspring.now(), mainspring.now(), s.job_id, 0, 1, 5, '{}', s.id, '1', 'daemon', s.generation
          from mainspring.schedule s
        """
    )
    found = await daemons.show(conn, ACTOR, "gateway")
    assert found.replicas[0].why is not None
    assert found.replicas[0].why.startswith("waits: no agent is connected")
    assert same_in_json(found, Daemon)


async def test_daemons_of_other_jobs_than_the_actors_are_not_there(conn: Connection) -> None:
    await daemons.put(conn, ACTOR, "gateway", echo())
    other = Actor("x", jobs=("x",))
    assert (await daemons.listing(conn, other)).items == []
    for operation in (daemons.show, daemons.start, daemons.stop, daemons.restart, daemons.delete):
        with pytest.raises(ScheduleNotFound):
            await operation(conn, other, "gateway")
    with pytest.raises(NotFound):
        await daemons.put(conn, other, "gateway", echo(grace=9))
    assert (await daemons.show(conn, ACTOR, "gateway")).enabled


async def test_another_kind_of_schedule_is_no_daemon(conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", echo())
    await schedules.put(conn, ACTOR, "hourly", HOURLY)
    for operation in (daemons.show, daemons.start, daemons.stop, daemons.restart, daemons.delete):
        with pytest.raises(InvalidTransition, match="is no daemon"):
            await operation(conn, ACTOR, "hourly")
        with pytest.raises(ValidationError):
            await operation(conn, ACTOR, BAD_NAME)
