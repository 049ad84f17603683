"""HTTP jobs, against a real server on loopback."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop
from aiohttp import web
from tests.agent.commands import no_descriptors
from tests.conftest import Eventually

from mainspring.agent.attempt import Attempt, AttemptFailed, Exhausted
from mainspring.agent.executors.http import HttpExecutor
from mainspring.agent.executors.http_body import EXCERPT, HEAD
from mainspring.agent.executors.http_request import first_request
from mainspring.model.messages import Armed
from mainspring.model.tasks.jobs import Definition, Http, Job
from mainspring.model.tasks.retry import Retry
from mainspring.wire import http_client

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOOPBACK = ("127.0.0.1", "shop.example", "other.example")


class Server:
    """Answers each path as the test says, and keeps the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.port = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        return await self.answers[request.path](request)

    def on(self, path: str, status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None) -> str:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, body=body, headers=headers)

        return self.serve(path, answer)

    def serve(self, path: str, answer: Answer) -> str:
        self.answers[path] = answer
        return self.url(path)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    @property
    def seen(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.requests]


class Names:
    """A name server: each lookup of a name takes the next of its answers, the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[list[str]]] = {
            "shop.example": [["127.0.0.1"]],
            "other.example": [["127.0.0.1"]],
        }
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host not in self.answers:
            raise OSError(-2, "Name or service not known")
        answers = self.answers[host]
        return answers.pop(0) if len(answers) > 1 else answers[0]


class Recording:
    def __init__(self) -> None:
        self.chunks: list[tuple[int, bytes]] = []

    def output(self, attempt: Attempt, stream: int, data: bytes) -> None:
        self.chunks.append((stream, data))

    def note(self, attempt: Attempt, progress: str | None, checkpoint: str | None, healthy: bool | None = None) -> None:
        raise AssertionError("a call has nothing to note")

    def bytes(self, stream: int) -> bytes:
        return b"".join(data for number, data in self.chunks if number == stream)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    runner = web.ServerRunner(web.Server(server.handle), shutdown_timeout=0.1)  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.port = runner.addresses[0][1]
    yield server
    await runner.cleanup()


@pytest.fixture
def names() -> Names:
    return Names()


@pytest.fixture
async def executor(names: Names) -> AsyncIterator[HttpExecutor]:
    executor = HttpExecutor(allow=LOOPBACK, lookup=names)
    yield executor
    await executor.close()


@pytest.fixture
def recording() -> Recording:
    return Recording()


Call = Callable[..., Attempt]


@pytest.fixture
def call(recording: Recording) -> Call:
    def make(
        url: str, method: str = "GET", *, args: str = "{}", attempt: int = 1, retry: Retry | None = None, **http: Any
    ) -> Attempt:
        definition = Definition(Http(method, url, **http), retry=retry or Retry())
        job = Job(id=1, name="ping", version=1, pool=1, definition=definition)
        return Attempt(Armed(task=42, token=7, job=1, attempt=attempt, fire_at=0.0, args=args), job, recording, "d1")

    return make


async def result_of(executor: HttpExecutor, attempt: Attempt) -> dict[str, Any]:
    result = await executor.run(attempt)
    assert result is not None
    parsed: dict[str, Any] = json.loads(result)
    return parsed


async def failure_of(executor: HttpExecutor, attempt: Attempt) -> AttemptFailed:
    with pytest.raises(AttemptFailed) as caught:
        await executor.run(attempt)
    return caught.value


@pytest.mark.parametrize("host", ["127.0.0.1", "shop.example"])
async def test_a_request_for_which_there_is_no_descriptor_was_not_sent_and_is_no_failure(
    server: Server, executor: HttpExecutor, call: Call, host: str
) -> None:
    server.on("/ping")
    await executor._client.get()  # it is loaded; a request would leave descriptors that become free meanwhile
    with no_descriptors(), pytest.raises(Exhausted):
        await executor.run(call(server.url("/ping", host)))
    assert server.requests == []
    await result_of(executor, call(server.url("/ping", host)))


@contextmanager
def at_most(limit: int) -> Iterator[None]:
    """The block must not hold more bytes than this at any time, the server's included."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


# ── what is sent ────────────────────────────────────────────────────────────────────────────────


