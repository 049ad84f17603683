"""Servers and agents over real WebSockets on loopback: admission, lost connections, agents that lie."""

from __future__ import annotations

import asyncio
import gc
import io
import itertools
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.stream_proxy import StreamProxy
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import mainspring
from mainspring.agent.connection.connector import server_urls
from mainspring.compose.local import Settings, load
from mainspring.compose.network import RemoteAgent, agent_tls, is_loopback, server_tls, serving
from mainspring.compose.stores import register
from mainspring.errors import AccessDenied, ValidationError
from mainspring.model.messages import (
    AgentMessage,
    AttemptId,
    Chunk,
    Configure,
    Dispatch,
    Ending,
    Finished,
    Frame,
    Heartbeat,
    Hello,
    Keep,
    Note,
    Output,
    Progress,
    Refused,
    ServerMessage,
    Start,
    Started,
    Welcome,
)
from mainspring.model.tasks.states import TaskState
from mainspring.server.agents.endpoint import Endpoint
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import tasks
from mainspring.wire.channel import ChannelClosed, ChannelRefused
from mainspring.wire.clock import AHEAD
from mainspring.wire.link import Link
from mainspring.wire.websocket import MAX_FRAME, WebSocketChannel

Eventually = Callable[..., Awaitable[Any]]


class Shop:
    """An application whose handlers wait for the test."""

    def __init__(self, dsn: str) -> None:
        self.app = mainspring.App("shop", dsn=dsn)
        self.began: list[tuple[int, int]] = []
        self.gate = asyncio.Event()

        @self.app.job(retries=2, retry_delay="10ms")
        async def hold() -> int:
            current = mainspring.current_task()
            self.began.append((current.id, current.attempt))
            await self.gate.wait()
            return current.attempt

        @self.app.job
        async def double(number: int) -> int:
            return 2 * number

        @self.app.job
        async def stamp() -> float:
            return time.time()

        self.hold, self.double, self.stamp = hold, double, stamp


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def settings(dsn: str, **given: Any) -> Settings:
    return load({"dsn": dsn, "listen": "127.0.0.1:0", "stop_patience": 1.0, **given}, environment={})


@asynccontextmanager
async def server(shop: Shop, database: Database, dsn: str, **given: Any) -> AsyncIterator[str]:
    await register(database, shop.app.definitions, "shop", 0, shop.app.schedules)
    async with serving(settings(dsn, **given), database, "shop", {}, without_tls=False) as url:
        yield url


@asynccontextmanager
async def agent(shop: Shop, dsn: str, url: str, token: str, **given: Any) -> AsyncIterator[RemoteAgent]:
    remote = RemoteAgent(settings(dsn, server=url, token=token, **given), shop.app.handlers, "shop")
    async with remote:
        assert await asyncio.wait_for(remote.joined(asyncio.Event()), 20) is not None
        yield remote


async def token(conn: Connection, **given: Any) -> str:
    return (await tokens.create(conn, "test", **given))[1]


# ── coming in ───────────────────────────────────────────────────────────────────────────────────


async def test_a_task_runs_on_an_agent_elsewhere(shop: Shop, database: Database, dsn: str, conn: Connection) -> None:
    async with server(shop, database, dsn) as url, agent(shop, dsn, url, await token(conn), agent_name="far"):
        task = await shop.double.enqueue(21)
        assert await task.result(timeout=20) == 42
    assert (await tasks.attempts(conn, task.id))[0].agent == "far"


async def test_who_has_no_valid_token_is_not_let_in(shop: Shop, database: Database, dsn: str) -> None:
    async with server(shop, database, dsn) as url:
        async with RemoteAgent(settings(dsn, server=url, token="ms_wrong"), {}, None) as remote:
            with pytest.raises(AccessDenied):
                await asyncio.wait_for(remote.joined(asyncio.Event()), 20)
        for secret in ("", "x" * 10_000, "\N{SNOWMAN}", "a b", "a\r\nX-Evil: 1"):
            with pytest.raises(ValidationError, match="token"):
                RemoteAgent(settings(dsn, server=url, token=secret), {}, None)


