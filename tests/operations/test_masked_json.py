"""Masked JSON: what a task holds is shown without its secrets, to all but an admin who asks for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.conftest import MakeTask
from tests.operations.conftest import echo

from mainspring.errors import Forbidden
from mainspring.model.access.actors import Actor, Role
from mainspring.model.flows.batches import Callback
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations import settings
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.work import batches, tasks
from mainspring.operations.work.batches import NewBatch
from mainspring.store.batches.batches import BatchView
from mainspring.store.postgres.database import Connection

ADMIN, VIEWER = Actor("token:root", Role.ADMIN), Actor("token:eve", Role.VIEWER)
ARGS = {"password": "hunter2", "day": "2026-11-15", "db": {"api_key": "hunter2"}, "url": "https://u:hunter2@db/x"}
SHOWN = {"password": "***", "day": "2026-11-15", "db": {"api_key": "***"}, "url": "https://u:***@db/x"}


async def revealed(conn: Connection) -> list[tuple[str, str]]:
    rows = await conn.fetch("select action, subject from mainspring.audit where action like '%.reveal' order by id")
    return [(row["action"], row["subject"]) for row in rows]


@pytest.mark.parametrize("actor", [VIEWER, ADMIN, Actor("token:ci", Role.SUBMITTER), Actor("os:root@host")])
async def test_secrets_of_a_task_are_masked(conn: Connection, make_task: MakeTask, actor: Actor) -> None:
    text = json.dumps(ARGS)
    id = await make_task(args=text, checkpoint=text)
    [listed] = (await tasks.listing(conn, actor, fields="all")).items
    for view in (await tasks.show(conn, actor, id), await tasks.status(conn, actor, id), listed):
        assert (view.args, view.checkpoint) == (SHOWN, SHOWN)
    assert await revealed(conn) == []


async def test_the_result_of_a_task_is_what_its_job_returned(conn: Connection, make_task: MakeTask) -> None:
    id = await make_task()
    await tasks.cancel(conn, ADMIN, id)
    await conn.execute("update mainspring.task_history set result = $1 where id = $2", json.dumps(ARGS), id)
    assert (await tasks.status(conn, VIEWER, id)).result == ARGS


async def test_an_admin_may_reveal_the_secrets_of_a_task_and_the_audit_says_so(
    conn: Connection, make_task: MakeTask
) -> None:
    id = await make_task(args=json.dumps(ARGS))
    for operation in (tasks.show, tasks.status):
        assert (await operation(conn, ADMIN, id, reveal=True)).args == ARGS
        for role in set(Role) - {Role.ADMIN}:
            with pytest.raises(Forbidden, match="takes the role admin"):
                await operation(conn, Actor("token:x", role), id, reveal=True)
    assert await revealed(conn) == [("task.reveal", f"task:{id}")] * 2


async def test_secrets_of_callbacks_are_masked_unless_an_admin_reveals_them(conn: Connection) -> None:
    await jobs.put(conn, ADMIN, "hello", echo())

    def args(view: BatchView) -> Any:
        return [one.args for one in view.callbacks]

    made = await batches.create(conn, ADMIN, NewBatch(name="b", on_complete=Callback("hello", ARGS)))
    [listed] = (await batches.listing(conn, VIEWER)).items
    shown = await batches.show(conn, VIEWER, made.id)
    closed = await batches.close(conn, ADMIN, made.id)
    assert [args(view) for view in (made, listed, shown, closed)] == [[SHOWN]] * 4
    assert args(await batches.show(conn, ADMIN, made.id, reveal=True)) == [ARGS]
    assert await revealed(conn) == [("batch.reveal", f"batch:{made.id}")]
    with pytest.raises(Forbidden):
        await batches.show(conn, VIEWER, made.id, reveal=True)


async def test_secrets_of_a_schedule_are_masked_unless_an_admin_reveals_them(conn: Connection) -> None:
    await jobs.put(conn, ADMIN, "hello", echo())
    await schedules.put(conn, ADMIN, "nightly", ScheduleSpec(job="hello", every="1h", args=ARGS))
    shown = (await schedules.show(conn, VIEWER, "nightly")).schedule
    assert shown.policies.args == shown.spec.args == SHOWN
    found = (await schedules.show(conn, ADMIN, "nightly", reveal=True)).schedule
    assert found.policies.args == found.spec.args == ARGS
    assert await revealed(conn) == [("schedule.reveal", "schedule:nightly")]
    with pytest.raises(Forbidden):
        await schedules.show(conn, VIEWER, "nightly", reveal=True)


async def test_the_address_that_is_a_credential_is_masked_in_settings_unless_an_admin_reveals_it(
    conn: Connection,
) -> None:
    url = "https://hc.example/0123456789abcdef0123"
    await settings.edit(conn, ADMIN, {"heartbeat_url": url})
    assert (await settings.show(conn, VIEWER)).heartbeat_url == "https://hc.example/***"
    found = await settings.show(conn, ADMIN, reveal=True)
    assert found.heartbeat_url == url
    assert url in [one.value for one in found.details]
    assert await revealed(conn) == [("setting.reveal", "settings")]
    for actor in (VIEWER, Actor("token:some", Role.ADMIN, jobs=("report*",))):
        with pytest.raises(Forbidden):
            await settings.show(conn, actor, reveal=True)