async def test_a_request_names_its_task_and_gives_the_same_key_in_every_attempt(
    server: Server, executor: HttpExecutor, call: Call
) -> None:
    url = server.on("/ping")
    for attempt in (1, 2):
        await executor.run(call(url, attempt=attempt, headers={"X-Shop": "7"}))
    first, second = (request.headers for request in server.requests)
    assert first["Idempotency-Key"] == second["Idempotency-Key"] == "mainspring-d1-42"
    assert (first["Mainspring-Task"], first["Mainspring-Attempt"], second["Mainspring-Attempt"]) == ("42", "1", "2")
    assert (first["X-Shop"], first["User-Agent"]) == ("7", "Mainspring")
    assert "Mainspring-Args" not in first
    assert "Cookie" not in first


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_arguments_are_the_body_where_there_is_none(
    server: Server, executor: HttpExecutor, call: Call, method: str
) -> None:
    await executor.run(call(server.on("/ping"), method, args='{"day":"für"}'))
    assert server.bodies == ['{"day":"für"}'.encode()]
    assert server.requests[0].headers["Content-Type"] == "application/json"
    assert "Mainspring-Args" not in server.requests[0].headers


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("DELETE", None), ("POST", "words")])
async def test_arguments_are_a_header_elsewhere(
    server: Server, executor: HttpExecutor, call: Call, method: str, body: str | None
) -> None:
    await executor.run(call(server.on("/ping"), method, body=body, args='{"day":"für\\n"}'))
    assert json.loads(server.requests[0].headers["Mainspring-Args"]) == {"day": "für\n"}
    assert server.bodies == [(body or "").encode()]


async def test_arguments_that_do_not_fit_into_a_header_end_the_task(
    server: Server, executor: HttpExecutor, call: Call
) -> None:
    failure = await failure_of(executor, call(server.on("/ping"), args=json.dumps({"a": "x" * 8000})))
    assert (failure.code, failure.final) == ("bad_arguments", True)
    assert server.requests == []


async def test_a_url_is_sent_character_by_character(server: Server, executor: HttpExecutor, call: Call) -> None:
    server.on("/a~b/c/d")
    await executor.run(call(server.url("/a%7Eb/c%2Fd?sign=%2B%7e&b=a+b#part")))
    assert server.requests[0].raw_path == "/a%7Eb/c%2Fd?sign=%2B%7e&b=a+b"


async def test_proxies_and_credentials_of_the_environment_are_not_used(
    server: Server, executor: HttpExecutor, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert (await result_of(executor, call(server.on("/ping"))))["status"] == 200


async def test_cookies_are_not_kept(server: Server, executor: HttpExecutor, call: Call) -> None:
    url = server.on("/ping", headers={"Set-Cookie": "session=1"})
    await executor.run(call(url))
    await executor.run(call(url))
    assert "Cookie" not in server.requests[1].headers


# ── what comes back ─────────────────────────────────────────────────────────────────────────────


async def test_the_result_tells_status_headers_and_body_and_the_output_has_it_byte_for_byte(
    server: Server, executor: HttpExecutor, call: Call, recording: Recording
) -> None:
    body = "größe\x00".encode() + b"\xff"
    url = server.on("/ping", 201, body, {"Content-Type": "text/plain", "ETag": "x", "X-Other": "y"})
    assert await result_of(executor, call(url)) == {
        "status": 201,
        "headers": {"content-type": "text/plain", "etag": "x"},
        "body": "größe\ufffd\ufffd",
        "truncated": False,
    }
    assert recording.bytes(1) == body
    assert recording.bytes(0) == b""


@pytest.mark.parametrize("charset", ["latin-1", "ISO-8859-1", "windows-1252"])
async def test_text_is_read_in_its_charset(server: Server, executor: HttpExecutor, call: Call, charset: str) -> None:
    url = server.on("/ping", 200, "größe".encode("latin-1"), {"Content-Type": f"text/plain; charset={charset}"})
    assert (await result_of(executor, call(url)))["body"] == "größe"


@pytest.mark.parametrize("charset", ["nonsense", "hex", "punycode", "unicode_escape", "utf-99"])
async def test_an_odd_charset_is_read_as_utf8(server: Server, executor: HttpExecutor, call: Call, charset: str) -> None:
    url = server.on("/ping", 200, "größe \\ud800".encode(), {"Content-Type": f"text/plain; charset={charset}"})
    assert (await result_of(executor, call(url)))["body"] == "größe \\ud800"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "bare deflate"])
