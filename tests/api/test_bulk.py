"""Bulk submit over a real socket: commits, refusals, repetition, and clients that misbehave."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import httpx2
import msgspec
import pytest

from mainspring.model.access.actors import Role
from mainspring.operations.requests.large_values import SELDOM
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection
from tests.api.serving import Served, serving
from tests.conftest import Eventually

HEADERS = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
async def served(dsn: str) -> AsyncIterator[Served]:
    async with serving(dsn) as made:
        yield made


@pytest.fixture
async def secret(conn: Connection) -> str:
    return (await tokens.create(conn, "ci", role=Role.SUBMITTER))[1]


@pytest.fixture
async def client(served: Served, secret: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with served.client(secret) as made:
        yield made


def lines_of(answer: httpx2.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [msgspec.json.decode(line) for line in answer.text.splitlines()]


async def count(conn: Connection) -> int:
    found: int = await conn.fetchval("select count(*) from mainspring.task")
    return found


def body(*lines: str) -> bytes:
    return "\n".join(lines).encode()


TASK = '{"job": "hello", "args": {"n": 1}}'
UNKNOWN = '{"job": "nothing"}'
BROKEN = '{"job": "hello"'


async def test_lines_are_committed_in_chunks_and_answered_with_their_ids(
    client: httpx2.AsyncClient, conn: Connection, job: str
) -> None:
    given = [f'{{"job": "hello", "args": {{"n": {number}}}}}' for number in range(1, 2501)]
    answers = lines_of(await client.post("/tasks/bulk", content=body(*given), headers=HEADERS))
    *commits, done = answers
    assert done == {"done": True, "accepted": 2500, "refused": 0}
    ids = [id for commit in commits for id in commit["ids"]]
    assert commits[0]["lines"][0] == 1
    assert [commit["lines"][1] + 1 for commit in commits[:-1]] == [commit["lines"][0] for commit in commits[1:]]
    assert all(commit["lines"][1] - commit["lines"][0] < 1000 for commit in commits)
    stored = await conn.fetch("select id, (args->>'n')::integer as n from mainspring.task order by n")
    assert [(row["n"], row["id"]) for row in stored] == list(enumerate(ids, 1))


async def collecting() -> bool:
    return gc.get_threshold()[0] != SELDOM


LARGE = {"rows": [{"id": number, "values": [1, [2]]} for number in range(12_000)]}


@pytest.mark.parametrize("query", ["", "?atomic=true"])
async def test_large_lines_are_stored_whole_and_freed(
    client: httpx2.AsyncClient, conn: Connection, job: str, query: str, eventually: Eventually
) -> None:
    lines = [{"job": job, "args": LARGE}, {"job": job, "args": LARGE, "key": "k"}, {"job": job}]
    answers = lines_of(await client.post(f"/tasks/bulk{query}", content=body(*map(json.dumps, lines)), headers=HEADERS))
    assert answers[-1] == {"done": True, "accepted": 3, "refused": 0}
    stored = await conn.fetch("select args from mainspring.task order by length(args::text) desc")
    assert [json.loads(row["args"]) for row in stored] == [LARGE, LARGE, {}]
    await eventually(collecting)


async def test_a_large_line_that_is_refused_is_freed(
    client: httpx2.AsyncClient, conn: Connection, job: str, eventually: Eventually
) -> None:
    lines = [{"job": job, "args": LARGE, "nothing": 1}, {"job": "none", "args": LARGE}]
    answers = lines_of(await client.post("/tasks/bulk", content=body(*map(json.dumps, lines)), headers=HEADERS))
    assert [answer.get("code") for answer in answers] == ["validation", "job_not_found", None]
    await eventually(collecting)


async def test_a_large_body_is_stored_whole_and_freed(
    client: httpx2.AsyncClient, conn: Connection, job: str, eventually: Eventually
) -> None:
    answer = await client.post("/tasks", json={"job": job, "args": LARGE})
    assert answer.status_code == 201
    assert json.loads(await conn.fetchval("select args from mainspring.task")) == LARGE
    refused = await client.post("/tasks", json={"job": job, "args": LARGE, "nothing": 1})
    assert refused.status_code == 422
    await eventually(collecting)


async def test_a_refused_line_has_its_number_and_the_others_are_committed(
    client: httpx2.AsyncClient, conn: Connection, job: str
) -> None:
    answers = lines_of(await client.post("/tasks/bulk", content=body(TASK, BROKEN, "", UNKNOWN, TASK), headers=HEADERS))
    commit, *refused, done = answers
    assert [id is not None for id in commit["ids"]] == [True, False, False, False, True]
    assert [(one["line"], one["code"], one["field"]) for one in refused] == [
        (2, "malformed", "line"),
        (4, "job_not_found", "job"),
    ]
    assert [one["id"] for one in refused] == [None, None], "members with default values are never left out"
    assert done == {"done": True, "accepted": 2, "refused": 2}
    assert await count(conn) == 2


@pytest.mark.parametrize("wrong", [BROKEN, UNKNOWN])
async def test_it_stops_at_the_first_refused_line(
    client: httpx2.AsyncClient, conn: Connection, job: str, wrong: str
) -> None:
    content = body(TASK, TASK, wrong, TASK, UNKNOWN)
    commit, refused, done = lines_of(await client.post("/tasks/bulk?on_error=stop", content=content, headers=HEADERS))
    assert [id is not None for id in commit["ids"]] == [True, True, False], "what stands behind it was not tried"
    assert commit["lines"] == [1, 3]
    assert (refused["line"], done) == (3, {"done": False, "accepted": 2, "refused": 1})
    assert await count(conn) == 2


async def test_atomic_is_all_or_nothing(client: httpx2.AsyncClient, conn: Connection, job: str) -> None:
    given = [TASK] * 1500
    refused = await client.post("/tasks/bulk?atomic=true", content=body(*given, UNKNOWN, BROKEN), headers=HEADERS)
    assert (refused.status_code, refused.json()["line"]) == (404, 1501)
    assert [one["line"] for one in refused.json()["errors"]] == [1501, 1502]
    assert await count(conn) == 0
    *commits, done = lines_of(await client.post("/tasks/bulk?atomic=true", content=body(*given), headers=HEADERS))
    assert (done["accepted"], sum(len(commit["ids"]) for commit in commits)) == (1500, 1500)
    assert await count(conn) == 1500


async def test_atomic_takes_ten_thousand_lines(client: httpx2.AsyncClient, conn: Connection, job: str) -> None:
    refused = await client.post("/tasks/bulk?atomic=true", content=b'{"job":"hello"}\n' * 10_001, headers=HEADERS)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert await count(conn) == 0


async def test_the_whole_can_be_sent_again_and_nothing_is_created_twice(
    client: httpx2.AsyncClient, conn: Connection, job: str
) -> None:
    headers = {**HEADERS, "Idempotency-Key": "load-7"}
    given = [TASK] * 1200
    first = lines_of(await client.post("/tasks/bulk", content=body(*given[:700]), headers=headers))
    again = lines_of(await client.post("/tasks/bulk", content=body(*given), headers=headers))
    ids = [[id for one in answers for id in one.get("ids", ())] for answers in (first, again)]
    assert (len(ids[1]), ids[1][:700]) == (1200, ids[0])
    assert await count(conn) == 1200
    assert await conn.fetchval("select key from mainspring.task where id = $1", ids[1][9]) == "load-7:10"


async def test_a_few_lines_are_committed_while_more_are_awaited(
    client: httpx2.AsyncClient, conn: Connection, job: str, eventually: Eventually
) -> None:
    committed = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield body(TASK, TASK, TASK[:10])
        await committed.wait()
        yield TASK[10:].encode()

    posting = asyncio.ensure_future(client.post("/tasks/bulk", content=slowly(), headers=HEADERS))
    assert await eventually(lambda: _is(conn, 2))
    committed.set()
    first, second, done = lines_of(await posting)
    assert (first["lines"], second["lines"], done["accepted"]) == ([1, 2], [3, 3], 3)


async def _is(conn: Connection, wanted: int) -> bool:
    return await count(conn) == wanted


async def test_a_body_that_is_cut_off_leaves_what_was_committed(
    served: Served, secret: str, conn: Connection, job: str, eventually: Eventually
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(_head(secret) + _http_chunk(body(TASK, TASK, TASK[:10])))
    assert await eventually(lambda: _is(conn, 2))
    writer.write(_http_chunk(TASK[10:20].encode()))
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
    async with served.client(secret) as client:
        answers = lines_of(await client.post("/tasks/bulk", content=body(TASK), headers=HEADERS))
    assert answers[-1]["accepted"] == 1
    assert await count(conn) == 3


def _head(secret: str) -> bytes:
    return (
        f"POST /api/v1/tasks/bulk HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n"
        "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    ).encode()


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_client_that_does_not_read_is_not_read_from(served: Served, secret: str, job: str) -> None:
    """Refusals make the answer longer than what is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(_head(secret))
    part = _http_chunk(b"x\n" * 1000)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 500 * 1024 * 1024:
            writer.write(part)
            sent += len(part)
            async with asyncio.timeout(2):
                await writer.drain()
    assert sent < 50 * 1024 * 1024
    writer.transport.abort()


