"""Crash stories of the HTTP API: what a caller was promised holds across kill -9 and a PostgreSQL that is away."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from mainspring.model.access.actors import Actor, Role
from mainspring.model.tasks.define_job import command, define
from mainspring.operations.definitions import jobs
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.postgres.migrate import migrate
from mainspring.store.tasks import partitions
from tests.api.serving import Stream, streaming
from tests.api.test_output import END, write
from tests.conftest import Eventually
from tests.journey.processes import Running, forked
from tests.postgres import Primary
from tests.stream_proxy import StreamProxy

LINES = 3000
NDJSON = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "upload-1"}
TOLD_WITHIN = 30.0  # seconds; the API gives up after 10, and this machine may be busy


@contextmanager
def api_server(dsn: str, *, what: str = "server") -> Iterator[tuple[Running, int]]:
    """A process of its own, and the port that it serves HTTP on."""
    with forked(what, "--listen", "127.0.0.1:0", "--json", "--dsn", dsn) as process:
        yield process, int(process.ready()["url"].rpartition(":")[2])


def kill(process: Running) -> None:
    process.signal(signal.SIGKILL)
    process.end()


def client(port: int, secret: str) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, timeout=TOLD_WITHIN)


async def prepare(conn: Connection) -> str:
    """A job, and the secret of a token that may do everything."""
    await jobs.put(conn, Actor("test"), "hello", define(command(["true"]), {}))
    _, secret = await tokens.create(conn, "crashes", role=Role.ADMIN)
    return secret


async def test_killed_between_commit_and_answer_the_same_key_makes_one_task(
    dsn: str, conn: Connection, eventually: Eventually
) -> None:
    secret = await prepare(conn)
    key = {"Idempotency-Key": "once"}
    with api_server(dsn) as (process, port):
        async with StreamProxy("127.0.0.1", port) as proxy, client(proxy.port, secret) as caller:
            proxy.down.stall()  # the answer does not arrive
            asking = asyncio.create_task(caller.post("/tasks", json={"job": "hello"}, headers=key))
            committed = await eventually(lambda: conn.fetchval("select max(id) from mainspring.task"), TOLD_WITHIN)
            kill(process)
            asking.cancel()
            await asyncio.wait([asking])
    with api_server(dsn) as (_, port):
        async with client(port, secret) as caller:
            again = await caller.post("/tasks", json={"job": "hello"}, headers=key)
    assert (again.status_code, again.json()["id"]) == (201, committed)
    assert again.headers["idempotency-replayed"] == "true"
    assert await conn.fetchval("select max(id) from mainspring.task") == committed, "no second one was ever made"


def lines() -> list[bytes]:
    return [b'{"job": "hello", "args": {"n": %d}}\n' % number for number in range(LINES)]


async def test_killed_amid_a_bulk_stream_and_sent_again_none_is_there_twice_and_none_missing(
    dsn: str, conn: Connection
) -> None:
    secret = await prepare(conn)
    with api_server(dsn) as (process, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        headers = {**NDJSON, "Host": "127.0.0.1", "Authorization": f"Bearer {secret}", "Transfer-Encoding": "chunked"}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        body = b"".join(lines()[: LINES // 2])
        writer.write(f"POST /api/v1/tasks/bulk HTTP/1.1\r\n{head}\r\n".encode())
        writer.write(b"%x\r\n%b\r\n" % (len(body), body))
        async with asyncio.timeout(TOLD_WITHIN):
            await reader.readuntil(b'"ids":')  # the first commit is told; the rest of the lines is yet to come
        kill(process)
        writer.close()
    before = {row["id"] for row in await conn.fetch("select id from mainspring.task")}
    assert before
    with api_server(dsn) as (_, port):
        async with client(port, secret) as caller:
            answer = await caller.post("/tasks/bulk", content=b"".join(lines()), headers=NDJSON)
    told = [msgspec.json.decode(line) for line in answer.text.splitlines()]
    ids = [id for one in told for id in one.get("ids", ())]
    assert told[-1] == {"done": True, "accepted": LINES, "refused": 0}
    found = await conn.fetch("select id, (args->>'n')::integer as n from mainspring.task order by n")
    assert [row["n"] for row in found] == list(range(LINES))
    assert [row["id"] for row in found] == ids
    assert before <= set(ids)


class Follower:
    """Follows the output of a task, and takes up where it was after each crash."""

    def __init__(self, secret: str, task: int) -> None:
        self.seen: list[str] = []
        self._secret, self._task = secret, task
        self._cursor: str | None = None

    async def hear(self, port: int, number: int | None) -> None:
        """Up to so many pieces in all; None: to the end."""
        headers = {} if self._cursor is None else {"Last_Event_ID": self._cursor}
        async with (
            client(port, self._secret) as caller,
            streaming(caller, f"/tasks/{self._task}/output", **headers) as stream,
        ):
            while number is None or len(self.seen) < number:
                told = await stream.next(TOLD_WITHIN)
                if told.name == "bye":
                    return
                if told.name == "output":
                    self.seen.append(told.data["text"].strip())
                    self._cursor = told.id


async def test_output_is_followed_across_kills_of_the_server_and_of_postgresql(server_directory: Path) -> None:
    with await asyncio.to_thread(Primary, server_directory / "primary") as primary:
        database = Database(primary.dsn)
        await migrate(database)
        conn = await database.connect()
        await partitions.make_ahead(conn, days=3)
        secret = await prepare(conn)
        task: int = await conn.fetchval("select mainspring.enqueue('hello')")
        await conn.execute(
            "update mainspring.task set state = 3, token = 5, session = 1, attempt = 1, started_at = run_at"
        )
        follower = Follower(secret, task)
        with api_server(primary.dsn, what="api") as (process, port):
            await write(conn, task, 1, 2)
            await follower.hear(port, 2)
            await write(conn, task, 3)
            kill(process)
        with api_server(primary.dsn, what="api") as (_, port):
            hearing = asyncio.create_task(follower.hear(port, None))
            while len(follower.seen) < 3:
                await asyncio.sleep(0.01)
            await asyncio.to_thread(primary.kill)
            await assert_unavailable(port, secret)
            await asyncio.to_thread(primary.start)
            conn = await database.connect()
            await write(conn, task, 4, 5)
            await conn.execute(END, task)
            async with asyncio.timeout(60):
                await hearing
        await conn.close()
    assert follower.seen == [f"line {number}" for number in range(1, 6)]


async def submit(caller: httpx2.AsyncClient) -> int:
    answer = await caller.post("/tasks", json={"job": "hello"})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


async def until_told(stream: Stream, id: int) -> tuple[list[int], str | None]:
    """The tasks that are told up to this one, and the cursor behind it. A `resync` is no such event."""
    found: list[int] = []
    while id not in found:
        told = await stream.until("tasks")
        found += [task["id"] for task in told.data["changed"]]
    return found, told.id


async def test_events_go_on_at_another_server_after_a_kill_and_none_is_missing(dsn: str, conn: Connection) -> None:
    secret = await prepare(conn)
    with api_server(dsn, what="api") as (first, port), api_server(dsn, what="api") as (_, other_port):
        async with (
            client(port, secret) as caller,
            client(other_port, secret) as other,
            streaming(other, "/events?topics=tasks") as beside,  # it samples, so it knows what comes
        ):
            await beside.until("ready")
            async with streaming(caller, "/events?topics=tasks") as stream:
                await stream.until("ready")
                before = await submit(other)
                told, cursor = await until_told(stream, before)
                assert told == [before]
                kill(first)
            assert cursor is not None
            missed = [await submit(other) for _ in range(3)]
            await until_told(beside, missed[-1])
            async with streaming(other, "/events?topics=tasks", Last_Event_ID=cursor) as stream:
                after = await submit(other)
                told, _ = await until_told(stream, after)
                # The servers sample at moments of their own: the last one that was told may be told again.
                assert sorted(set(told) - {before}) == [*missed, after], "those since the last event"


async def test_events_after_a_kill_of_the_only_server_begin_with_a_resync(dsn: str, conn: Connection) -> None:
    secret = await prepare(conn)
    with api_server(dsn, what="api") as (process, port):
        async with client(port, secret) as caller:
            task = await submit(caller)
            async with (
                streaming(caller, "/events?topics=tasks") as stream,
                streaming(caller, f"/tasks/{task}/events") as followed,
            ):
                await stream.until("ready")
                known = await followed.until("task")
                _, cursor = await until_told(stream, await submit(caller))
                kill(process)
    await conn.fetchval("select mainspring.enqueue('hello')")  # nobody is there to notice
    assert (cursor, known.id) != (None, None)
    with api_server(dsn, what="api") as (_, port):
        async with client(port, secret) as caller:
            async with streaming(caller, "/events?topics=tasks", Last_Event_ID=str(cursor)) as stream:
                assert (await stream.until("resync")).data == {"topics": ["tasks"]}
                told, _ = await until_told(stream, last := await submit(caller))
                assert told == [last]
            async with streaming(caller, f"/tasks/{task}/events", Last_Event_ID=str(known.id)) as followed:
                assert (await caller.post(f"/tasks/{task}/cancel")).status_code == 202
                told_next = await followed.until("task")
                if told_next.data["state"] == "pending":  # why it waits may have become another reason meanwhile
                    assert told_next.id != known.id, "what it knew is not told again"
                    told_next = await followed.until("task")
                assert told_next.data["state"] == "cancelled"
                assert [one.name for one in await followed.rest()] == ["bye"]


async def assert_unavailable(port: int, secret: str) -> None:
    async with client(port, secret) as caller:
        for method, path, body in (
            ("GET", "/tasks", None),
            ("GET", "/tasks/1", None),
            ("POST", "/tasks", {"job": "hello"}),
            ("GET", "/stats", None),
            ("DELETE", "/tasks/1", None),
        ):
            told: Any = await caller.request(method, path, json=body)
            assert (told.status_code, told.json()["code"]) == (503, "store_unavailable"), told.text
            assert int(told.headers["retry-after"]) >= 1


async def test_a_postgresql_that_hangs_is_told_and_nobody_waits_for_ever(server_directory: Path) -> None:
    with await asyncio.to_thread(Primary, server_directory / "primary") as primary:
        database = Database(primary.dsn)
        await migrate(database)
        conn = await database.connect()
        secret = await prepare(conn)
        with api_server(primary.dsn, what="api") as (_, port):
            async with client(port, secret) as caller:
                assert (await caller.get("/tasks")).status_code == 200
                primary.freeze()
                told = await caller.get("/tasks")
                assert (told.status_code, "retry-after" in told.headers) == (503, True), told.text
                assert told.json()["code"] in ("store_unavailable", "busy")
                health = await caller.get(f"http://127.0.0.1:{port}/healthz")
                assert health.status_code == 200
                told = await caller.get("/health")
                assert (told.status_code, told.json()["status"]) == (503, "unhealthy"), told.text
                scraped = await caller.get(f"http://127.0.0.1:{port}/metrics")
                assert (scraped.status_code, "mainspring_build_info" in scraped.text) == (200, True), scraped.text
                primary.thaw()
                async with asyncio.timeout(60):
                    while (await caller.get("/tasks")).status_code != 200:
                        await asyncio.sleep(0.1)
        await conn.close()