async def test_what_was_packed_unasked_is_unpacked(
    server: Server, executor: HttpExecutor, call: Call, recording: Recording, encoding: str
) -> None:
    text = b"words " * 1000
    bare = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(text[:3000]) + gzip.compress(text[3000:]),
        "deflate": zlib.compress(text),
        "bare deflate": bare.compress(text) + bare.flush(),
    }[encoding]
    url = server.on("/ping", 200, packed, {"Content-Encoding": encoding.split()[-1]})
    assert (await result_of(executor, call(url)))["body"] == text.decode()
    assert recording.bytes(1) == text


async def test_what_is_not_packed_as_it_says_is_remarked(
    server: Server, executor: HttpExecutor, call: Call, recording: Recording
) -> None:
    url = server.on("/ping", 200, b"no gzip", {"Content-Encoding": "gzip"})
    assert (await result_of(executor, call(url)))["truncated"] is True
    assert b"not gzip as it says" in recording.bytes(0)


async def test_a_long_answer_is_cut_in_the_result_and_then_in_the_output(
    server: Server, executor: HttpExecutor, call: Call, recording: Recording
) -> None:
    result = await result_of(executor, call(server.on("/some", body=b"x" * (EXCERPT + 1))))
    assert (len(result["body"]), result["truncated"]) == (EXCERPT, True)
    assert len(recording.bytes(1)) == EXCERPT + 1
    assert recording.bytes(0) == b""
    recording.chunks.clear()
    await executor.run(call(server.on("/more", body=b"x" * (HEAD + 1234))))
    assert len(recording.bytes(1)) == HEAD
    assert b"1,234 more bytes" in recording.bytes(0)


async def test_a_gzip_bomb_is_not_unpacked(
    server: Server, executor: HttpExecutor, call: Call, recording: Recording
) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(128)) + packer.flush()
    url = server.on("/bomb", 200, bomb, {"Content-Encoding": "gzip"})
    with at_most(16 << 20):  # it would unpack to 128 MB
        result = await result_of(executor, call(url))
    assert result["truncated"] is True
    assert len(recording.bytes(1)) == HEAD


async def test_an_answer_without_end_is_hung_up_on_and_takes_no_memory(
    server: Server, executor: HttpExecutor, call: Call, recording: Recording
) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(bytes(1 << 18))

    url = server.serve("/endless", endless)
    async with asyncio.timeout(30):
        with at_most(16 << 20):
            assert (await result_of(executor, call(url)))["truncated"] is True
    assert b"then the connection was closed" in recording.bytes(0)


# ── which answers are good ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [400, 404, 418, 500, 502])
async def test_an_unexpected_status_is_a_failure_that_policies_can_name(
    server: Server, executor: HttpExecutor, call: Call, recording: Recording, status: int
) -> None:
    failure = await failure_of(executor, call(server.on("/ping", status, b"no such shop") + "?secret=1"))
    assert failure.labels == ("http_status", str(status), f"{status // 100}xx")
    assert f"GET {server.url('/ping')} answered {status}" in failure.message
    assert "no such shop" in failure.message
    assert "secret" not in failure.message
    assert recording.bytes(1) == b"no such shop"
    assert (failure.final, failure.retry_after) == (False, None)


@pytest.mark.parametrize(
    ("expect", "status", "good"), [(("404",), 404, True), (("404",), 200, False), (("3xx",), 302, True)]
)
async def test_a_job_says_which_statuses_are_good(
    server: Server, executor: HttpExecutor, call: Call, expect: tuple[str, ...], status: int, good: bool
) -> None:
    attempt = call(server.on("/ping", status, headers={"Location": "/elsewhere"}), expect=expect)
    if good:
        result = await result_of(executor, attempt)
        assert (result["status"], result["headers"]["location"]) == (status, "/elsewhere")
    else:
        assert (await failure_of(executor, attempt)).code == "http_status"


DATE = "Mon, 16 Nov 2026 10:00:00 GMT"


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "30"}, 30.0),
        (503, {"Retry-After": "0"}, 0.0),
        (503, {"Retry-After": "Mon, 16 Nov 2026 10:01:30 GMT", "Date": DATE}, 90.0),
        (503, {"Retry-After": "Mon, 16 Nov 2026 09:00:00 GMT", "Date": DATE}, 0.0),
        (503, {"Retry-After": "99999999999999999999"}, 3600.0),  # the longest delay of the job
        (503, {"Retry-After": "soon"}, None),
        (503, {"Retry-After": "-1"}, None),
        (503, {}, None),
        (500, {"Retry-After": "30"}, None),
    ],
)
async def test_a_server_that_is_busy_says_when_to_come_again(
    server: Server, executor: HttpExecutor, call: Call, status: int, headers: dict[str, str], seconds: float | None
) -> None:
    failure = await failure_of(executor, call(server.on("/ping", status, headers=headers)))
    assert failure.retry_after == seconds
    assert str(status) in failure.labels


