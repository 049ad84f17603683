"""The output of a task over HTTP: as events, as bytes, as pages; across servers, attempts and a lost PostgreSQL."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from mainspring.model.access.actors import Role
from mainspring.model.tasks.states import TaskState
from mainspring.operations.work import tasks
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection
from tests.api.conftest import ACTOR
from tests.api.serving import Served, serving, streaming
from tests.conftest import MakeTask

AT = datetime(2026, 11, 15, 9, tzinfo=UTC)
END = """
    with ended as (delete from mainspring.task where id = $1 returning *)
    insert into mainspring.task_history (id, run_at, created_at, started_at, finished_at, recorded_at, token, session,
                                         job_id, pool, state, priority, attempt, crashes, args)
    select id, run_at, created_at, started_at, mainspring.now(), mainspring.now(), token, session, job_id, pool, 10,
           priority, attempt, crashes, args from ended
"""


@pytest.fixture
async def served(dsn: str) -> AsyncIterator[Served]:
    async with serving(dsn) as made:
        yield made


@pytest.fixture
async def secret(conn: Connection) -> str:
    return (await tokens.create(conn, "viewer", role=Role.VIEWER))[1]


@pytest.fixture
async def viewer(served: Served, secret: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with served.client(secret) as client:
        yield client


@pytest.fixture
async def task(make_task: MakeTask) -> int:
    return await make_task(TaskState.RUNNING, token=5)


async def write(conn: Connection, task: int, *numbers: int, token: int = 5, stream: int = 1, data: bytes = b"") -> None:
    for number in numbers:
        await conn.execute(
            "insert into mainspring.output values ($1, $2, $3, $4, $5, mainspring.now(), $6)",
            task, token, number, stream, AT, data or b"line %d\n" % number,
        )  # fmt: skip


def shown(told: Any) -> tuple[str, str | None]:
    return told.data.get("text", told.name).strip(), told.id


async def test_pieces_are_told_as_they_are_recorded_and_the_end_is_told(
    viewer: httpx2.AsyncClient, conn: Connection, task: int
) -> None:
    await write(conn, task, 1, 2)
    async with streaming(viewer, f"/tasks/{task}/output") as stream:
        first = await stream.next()
        assert first.data == {
            "token": 5, "number": 1, "stream": "stdout", "at": "2026-11-15T09:00:00Z", "text": "line 1\n",
        }  # fmt: skip
        assert shown(await stream.next()) == ("line 2", "5.2")
        await write(conn, task, 3, stream=2, data=b"\xff\xfe")
        binary = await stream.next()
        assert (binary.data["stream"], base64.b64decode(binary.data["base64"])) == ("stderr", b"\xff\xfe")
        await write(conn, task, 4)
        await conn.execute(END, task)
        assert [shown(told) for told in await stream.rest()] == [("line 4", "5.4"), ("bye", None)]


async def test_a_follower_goes_on_at_another_server_without_gap_or_repetition(
    dsn: str, secret: str, conn: Connection, task: int
) -> None:
    seen: list[str] = []
    cursor: str | None = None
    number = 0
    for _ in range(3):
        async with serving(dsn) as served, served.client(secret) as client:
            headers = {} if cursor is None else {"Last_Event_ID": cursor}
            async with streaming(client, f"/tasks/{task}/output", **headers) as stream:
                for _ in range(5):
                    number += 1
                    await write(conn, task, number)
                for _ in range(4):  # the fifth is recorded, and perhaps on its way, when the server stops
                    told = await stream.next()
                    seen, cursor = [*seen, told.data["text"].strip()], told.id
                served.api.stopping.set()
                for told in await stream.rest():
                    if told.name == "output":
                        seen, cursor = [*seen, told.data["text"].strip()], told.id
                    else:
                        assert (told.name, told.data) == ("bye", {"reason": "stopping"})
    await conn.execute(END, task)
    async with (
        serving(dsn) as served,
        served.client(secret) as client,
        streaming(client, f"/tasks/{task}/output", Last_Event_ID=cursor or "") as stream,
    ):
        seen += [told.data["text"].strip() for told in await stream.rest() if told.name == "output"]
    assert seen == [f"line {number}" for number in range(1, 16)]


async def test_a_lost_postgresql_is_waited_for(viewer: httpx2.AsyncClient, conn: Connection, task: int) -> None:
    await write(conn, task, 1)
    async with streaming(viewer, f"/tasks/{task}/output") as stream:
        assert shown(await stream.next()) == ("line 1", "5.1")
        await conn.execute("""
            select pg_terminate_backend(pid) from pg_stat_activity
             where datname = current_database() and pid <> pg_backend_pid()
        """)
        await write(conn, task, 2)
        assert shown(await stream.next()) == ("line 2", "5.2")
        await conn.execute(END, task)
        assert [told.name for told in await stream.rest()] == ["bye"]


@pytest.mark.parametrize("accept", ["text/plain", "application/octet-stream"])
async def test_raw_output_is_byte_for_byte(
    viewer: httpx2.AsyncClient, conn: Connection, task: int, accept: str
) -> None:
    data = bytes(range(256)) * 100
    await write(conn, task, 1, data=data)
    await write(conn, task, 2, stream=0, data=b"a remark of the agent")
    await write(conn, task, 3, stream=2, data=b"\r\n\0 err")
    answer = await viewer.get(f"/tasks/{task}/output", headers={"Accept": accept})
    assert answer.content == data + b"\r\n\0 err"
    assert answer.headers["content-type"].startswith(accept)
    tail = await viewer.get(f"/tasks/{task}/output?tail=10", headers={"Accept": accept})
    assert tail.content == answer.content[-10:]
    all = await viewer.get(f"/tasks/{task}/output?tail=1m", headers={"Accept": accept})
    assert all.content == answer.content


async def test_raw_output_can_be_followed_and_downloaded(
    viewer: httpx2.AsyncClient, conn: Connection, task: int
) -> None:
    await write(conn, task, 1)
    async with viewer.stream("GET", f"/tasks/{task}/output?follow=true&download=true") as answer:
        assert answer.headers["content-disposition"] == f'attachment; filename="task-{task}.log"'
        parts = answer.aiter_bytes()
        assert await anext(parts) == b"line 1\n"
        await write(conn, task, 2)
        assert await anext(parts) == b"line 2\n"
        await conn.execute(END, task)
        assert [part async for part in parts] == []


async def test_raw_output_that_is_cut_off_is_not_taken_for_whole(
    served: Served, viewer: httpx2.AsyncClient, conn: Connection, task: int
) -> None:
    await write(conn, task, 1)
    async with viewer.stream("GET", f"/tasks/{task}/output?follow=true") as answer:
        parts = answer.aiter_bytes()
        assert await anext(parts) == b"line 1\n"
        served.api.stopping.set()
        with pytest.raises(httpx2.RemoteProtocolError):
            await anext(parts)


async def test_pages_go_on_until_the_task_has_ended(viewer: httpx2.AsyncClient, conn: Connection, task: int) -> None:
    await write(conn, task, *range(1, 151))
    first = (await viewer.get(f"/tasks/{task}/output")).json()
    assert (len(first["items"]), first["next"]) == (100, "5.100")
    second = (await viewer.get(f"/tasks/{task}/output?after={first['next']}")).json()
    assert ([piece["number"] for piece in second["items"]], second["next"]) == ([*range(101, 151)], "5.150")
    await conn.execute(END, task)
    assert (await viewer.get(f"/tasks/{task}/output?after=5.150")).json() == {
        "items": [],
        "next": None,
        "previous": None,
    }


async def test_pages_go_back_to_the_beginning(viewer: httpx2.AsyncClient, conn: Connection, task: int) -> None:
    await write(conn, task, *range(1, 131))
    await write(conn, task, 1, 2, token=9, data=b"second attempt\n")
    path = f"/tasks/{task}/output"
    last = (await viewer.get(f"{path}?before=9.2")).json()
    assert [piece["number"] for piece in last["items"]] == [*range(32, 131), 1]
    assert (last["previous"], last["next"]) == ("5.32", "9.1")
    first = (await viewer.get(f"{path}?before={last['previous']}")).json()
    assert [piece["number"] for piece in first["items"]] == [*range(1, 32)]
    assert (first["previous"], first["next"]) == (None, "5.31")
    assert (await viewer.get(f"{path}?before=5.1")).json() == {"items": [], "next": "0.0", "previous": None}
    for query in ("before=1", "before=5.2&after=5.1", "before=5.2&tail=1k"):
        answer = await viewer.get(f"{path}?{query}")
        assert (answer.status_code, answer.json()["field"]) == (422, "before"), query
    answer = await viewer.get(f"{path}?before=5.2", headers={"Accept": "text/plain"})
    assert (answer.status_code, answer.json()["field"]) == (422, "before")


async def test_one_attempt_can_be_read_alone(viewer: httpx2.AsyncClient, conn: Connection, make_task: MakeTask) -> None:
    task = await make_task(TaskState.RUNNING, token=9, attempt=2)
    await conn.execute("""
        insert into mainspring.attempt (task_id, token, number, state, finished_at, recorded_at, run_at)
        values ($1, 5, 1, 11, mainspring.now(), mainspring.now(), mainspring.now())
    """, task)  # fmt: skip
    await write(conn, task, 1, 2)
    await write(conn, task, 1, token=9, data=b"second\n")
    plain = {"Accept": "text/plain"}
    path = f"/tasks/{task}/output"
    assert (await viewer.get(f"{path}?attempt=1", headers=plain)).text == "line 1\nline 2\n"
    assert (await viewer.get(f"{path}?attempt=1&follow=true", headers=plain)).text == "line 1\nline 2\n"
    assert (await viewer.get(f"{path}?attempt=2", headers=plain)).text == "second\n"
    assert (await viewer.get(f"{path}?attempt=2&tail=1k", headers=plain)).text == "second\n"
    assert (await viewer.get(f"{path}?attempt=3", headers=plain)).json()["field"] == "attempt"
    async with streaming(viewer, path) as stream:
        told = [await stream.next() for _ in range(4)]
        assert [one.name for one in told] == ["output", "output", "attempt", "output"]
        assert told[2].data["number"] == 2


async def test_what_is_wrong_is_told(served: Served, viewer: httpx2.AsyncClient, conn: Connection, task: int) -> None:
    for query, field in (("after=1", "after"), ("tail=x", "tail"), ("tail=1k&after=1.1", "tail"), ("foo=1", "foo")):
        answer = await viewer.get(f"/tasks/{task}/output?{query}")
        assert (answer.status_code, answer.json()["field"]) == (422, field), query
    wrong = await viewer.get(f"/tasks/{task}/output", headers={"Accept": "image/png"})
    assert (wrong.status_code, wrong.json()["code"]) == (406, "not_acceptable")
    assert (await viewer.get("/tasks/4711/output")).status_code == 404
    _, other = await tokens.create(conn, "ci", role=Role.SUBMITTER, jobs=["nothing"])
    async with served.client(other) as client:
        assert (await client.get(f"/tasks/{task}/output")).status_code == 404


async def test_a_revoked_token_ends_a_stream_that_has_nothing_to_say(
    served: Served, conn: Connection, task: int
) -> None:
    id, secret = await tokens.create(conn, "gone", role=Role.VIEWER)
    async with served.client(secret) as client, streaming(client, f"/tasks/{task}/output") as stream:
        await tokens.revoke(conn, id)
        assert [told.data for told in await stream.rest()] == [{"reason": "revoked"}]
    await tasks.cancel(conn, ACTOR, task)
    await asyncio.sleep(0)