async def test_a_token_that_is_revoked_meanwhile_submits_nothing_more(
    served: Served, conn: Connection, job: str, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mainspring.api.streams.bulk.LOOK", 0.0)
    monkeypatch.setattr("mainspring.api.access.guard.BELIEVED", 0.0)
    id, secret = await tokens.create(conn, "gone", role=Role.SUBMITTER)
    revoked = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield TASK.encode() + b"\n"
        await revoked.wait()
        yield TASK.encode() + b"\n"

    async with served.client(secret) as client:
        posting = asyncio.ensure_future(client.post("/tasks/bulk", content=slowly(), headers=HEADERS))
        assert await eventually(lambda: _is(conn, 1))
        await tokens.revoke(conn, id)
        revoked.set()
        _, refused, done = lines_of(await posting)
    assert (refused["line"], refused["code"], done["done"]) == (2, "unauthorized", False)
    assert await count(conn) == 1


@pytest.mark.parametrize("length", [180, 181, 200])
async def test_a_key_of_any_length_makes_each_task_once(
    client: httpx2.AsyncClient, conn: Connection, job: str, length: int
) -> None:
    for key in ("k" * length, "k" * length, "k" * (length - 1) + "l"):
        headers = {**HEADERS, "Idempotency-Key": key}
        *_, done = lines_of(await client.post("/tasks/bulk", content=body(TASK, TASK), headers=headers))
        assert done == {"done": True, "accepted": 2, "refused": 0}
    assert await count(conn) == 4


async def test_what_is_wrong_with_the_request_is_a_problem(
    served: Served, client: httpx2.AsyncClient, conn: Connection, job: str
) -> None:
    plain = await client.post("/tasks/bulk", content=TASK, headers={"Content-Type": "application/json"})
    assert (plain.status_code, plain.json()["code"]) == (415, "unsupported_media_type")
    packed = {**HEADERS, "Content-Encoding": "gzip"}
    assert (await client.post("/tasks/bulk", content=gzip.compress(b"x"), headers=packed)).status_code == 415
    assert (await client.post("/tasks/bulk?on_error=never", content=TASK, headers=HEADERS)).status_code == 422
    long = {**HEADERS, "Idempotency-Key": "k" * 201}
    assert (await client.post("/tasks/bulk", content=TASK, headers=long)).json()["field"] == "idempotency-key"
    assert lines_of(await client.post("/tasks/bulk", content=b"", headers=HEADERS)) == [
        {"done": True, "accepted": 0, "refused": 0}
    ]
    _, viewer = await tokens.create(conn, "viewer", role=Role.VIEWER)
    async with served.client(viewer) as other:
        assert (await other.post("/tasks/bulk", content=TASK, headers=HEADERS)).status_code == 403
    _, narrow = await tokens.create(conn, "narrow", role=Role.SUBMITTER, jobs=["other*"])
    async with served.client(narrow) as other:
        [refused, done] = lines_of(await other.post("/tasks/bulk", content=TASK, headers=HEADERS))
        assert (refused["code"], done["accepted"]) == ("job_not_found", 0)
    assert await count(conn) == 0