# ── redirects ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (301, "PUT", "PUT"),
        (307, "POST", "POST"),
        (308, "POST", "POST"),
    ],
)
async def test_redirects_are_followed_as_browsers_do(
    server: Server, executor: HttpExecutor, call: Call, status: int, method: str, then: str
) -> None:
    url = server.on("/from", status, headers={"Location": "to?a=b c"})
    server.on("/to", 200)
    body = "words" if method != "HEAD" else None
    await executor.run(call(url, method, body=body, headers={"Authorization": "secret"}))
    assert server.seen == [f"{method} /from", f"{then} /to"]
    assert server.bodies[1] == (b"words" if then == method and body else b"")
    assert ("Content-Type" in server.requests[1].headers) is (then == method and body is not None)
    assert server.requests[1].headers["Authorization"] == "secret"
    assert server.requests[1].raw_path == "/to?a=b%20c"


@pytest.mark.parametrize("back", [False, True])
async def test_another_origin_gets_no_secrets_even_on_the_way_back(
    server: Server, executor: HttpExecutor, call: Call, back: bool
) -> None:
    server.on("/end")
    server.on("/there", 307, headers={"Location": server.url("/end", "shop.example" if back else "other.example")})
    server.on("/from", 307, headers={"Location": server.url("/there", "other.example")})
    secrets = {"Authorization": "a", "Cookie": "b", "X-Api-Key": "c"}
    plain = {"Accept": "text/html", "Content-Type": "text/html"}
    await executor.run(call(server.url("/from", "shop.example"), "POST", headers=secrets | plain, body="words"))
    first, *others = (request.headers for request in server.requests)
    assert all(first[name] == value for name, value in secrets.items())
    for headers in others:
        assert not any(name in headers for name in secrets)
        assert all(headers[name] == value for name, value in plain.items())
        assert headers["Idempotency-Key"] == "mainspring-d1-42"
    assert [request.host.partition(":")[0] for request in server.requests][1] == "other.example"


async def test_only_so_many_redirects_are_followed(server: Server, executor: HttpExecutor, call: Call) -> None:
    url = server.on("/loop", 302, headers={"Location": "/loop"})
    failure = await failure_of(executor, call(url, redirects=3))
    assert failure.labels == ("http_status", "302", "3xx")
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    "location",
    ["ftp://127.0.0.1/", "file:///etc/passwd", "http://me:pw@127.0.0.1/", "http://a%2eb/", "http://[", "//[::"],
)
async def test_a_redirect_to_what_is_no_plain_url_is_not_followed(
    server: Server, executor: HttpExecutor, call: Call, location: str
) -> None:
    failure = await failure_of(executor, call(server.on("/from", 302, headers={"Location": location})))
    assert failure.code == "http_redirect"


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "10.0.0.1",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "167772161",
        "012.0.0.1",
        "0xa.1",
        "metadata.google.internal",
    ],
)
async def test_a_redirect_to_a_refused_address_ends_the_task(
    server: Server, executor: HttpExecutor, names: Names, call: Call, host: str
) -> None:
    names.answers["metadata.google.internal"] = [["127.0.0.1"]]
    failure = await failure_of(executor, call(server.on("/from", 302, headers={"Location": f"//{host}/"})))
    assert (failure.code, failure.final) == ("address_refused", True)


# ── addresses ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0177.0.0.1", "0x7f.1", "127.1", "127.0.0.1.", "[::ffff:7f00:1]"]
)
async def test_loopback_is_refused_however_it_is_written(server: Server, call: Call, host: str) -> None:
    executor = HttpExecutor()
    server.on("/ping")
    failure = await failure_of(executor, call(server.url("/ping", host)))
    assert (failure.code, failure.final) == ("address_refused", True)
    assert server.requests == []
    await executor.close()


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "127.1", "１２７.０.０.１"])
async def test_an_allowed_address_is_called_however_it_is_written(
    server: Server, executor: HttpExecutor, call: Call, host: str
) -> None:
    server.on("/ping")
    assert (await result_of(executor, call(server.url("/ping", host))))["status"] == 200


