"""Streams of events: topics, filters, cursors, and why a stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import httpx2
import pytest

from mainspring.api.streams import hub, listener
from mainspring.api.streams.sse import Streams
from mainspring.api.streams.topics import Wants
from mainspring.errors import RateLimited
from mainspring.model.access.actors import Role
from mainspring.model.tasks.define_job import command, define
from mainspring.model.tasks.states import TaskState
from mainspring.operations.definitions import jobs, schedules
from mainspring.operations.requests.new_tasks import NewTask
from mainspring.operations.work import tasks
from mainspring.store.access import tokens
from mainspring.store.figures import changes
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks.claims import BATCH_TOKENS
from tests.api.conftest import ACTOR
from tests.api.serving import Served, Stream, serving, streaming
from tests.conftest import Eventually, MakeTask


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


async def create_job(conn: Connection, name: str) -> str:
    await jobs.put(conn, ACTOR, name, define(command(["echo", "hello"]), {}))
    return name


async def submit(conn: Connection, job: str = "hello") -> int:
    return (await tasks.submit(conn, ACTOR, NewTask(job=job))).id


async def connect_agent(conn: Connection) -> int:
    session: int = await conn.fetchval("""
        insert into mainspring.agent (name, slots, lease_until) values ('a', 1, mainspring.now() + interval '1 hour')
        returning session
    """)
    return session


async def changed(stream: Stream, *ids: int) -> dict[int, str]:
    """The states in which the stream tells of these tasks, once it has told of all of them."""
    found: dict[int, str] = {}
    while not found.keys() >= set(ids):
        told = await stream.until("tasks")
        found |= {task["id"]: task["state"] for task in told.data["changed"]}
    return found


# ── PostgreSQL away ─────────────────────────────────────────────────────────────────────────────


async def test_that_nothing_is_sampled_is_told_once_and_its_end_with_a_resync(
    viewer: httpx2.AsyncClient, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "AWAY_AFTER", 0.2)
    async with streaming(viewer, "/events?topics=agents,servers") as stream:
        await stream.until("ready")
        async with conn.transaction():
            await conn.execute("lock table mainspring.agent, mainspring.server in access exclusive mode")
            away = await stream.until("away")
            assert "PostgreSQL" in away.data["message"]
            await asyncio.sleep(1)  # the other topic is not sampled either, and says nothing more
        told = await stream.until("resync")
        assert told.data["topics"][0] in ("agents", "servers")


# ── topics ──────────────────────────────────────────────────────────────────────────────────────


async def test_tasks_are_told_when_they_are_created_and_when_they_end(
    viewer: httpx2.AsyncClient, conn: Connection, job: str
) -> None:
    async with streaming(viewer, "/events?topics=tasks") as stream:
        assert stream.answer.headers["content-type"] == "text/event-stream"
        assert stream.answer.headers["cache-control"] == "no-store"
        assert stream.answer.headers["x-accel-buffering"] == "no"
        assert (await stream.next()).data == {"topics": ["tasks"]}
        id = await submit(conn)
        assert await changed(stream, id) == {id: "pending"}
        await tasks.cancel(conn, ACTOR, id)
        assert await changed(stream, id) == {id: "cancelled"}


async def test_a_task_that_starts_long_after_it_was_created_is_told(
    viewer: httpx2.AsyncClient, conn: Connection, make_task: MakeTask
) -> None:
    id = await make_task()
    session = await connect_agent(conn)
    async with streaming(viewer, "/events?topics=tasks") as stream:
        await stream.until("ready")
        batch = await conn.fetchval("select nextval('mainspring.claim_batch')")
        await conn.execute("insert into mainspring.claim values ($1, $2, $3)", session, batch, [id])
        await conn.execute(
            "update mainspring.task set state = 3, token = $2, session = $3, started_at = now() where id = $1",
            id,
            batch * BATCH_TOKENS,
            session,
        )
        assert await changed(stream, id) == {id: "running"}


@pytest.mark.parametrize("with_savepoint", [False, True])
async def test_what_commits_late_is_told_once(
    viewer: httpx2.AsyncClient, conn: Connection, job: str, database: Database, with_savepoint: bool
) -> None:
    async with streaming(viewer, "/events?topics=tasks") as stream:
        await stream.until("ready")
        async with database.acquire() as other, other.transaction():
            await other.execute("select pg_current_xact_id()")
            async with other.transaction() if with_savepoint else nullcontext():
                late = await submit(other)
            for _ in range(3):  # as many samples do not see it
                early = await submit(conn)
                assert await changed(stream, early) == {early: "pending"}
        last = await submit(conn)
        found: list[int] = []
        while last not in found or late not in found:
            found += [task["id"] for task in (await stream.until("tasks")).data["changed"]]
        assert sorted(found) == sorted({late, last})


async def test_filters_narrow_what_is_told_and_the_rest_is_counted(
    viewer: httpx2.AsyncClient, conn: Connection, job: str
) -> None:
    other = await create_job(conn, "other")
    async with (
        streaming(viewer, "/events?topics=tasks&job=oth*") as named,
        streaming(viewer, "/events?topics=tasks&state=cancelled") as ended,
        streaming(viewer, "/events?topics=tasks") as all,
    ):
        for stream in (named, ended, all):
            await stream.until("ready")
        ids = [await submit(conn) for _ in range(150)]
        mine = await submit(conn, other)
        await tasks.cancel(conn, ACTOR, ids[0])
        assert await changed(named, mine) == {mine: "pending"}
        assert await changed(ended, ids[0]) == {ids[0]: "cancelled"}
        told, count = set[int](), 0
        while count < 151:
            data = (await all.until("tasks")).data
            assert len(data["changed"]) <= 100
            told |= {task["id"] for task in data["changed"]}
            count += len(data["changed"]) + data["more"]
        assert told <= {*ids, mine}
        assert count in (151, 152)  # one of them was created and cancelled between two samples, or not


async def test_unknown_topics_states_and_jobs_are_refused(viewer: httpx2.AsyncClient) -> None:
    for path, status, field in (
        ("/events?topics=task", 422, "topics"),
        ("/events?state=done", 422, "state"),
        ("/events?job=nothing", 404, "job"),
        ("/events?jobs=x", 422, "jobs"),
    ):
        answer = await viewer.get(path)
        assert (answer.status_code, answer.json()["field"]) == (status, field), path


async def test_stats_are_told_at_once(viewer: httpx2.AsyncClient, conn: Connection) -> None:
    async with streaming(viewer, "/events?topics=stats,alerts") as stream:
        assert (await stream.until("stats")).data["live"] is not None


_ALERT = """
    insert into mainspring.alert (rule, kind, severity, subject, job, state, is_event, message, details, since,
                                  pending_at, seen_at, count, changed_at)
    select 'failed', 'failed', 'warning', 'job:' || $1, $1, 'firing', true, '…', '{}', at, at, at, 1, at
      from (select mainspring.now() as at) now
    returning id
