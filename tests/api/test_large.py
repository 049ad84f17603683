"""Large answers: what is stored goes out as it is, in parts that leave the event loop to others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from mainspring.api import answers, app
from mainspring.api.lent import LentConnection
from mainspring.model.schedules.schedule_spec import ScheduleSpec
from mainspring.operations.definitions import schedules
from mainspring.operations.pages import Page
from mainspring.operations.parts.slices import Slices
from mainspring.operations.planning import forecast
from mainspring.operations.requests import new_tasks
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import tasks
from mainspring.store.access import audit
from mainspring.store.postgres.database import POOL_SIZE, Connection, Database
from mainspring.store.postgres.rows import LONG, views_in_turns
from mainspring.store.views.task_views import AttemptView
from tests.api.conftest import ACTOR, Caller
from tests.conftest import MakeTask

LARGE = {"rows": [{"id": number, "text": 'é \u2028 "quoted"', "values": [1.5, None, True]} for number in range(200)]}


async def turns_of_the_loop(work: Any) -> int:
    """How often others had their turn meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    try:
        await work
    finally:
        counting.cancel()
    return turns


async def test_long_arguments_are_answered_as_they_were_stored(admin: Caller, make_task: MakeTask) -> None:
    text = json.dumps(LARGE)
    assert len(text) > LONG
    id = await make_task(args=text, checkpoint=text, progress="[1]")
    shown = (await admin.get(f"/api/v1/tasks/{id}")).json()
    assert (shown["args"], shown["checkpoint"], shown["progress"]) == (LARGE, LARGE, [1])
    assert (await admin.get(f"/api/v1/tasks/{id}/status")).json()["args"] == LARGE
    [listed] = (await admin.get("/api/v1/tasks?fields=all")).json()["items"]
    assert (listed["args"], listed["checkpoint"]) == (LARGE, LARGE)


@pytest.mark.parametrize("rows", [20, 1_000, 5_000], ids=["short", "in steps", "huge"])
async def test_secrets_in_long_arguments_are_masked(admin: Caller, make_task: MakeTask, rows: int) -> None:
    given = {"rows": [{"id": number, "login": {"password": "hunter2"}} for number in range(rows)]}
    id = await make_task(args=json.dumps(given))
    shown = {"rows": [{"id": number, "login": {"password": "***"}} for number in range(rows)]}
    assert (await admin.get(f"/api/v1/tasks/{id}")).json()["args"] == shown
    [listed] = (await admin.get("/api/v1/tasks?fields=all")).json()["items"]
    assert listed["args"] == shown
    assert (await admin.get(f"/api/v1/tasks/{id}?reveal=true")).json()["args"] == given


async def test_long_arguments_that_cannot_be_searched_are_not_shown(admin: Caller, make_task: MakeTask) -> None:
    """Only SQL can write it."""
    id = await make_task(args=json.dumps({"password": "hunter2", "n": 2**60, "text": "x" * 20_000}))
    assert (await admin.get(f"/api/v1/tasks/{id}")).json()["args"] == "***"


async def test_an_operation_that_is_not_for_http_returns_values_however_long(
    conn: Connection, make_task: MakeTask
) -> None:
    id = await make_task(args=json.dumps(LARGE))
    assert (await tasks.show(conn, ACTOR, id)).args == LARGE
    [listed] = (await tasks.listing(conn, ACTOR, fields="all")).items
    assert listed.args == LARGE


@pytest.mark.parametrize(
    "written",
    ["[" * 3000 + "]" * 3000, "1" + "0" * 5000, json.dumps([0] * LONG)[:-1] + ", 1" + "0" * 5000 + "]"],
    ids=["deep", "a long number", "a long number in a list"],
)
async def test_long_json_that_no_program_here_can_read_breaks_no_list(
    admin: Caller, make_task: MakeTask, written: str
) -> None:
    """Only SQL can write it."""
    id = await make_task(args=written)
    other = await make_task(args=json.dumps(LARGE))
    first, second = (await admin.get("/api/v1/tasks?fields=all")).json()["items"]
    assert (first["id"], first["args"]) == (other, LARGE)
    assert (second["id"], second["args"]) == (id, None)
    assert second["unreadable"][0].startswith("args: ")
    assert (await admin.get(f"/api/v1/tasks/{id}")).json()["unreadable"] == second["unreadable"]