async def test_one_refused_address_among_others_refuses_the_name(
    server: Server, executor: HttpExecutor, names: Names, call: Call
) -> None:
    names.answers["both.example"] = [["127.0.0.1", "10.0.0.1"]]
    server.on("/ping")
    failure = await failure_of(executor, call(server.url("/ping", "both.example")))
    assert (failure.code, failure.final) == ("address_refused", True)
    assert "both.example is 10.0.0.1, a private address" in failure.message
    assert server.requests == []


async def test_a_name_that_changes_its_address_is_resolved_once_for_each_request(
    server: Server, executor: HttpExecutor, names: Names, call: Call
) -> None:
    names.answers["rebinding.example"] = [["127.0.0.1"], ["169.254.169.254"]]
    server.on("/ping")
    url = server.url("/ping", "rebinding.example")
    assert (await result_of(executor, call(url)))["status"] == 200
    assert names.asked == ["rebinding.example"]
    assert (await failure_of(executor, call(url))).code == "address_refused"
    assert len(server.requests) == 1


async def test_a_name_that_changes_its_address_is_checked_again_when_redirected_to(
    server: Server, executor: HttpExecutor, names: Names, call: Call
) -> None:
    names.answers["rebinding.example"] = [["127.0.0.1"], ["10.0.0.1"]]
    server.on("/from", 302, headers={"Location": "/to"})
    failure = await failure_of(executor, call(server.url("/from", "rebinding.example")))
    assert failure.code == "address_refused"
    assert server.seen == ["GET /from"]


async def test_an_allowed_host_may_be_anywhere_but_its_address_may_not_be_called_by_itself(
    server: Server, names: Names, call: Call
) -> None:
    executor = HttpExecutor(allow=["shop.example"], lookup=names)
    server.on("/ping")
    assert (await result_of(executor, call(server.url("/ping", "shop.example"))))["status"] == 200
    assert (await failure_of(executor, call(server.url("/ping")))).code == "address_refused"
    assert (await failure_of(executor, call(server.url("/ping", "other.example")))).code == "address_refused"
    await executor.close()


async def test_names_are_those_of_the_system(server: Server, call: Call) -> None:
    executor = HttpExecutor(allow=["localhost"])
    server.on("/ping")
    assert (await result_of(executor, call(server.url("/ping", "localhost"))))["status"] == 200
    await executor.close()


async def test_what_slips_past_the_first_look_is_refused_where_it_is_dialled(
    server: Server, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client.CheckedResolver, "check_literal", lambda self, url: url)
    executor = HttpExecutor()
    server.on("/ping")
    assert (await failure_of(executor, call(server.url("/ping")))).code == "address_refused"
    assert server.requests == []
    await executor.close()


# ── what fails on the way ───────────────────────────────────────────────────────────────────────


async def test_an_unknown_name_is_unreachable(executor: HttpExecutor, call: Call) -> None:
    failure = await failure_of(executor, call("http://nowhere.example/"))
    assert (failure.code, failure.final) == ("http_unreachable", False)
    assert "nowhere.example cannot be resolved" in failure.message


async def test_a_port_without_a_server_is_unreachable(executor: HttpExecutor, call: Call) -> None:
    failure = await failure_of(executor, call("http://127.0.0.1:1/"))
    assert failure.code == "http_unreachable"
    assert "no connection" in failure.message


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def talking() -> AsyncIterator[Callable[[Talk], Awaitable[str]]]:
    """A server that speaks as a test says, byte by byte."""
    servers: list[asyncio.Server] = []

    async def start(talk: Talk) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                await talk(reader, writer)
            except ConnectionError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"

    yield start
    for server in servers:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("method", ["GET", "PUT", "POST"])