"""


async def test_changed_alerts_are_named_once_and_only_to_those_who_reach_their_jobs(
    served: Served, viewer: httpx2.AsyncClient, conn: Connection
) -> None:
    _, narrow = await tokens.create(conn, "narrow", role=Role.VIEWER, jobs=["mail*"])
    async with (
        served.client(narrow) as other,
        streaming(viewer, "/events?topics=alerts") as stream,
        streaming(other, "/events?topics=alerts") as others,
    ):
        await stream.until("ready")
        await others.until("ready")
        first, second = [str(await conn.fetchval(_ALERT, job)) for job in ("report", "mail")]
        assert (await others.until("alerts")).data["changed"] == [second]
        seen = [*(await stream.until("alerts")).data["changed"]]
        await conn.execute("update mainspring.alert set changed_at = mainspring.now() where job = 'report'")
        while len(seen) < 3:
            seen += (await stream.until("alerts")).data["changed"]
        assert sorted(seen) == sorted([first, second, first])


async def test_changed_schedules_agents_and_servers_are_named(
    viewer: httpx2.AsyncClient, conn: Connection, job: str
) -> None:
    async with streaming(viewer, "/events?topics=schedules&topics=agents,servers") as stream:
        await stream.until("ready")
        await conn.execute(
            """insert into mainspring.schedule (name, job_id, kind, expression, segment)
               select 'nightly', id, 'cron', '0 0 * * *', 1 from mainspring.job where name = $1""",
            job,
        )
        assert (await stream.until("schedules")).data == {"changed": ["nightly"], "more": 0, "gone": 0}
        await connect_agent(conn)
        assert (await stream.until("agents")).data["changed"] == ["a"]
        await conn.execute("insert into mainspring.draining (name) values ('a')")
        assert (await stream.until("agents")).data["changed"] == ["a"]
        name = await conn.fetchval("update mainspring.server set status = 'draining' returning name")
        assert name in (await stream.until("servers")).data["changed"]
        await schedules.delete(conn, ACTOR, "nightly")
        assert (await stream.until("schedules")).data["gone"] == 1


async def test_one_sample_serves_all_and_none_is_taken_for_nobody(
    served: Served, viewer: httpx2.AsyncClient, conn: Connection, job: str, eventually: Eventually
) -> None:
    room = served.api.hub.rooms["tasks"]
    assert room._sampling is None
    async with streaming(viewer, "/events?topics=tasks") as one, streaming(viewer, "/events?topics=tasks") as two:
        await one.until("ready")
        await two.until("ready")
        id = await submit(conn)
        first, second = await one.until("tasks"), await two.until("tasks")
        assert first == second
        assert first.data["changed"][0]["id"] == id
        assert served.api.hub.listeners == served.api.streams.open == 2
    assert await eventually(_true(lambda: room._sampling is not None and room._sampling.done()))
    assert served.api.hub.listeners == served.api.streams.open == 0


def _limited(*_: Any) -> None:
    raise RateLimited("too many failed logins from this address")


def _true(check: Any) -> Any:
    async def asked() -> bool:
        return bool(check())

    return asked


# ── cursors ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_listener_that_returns_misses_nothing(viewer: httpx2.AsyncClient, conn: Connection, job: str) -> None:
    async with streaming(viewer, "/events?topics=tasks") as stream:
        cursor = (await stream.until("ready")).id
    missed = await submit(conn)
    assert cursor is not None
    async with streaming(viewer, "/events?topics=tasks", Last_Event_ID=cursor) as stream:
        assert (await stream.next()).name == "ready"
        told = await stream.next()
        assert (told.name, [task["id"] for task in told.data["changed"]]) == ("tasks", [missed])


async def test_another_server_goes_on_from_the_cursor_if_it_listened_too(
    dsn: str, served: Served, viewer: httpx2.AsyncClient, secret: str, conn: Connection, job: str
) -> None:
    async with serving(dsn) as other, other.client(secret) as there, streaming(there, "/events?topics=tasks") as kept:
        await kept.until("ready")
        async with streaming(viewer, "/events?topics=tasks") as stream:
            await stream.until("ready")
            first = await submit(conn)
            await changed(kept, first)
            await changed(stream, first)
            cursor = (await _after(stream, conn)).id
        missed = await submit(conn)
        await changed(kept, missed)
        assert cursor is not None
        async with streaming(there, "/events?topics=tasks", Last_Event_ID=cursor) as stream:
            assert missed in await changed(stream, missed)


@pytest.mark.parametrize(
    ("position", "missed"),
    [
        (0, ["first", "second"]),
        (1000, ["second"]),
        (2000, []),
        (5, None),  # before the end of the sample from which changes are known
        (10, ["first", "second"]),
        (1050, ["first", "second"]),  # inside of a sample: what committed before its snapshot is told again
        (1100, ["second"]),
        (2005, ["second"]),
        (2010, []),
    ],
)
def test_a_position_of_another_server_counts_as_before_a_sample_that_was_under_way(
    position: int, missed: list[str] | None
) -> None:
    """A sample takes time, and its snapshot may be at any point of it."""
    room = hub.Hub(Database("postgresql://nowhere"), None).rooms["tasks"]
    start, first, second = hub.Moment(0, 10), hub.Moment(1000, 1100), hub.Moment(2000, 2010)
    room._kept.extend([(start, first, "first"), (first, second, "second")])
    assert room._since(position) == missed


async def _after(stream: Stream, conn: Connection) -> Any:
    await submit(conn)
    return await stream.until("tasks")


@pytest.mark.parametrize("cursor", ["tasks=1000", "nonsense", "tasks=99999999999999999999"])
async def test_a_gap_that_is_too_long_is_told_once(viewer: httpx2.AsyncClient, cursor: str, conn: Connection) -> None:
    async with streaming(viewer, "/events?topics=tasks", Last_Event_ID=cursor) as stream:
        assert [(await stream.next()).name for _ in range(2)] == ["ready", "resync"]


# ── the end of a stream ─────────────────────────────────────────────────────────────────────────


async def test_a_revoked_token_ends_its_stream(served: Served, conn: Connection) -> None:
    token, secret = await tokens.create(conn, "gone", role=Role.VIEWER)
    async with served.client(secret) as client, streaming(client, "/events?topics=alerts") as stream:
        await stream.until("ready")
        await tokens.revoke(conn, token)
        assert [(told.name, told.data) for told in await stream.rest()] == [("bye", {"reason": "revoked"})]


async def test_failed_logins_from_its_address_neither_end_a_stream_nor_keep_it_open(
    served: Served, conn: Connection, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, secret = await tokens.create(conn, "mine", role=Role.VIEWER)
    async with (
        served.client(secret) as viewer,
        served.client("ms_wrong") as guesser,
        streaming(viewer, "/events?topics=tasks") as stream,
    ):
        await stream.until("ready")
        answers = [(await guesser.get("/servers")).status_code for _ in range(12)]
        assert answers[-1] == 429
        monkeypatch.setattr("mainspring.api.access.buckets.Buckets.check", _limited)  # as it is while the guesses go on
        await asyncio.sleep(1.2)  # what was believed of the caller is forgotten after a second
        id = await submit(conn)
        assert await changed(stream, id) == {id: "pending"}
        await tokens.revoke(conn, token)
        assert (await stream.until("bye")).data == {"reason": "revoked"}


async def test_a_server_that_stops_says_bye(served: Served, viewer: httpx2.AsyncClient) -> None:
    async with streaming(viewer, "/events?topics=alerts") as stream:
        await stream.until("ready")
        served.api.stopping.set()
        assert [told.data for told in await stream.rest()] == [{"reason": "stopping"}]


async def test_a_stream_that_is_given_up_by_its_server_says_bye(
    served: Served, secret: str, eventually: Eventually
) -> None:
    """As uvicorn does with an application that we are mounted in, once it has waited for long enough."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def is_ready() -> bool:
        return any(b"event: ready" in message.get("body", b"") for message in sent)

    path = "/api/v1/events"
    headers = [(b"host", b"127.0.0.1"), (b"authorization", f"Bearer {secret}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"topics=tasks",
             "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 1), "scheme": "http"}  # fmt: skip
    answering = asyncio.create_task(served.api(scope, receive, send))
    await eventually(is_ready)
    answering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answering
    assert sent[-2]["body"] == b'event: bye\ndata: {"reason":"stopping"}\n\n'
    assert not sent[-1].get("more_body"), "the answer is whole"


async def test_too_many_streams_of_one_caller_are_refused(
    served: Served, viewer: httpx2.AsyncClient, eventually: Eventually
) -> None:
    served.api.streams = Streams(per_caller=2, per_server=3)
    async with streaming(viewer, "/events?topics=alerts"), streaming(viewer, "/events?topics=alerts"):
        refused = await viewer.get("/events?topics=alerts")
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) >= 1
    assert await eventually(_true(lambda: served.api.streams.open == 0))
    async with streaming(viewer, "/events?topics=alerts") as stream:
        await stream.until("ready")


async def test_a_slow_reader_is_told_to_resync_and_not_buffered_for(
    served: Served, secret: str, conn: Connection, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MOST_PENDING", 100_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1024)
    request = f"GET /api/v1/events?topics=servers HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n"
    writer.write(request.encode())
    await reader.readuntil(b"event: ready")
    [slow] = served.api.hub.rooms["servers"]._listeners
    told, sent = b"x" * 50_000, 0
    while b"resync" not in b"".join(data for _, data in slow.pending._events):
        slow.tell("servers", sent, told)
        sent += len(told)
        await asyncio.sleep(0)
        assert slow.pending._bytes <= 100_000
        assert sent < 500_000_000
    received = b""
    async with asyncio.timeout(10):
        while b"event: resync" not in received:
            received = received[-20:] + await reader.read(65536)
    writer.close()
    assert await eventually(_true(lambda: served.api.streams.open == 0))


# ── what a caller may hear ──────────────────────────────────────────────────────────────────────


async def test_a_submitter_hears_of_its_tasks_and_of_nothing_else(served: Served, conn: Connection, job: str) -> None:
    await create_job(conn, "secret")
    _, secret = await tokens.create(conn, "ci", role=Role.SUBMITTER, jobs=["hel*"])
    async with served.client(secret) as client:
        refused = await client.get("/events?topics=tasks,stats")
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert (await client.get("/events?job=secret")).status_code == 404
        async with streaming(client, "/events") as stream:
            assert (await stream.until("ready")).data == {"topics": ["tasks"]}
            hidden = await submit(conn, "secret")
            mine = await submit(conn)
            assert await changed(stream, mine) == {mine: "pending"}
        assert (await client.get(f"/tasks/{hidden}/events")).status_code == 404


# ── one task ────────────────────────────────────────────────────────────────────────────────────


async def test_a_followed_task_is_told_at_once_and_its_end_is_the_end(
    viewer: httpx2.AsyncClient, conn: Connection, make_task: MakeTask
) -> None:
    id = await make_task(TaskState.RUNNING)
    async with streaming(viewer, f"/tasks/{id}/events") as stream:
        first = await stream.next()
        assert (first.name, first.data["state"], first.data["attempt"], first.data["progress"]) == (
            "task", "running", 1, None,
        )  # fmt: skip
        await conn.execute("update mainspring.task set progress = '{\"done\": 3}' where id = $1", id)
        assert (await stream.next()).data["progress"] == {"done": 3}
        await conn.execute("update mainspring.task set state = 1, session = null where id = $1", id)
        told = await stream.next()
        assert (told.data["state"], told.data["waits"]["code"]) == ("pending", "no_agents")
        await tasks.cancel(conn, ACTOR, id)
        ended, bye = await stream.rest()
        assert (ended.data["state"], bye.name, bye.data) == ("cancelled", "bye", {"reason": "ended"})


async def test_a_follower_that_returns_is_not_told_what_it_knows(
    viewer: httpx2.AsyncClient, conn: Connection, job: str
) -> None:
    id = (await tasks.submit(conn, ACTOR, NewTask(job=job, delay="1h"))).id
    async with streaming(viewer, f"/tasks/{id}/events") as stream:
        cursor = (await stream.next()).id
    assert cursor is not None
    async with streaming(viewer, f"/tasks/{id}/events", Last_Event_ID=cursor) as stream:
        await tasks.cancel(conn, ACTOR, id)
        assert [told.data.get("state") for told in await stream.rest()] == ["cancelled", None]


async def test_what_is_told_of_a_task_is_of_one_version(
    served: Served, conn: Connection, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between the look for changes and the look at the task."""
    id = await submit(conn)
    version = (await changes.versions(conn, [id]))[id]
    versions = changes.versions

    async def ending(*given: Any) -> dict[int, str]:
        found = await versions(*given)
        if "live" in found[id]:
            await tasks.cancel(conn, ACTOR, id)
        return found

    monkeypatch.setattr(changes, "versions", ending)
    follower = served.api.followed.follow(id, version, "request")
    told = await follower.next()
    assert told is not None
    assert b'"cancelled"' in told
    assert b"event: bye" in told


async def test_an_unknown_task_is_not_found(viewer: httpx2.AsyncClient) -> None:
    assert (await viewer.get("/tasks/4711/events")).status_code == 404
    assert (await viewer.get("/tasks/x/events")).status_code == 422


def test_the_filter_of_events_is_that_of_lists_and_the_reach_that_of_tokens() -> None:
    assert Wants(jobs=("report[1]", "a*")).job("report[1]")
    assert Wants(jobs=("a*",)).job("abc")
    assert not Wants(jobs=("report[1]",)).job("report1")
    assert not Wants(jobs=("rep?rt",)).job("report")
    assert Wants(reach=("rep[a-z]rt",)).job("report")
    assert not Wants(jobs=("a*",), reach=("b*",)).job("abc")