async def test_an_agent_that_is_sent_away_after_its_hello_says_why(
    shop: Shop,
    database: Database,
    dsn: str,
    conn: Connection,
) -> None:
    once = await token(conn, once=True)

    async with (
        server(shop, database, dsn) as url,
        agent(shop, dsn, url, once),
        RemoteAgent(settings(dsn, server=url, token=once), {}, None) as second,
    ):
        with pytest.raises(AccessDenied, match="this token serves one agent, and has served another"):
            await asyncio.wait_for(second.joined(asyncio.Event()), 20)


async def test_a_revoked_token_cuts_the_connection(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    id, secret = await tokens.create(conn, "test")
    async with server(shop, database, dsn, lease=2.0) as url, agent(shop, dsn, url, secret) as remote:
        await tokens.revoke(conn, id)

        async def is_out() -> bool:
            return remote._running.done()

        await eventually(is_out)
        assert isinstance(remote._running.exception(), AccessDenied)


async def test_a_browser_and_a_wrong_path_are_turned_away(
    shop: Shop, database: Database, dsn: str, conn: Connection
) -> None:
    headers = {"Authorization": f"Bearer {await token(conn)}"}
    async with server(shop, database, dsn) as url:
        for path, extra, status in (
            ("/agent", {"Origin": "http://evil.example"}, 403),
            ("/other", {}, 404),
            ("/agent", {"Authorization": "Basic eDp5"}, 401),
        ):
            with pytest.raises(InvalidStatus) as refused:
                await connect(url + path, additional_headers=headers | extra, proxy=None)
            assert refused.value.response.status_code == status


async def test_handshakes_that_fail_after_the_token_leave_nothing_behind(
    shop: Shop,
    database: Database,
    dsn: str,
    conn: Connection,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoints: list[Endpoint] = []
    opened = Endpoint.open

    async def seen(endpoint: Endpoint) -> str:
        endpoints.append(endpoint)
        return await opened(endpoint)

    monkeypatch.setattr(Endpoint, "open", seen)
    headers = {"Authorization": f"Bearer {await token(conn)}", "Origin": "http://evil.example"}
    async with server(shop, database, dsn) as url:
        for _ in range(3):
            with pytest.raises(InvalidStatus):
                await connect(f"{url}/agent", additional_headers=headers, proxy=None)

        async def nothing_left() -> bool:
            gc.collect()
            return not len(endpoints[0]._admitted)

        await eventually(nothing_left)


async def test_an_address_that_others_reach_needs_tls_or_the_word(dsn: str, database: Database) -> None:
    with pytest.raises(ValidationError, match="--without-tls"):
        async with serving(settings(dsn, listen="0.0.0.0:0"), database, None, {}, without_tls=False):
            pass
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "10.0.0.1", "db.example")] == [
        True, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("server", ["ws://10.0.0.1:7070", "db.example:7070", "http://[fe80::1]:7070", "wss://a,ws://b"])
async def test_an_agent_sends_its_token_to_another_machine_in_plain_text_only_when_asked_to(
    dsn: str, server: str
) -> None:
    given = settings(dsn, server=server, token="ms_secret")
    with pytest.raises(ValidationError, match="--without-tls"):
        RemoteAgent(given, {}, None)
    RemoteAgent(given, {}, None, without_tls=True)
    for private in ("127.0.0.1:7070", "ws://[::1]:7070", "http://localhost:7070", "wss://db.example"):
        RemoteAgent(settings(dsn, server=private, token="ms_secret"), {}, None)


async def test_a_token_comes_from_a_file_or_standard_input(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, local = tmp_path / "token", "ws://127.0.0.1:7070"
    file.write_text("ms_secret\nand more\n")
    RemoteAgent(settings(dsn, server=local, token_file=str(file)), {}, None)
    monkeypatch.setattr("sys.stdin", io.StringIO("ms_secret\n"))
    RemoteAgent(settings(dsn, server=local, token_file="-"), {}, None)
    file.write_text("two words\n")
    for wrong in (str(file), str(tmp_path), str(tmp_path / "none"), "-"):
        with pytest.raises(ValidationError, match="token_file"):
            RemoteAgent(settings(dsn, server=local, token_file=wrong), {}, None)


async def test_who_cannot_listen_is_no_server_and_moves_no_segments(
    dsn: str, database: Database, conn: Connection
) -> None:
    known = await conn.fetch("select id from mainspring.server")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValidationError, match="name another address with --listen"):
            async with serving(settings(dsn, listen=listen), database, None, {}, without_tls=False):
                pass
    assert await conn.fetch("select id from mainspring.server") == known


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl; scripts/debian-network installs it")
    directory = tmp_path_factory.mktemp("tls")
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


async def test_with_certificate_files_it_speaks_tls(
    shop: Shop, database: Database, dsn: str, conn: Connection, certificate: tuple[str, str]
) -> None:
    cert, key = certificate
    secret = await token(conn)
    async with server(shop, database, dsn, tls_cert=cert, tls_key=key) as url:
        assert url.startswith("wss:")
        async with agent(shop, dsn, url, secret, tls_ca=cert):
            assert await (await shop.double.enqueue(1)).result(timeout=20) == 2
        with pytest.raises(AccessDenied, match="--tls-ca"):  # an authority that the system does not know
            async with agent(shop, dsn, url, secret):
                pass


def test_servers_can_be_named_in_several_ways() -> None:
    assert server_urls("a:1, ws://b:2,https://c,wss://[::1]:3") == [
        "ws://a:1/agent", "ws://b:2/agent", "wss://c/agent", "wss://[::1]:3/agent",
    ]  # fmt: skip
    for wrong in ("", " , ", "ftp://a", "ws://", "ws://a:port", "ws://user:pw@a", "ws://[", "["):
        with pytest.raises(ValidationError):
            server_urls(wrong)


def test_half_a_certificate_and_unreadable_files_are_told(dsn: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="give both"):
        server_tls(settings(dsn, tls_cert="x"))
    with pytest.raises(ValidationError, match="cannot be used"):
        server_tls(settings(dsn, tls_cert=str(tmp_path / "no"), tls_key=str(tmp_path / "no")))
    with pytest.raises(ValidationError, match="cannot be used"):
        agent_tls(settings(dsn, tls_ca=str(tmp_path / "no")))
    assert isinstance(agent_tls(settings(dsn)), ssl.SSLContext)


# ── going on ────────────────────────────────────────────────────────────────────────────────────


async def test_what_runs_goes_on_when_its_server_goes_and_another_takes_its_report(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    async with AsyncExitStack() as first, server(shop, database, dsn) as second_url:
        first_url = await first.enter_async_context(server(shop, database, dsn))
        async with agent(shop, dsn, f"{first_url},{second_url}", await token(conn)):
            task = await shop.hold.enqueue()

            async def began() -> bool:
                return bool(shop.began)

            await eventually(began)
            await first.aclose()
            shop.gate.set()
            assert await task.result(timeout=20) == 1
    assert shop.began == [(task.id, 1)]
    assert [a.state for a in await tasks.attempts(conn, task.id)] == ["succeeded"]


async def test_what_runs_goes_on_with_another_server_when_its_own_falls_silent(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    """As after a loss of power, or of the line: nobody says that the connection is over."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        later = f"127.0.0.1:{listener.getsockname()[1]}"
    async with AsyncExitStack() as servers, AsyncExitStack() as agents:
        first = await servers.enter_async_context(server(shop, database, dsn, lease=6.0))
        line = await servers.enter_async_context(StreamProxy("127.0.0.1", int(first.rpartition(":")[2])))
        urls = f"ws://127.0.0.1:{line.port},ws://{later}"
        await agents.enter_async_context(agent(shop, dsn, urls, await token(conn)))
        await servers.enter_async_context(server(shop, database, dsn, lease=6.0, listen=later))
        task = await shop.hold.enqueue()

        async def began() -> bool:
            return bool(shop.began)

        await eventually(began)
        before = await conn.fetchval("select session from mainspring.task")
        line.black_hole()

        async def goes_on() -> bool:
            return bool(await conn.fetchval("select session <> $1 from mainspring.task", before))

        await eventually(goes_on)
        shop.gate.set()
        assert await task.result(timeout=20) == 1
    assert shop.began == [(task.id, 1)]


async def test_what_is_confirmed_includes_what_is_being_sent_at_that_moment(
    shop: Shop, database: Database, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(shop, database, dsn) as url, agent(shop, dsn, url, await token(conn)) as remote:
        session = remote.agent._connection
        assert session is not None
        transmit, gate = session.link._transmit, asyncio.Event()

        async def slow(frame: Any) -> None:
            if frame.sequence:
                await gate.wait()
            await transmit(frame)

        monkeypatch.setattr(session.link, "_transmit", slow)
        sending = asyncio.ensure_future(session._send([]))
        await asyncio.sleep(0)
        confirming = asyncio.ensure_future(session.confirm())
        await asyncio.wait([confirming], timeout=0.1)
        assert not confirming.done(), "nobody has it yet"
        gate.set()
        await asyncio.wait_for(asyncio.gather(sending, confirming), 10)


async def test_what_is_armed_fires_while_no_server_is_there(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    shop.gate.set()
    async with AsyncExitStack() as stack, AsyncExitStack() as agents:  # who leaves is heard by a server
        only = AsyncExitStack()
        url = await only.enter_async_context(server(shop, database, dsn))
        await agents.enter_async_context(agent(shop, dsn, url, await token(conn)))
        task = await shop.hold.using(delay="1500ms").enqueue()

        async def armed() -> bool:
            return (await tasks.get(conn, task.id)).state == "assigned"

        await eventually(armed)
        await only.aclose()

        async def began() -> bool:
            return bool(shop.began)

        await eventually(began)  # before there is a server again
        port = url.rpartition(":")[2]
        await stack.enter_async_context(server(shop, database, dsn, listen=f"127.0.0.1:{port}"))
        assert await task.result(timeout=20) == 1


async def test_a_lease_that_cannot_be_renewed_ends_what_runs_and_the_task_runs_again(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    async with AsyncExitStack() as stack, AsyncExitStack() as agents:  # who leaves is heard by a server
        only = AsyncExitStack()
        url = await only.enter_async_context(server(shop, database, dsn, lease=2.0))
        remote = await agents.enter_async_context(agent(shop, dsn, url, await token(conn)))
        task = await shop.hold.enqueue()

        async def began() -> bool:
            return len(shop.began) == 1

        await eventually(began)
        await only.aclose()

        async def stopped() -> bool:
            return remote.agent.runner.empty.is_set()

        await eventually(stopped)
        assert remote.agent.session is None
        shop.gate.set()
        port = url.rpartition(":")[2]
        await stack.enter_async_context(server(shop, database, dsn, lease=2.0, listen=f"127.0.0.1:{port}"))
        await task.result(timeout=20)
    assert [id for id, _ in shop.began] == [task.id, task.id]


async def test_an_agent_that_stops_gives_back_what_it_has_and_costs_no_attempt(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    async with server(shop, database, dsn) as url:
        async with agent(shop, dsn, url, await token(conn), stop_patience=0.2):
            task = await shop.hold.enqueue()

            async def began() -> bool:
                return bool(shop.began)

            await eventually(began)
        view = await tasks.get(conn, task.id)
        assert (view.state, view.attempt) == ("pending", 0)
        sessions = "select count(*) from mainspring.agent where ended_at is null and lease_until > mainspring.now()"

        async def left() -> bool:
            return bool(await conn.fetchval(sessions) == 0)

        await eventually(left)


async def test_an_agent_whose_clock_is_wrong_fires_on_the_databases_time(
    shop: Shop,
    database: Database,
    dsn: str,
    conn: Connection,
    eventually: Eventually,
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop.gate.set()
    secret = await token(conn)
    async with server(shop, database, dsn, lease=2.0) as url, agent(shop, dsn, url, secret, clock_offset=30.0):
        task = await shop.hold.using(delay="1s").enqueue()
        await task.result(timeout=20)

        async def known() -> bool:
            skew = await conn.fetchval("select skew from mainspring.agent order by session desc limit 1")
            return skew is not None and 29 < skew < 31

        await eventually(known)
    lateness = (await tasks.get(conn, task.id)).lateness_ms
    assert lateness is not None
    assert lateness > -50, "by its own clock it would be a second early"
    assert [record.message for record in caplog.records if "30.0 s ahead of the database's" in record.message]


@pytest.mark.parametrize("when", ["always", "later"])
async def test_a_line_that_is_slow_one_way_starts_nothing_early(
    shop: Shop, database: Database, dsn: str, conn: Connection, stack: AsyncExitStack, when: str
) -> None:
    url = await stack.enter_async_context(server(shop, database, dsn))
    proxy = await stack.enter_async_context(StreamProxy("127.0.0.1", int(url.rpartition(":")[2])))
    proxy.up.delay = 0.4 if when == "always" else 0.0
    remote = await stack.enter_async_context(agent(shop, dsn, f"ws://127.0.0.1:{proxy.port}", await token(conn)))
    if when == "later":
        proxy.up.delay = 0.4
        proxy.cut()
        session = remote.agent.session
        while remote.agent.session == session:
            await asyncio.sleep(0.01)
    instants = [time.time() + 1.2 + number / 5 for number in range(6)]  # while the first answers come, and after
    stamps = shop.stamp.using
    tasks = [await stamps(run_at=datetime.fromtimestamp(at, UTC)).enqueue() for at in instants]
    started = [await task.result(timeout=20) for task in tasks]
    early = [at - start for at, start in zip(instants, started, strict=True)]
    assert max(early) < AHEAD + 0.001, "the clocks of the database and of this test are one"


# ── those who do not behave ─────────────────────────────────────────────────────────────────────


class Rogue:
    """An agent that says what the test wants."""

    def __init__(self, link: Link[AgentMessage, ServerMessage], session: int) -> None:
        self.link = link
        self.session = session
        self.credential: str | None = None
        self.heard: list[ServerMessage] = []

    async def says(self, *messages: AgentMessage) -> None:
        """Say it, and wait until the server has dealt with it."""
        sequence = await self.link.send(list(messages))
        await asyncio.wait_for(self.link.acknowledged(sequence), 10)


_connections = itertools.count(1)  # of all rogues: each says a later hello than those before it


@asynccontextmanager
async def rogue(url: str, secret: str, **hello: Any) -> AsyncIterator[Rogue]:
    socket = await connect(
        f"{url}/agent", additional_headers={"Authorization": f"Bearer {secret}"}, max_size=MAX_FRAME, proxy=None
    )
    link: Link[AgentMessage, ServerMessage] = Link(WebSocketChannel(socket, ServerMessage))
    given = {"name": "rogue", "slots": 5, "labels": {"nothing": "fits"}, "instance": "rogue", **hello}
    given = {"connection": next(_connections), **given}
    await link.send([Hello(**given)])
    _, [welcome] = await link.receive()
    assert isinstance(welcome, Welcome)
    found = Rogue(link, welcome.session)
    found.credential = welcome.credential

    async def listen() -> None:
        with suppress(ChannelClosed):
            while True:
                found.heard += (await link.receive())[1]

    listening = [asyncio.ensure_future(listen()), asyncio.ensure_future(link.maintain())]
    yield found
    await link.close()
    for task in listening:
        task.cancel()


_BLOCKED = """
    select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
"""


async def test_agents_that_connect_do_not_wait_for_one_whose_hello_takes_long(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    """As after the end of a server: they need sessions before their leases are over."""
    secret = await token(conn)
    async with server(shop, database, dsn) as url, AsyncExitStack() as stack:
        async with rogue(url, secret, name="slow", instance="slow"):
            pass
        # The row that orders the hellos of this agent process: the next one waits for it.
        lock = "select from mainspring.agent_process where instance = $1 for update"
        async with conn.transaction():
            await conn.execute(lock, tokens.digest("slow").hex())
            slow = asyncio.ensure_future(stack.enter_async_context(rogue(url, secret, name="slow", instance="slow")))

            async def waits() -> bool:
                return bool(await conn.fetchval(_BLOCKED))

            await eventually(waits)
            async with asyncio.timeout(20):
                await asyncio.gather(
                    *(
                        stack.enter_async_context(rogue(url, secret, name=f"agent-{n}", instance=f"agent-{n}"))
                        for n in range(50)
                    )
                )
            assert not slow.done()
        assert (await asyncio.wait_for(slow, 10)).session


@pytest.fixture
async def lying(
    shop: Shop, database: Database, dsn: str, conn: Connection, eventually: Eventually
) -> AsyncIterator[tuple[Rogue, int, int, int]]:
    """A rogue, and a task of another agent that runs: task, token, job."""
    secret = await token(conn)
    async with server(shop, database, dsn) as url, agent(shop, dsn, url, secret), rogue(url, secret) as liar:
        task = await shop.hold.enqueue()

        async def runs() -> bool:
            return (await tasks.get(conn, task.id)).state == "running"

        await eventually(runs)
        row = await conn.fetchrow("select token, job_id from mainspring.task where id = $1", task.id)
        yield liar, task.id, row["token"], row["job_id"]
        shop.gate.set()
        assert await task.result(timeout=20) == 1
        assert shop.began == [(task.id, 1)]


async def test_reports_about_anothers_task_change_nothing_and_are_audited(
    lying: tuple[Rogue, int, int, int], conn: Connection
) -> None:
    liar, task, token, job = lying
    await liar.says(Finished([Ending(task, token, job, 1, TaskState.FAILED, 1.0, 2.0, error="a lie", final=True)]))
    await liar.says(
        Started([Start(task, token, 1.0)]),
        Progress([Note(task, token, '"a lie"', '"a lie"')]),
        Output([Chunk(task, token, 1, 1, 1.0, b"a lie")]),
        Refused([], "x"),
    )
    view = await tasks.get(conn, task)
    assert (view.state, view.progress, view.checkpoint) == ("running", None, None)
    assert await tasks.output(conn, task) == []
    [row] = await conn.fetch("select * from mainspring.audit")
    assert (row["actor"], row["role"], row["action"]) == ("agent:rogue", "agent", "task.report")
    assert (row["subject"], row["refused"]) == (f"task:{task}", "not a task of this agent")


async def test_who_gives_back_anothers_task_takes_nothing_from_it(
    lying: tuple[Rogue, int, int, int], conn: Connection
) -> None:
    liar, task, token, _ = lying
    await liar.says(Refused([AttemptId(task, token)], "a lie"))
    assert (await tasks.get(conn, task)).state == "running"


async def test_numbers_that_no_task_has_are_refused_and_the_connection_goes_on(
    lying: tuple[Rogue, int, int, int], conn: Connection
) -> None:
    liar, task, token, job = lying
    for wrong_task, wrong_token in ((task, token + 1), (2**62, 1), (-1, -1), (2**63, 2**63), (0, 0)):
        await liar.says(Finished([Ending(wrong_task, wrong_token, job, 1, TaskState.SUCCEEDED, 1.0, 2.0)]))
    await liar.says(Heartbeat(0))
    assert (await tasks.get(conn, task)).state == "running"
    assert await conn.fetchval("select count(*) from mainspring.attempt") == 0


async def test_what_is_not_understood_is_left_out_and_garbage_ends_the_connection(
    shop: Shop, database: Database, dsn: str, conn: Connection
) -> None:
    secret = await token(conn)
    headers = {"Authorization": f"Bearer {secret}"}
    async with server(shop, database, dsn) as url:
        async with connect(f"{url}/agent", additional_headers=headers, proxy=None) as socket:
            hello = msgspec.to_builtins(Hello("odd", 1, {}, instance="x"))
            await socket.send(msgspec.msgpack.encode([1, 0, [hello, {"type": "from the future", "x": 1}, 7], 0]))
            messages: list[Any] = []
            while not messages:  # the hello may be acknowledged before
                messages = msgspec.msgpack.decode(await socket.recv(decode=False))[2]
            assert [message["type"] for message in messages] == ["welcome"]
            await socket.send(b"\x00garbage")
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await asyncio.wait_for(socket.recv(), 10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1008
        async with connect(f"{url}/agent", additional_headers=headers, proxy=None) as socket:
            size = (MAX_FRAME + 1).to_bytes(8, "big")
            socket.transport.write(b"\x82\xff" + size + b"\0\0\0\0")  # the head of a message that is too large
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(socket.recv(), 10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        async with connect(f"{url}/agent", additional_headers=headers, proxy=None) as socket:
            old = msgspec.to_builtins(Hello("old", 1, {}, protocol=99))
            await socket.send(msgspec.msgpack.encode([1, 0, [old], 0]))
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(socket.recv(), 10)
            assert closed.value.rcvd is not None
            assert "protocol 99 is not spoken here" in closed.value.rcvd.reason


async def test_a_hello_that_comes_too_late_is_refused_by_a_code_and_the_agent_may_try_again(
    shop: Shop, database: Database, dsn: str, conn: Connection
) -> None:
    secret = await token(conn)
    headers = {"Authorization": f"Bearer {secret}"}
    async with server(shop, database, dsn) as url, rogue(url, secret) as newer:
        async with connect(f"{url}/agent", additional_headers=headers, proxy=None) as socket:
            channel: WebSocketChannel[AgentMessage, ServerMessage] = WebSocketChannel(socket, ServerMessage)
            await channel.send(Frame(1, 0, [Hello("rogue", 5, {}, instance="rogue")]))
            with pytest.raises(ChannelClosed) as closed:
                while True:
                    await asyncio.wait_for(channel.receive(), 10)
            assert "4409 session_superseded" in closed.value.message
            assert not isinstance(closed.value, ChannelRefused), "only an agent that is not let in gives up"
        await newer.says(Heartbeat(0))


async def test_an_old_dispatch_that_comes_again_runs_nothing(
    shop: Shop, database: Database, dsn: str, conn: Connection
) -> None:
    """Whatever reaches the agent twice, on this connection or a later one, has one run."""
    shop.gate.set()
    async with server(shop, database, dsn) as url, agent(shop, dsn, url, await token(conn)) as remote:
        session = remote.agent._connection
        assert session is not None
        dispatches: list[Dispatch] = []
        handle = session._handle

        def spying(message: ServerMessage) -> None:
            if isinstance(message, Dispatch):
                dispatches.append(message)
            handle(message)

        session._handle = spying  # type: ignore[method-assign]
        task = await shop.hold.enqueue()
        assert await task.result(timeout=20) == 1
        for dispatch in list(dispatches):
            handle(dispatch)
            handle(Dispatch(dispatch.jobs, dispatch.tasks, dispatch.session + 1))
        other = await shop.double.enqueue(3)
        assert await other.result(timeout=20) == 6
    assert shop.began == [(task.id, 1)]


# ── an agent whose event loop is blocked ────────────────────────────────────────────────────────


async def test_a_session_is_kept_only_by_the_process_that_has_it(
    shop: Shop, database: Database, dsn: str, conn: Connection
) -> None:
    async with server(shop, database, dsn) as url, agent(shop, dsn, url, await token(conn)) as remote:
        session = remote.agent.session
        assert session is not None
        headers = {"Authorization": f"Bearer {await token(conn)}"}

        async def keep(*keeps: Keep) -> list[ServerMessage]:
            async with connect(f"{url}/agent", additional_headers=headers, proxy=None) as socket:
                channel: WebSocketChannel[AgentMessage, ServerMessage] = WebSocketChannel(socket, ServerMessage)
                answers: list[ServerMessage] = []
                for one in keeps:
                    await channel.send(Frame(0, 0, [one]))
                    answers += (await channel.receive()).messages
                return answers

        own = remote.agent.instance
        first, second = await keep(Keep(session, own, 1.0), Keep(session, own, 2.0))
        assert isinstance(first, Configure)
        assert isinstance(second, Configure)
        assert (first.echo, second.echo) == (1.0, 2.0)
        can_say_hello = Keep(session, own, 1.0, blocked=False)
        for wrong in (
            Keep(session, "", 1.0),
            Keep(session, "guessed", 1.0),
            Keep(session + 1, own, 1.0),
            can_say_hello,
        ):
            with pytest.raises(ChannelRefused, match="session is over|not blocked"):
                await keep(wrong)
        for absurd in (0, -1, 2**63, 2**64 - 1):
            with pytest.raises(ChannelClosed):
                await keep(Keep(absurd, own, 1.0))
        with pytest.raises(ChannelRefused):
            await keep(Keep(session, own, 1.0), Keep(session, "guessed", 1.0))
