"""Bad input over a real socket: each refused with its code, in our form, and nothing changed by it."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from mainspring.store.postgres.database import Database
from tests.api.fronted import fronted
from tests.api.worlds import World, digest_query, make_world

JSON = "Content-Type: application/json"
COMMAND = '{"run":{"type":"command","argv":["x"]}}'
MANY = 2**53
V, M = (422, "validation"), (400, "malformed")


def raw(port: int, data: bytes, *, half_close: bool = False) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def request(world: World, port: int, line: str, headers: tuple[str, ...] = (), body: str = "") -> bytes:
    """`line` is METHOD and what follows /api/v1; a path that begins with // or * is sent as it is."""
    method, _, rest = line.partition(" ")
    target = f"/api/v1{rest}" if rest.startswith("/") else rest
    given = [f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {world.secret}", *headers, "Connection: close"]
    data = body.encode()
    if data and not any(header.lower().startswith(("content-length", "transfer-encoding")) for header in headers):
        given.append(f"Content-Length: {len(data)}")
    return "\r\n".join([f"{method} {target} HTTP/1.1", *given, "", ""]).encode() + data


def told(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\ncontent-type: application/problem+json" in head.lower(), head
    return int(head.split()[1]), json.loads(body)


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


GETS = {
    # cursors
    "/tasks?cursor=x": (422, "bad_cursor"),
    "/tasks?cursor=%00": (422, "bad_cursor"),
    f"/tasks?cursor={'A' * 5000}": (422, "bad_cursor"),
    "/audit?cursor=%F0%9F%98%80": (422, "bad_cursor"),
    "/schedules/nightly/fires?cursor=AAAAAAAAAAAAAAAA": (422, "bad_cursor"),
    "/tasks?cursor=%ff": M,
    # ids
    f"/tasks/{MANY}": V,
    f"/tasks/{2**63}": V,
    f"/tasks/{MANY - 1}": (404, "task_not_found"),
    "/tasks/0": V,
    "/tasks/-1/events": V,
    "/tasks/1e3": V,
    "/tasks/1.0": V,
    "/tasks/%31%00": V,
    # names
    "/jobs/a%2Fb": (404, "job_not_found"),
    "/jobs/..": V,
    "/jobs/%2E%2E": V,
    "/jobs/%00": V,
    "/jobs/a%0D%0Ab": V,
    "/jobs/%E2%80%AE": V,
    "/jobs/%FF": M,
    "/jobs/%ED%A0%80": M,
    f"/jobs/{'x' * 8000}": V,
    "/jobs/../session": (404, "not_found"),
    "/servers/%00": V,
    # parameters
    "/jobs?limit=1&limit=2": V,
    "/tasks/1?wait=0&wait=50": V,
    "/tasks/1?wait=nan": V,
    "/tasks/1?wait=1e999": V,
    "/jobs?namespace=default&namespace=other": V,
    "/jobs?namespace=other": (404, "not_found"),
    "/tasks/1/output?namespace=other": (404, "not_found"),
    "/tasks?limit=501": V,
    "/tasks?limit=1e2": V,
    "/segments/moves?limit=-1": V,
    f"/segments/moves?limit={MANY - 1}": V,
    "/tasks?late_over=99999999999999999d": V,
    "/tasks?created_after=2026-01-01T00:00:00": V,
    "/tasks?created_after=9999-12-31T23:59:59Z": V,
    "/tasks?created_after=1763000000": V,  # seconds since 1970 are no instant with an offset
    "/tasks?finished_before=1e9": V,
    "/tasks?run_before=infinity": V,
    "/audit?since=9999-12-31T23:59:59-23:59": V,
    "/forecast?cell=0": V,
    "/check?since=-1": V,
    "/schedules/nightly/next?n=1000000": V,
    "/figures?from=0001-01-01T00:00:00Z": V,
    "/tasks?" + "&".join(["state=failed"] * 500): M,
}
TASKS = {
    '{"args":{"a":NaN}}': M,
    '{"args":{"a":1e400}}': M,
    f'{{"args":{{"a":{MANY + 1}}}}}': V,
    '{"args":{"a":"\\ud800"}}': V,
    '{"args":{"a":"\\u0000"}}': V,
    '{"args":{"a":1,"a":2}}': V,
    f'{{"args":{{"a":{deep(70)}}}}}': V,
    f'{{"args":{{"a":{deep(65)}}}}}': V,
    f'{{"args":{{"a":{deep(1_000)}}}}}': V,
    f'{{"args":{{"a":{deep(100_000)}}}}}': V,
    '{"args":' + '{"a":' * 100_000: V,
    '{"args":' + '{"a":"' * 100: M,
    '{"args":[1]}': V,
    "null": V,
    '{"args":{}}x': M,
    '{"delay":1e308}': V,
    '{"delay":-1}': V,
    '{"run_at":"2026-01-01T00:00:00"}': V,
    '{"run_at":"9999-12-31T23:59:59Z"}': V,
    f'{{"after":[{MANY - 1}]}}': V,
    '{"key":"' + "x" * 1001 + '"}': V,
    '{"priority":1e10}': V,
    '{"jobs":"hello"}': V,
}
OTHERS: dict[tuple[str, tuple[str, ...], str], tuple[int, str]] = {
    (f"DELETE /tokens/{2**31}", (), ""): (404, "token_not_found"),
    (f"DELETE /tokens/{MANY - 1}", (), ""): (404, "token_not_found"),
    (f"DELETE /sessions/{2**31}", (), ""): (404, "not_found"),
    ("POST /tokens", (JSON,), '{"name":"x","rate":1e-300}'): V,
    ("POST /tokens", (JSON,), '{"name":"x","expires":1e308}'): V,
    ("PUT /jobs/..", (JSON,), COMMAND): V,
    # merge patches that make a definition invalid, and a mask that was read and written back
    ("PATCH /jobs/hello", (JSON,), '{"run":null}'): V,
    ("PATCH /jobs/hello", (JSON,), '{"run":{"env":{"PASSWORD":"***"}}}'): V,
    ("PATCH /jobs/hello", (JSON,), "[]"): V,
    ("PATCH /schedules/off", (JSON,), '{"every":null}'): V,
    ("PATCH /schedules/off", (JSON,), '{"every":null,"cron":"0 0 30 2 *"}'): V,
    ("PATCH /schedules/off", (JSON,), '{"tz":"../../etc/passwd"}'): V,
    ("PATCH /schedules/off", (JSON,), '{"max_runs":9007199254740991}'): V,
    ("POST /daemons/forever/scale", (JSON,), '{"replicas":2147483648}'): V,
    # preconditions
    ("PATCH /jobs/idle", (JSON, 'If-Match: "v99"'), '{"description":"x"}'): (412, "stale_version"),
    ("PATCH /jobs/idle", (JSON, "If-Match: v1"), '{"description":"x"}'): V,
    ("PATCH /jobs/idle", (JSON, 'If-Match: "v1", "v2"'), '{"description":"x"}'): V,
    ("PUT /jobs/idle", (JSON, 'If-None-Match: "v7"'), COMMAND): V,
    ("PUT /jobs/idle", (JSON, "If-None-Match: *"), COMMAND): (409, "name_taken"),
    ("PUT /jobs/new", (JSON, 'If-Match: "v7"'), COMMAND): (404, "job_not_found"),
    ("DELETE /schedules/nightly", ('If-Match: "v99"',), ""): (412, "stale_version"),
    ("DELETE /daemons/forever", ('If-Match: "v99"',), ""): (412, "stale_version"),
    ("PUT /calendars/holidays", (JSON, 'If-Match: "v99"'), '{"days":[]}'): (412, "stale_version"),
    ("PATCH /settings", (JSON, 'If-Match: "v99"'), '{"placement":"least_tasks"}'): (412, "stale_version"),
    ("PATCH /tasks/4", (JSON, 'If-Match: "v1"'), '{"priority":2}'): V,
    # HTTP
    ("POST /tasks", (JSON, "Content-Length: 5"), '{"job":"hello"}'): M,
    ("POST /tasks", (JSON, "Content-Length: -5"), '{"job":"hello"}'): M,
    ("POST /tasks", (JSON, "Content-Length: 15", "Content-Length: 16"), '{"job":"hello"}'): M,
    ("POST /tasks", (JSON, "Content-Length: 15", "Transfer-Encoding: chunked"), '{"job":"hello"}'): M,
    ("POST /tasks", (JSON, "Transfer-Encoding: chunked"), "zz\r\n{}\r\n0\r\n\r\n"): M,
    ("POST /tasks", (JSON, "Transfer-Encoding: chunked"), "-5\r\nhello\r\n0\r\n\r\n"): M,
    ("POST /tasks", (JSON, "Content-Encoding: gzip"), '{"job":"hello"}'): (415, "unsupported_media_type"),
    ("POST /tasks", ("Content-Type: text/plain",), '{"job":"hello"}'): (415, "unsupported_media_type"),
    ("POST /tasks/bulk?namespace=x", ("Content-Type: application/x-ndjson",), '{"job":"hello"}'): (404, "not_found"),
    ("GET /session", ("X: " + "y" * 20_000,), ""): (431, "headers_too_large"),
    ("GET /session", ("X: a\nMainspring-Request-Id: forged",), ""): M,
    ("GET /session", ("X: a\0b",), ""): M,
    ("GET /session", ("Host: evil.example",), ""): (421, "wrong_host"),
    ("GET /session", ("Authorization: Bearer ms_other",), ""): (401, "unauthorized"),
    ("GET /tasks/1/output", ("Accept: text/html",), ""): (406, "not_acceptable"),
    ("GET /tasks/1/output", ("Accept: application/json;q=nan",), ""): (406, "not_acceptable"),
    ("TRACE /jobs", (), ""): (405, "method_not_allowed"),
    ("CONNECT 127.0.0.1:1", (), ""): M,
    ("OPTIONS *", (), ""): (404, "not_found"),
    ("DELETE /tasks/4", (JSON,), '{"kill":true}'): V,
}


def cases() -> dict[tuple[str, tuple[str, ...], str], tuple[int, str]]:
    found: dict[tuple[str, tuple[str, ...], str], tuple[int, str]]
    found = {(f"GET {path}", (), ""): wanted for path, wanted in GETS.items()}
    for body, wanted in TASKS.items():
        named = body.replace("{", '{"job":"hello",', 1) if body.startswith("{") else body
        found[("POST /tasks", (JSON,), named)] = wanted
    return found | OTHERS


def test_bad_input_is_refused_by_name_and_changes_nothing(dsn: str) -> None:
    wrong: list[Any] = []
    with asyncio.Runner() as runner, fronted(dsn) as url:
        port = int(url.rpartition(":")[2])
        conn = runner.run(Database(dsn).connect())
        world = runner.run(make_world(conn))
        query = runner.run(digest_query(conn))
        before = runner.run(conn.fetchval(query))
        for (line, headers, body), wanted in cases().items():
            status, problem = told(raw(port, request(world, port, line, headers, body)))
            if (status, problem["code"]) != wanted:
                wrong.append((line[:100], headers, body[:100], wanted, status, problem["message"]))
            if runner.run(conn.fetchval(query)) != before:
                before = runner.run(conn.fetchval(query))
                wrong.append((line[:100], headers, body[:100], wanted, "changed something", status))
        runner.run(conn.close())
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(
    ("headers", "body"),
    [((JSON, "Content-Length: 50"), '{"job":"hello"}'), ((JSON, "Transfer-Encoding: chunked"), "5\r\nhel")],
)
def test_a_body_that_is_cut_off_submits_nothing(dsn: str, headers: tuple[str, ...], body: str) -> None:
    with asyncio.Runner() as runner, fronted(dsn) as url:
        port = int(url.rpartition(":")[2])
        conn = runner.run(Database(dsn).connect())
        world = runner.run(make_world(conn))
        answer = raw(port, request(world, port, "POST /tasks", headers, body), half_close=True)
        assert (told(answer)[0], told(answer)[1]["code"]) == (400, "malformed")
        assert runner.run(conn.fetchval("select max(id) from mainspring.task")) == max(world.tasks)
        runner.run(conn.close())


def test_what_a_caller_sends_does_not_come_back_as_a_header(dsn: str) -> None:
    with asyncio.Runner() as runner, fronted(dsn) as url:
        port = int(url.rpartition(":")[2])
        conn = runner.run(Database(dsn).connect())
        world = runner.run(make_world(conn))
        for given in ("a\tb", "a b", "é", "x" * 65):
            header = (f"Mainspring-Request-Id: {given}",)
            head = raw(port, request(world, port, "GET /session", header)).partition(b"\r\n\r\n")[0]
            assert given.encode() not in head
        path = f"GET /tasks/{world.tasks[0]}/output?download=true"
        head = raw(port, request(world, port, path)).partition(b"\r\n\r\n")[0]
        assert f'filename="task-{world.tasks[0]}.log"'.encode() in head
        runner.run(conn.close())
