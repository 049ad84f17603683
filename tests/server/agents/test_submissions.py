"""Handlers on remote agents submit through their server: acknowledged after commit, once, and only what they may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from tests.conftest import MakeTask, eventually

import mainspring
from mainspring.compose.local import Settings, load
from mainspring.compose.network import RemoteAgent, serving
from mainspring.compose.stores import register
from mainspring.errors import AccessDenied, JobNotFound, StaleAttempt, StoreUnavailable, ValidationError
from mainspring.model.messages import AttemptId, Submit, Submitted
from mainspring.model.tasks.define_job import command
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.states import TaskState
from mainspring.server.agents import submissions
from mainspring.server.agents.session import AgentSession
from mainspring.store.access import tokens
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.search import search
from mainspring.store.search.filters import Filters
from mainspring.store.submission.for_attempts import submit_for_attempt
from mainspring.store.submission.submissions import BulkSubmission as Many
from mainspring.store.submission.submissions import Submission
from mainspring.store.tasks import jobs, tasks
from mainspring.store.tasks.tasks import Ended
from mainspring.wire.channel import ChannelClosed


def settings(dsn: str | None, **given: Any) -> Settings:
    return load({"dsn": dsn, "listen": "127.0.0.1:0", "stop_patience": 1.0, **given}, environment={})


class Far:
    """An application on an agent that has no database. `body` is what its handlers do."""

    def __init__(self) -> None:
        self.app = mainspring.App("far")
        self.body: Callable[[], Any] = lambda: None

        @self.app.job(retries=0)
        async def parent() -> Any:
            return await self.body()

        @self.app.job(retries=0)
        def sync_parent() -> Any:
            return self.body()

        @self.app.job
        async def child(n: int, *, note: str = "") -> int:
            return 2 * n

        self.child = child


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Far:
    monkeypatch.delenv("MAINSPRING_DSN", raising=False)
    monkeypatch.setenv("MAINSPRING_DATA_DIRECTORY", str(tmp_path / "nobody-asked-for-it"))
    return Far()


@asynccontextmanager
async def network(far: Far, database: Database, conn: Connection, servers: int = 1) -> AsyncIterator[RemoteAgent]:
    """Servers, and an agent without a database that runs the handlers of `far`."""
    await register(database, far.app.definitions, "far", 0, far.app.schedules)
    _, secret = await tokens.create(conn, "test")
    async with AsyncExitStack() as stack:
        urls = []
        for number in range(servers):
            mine = settings(database.dsn, data_directory=f"{load({}).data_directory}-{number}")
            urls.append(await stack.enter_async_context(serving(mine, database, None, {}, without_tls=False)))
        remote = RemoteAgent(settings(None, server=",".join(urls), token=secret), far.app.handlers, "far")
        await stack.enter_async_context(remote)
        assert await asyncio.wait_for(remote.joined(asyncio.Event()), 20) is not None
        yield remote


async def run(conn: Connection, job: str = "parent") -> Ended:
    """Submit one task of `job` by SQL, and wait for its end."""
    id = await conn.fetchval("select mainspring.enqueue($1)", job)

    async def ended() -> Ended | None:
        return (await tasks.ended(conn, [id])).get(id)

    found: Ended = await eventually(ended, timeout=20)
    return found


async def result_of(conn: Connection, job: str = "parent") -> Any:
    ended = await run(conn, job)
    assert ended.state is TaskState.SUCCEEDED, ended.error
    return None if ended.result is None else msgspec.json.decode(ended.result)


async def children(conn: Connection) -> list[tuple[int, Any]]:
    """The children that there are, live or ended, with their arguments."""
    found = (await search.search(conn, Filters(), limit=100, whole=True)).tasks
    return sorted((task.id, task.args) for task in found if task.job == "child")


# ── what handlers do ────────────────────────────────────────────────────────────────────────────


async def test_a_handler_submits_through_its_server(
    far: Far, database: Database, conn: Connection, tmp_path: Path
) -> None:
    async def body() -> int:
        return (await far.child.enqueue(21)).id

    far.body = body
    async with network(far, database, conn):
        id = await result_of(conn)

        async def ended() -> Any:
            return (await tasks.ended(conn, [id])).get(id)

        assert (await eventually(ended)).result == "42"
    assert not (tmp_path / "nobody-asked-for-it").exists(), "no embedded PostgreSQL is started on an agent"
    assert await conn.fetchval("select count(*) from mainspring.submission where tasks is not null") == 1


async def test_a_sync_handler_submits_from_its_thread(far: Far, database: Database, conn: Connection) -> None:
    far.body = lambda: far.child.enqueue_sync(1).id
    async with network(far, database, conn):
        id = await result_of(conn, "sync_parent")
    assert await children(conn) == [(id, {"n": 1})]


async def test_all_that_using_can_say_arrives(far: Far, database: Database, conn: Connection) -> None:
    run_at = datetime(2100, 1, 2, 3, 4, 5, 678_901, UTC)

    async def body() -> list[int]:
        first = await far.child.using(run_at=run_at, priority="high", key="k", key_ttl="2h").enqueue(1, note="ü")
        again = await far.child.using(key="k").enqueue(2)
        after = await far.child.using(after=first, concurrency_key="c").enqueue(3)
        many = await far.child.using(delay="1h").enqueue_many([(4,), (5,)])
        return [task.id for task in (first, again, after, *many)]

    far.body = body
    async with network(far, database, conn):
        first, again, after, four, five = await result_of(conn)
    assert again == first
    view = await tasks.get(conn, first)
    assert (view.run_at, view.priority, view.key, view.args) == (run_at, 7, "k", {"n": 1, "note": "ü"})
    ttl = await conn.fetchval("select expires_at - mainspring.now() from mainspring.task_key")
    assert 6000 < ttl.total_seconds() <= 7200
    view = await tasks.get(conn, after)
    assert (view.waiting_for, view.concurrency_key) == ([first], "c")
    assert [(await tasks.get(conn, id)).args for id in (four, five)] == [{"n": 4}, {"n": 5}]
    assert (await tasks.get(conn, four)).run_at > datetime.now(UTC)


@pytest.mark.parametrize("ask", ["result", "status", "cancel"])
async def test_what_needs_a_database_says_so(far: Far, database: Database, conn: Connection, ask: str) -> None:
    async def body() -> None:
        await getattr(await far.child.enqueue(1), ask)()

    far.body = body
    async with network(far, database, conn):
        ended = await run(conn)
    assert ended.state is TaskState.FAILED
    assert "start it with --dsn" in (ended.error or "")


async def test_outside_a_handler_an_agent_opens_no_database(far: Far, database: Database, conn: Connection) -> None:
    async with network(far, database, conn):
        with pytest.raises(ValidationError, match="this process is an agent, which has no database"):
            await far.child.enqueue(1)


async def test_an_error_of_the_server_is_the_handlers(far: Far, database: Database, conn: Connection) -> None:
    seen: list[BaseException] = []
    far.app.command("unknown", ["true"])

    async def body() -> None:
        for wrong in (far.app["unknown"].enqueue(), far.child.using(after=10**12).enqueue(1)):
            try:
                await wrong
            except mainspring.MainspringError as error:
                seen.append(error)

    far.body = body
    async with network(far, database, conn):
        await conn.execute("delete from mainspring.job where name = 'unknown'")
        await result_of(conn)
    assert [type(error) for error in seen] == [JobNotFound, ValidationError]


async def test_a_call_that_no_frame_can_carry_is_refused(far: Far, database: Database, conn: Connection) -> None:
    async def body() -> None:
        await far.child.enqueue_many([{"n": 1, "note": "x" * 900_000}] * 10)

    far.body = body
    async with network(far, database, conn):
        ended = await run(conn)
    assert "through a server at most 8 MiB: submit in parts, or give the agent a database" in (ended.error or "")


async def test_with_a_dsn_handlers_have_all_of_the_sdk(far: Far, database: Database, conn: Connection) -> None:
    async def body() -> Any:
        task = await far.child.enqueue(4)
        return [await task.result(timeout=10), (await task.status()).state]

    far.body = body
    await register(database, far.app.definitions, "far", 0, far.app.schedules)
    _, secret = await tokens.create(conn, "test")
    async with serving(settings(database.dsn), database, None, {}, without_tls=False) as url:
        remote = RemoteAgent(settings(database.dsn, server=url, token=secret), far.app.handlers, "far")
        assert remote.database is not None
        async with far.app.attached(remote.database), remote:
            assert await result_of(conn) == [8, "succeeded"]
    assert await conn.fetchval("select count(*) from mainspring.submission") == 0
    assert far.app.loop is None


# ── when something goes wrong ───────────────────────────────────────────────────────────────────


async def test_an_answer_that_is_lost_is_given_again_and_nothing_is_submitted_twice(
    far: Far, database: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[Submitted] = []
    answer = submissions.Submissions._answer

    async def answer_once_into_the_void(self: Any, session: AgentSession, request: Submit) -> Submitted | None:
        answered = await answer(self, session, request)
        if not lost and answered is not None:
            lost.append(answered)
            session.link.abort()  # committed, and the connection is gone
            await asyncio.Event().wait()
        return answered

    async def body() -> list[int]:
        return [task.id for task in await far.child.enqueue_many([(1,), (2,)])]

    monkeypatch.setattr(submissions.Submissions, "_answer", answer_once_into_the_void)
    far.body = body
    async with network(far, database, conn, servers=2):
        ids = await result_of(conn)
    assert lost[0].tasks == ids
    assert await children(conn) == [(ids[0], {"n": 1}), (ids[1], {"n": 2})]


async def test_a_request_that_was_never_carried_out_is_asked_again(
    far: Far, database: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = submissions.Submissions.take
    lost: list[Submit] = []

    def lose_the_first(self: Any, session: AgentSession, request: Submit) -> None:
        if lost:
            return taken(self, session, request)
        lost.append(request)
        return session.link.abort()

    async def body() -> int:
        return (await far.child.enqueue(1)).id

    monkeypatch.setattr(submissions.Submissions, "take", lose_the_first)
    far.body = body
    async with network(far, database, conn):
        id = await result_of(conn)
    assert await children(conn) == [(id, {"n": 1})]


async def test_while_postgresql_is_away_the_request_waits(
    far: Far, database: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []

    async def away_at_first(*given: Any) -> list[int]:
        if len(failures) < 2:
            failures.append(1)
            raise StoreUnavailable("away")
        return await submit_for_attempt(*given)

    async def body() -> int:
        return (await far.child.enqueue(1)).id

    monkeypatch.setattr(submissions, "submit_for_attempt", away_at_first)
    monkeypatch.setattr(submissions, "RETRY_AFTER", 0.01)
    far.body = body
    async with network(far, database, conn):
        id = await result_of(conn)
    assert await children(conn) == [(id, {"n": 1})]
    assert len(failures) == 2


async def test_a_bug_in_the_server_is_answered_and_holds_up_nothing(
    far: Far, database: Database, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken_at_first(*given: Any) -> list[int]:
        monkeypatch.setattr(submissions, "submit_for_attempt", submit_for_attempt)
        raise KeyError("nobody foresaw this")

    async def body() -> int:
        with pytest.raises(mainspring.MainspringError, match="the server failed: KeyError"):
            await far.child.enqueue(1)
        return (await far.child.enqueue(2)).id

    monkeypatch.setattr(submissions, "submit_for_attempt", broken_at_first)
    far.body = body
    async with network(far, database, conn):
        id = await result_of(conn)
    assert await children(conn) == [(id, {"n": 2})]


async def test_many_at_once_are_all_submitted(far: Far, database: Database, conn: Connection) -> None:
    async def body() -> list[int]:
        return [task.id for task in await asyncio.gather(*(far.child.enqueue(n) for n in range(300)))]

    far.body = body
    async with network(far, database, conn):
        ids = await result_of(conn)
    assert len(set(ids)) == 300
    assert await conn.fetchval("select count(*) from mainspring.submission") == 300


# ── what an agent may ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def held(conn: Connection, make_task: MakeTask) -> AttemptId:
    """A handler of the application `far` that session 1 runs."""
    task = await make_task(TaskState.RUNNING, token=7, session=1)
    await jobs.register(conn, {"mine": Definition(Python("mine"), requires={"app": "far"})})
    await conn.execute("update mainspring.task set job_id = (select id from mainspring.job where name = 'mine')")
    return AttemptId(task, 7)


async def test_a_repeated_request_gets_the_first_answer(conn: Connection, held: AttemptId) -> None:
    request = uuid4()
    first = await submit_for_attempt(conn, request, held, 1, Many("mine", ["{}", "{}"]))
    assert len(first) == 2
    assert await submit_for_attempt(conn, request, held, 1, Many("mine", ["{}", "{}"])) == first
    await conn.execute("update mainspring.task set token = 8 where id = $1", held.task)
    assert await submit_for_attempt(conn, request, held, 1, Many("mine", ["{}", "{}"])) == first
    assert await conn.fetchval("select count(*) from mainspring.task") == 3


@pytest.mark.parametrize(
    "change", ["token = 8", "session = 2", "state = 1, session = null"], ids=["token", "session", "state"]
)
async def test_who_does_not_hold_the_attempt_submits_nothing(conn: Connection, held: AttemptId, change: str) -> None:
    await conn.execute(f"update mainspring.task set {change} where id = $1", held.task)
    with pytest.raises(StaleAttempt, match="nothing was submitted"):
        await submit_for_attempt(conn, uuid4(), held, 1, Submission("mine", "{}"))
    assert await conn.fetchval("select count(*) from mainspring.task") == 1
    assert await conn.fetchval("select count(*) from mainspring.submission") == 0


async def test_a_handler_adds_to_the_batch_of_its_own_task_only(conn: Connection, held: AttemptId) -> None:
    mine, other = [await conn.fetchval("select mainspring.open_batch($1)", name) for name in ("mine", "other")]
    await conn.execute("update mainspring.task set batch_id = $2 where id = $1", held.task, mine)
    [task] = await submit_for_attempt(conn, uuid4(), held, 1, Submission("mine", "{}", batch=mine))
    assert await conn.fetchval("select batch_id from mainspring.task where id = $1", task) == mine
    with pytest.raises(AccessDenied, match=f"is not in batch {other}"):
        await submit_for_attempt(conn, uuid4(), held, 1, Many("mine", ["{}"], batch=other))


async def test_a_handler_submits_no_jobs_of_another_application(conn: Connection, held: AttemptId) -> None:
    await jobs.register(
        conn,
        {
            "other": Definition(Python("other"), requires={"app": "other"}),
            "script": Definition(command(["true"])),
        },
    )
    await submit_for_attempt(conn, uuid4(), held, 1, Submission("script", "{}"))
    with pytest.raises(AccessDenied, match="'other' is of another one"):
        await submit_for_attempt(conn, uuid4(), held, 1, Submission("other", "{}"))


async def test_an_agent_that_runs_a_command_submits_nothing(conn: Connection, held: AttemptId) -> None:
    await jobs.register(conn, {"script": Definition(command(["true"]))})
    await conn.execute("update mainspring.task set job_id = (select id from mainspring.job where name = 'script')")
    with pytest.raises(AccessDenied):
        await submit_for_attempt(conn, uuid4(), held, 1, Submission("script", "{}"))


class _Link:
    def __init__(self) -> None:
        self.posted: list[Any] = []

    def post(self, messages: list[Any]) -> None:
        self.posted += messages


class _Session:
    name, id = "liar", 1

    def __init__(self) -> None:
        self.link = _Link()


@pytest.mark.parametrize(
    "wrong",
    [
        {"request": "no uuid"},
        {"task": -1},
        {"token": 2**63},
        {"after": [2**64]},
        {"run_at": 1e300},
        {"delay": float("nan")},
        {"args": ["{"]},
        {"args": []},
        {"args": ['{"a": "\\u0000"}']},
        {"job": "\0"},
        {"priority": "absurd"},
        {"key": "a\0b"},
        {"key_ttl": 1e300},
    ],
    ids=str,
)
async def test_what_no_honest_agent_sends_is_answered_and_changes_nothing(
    database: Database, conn: Connection, held: AttemptId, wrong: dict[str, Any]
) -> None:
    session: Any = _Session()
    honest: dict[str, Any] = {
        "request": uuid4().hex,
        "task": held.task,
        "token": held.token,
        "job": "mine",
        "args": ["{}"],
    }
    queue = submissions.Submissions(database)
    queue.take(session, Submit(**(honest | wrong)))

    async def answered() -> Any:
        return session.link.posted

    (answer,) = await eventually(answered)
    assert answer.code in ("validation", "not_found", "job_not_found"), answer
    assert await conn.fetchval("select count(*) from mainspring.task") == 1
    assert await conn.fetchval("select count(*) from mainspring.submission") == 0


@pytest.mark.parametrize("size", [2, 1 << 20])
async def test_who_asks_for_more_than_any_agent_is_sent_away(database: Database, size: int) -> None:
    session: Any = _Session()
    queue = submissions.Submissions(database)
    with pytest.raises(ChannelClosed, match="more submissions than any agent sends"):
        for _ in range(submissions.MOST_WAITING + 1):
            queue.take(session, Submit(uuid4().hex, 1, 1, "mine", ["x" * size]))
    queue.left(session)