async def test_a_connection_that_is_reset_is_not_tried_again_in_the_same_attempt(
    executor: HttpExecutor, call: Call, talking: Any, method: str
) -> None:
    connections = 0

    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.transport.abort()

    failure = await failure_of(executor, call(await talking(reset), method))
    assert failure.code == "http_unreachable"
    assert "before the answer" in failure.message
    assert connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(5000)) + b"\r\n",
        b"HTTP/1.1 20000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    ],
)
async def test_what_is_not_a_whole_answer_is_a_failure(
    executor: HttpExecutor, call: Call, talking: Any, answer: bytes
) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    assert (await failure_of(executor, call(await talking(talk)))).code == "http_unreachable"


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
async def test_cancelling_closes_the_connection_wherever_it_is(
    executor: HttpExecutor, call: Call, recording: Recording, talking: Any, begin: bytes
) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        await writer.drain()
        asked.set()
        assert await reader.read() == b""
        closed.set()

    running = asyncio.create_task(executor.run(call(await talking(hang))))
    async with asyncio.timeout(10):
        await asked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await closed.wait()


async def test_what_came_before_a_cancellation_is_kept(
    executor: HttpExecutor, call: Call, recording: Recording, talking: Any, eventually: Eventually
) -> None:
    async def came() -> bool:
        return bool(recording.chunks)

    released = asyncio.Event()

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2097152\r\n\r\n" + b"x" * 65536 + b"half")
        await writer.drain()
        await reader.read()
        released.set()

    running = asyncio.create_task(executor.run(call(await talking(half))))
    async with asyncio.timeout(10):
        await eventually(came)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await released.wait()
    assert recording.bytes(1).startswith(b"x" * 65536)


async def test_a_connection_that_takes_too_long_is_given_up(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "CONNECT", 0.05)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    over = threading.Event()

    def slow(host: str, port: int) -> list[str]:
        loop.call_soon_threadsafe(asked.set)
        over.wait(10)
        return ["127.0.0.1"]

    executor = HttpExecutor(allow=LOOPBACK, lookup=slow)
    failure = await failure_of(executor, call("http://shop.example/"))
    over.set()
    assert (failure.code, asked.is_set()) == ("http_unreachable", True)
    assert "no connection within" in failure.message
    await executor.close()


async def test_silence_is_given_up(
    executor: HttpExecutor, call: Call, talking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "SILENCE", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    failure = await failure_of(executor, call(await talking(silent)))
    assert failure.code == "http_unreachable"
    assert "no answer" in failure.message


# ── before and after ────────────────────────────────────────────────────────────────────────────


async def test_preparing_loads_the_client_once(server: Server, executor: HttpExecutor, call: Call) -> None:
    attempt = call(server.on("/ping"))
    executor.prepare(attempt)
    executor.prepare(attempt)
    assert server.requests == []
    assert (await result_of(executor, attempt))["status"] == 200


async def test_an_executor_that_ran_nothing_closes() -> None:
    await HttpExecutor().close()


def test_it_runs_on_uvloop_too(call: Call) -> None:
    async def story() -> list[str]:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(text="well")

        runner = web.ServerRunner(web.Server(answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        executor = HttpExecutor(allow=LOOPBACK, lookup=Names())
        port = runner.addresses[0][1]
        said = [(await result_of(executor, call(f"http://{host}:{port}/")))["body"] for host in LOOPBACK]
        said.append((await failure_of(executor, call("http://10.0.0.1/"))).code)
        said.append((await failure_of(executor, call("http://127.0.0.1:1/"))).code)
        await executor.close()
        await runner.cleanup()
        return said

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(story()) == ["well", "well", "well", "address_refused", "http_unreachable"]


PARENTS = '[{"id":7,"job":"load","state":"succeeded","error_code":null,"result":"été"}]'


@pytest.mark.parametrize(
    ("method", "args", "http", "body", "header"),
    [
        ("POST", '{"day": 1}', {}, {"day": 1, "parents": json.loads(PARENTS)}, None),
        ("POST", '{"parents": 1}', {}, {"parents": 1}, json.loads(PARENTS)),
        ("POST", "{}", {"body": "5"}, 5, json.loads(PARENTS)),
        ("GET", "{}", {}, None, json.loads(PARENTS)),
    ],
)
def test_what_became_of_its_parents_goes_with_the_request(
    call: Call, method: str, args: str, http: dict[str, Any], body: Any, header: Any
) -> None:
    attempt = call("http://127.0.0.1/", method, args=args, **http)
    attempt.armed.parents = PARENTS
    assert isinstance(attempt.job.definition.run, Http)
    request = first_request(attempt, attempt.job.definition.run)
    assert (None if request.body is None else json.loads(request.body)) == body
    sent = request.headers.get("Mainspring-Parents")
    assert (None if sent is None else json.loads(sent)) == header
    assert sent is None or sent.isascii()
