"""Holds: who may hold and release what, and what they are told."""

from __future__ import annotations

import pytest
from tests.operations.conftest import ACTOR
from tests.store.limits.test_release import define_job, submit

from mainspring.errors import Forbidden, JobNotFound, ValidationError
from mainspring.model.access.actors import Actor, Role
from mainspring.operations.condition import health
from mainspring.operations.condition.health import Check
from mainspring.operations.definitions import holds, jobs
from mainspring.store.access import audit
from mainspring.store.postgres.database import Connection

NARROW = Actor("ci", Role.OPERATOR, jobs=("report*",))


async def test_a_hold_says_who_when_and_why_until_it_is_released(conn: Connection) -> None:
    await define_job(conn, "report")
    await submit(conn, "report", count=3)
    held = await holds.hold_job(conn, ACTOR, "report", note="the warehouse is down", skip=True)
    assert (held.changed, held.armed, held.running, held.waiting) == (True, 0, 0, None)
    assert held.hold is not None
    assert (held.hold.job, held.hold.by, held.hold.note) == ("report", ACTOR.name, "the warehouse is down")
    assert (held.hold.skip, held.hold.released_at) == (True, None)
    assert (await jobs.show(conn, ACTOR, "report")).held == held.hold
    assert [view.held for view in (await jobs.listing(conn, ACTOR)).items] == [held.hold]
    assert await holds.show(conn, ACTOR) == holds.HoldsView(None, [held.hold])
    released = await holds.release_job(conn, ACTOR, "report", note="it is back")
    assert (released.changed, released.waiting) == (True, 3)
    assert released.hold is not None
    assert released.hold.spread_until is not None
    shown = (await jobs.show(conn, ACTOR, "report")).held
    assert shown == released.hold, "until what waited is let go"
    entries = (await audit.search(conn, subject="job:report")).entries
    assert [entry.action for entry in entries] == ["job.release", "job.hold"]
    assert entries[0].changes is not None
    assert entries[0].changes["release_note"].new == "it is back"


async def test_a_second_hold_keeps_the_time_of_the_first_and_a_second_release_does_nothing(conn: Connection) -> None:
    await define_job(conn, "report")
    first = await holds.hold_job(conn, ACTOR, "report")
    again = await holds.hold_job(conn, ACTOR, "report", note="still")
    assert first.hold is not None
    assert again.hold is not None
    assert (again.changed, again.hold.note, again.hold.since) == (False, "still", first.hold.since)
    assert (await holds.release_job(conn, ACTOR, "report")).changed
    assert not (await holds.release_job(conn, ACTOR, "report")).changed
    assert (await holds.release(conn, ACTOR)) == holds.HoldChange(None, False, 0, 0, None)


async def test_a_release_that_is_under_way_can_be_told_to_hurry(conn: Connection) -> None:
    await define_job(conn, "report")
    await holds.hold_job(conn, ACTOR, "report")
    await submit(conn, "report", count=3)
    slow = await holds.release_job(conn, ACTOR, "report")
    quick = await holds.release_job(conn, ACTOR, "report", at_once=True)
    assert slow.hold is not None
    assert quick.hold is not None
    assert slow.hold.spread_until is not None
    assert quick.hold.spread_until is not None
    assert quick.hold.spread_until < slow.hold.spread_until


async def test_who_reaches_some_jobs_holds_only_those_and_sees_only_those(conn: Connection) -> None:
    for name in ("report", "payroll"):
        await define_job(conn, name)
        await holds.hold_job(conn, ACTOR, name)
    with pytest.raises(JobNotFound):
        await holds.release_job(conn, NARROW, "payroll")
    with pytest.raises(JobNotFound):
        await holds.hold_job(conn, ACTOR, "none")
    for act in (holds.hold, holds.release):
        with pytest.raises(Forbidden):
            await act(conn, NARROW)
    assert [hold.job for hold in (await holds.show(conn, NARROW)).jobs] == ["report"]
    assert "payroll" not in (await _check(conn, NARROW)).message


async def test_a_note_that_cannot_be_stored_is_refused(conn: Connection) -> None:
    with pytest.raises(ValidationError):
        await holds.hold(conn, ACTOR, note="a\0b")
    with pytest.raises(ValidationError):
        await holds.hold(conn, ACTOR, note="x" * 501)


async def test_health_is_degraded_while_anything_is_held(conn: Connection) -> None:
    await define_job(conn, "report")
    assert (await _check(conn, ACTOR)).status is health.Status.HEALTHY
    await holds.hold_job(conn, ACTOR, "report", note="broken")
    found = await _check(conn, ACTOR)
    assert (found.status, "report" in found.message, "broken" in found.message) == (health.Status.DEGRADED, True, True)
    await holds.hold(conn, ACTOR)
    assert "`mainspring release`" in (await _check(conn, ACTOR)).message
    await holds.release(conn, ACTOR)
    await holds.release_job(conn, ACTOR, "report")
    assert (await _check(conn, ACTOR)).status is health.Status.HEALTHY


async def _check(conn: Connection, actor: Actor) -> Check:
    return next(check for check in (await health.health(conn, actor)).checks if check.code == "held")