async def test_a_page_with_all_fields_ends_early_where_they_are_large(
    admin: Caller, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "WHOLE_SIZE", 10_000)
    made = [await make_task(args="[]") for _ in range(8)]
    made += [await make_task(args=json.dumps(["x" * 3000])) for _ in range(8)]
    pages: list[list[int]] = []
    cursor: dict[str, str] = {}
    while not pages or cursor:
        page = (await admin.get("/api/v1/tasks", params={"fields": "all", **cursor})).json()
        pages.append([item["id"] for item in page["items"]])
        cursor = {"cursor": page["next"]} if page["next"] else {}
    assert [id for page in pages for id in page] == made[::-1]
    assert [len(page) for page in pages] == [5, 11], "five large ones are enough"


async def test_an_entry_of_the_audit_with_a_long_detail_is_listed(admin: Caller, conn: Connection) -> None:
    await audit.record(conn, ACTOR, "task.cancel", "1000 tasks", {"tasks": list(range(1000))})
    [entry] = (await admin.get("/api/v1/audit?action=task.cancel")).json()["items"]
    assert entry["detail"]["tasks"] == list(range(1000))


async def test_many_views_are_made_and_written_in_turns(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = await conn.fetch(
        """select n as number, n as token, 'failed' as state, null as agent, null::timestamptz as started_at,
                  null::timestamptz as finished_at, null::real as lateness_ms, null as error_code, null as error
             from generate_series(1, 500) n"""
    )
    assert await turns_of_the_loop(views_in_turns(AttemptView, rows)) >= 4
    monkeypatch.setattr(answers, "Slices", lambda: Slices(0.0))
    page = Page(await views_in_turns(AttemptView, rows), "cursor")
    assert await turns_of_the_loop(answers.encode(page)) >= 499
    assert msgspec.json.decode(await answers.encode(page), type=Page[AttemptView]) == page


async def test_a_long_answer_is_written_in_parts(
    admin: Caller, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["x" * 3000]
    task = await make_task(args=json.dumps(args))
    monkeypatch.setattr(app, "PART", 1000)
    sent: list[int] = []
    send = app._Watched.__call__

    async def watched(self: app._Watched, message: Any) -> None:
        sent.append(len(message.get("body", b"")))
        await send(self, message)

    monkeypatch.setattr(app._Watched, "__call__", watched)
    answer = await admin.get(f"/api/v1/tasks/{task}/status")
    assert answer.json()["args"] == args
    assert max(sent) == 1000
    assert sum(sent) == int(answer.headers["content-length"]) == len(answer.content)


async def test_many_tasks_are_checked_in_turns(conn: Connection, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rests = 0

    class Counted(Slices):
        async def rest(self) -> None:
            nonlocal rests
            rests += 1
            await super().rest()

    monkeypatch.setattr(new_tasks, "Slices", Counted)
    await new_tasks.submit_each(conn, ACTOR, [NewTask(job=job, tags=["many"]) for _ in range(100)])
    assert rests == 100
    assert await conn.fetchval("select count(*) from mainspring.task") == 100


async def test_what_computes_between_its_statements_holds_no_connection(conn: Connection) -> None:
    taken = 0

    class Pool:
        async def __aenter__(self) -> Connection:
            nonlocal taken
            taken += 1
            return conn

        async def __aexit__(self, *_: object) -> None:
            nonlocal taken
            taken -= 1

    lent = LentConnection(Pool)
    assert await lent.fetchval("select 1") == 1
    assert (taken, lent.is_in_transaction()) == (0, False)
    async with lent.transaction():
        assert (taken, lent.is_in_transaction()) == (1, True)
        assert [row[0] for row in await lent.fetch("select $1::integer", 7)] == [7]
        assert taken == 1
    assert (taken, lent.is_in_transaction()) == (0, False)


async def test_a_forecast_that_is_kept_is_answered_whole_again(admin: Caller, conn: Connection, job: str) -> None:
    await schedules.put(conn, ACTOR, "often", ScheduleSpec(job=job, cron="*/5 * * * *", enabled=True))
    week = "from=2031-03-03T00:00:00Z&to=2031-03-10T00:00:00Z&cell=15m"
    first, second = [(await admin.get(f"/api/v1/forecast?{week}")).json() for _ in range(2)]
    assert len(first["cells"]) == 7 * 24 * 4
    assert second == first


async def test_a_forecast_is_computed_without_a_connection(
    admin: Caller, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[int] = []
    count = forecast.count

    async def watched(*given: Any) -> bool:
        free.append(database._pool_places._value)
        return await count(*given)

    monkeypatch.setattr(forecast, "count", watched)
    assert (await admin.get("/api/v1/forecast")).status_code == 200
    assert free == [POOL_SIZE]
