"""The client of a server: the same calls, views and errors as on the database."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from unittest.mock import ANY

import pytest
from tests.client.conftest import ACTOR
from tests.served import losing_answers, served

from mainspring.client.interface import Operations
from mainspring.client.remote import Client, check_url
from mainspring.errors import (
    Busy,
    Forbidden,
    InvalidTransition,
    MainspringError,
    NoAgents,
    ServerUnavailable,
    TaskNotFound,
    Unauthorized,
    ValidationError,
    WaitTimeout,
)
from mainspring.model.access.actors import Role
from mainspring.model.tasks.define_job import command, define
from mainspring.operations import settings
from mainspring.operations.condition import cluster
from mainspring.operations.definitions import jobs
from mainspring.operations.requests.bulk import Committed, Done, RefusedLine
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import tasks
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks.tasks import Piece


async def test_a_task_is_shown_and_moved_alike(client: Operations, task: int, conn: Connection) -> None:
    shown = await client.call(tasks.show, task)
    assert shown == await tasks.show(conn, ACTOR, task)
    await client.call(tasks.cancel, task, kill=True)
    with pytest.raises(InvalidTransition, match="has already ended"):
        await client.call(tasks.cancel, task)
    await client.wait(task, 10)


async def test_what_is_not_there_is_the_same_error(client: Operations) -> None:
    with pytest.raises(TaskNotFound) as missing:
        await client.call(tasks.show, 4711)
    assert missing.value.field == "task"


async def test_what_is_not_text_is_refused_before_it_is_sent_or_stored(client: Operations, task: int) -> None:
    for field, call in (
        ("note", client.call(tasks.skip, task, note="\udcff")),
        ("tag", client.call(tasks.listing, tag=["\udcff"])),
        ("name", client.call(jobs.show, "\udcff")),
        ("change", client.call(settings.edit, {"heartbeat_url": "https://\udcff"})),
    ):
        with pytest.raises(ValidationError) as refused:
            await call
        assert refused.value.field in (field, "job", "heartbeat_url"), "or as the operation calls it"


async def test_a_wait_ends_with_its_timeout(client: Operations, task: int) -> None:
    with pytest.raises(WaitTimeout):
        await client.wait(task, 0.05)


async def test_lists_and_settings_are_the_same_views(client: Operations, conn: Connection) -> None:
    assert await client.call(cluster.segments) == await cluster.segments(conn, ACTOR)
    changed = await client.call(settings.edit, {"placement": "least_tasks"})
    assert changed == await settings.show(conn, ACTOR)
    assert await client.call(settings.edit, {}) == changed, "nothing was given"
    assert (await client.call(settings.edit, {"placement": None})).placement is None


async def test_namespaces_and_sync_are_the_same_calls(remote: Client, task: int) -> None:
    assert await remote.tasks.show(task) == await remote.call(tasks.show, task)
    found = await asyncio.to_thread(lambda: remote.sync.tasks.show(task))
    assert found == await remote.tasks.show(task)


async def test_sync_code_follows_output_and_submits_lines(remote: Client, task: int) -> None:
    assert (await remote.tasks.show(task)).state == "pending"  # sync calls now use this event loop
    assert await asyncio.to_thread(lambda: list(remote.sync.follow(task, wait=False))) == []
    lines = [b'{"job": "hello"}', b'{"job": "nothing"}\n']
    commit, refused, done = await asyncio.to_thread(lambda: list(remote.sync.submit_lines(lines)))
    assert isinstance(commit, Committed)
    id = commit.ids[0]
    assert id is not None
    assert (refused, done) == (RefusedLine(2, "job_not_found", ANY, "job"), Done(True, 1, 1))
    cancelled = await asyncio.to_thread(lambda: remote.sync.tasks.cancel(id))
    ended = await asyncio.to_thread(lambda: remote.sync.ended(id, 20))
    assert ended.state == cancelled.state == "cancelled"


async def test_sync_calls_in_async_code_say_what_to_write_instead(remote: Client, task: int) -> None:
    for call, wanted in (
        (lambda: remote.sync.tasks.show(task), r"client\.sync\.tasks\.show: .* `await client\.tasks\.show\(\)`"),
        (lambda: remote.sync.call(tasks.show, task), r"client\.sync\.call: .* `await client\.call\(\)`"),
        (lambda: remote.sync.wait(task), r"client\.sync\.wait: .* `await client\.wait\(\)`"),
    ):
        with pytest.raises(ValidationError, match=wanted):
            call()
    with pytest.raises(AttributeError, match="nothing"):
        remote.sync.tasks.nothing()


async def test_a_stranger_and_a_lower_role_are_told(url: str, conn: Connection, task: int) -> None:
    async with Client(url) as stranger:
        with pytest.raises(Unauthorized, match=r"give one: Client\(url, token\)"):
            await stranger.call(tasks.show, task)
    _, secret = await tokens.create(conn, "viewer", role=Role.VIEWER)
    async with Client(url, secret) as viewer:
        with pytest.raises(Forbidden):
            await viewer.call(tasks.retry, task)


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # and does not listen
        async with Client(f"http://127.0.0.1:{reserved.getsockname()[1]}", "ms_x", timeout=2) as client:
            with pytest.raises(ServerUnavailable, match="cannot be reached"):
                await client.call(tasks.show, 1)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "127.0.0.1:7070", "http://u:p@x", "http://x/?a=1"])
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValidationError):
        check_url(url)


# ── what is sent again ──────────────────────────────────────────────────────────────────────────


async def test_a_submission_whose_answer_is_lost_makes_one_task(url: str, token: str, conn: Connection) -> None:
    await jobs.put(conn, ACTOR, "hello", define(command(["true"]), {}))
    async with losing_answers(url, 2) as (line, lost), Client(line, token) as client:
        made = await client.tasks.submit(NewTask(job="hello"))
        assert lost.cut == 2
    assert [row[0] for row in await conn.fetch("select id from mainspring.task")] == [made.id]


async def test_a_read_is_sent_again_and_a_change_without_a_key_is_not(url: str, token: str, task: int) -> None:
    async with losing_answers(url, 2) as (line, lost), Client(line, token) as client:
        assert (await client.tasks.show(task)).id == task
        lost.left = 1
        with pytest.raises(ServerUnavailable):
            await client.tasks.change(task, priority="high")
        assert (await client.tasks.show(task)).priority == 7  # it was done: only the answer is lost


class Refusing:
    """An ASGI application that refuses the first requests as it is told to, and then answers with a count."""

    def __init__(self, times: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
        self.times, self.body, self.headers = times, body, headers
        self.keys: list[bytes | None] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.keys.append(dict(scope["headers"]).get(b"idempotency-key"))
        refuses = len(self.keys) <= self.times
        kind, body = (b"text/plain", self.body) if refuses else (b"application/json", b'{"id": 7, "state": "pending"}')
        headers = [(b"content-type", kind), *(self.headers if refuses else ())]
        await send({"type": "http.response.start", "status": 503 if refuses else 202, "headers": headers})
        await send({"type": "http.response.body", "body": body})


BUSY = b'{"code": "busy", "message": "busy", "retry_after": %s}'


@pytest.mark.parametrize(
    "refusing",
    [
        Refusing(2, BUSY % b"0.01"),
        Refusing(2, b"bad gateway", (b"retry-after", b"0")),  # of a proxy
        Refusing(2, b"bad gateway"),
    ],
)
async def test_patience_that_a_server_asks_for_is_had(refusing: Refusing) -> None:
    async with served(refusing) as url, Client(url, "ms_x") as client:
        assert (await client.tasks.retry(7)).id == 7
    assert len(refusing.keys) == 3
    assert refusing.keys[0] is not None
    assert len(set(refusing.keys)) == 1  # the same request


@pytest.mark.parametrize("refusing", [Refusing(9, BUSY % b"31"), Refusing(9, b"gone", (b"retry-after", b"3600"))])
async def test_more_patience_than_30_seconds_is_the_callers(refusing: Refusing) -> None:
    async with served(refusing) as url, Client(url, "ms_x") as client:
        with pytest.raises((ServerUnavailable, Busy)):
            await client.tasks.retry(7)
    assert len(refusing.keys) == 1


async def test_that_nobody_can_run_it_is_told_at_once() -> None:
    refusing = Refusing(9, b'{"code": "no_agents", "message": "no agent", "retry_after": 5}')
    async with served(refusing) as url, Client(url, "ms_x") as client:
        with pytest.raises(NoAgents):
            await client.tasks.submit(NewTask(job="hello", require_agents=True))
    assert len(refusing.keys) == 1


# ── output and results ──────────────────────────────────────────────────────────────────────────


async def test_a_piece_that_is_long_in_json_is_followed(client: Operations, conn: Connection, task: int) -> None:
    data = b"\x01" * 65536  # six characters each
    await conn.execute(
        "insert into mainspring.output values ($1, 1, 1, 1, mainspring.now(), mainspring.now(), $2)", task, data
    )
    await tasks.cancel(conn, ACTOR, task)
    for wait in (False, True):
        pieces = [event async for event in client.follow(task, wait=wait)]
        assert [piece.data for piece in pieces if isinstance(piece, Piece)] == [data]


@pytest.mark.parametrize("due", ["null", "true"])
async def test_a_result_that_will_never_come_is_not_waited_for(
    remote: Client, conn: Connection, task: int, due: str
) -> None:
    """Its handler has failed after its commit, or its process is gone."""
    await tasks.cancel(conn, ACTOR, task)
    await conn.execute(f"update mainspring.task_history set result_due = {due}")
    assert (await remote.ended(task, 5)).result_lost


async def test_what_another_program_answers_is_no_answer() -> None:
    """Such as a proxy that wants a login of its own."""

    async def proxy(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"error": "log in"}'})

    async with served(proxy) as url, Client(url, "ms_x") as client:
        with pytest.raises(MainspringError, match="403"):
            await client.access.revoke_token(5)


def test_the_base_of_the_api_may_stand_in_the_url() -> None:
    assert check_url("https://jobs.example/ops/api/v1/") == "https://jobs.example/ops"
