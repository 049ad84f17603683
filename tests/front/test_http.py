"""HTTP on the port of the agents: slow, large, malformed, half-closed and pipelined requests; stopping."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.front.served import WAIT, Served

Serve = Callable[..., Served]
SOON = 0.1  # seconds, in place of limits that are longer


@pytest.fixture(params=["asyncio", "uvloop"])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    started: list[Served] = []

    def start(**options: Any) -> Served:
        started.append(Served(request.param, **options))
        return started[-1]

    yield start
    for served in started:
        served.site.go.set()
        served.ask_to_stop()
        assert served.ended()


def eventually(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


# ── what is allowed ─────────────────────────────────────────────────────────────────────────────


def test_requests_of_one_connection_are_answered_one_after_the_other(serve: Serve) -> None:
    with serve().client() as client:
        for name in ("a", "b"):
            answer = client.get(f"/?{name}").answer()
            assert (answer.status, answer.body) == (200, name.encode())
            assert "date" in answer.headers


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    with serve().client() as client:
        names = [str(number) for number in range(20)]
        client.send("".join(f"GET /?{name} HTTP/1.1\r\nHost: here\r\n\r\n" for name in names).encode())
        assert [client.answer().body.decode() for _ in names] == names


def test_of_too_many_pipelined_requests_the_first_are_answered_and_the_connection_closes(serve: Serve) -> None:
    served = serve(pipelined=4)
    with served.client() as client:
        client.send(b"GET /wait HTTP/1.1\r\nHost: here\r\n\r\n" * 50)
        eventually(lambda: served.site.waiting == 1)
        served.site.go.set()
        assert [client.answer().body for _ in range(5)] == [b"done"] * 5
        assert client.is_closed()
        assert served.site.waiting == 5


def test_head_and_body_of_an_answer_come_in_one_piece(serve: Serve) -> None:
    with serve().client() as client:
        for _ in range(20):
            whole = client.get("/?hello").socket.recv(1 << 16)
            assert whole.endswith(b"\r\n\r\nhello")
        head = client.send(b"HEAD / HTTP/1.1\r\nHost: here\r\n\r\n").socket.recv(1 << 16)
        assert head.endswith(b"\r\n\r\n")


def test_a_head_does_not_wait_for_a_body_that_takes_long(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        assert client.get("/head-first").socket.recv(1 << 16).endswith(b"\r\n\r\n")
        served.site.go.set()
        assert client.socket.recv(1 << 16) == b"body"


def test_a_body_arrives_whole_whether_in_one_piece_or_in_many(serve: Serve) -> None:
    with serve().client() as client:
        size = 300_000
        client.send(f"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: {size}\r\n\r\n".encode())
        for _ in range(30):
            client.send(b"x" * (size // 30))
        assert client.answer().body == b'{"length":%d}' % size
        client.send(b"POST /echo HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"5\r\nhello\r\n").send(b"0\r\n\r\n")
        assert client.answer().body == b'{"length":5}'


def test_a_client_that_waits_for_100_is_told_to_go_on(serve: Serve) -> None:
    with serve().client() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        assert client.send(b"ab").answer().body == b'{"length":2}'


def test_a_request_that_takes_longer_than_all_limits_is_answered(serve: Serve) -> None:
    """The limits are for the client."""
    served = serve(head=SOON, body=SOON, idle=SOON, unread=SOON, linger=SOON)
    with served.client() as client:
        client.get("/wait")
        eventually(lambda: served.site.waiting)
        time.sleep(3 * SOON)
        served.site.go.set()
        assert client.answer().body == b"done"
        assert client.is_closed(), "then it is idle"


@pytest.mark.parametrize("more", [0, 2])
def test_a_half_closed_connection_gets_its_answers(serve: Serve, more: int) -> None:
    served = serve()
    with served.client() as client:
        client.get("/wait")
        for _ in range(more):
            client.get("/?more")
        client.socket.shutdown(socket.SHUT_WR)
        eventually(lambda: served.site.waiting)
        time.sleep(SOON)  # the server sees the end of what it reads
        served.site.go.set()
        assert [client.answer().body for _ in range(1 + more)] == [b"done"] + [b"more"] * more
        assert client.is_closed()


def test_an_upgrade_that_nobody_takes_is_ignored(serve: Serve) -> None:
    with serve().client() as client:
        for upgrade in ("websocket", "h2c"):
            client = serve().client()
            answer = client.get("/", "Connection: Upgrade", f"Upgrade: {upgrade}", "Sec-WebSocket-Version: 13").answer()
            assert (answer.status, answer.body) == (200, b"hello")
            assert client.is_closed()
            client.socket.close()


# ── too slow ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sent", [b"GE", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: here\r\nMainspring-Req"])
def test_a_head_that_does_not_end_is_cut_with_408(serve: Serve, sent: bytes) -> None:
    with serve(head=SOON).client() as client:
        answer = client.send(sent).answer()
        assert (answer.status, answer.problem["code"]) == (408, "too_slow")
        assert client.is_closed()


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nHost: here\r\nX: "], ids=["line", "header"])
def test_a_head_that_dribbles_is_cut_although_each_byte_comes_soon(serve: Serve, start: bytes) -> None:
    with serve(head=2 * SOON, linger=SOON).client() as client, pytest.raises((BrokenPipeError, ConnectionResetError)):
        client.send(start)
        for _ in range(int(WAIT / 0.02)):
            client.send(b"x")
            time.sleep(0.02)


def test_a_second_request_has_its_time_from_its_first_byte(serve: Serve) -> None:
    with serve(head=SOON).client() as client:
        assert client.get().answer().status == 200
        time.sleep(2 * SOON)  # idle is not slow
        assert client.get().answer().status == 200
        assert client.send(b"GET / HTT").answer().problem["code"] == "too_slow"


def test_a_connection_that_says_nothing_is_closed_without_a_word(serve: Serve) -> None:
    with serve(head=SOON).client() as client:
        assert client.is_closed()


def test_a_body_that_stops_is_cut_with_408_and_the_application_is_told(serve: Serve) -> None:
    served = serve(body=SOON)
    with served.client() as client:
        request = b"POST /echo HTTP/1.1\r\nHost: here\r\nMainspring-Request-Id: mine\r\nContent-Length: 9\r\n\r\n"
        answer = client.send(request + b"abc").answer()
        assert (answer.status, answer.problem["code"], answer.problem["request_id"]) == (408, "too_slow", "mine")
        assert client.is_closed()
    eventually(lambda: served.site.disconnects == 1)


def test_a_body_that_arrives_slowly_but_does_arrive_is_taken(serve: Serve) -> None:
    with serve(body=4 * SOON).client() as client:
        client.send(b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\n")
        for _ in range(10):
            time.sleep(SOON / 2)
            client.send(b"x")
        assert client.answer().body == b'{"length":10}'


def test_a_connection_without_a_request_is_closed_when_it_was_idle_for_long(serve: Serve) -> None:
    with serve(idle=SOON).client() as client:
        assert client.get().answer().status == 200
        assert client.is_closed()


def test_a_client_that_does_not_read_its_answer_is_cut_off(serve: Serve) -> None:
    served = serve(unread=SOON)
    with served.client() as client:
        client.get("/large")
        eventually(lambda: served.site.waiting)
        eventually(lambda: served.call(lambda: len(served.http.state.connections)) == 0)


# ── too large, too many ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: here\r\n" + b"A: b\r\n" * 4000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 2_000_000,
        b"x" * 20_000,
    ],
    ids=["line", "header", "headers", "endless", "no line"],
)
def test_a_large_head_is_refused(serve: Serve, head: bytes) -> None:
    with serve().client() as client:
        try:
            client.send(head)
        except (BrokenPipeError, ConnectionResetError):
            return  # it has heard more than enough, and hung up
        answer = client.answer()
        expected = {"headers_too_large": 431, "malformed": 400}
        assert answer.status == expected[answer.problem["code"]]
        assert answer.status == 431 or head.startswith(b"xx")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert client.is_closed()


def test_a_head_just_below_the_limit_is_taken_in_any_pieces(serve: Serve) -> None:
    head = b"GET / HTTP/1.1\r\nHost: here\r\nX: " + b"x" * 16_200 + b"\r\n\r\n"
    with serve().client() as client:
        assert client.send(head).answer().status == 200
        for start in range(0, len(head), 1000):
            client.send(head[start : start + 1000])
        assert client.answer().status == 200


def test_an_early_answer_reaches_a_client_that_is_still_sending(serve: Serve) -> None:
    with serve().client() as client:
        client.send(b"POST /early HTTP/1.1\r\nHost: here\r\nContent-Length: 900000\r\n\r\n")
        client.send(b"x" * 900_000)
        assert client.answer().status == 413
        assert client.is_closed()


def test_a_client_that_sends_on_after_its_answer_is_cut_off(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.send(b"POST /early HTTP/1.1\r\nHost: here\r\nContent-Length: 90000000\r\n\r\n")
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for _ in range(90):
                client.send(b"x" * 1_000_000)


def test_beyond_the_most_connections_a_request_is_told_busy(serve: Serve) -> None:
    served = serve(connections=2)
    with served.client() as first, served.client() as second:
        assert first.get().answer().status == second.get().answer().status == 200
        with served.client() as third:
            answer = third.get().answer()
            assert (answer.status, answer.problem["code"], answer.headers["retry-after"]) == (503, "busy", "1")
            assert third.is_closed()
        first.socket.close()
        eventually(lambda: served.call(lambda: len(served.http.state.connections)) < 2)
        with served.client() as fourth:
            assert fourth.get().answer().status == 200


def test_silent_connections_do_not_keep_others_out(serve: Serve) -> None:
    served = serve(connections=3)
    silent = [served.client() for _ in range(10)]
    with served.client() as client:
        assert client.get().answer().status == 200
    for each in silent:
        each.socket.close()


# ── malformed ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",  # TLS to a port without
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT here:80 HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: here\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost here\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /echo HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_request_is_answered_in_our_form(serve: Serve, sent: bytes) -> None:
    with serve().client() as client:
        answer = client.send(sent).answer()
        assert (answer.status, answer.problem["code"]) == (400, "malformed")
        assert client.is_closed()


def test_nonsense_behind_a_request_does_not_cost_it_its_answer(serve: Serve) -> None:
    served = serve()
    with served.client() as client:
        client.get("/wait").send(b"nonsense\r\n\r\n")
        eventually(lambda: served.site.waiting)
        served.site.go.set()
        assert client.answer().body == b"done"
        assert client.is_closed()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nHo", b"POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"])
def test_a_request_that_ends_early_is_malformed(serve: Serve, sent: bytes) -> None:
    with serve().client() as client:
        client.send(sent).socket.shutdown(socket.SHUT_WR)
        assert client.answer().problem["code"] == "malformed"
        assert client.is_closed()


def test_a_failure_of_the_application_tells_nothing_but_the_id(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with serve().client() as client:
        answer = client.get("/fails", "Mainspring-Request-Id: mine").answer()
        assert (answer.status, answer.problem["code"], answer.problem["request_id"]) == (500, "internal", "mine")
        assert b"secret" not in answer.body
        assert client.get().answer().status == 200
    assert "request mine failed: GET '/fails'" in caplog.text
    assert "a secret of the server" in caplog.text


def test_a_failure_amid_an_answer_cuts_it(serve: Serve) -> None:
    with serve().client() as client, pytest.raises(EOFError):
        client.get("/fails-late").answer()


# ── stopping ────────────────────────────────────────────────────────────────────────────────────


def test_a_stop_ends_streams_and_lets_requests_end(serve: Serve) -> None:
    served = serve()
    with served.client() as idle, served.client() as stream, served.client() as waiting, served.client() as silent:
        assert idle.get().answer().status == 200
        assert stream.get("/stream").until(b"hello\n\n").startswith(b"HTTP/1.1 200")
        waiting.get("/wait")
        eventually(lambda: served.site.waiting == 2)
        served.ask_to_stop()
        assert idle.is_closed()
        assert silent.is_closed()
        stream.until(b"event: bye")
        served.site.go.set()
        answer = waiting.answer()
        assert (answer.body, answer.headers["connection"]) == (b"done", "close")
        assert served.ended()


def test_a_request_that_outlasts_the_stop_is_told_so(serve: Serve) -> None:
    served = serve(stop=SOON)
    with served.client() as client:
        client.get("/wait")
        eventually(lambda: served.site.waiting)
        served.ask_to_stop()
        answer = client.answer()
        assert (answer.status, answer.problem["code"]) == (503, "stopping")
        assert served.ended()


def test_a_stream_that_does_not_end_does_not_hold_up_the_stop(serve: Serve) -> None:
    served = serve(stop=SOON)
    served.http._on_stop = None
    with served.client() as client:
        client.get("/stream").until(b"hello\n\n")
        served.ask_to_stop()
        assert served.ended()
