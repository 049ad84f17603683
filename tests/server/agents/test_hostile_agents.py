"""Agents with a valid token that send too much, over real WebSockets: others are served as if they were not there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from tests.server.agents.test_network import Rogue, Shop, agent, rogue, server, token

from mainspring.errors import StoreUnavailable
from mainspring.model.messages import (
    ITEMS,
    AgentMessage,
    Armed,
    AttemptId,
    Chunk,
    Dispatch,
    Ending,
    Finished,
    Holding,
    Note,
    Output,
    Progress,
    Refused,
    Start,
    Started,
)
from mainspring.model.tasks.jobs import Definition, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState
from mainspring.server.agents.report_filter import ASKED_AT_ONCE, OUTPUT_LIMIT
from mainspring.server.recording import flush
from mainspring.store.postgres.database import Connection, Database
from mainspring.store.tasks import jobs, session_tasks, tasks, transitions
from mainspring.wire.channel import ChannelClosed
from mainspring.wire.link import AHEAD_BYTES, Link

Eventually = Callable[..., Awaitable[Any]]
FITS = {"app": "shop"}  # a rogue with this label gets tasks


@pytest.fixture
async def url(shop: Shop, database: Database, dsn: str) -> AsyncIterator[str]:
    async with server(shop, database, dsn) as url:
        yield url


def foreign(count: int) -> list[AttemptId]:
    return [AttemptId(10**9 + number, 1) for number in range(count)]


async def armed(liar: Rogue, shop: Shop, eventually: Eventually) -> Armed:
    """A task that the rogue holds."""
    await shop.hold.enqueue()

    async def dispatched() -> list[Armed]:
        return [task for message in liar.heard if isinstance(message, Dispatch) for task in message.tasks]

    found: list[Armed] = await eventually(dispatched)
    return found[0]


# ── reports on its own tasks ────────────────────────────────────────────────────────────────────


async def test_an_agent_chooses_neither_the_retries_of_its_attempt_nor_how_many_it_has_had(
    shop: Shop, url: str, conn: Connection, eventually: Eventually
) -> None:
    once = Definition(Python("once"), requires=FITS, delivery="at_most_once")
    brittle = Definition(Python("brittle"), requires=FITS, retry=Retry(retries=0))
    await jobs.register(conn, {"once": once, "brittle": brittle})
    async with rogue(url, await token(conn), labels=FITS, slots=9) as liar:
        held = await armed(liar, shop, eventually)
        for name, given in (("once", {"job": held.job}), ("brittle", {"attempt": -(2**62)})):
            liar.heard.clear()
            id = await conn.fetchval("select mainspring.enqueue($1)", name)

            async def dispatched(id: int = id) -> Armed | None:
                told = [task for message in liar.heard if isinstance(message, Dispatch) for task in message.tasks]
                return next((task for task in told if task.task == id), None)

            task: Armed = await eventually(dispatched)
            report = {"job": task.job, "attempt": 1, **given}
            state = TaskState.FAILED
            await liar.says(Finished([Ending(id, task.token, report["job"], report["attempt"], state, 1.0, 2.0)]))
            found = await tasks.get(conn, id)
            assert (found.state, found.attempt) == ("failed", 1)


# ── reports on tasks of others ──────────────────────────────────────────────────────────────────


async def test_reports_on_foreign_tasks_are_asked_about_together(
    url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    own = session_tasks.own

    async def counted(conn: Connection, instance: str, attempts: Sequence[tuple[int, int]]) -> Any:
        asked.append(len(attempts))
        return await own(conn, instance, attempts)

    monkeypatch.setattr(session_tasks, "own", counted)
    async with rogue(url, await token(conn)) as liar:
        await liar.says(Refused(foreign(ITEMS), "a lie"), Refused(foreign(ITEMS), "another"))
        await liar.says(Refused([], "at last"))
    assert asked == [ASKED_AT_ONCE] * (2 * ITEMS // ASKED_AT_ONCE)


async def test_reports_on_foreign_tasks_hold_up_no_other_agent(
    shop: Shop, url: str, dsn: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, asked = asyncio.Event(), asyncio.Event()
    own = session_tasks.own

    async def slow(conn: Connection, instance: str, attempts: Sequence[tuple[int, int]]) -> Any:
        asked.set()
        await answered.wait()
        return await own(conn, instance, attempts)

    monkeypatch.setattr(session_tasks, "own", slow)
    secret = await token(conn)
    async with rogue(url, secret) as liar, agent(shop, dsn, url, secret):
        late = asyncio.ensure_future(liar.says(Refused(foreign(1000), "a lie")))
        await asyncio.wait_for(asked.wait(), 10)
        assert await (await shop.double.enqueue(21)).result(timeout=20) == 42
        assert not late.done()
        answered.set()
        await late


# ── reports that PostgreSQL refuses ─────────────────────────────────────────────────────────────


async def test_a_report_that_postgresql_refuses_makes_no_other_be_written_alone(
    shop: Shop, url: str, conn: Connection, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if model/reports.py had a gap."""
    written: list[int] = []
    finish = transitions.finish_many

    async def counted(conn: Connection, endings: list[Ending]) -> list[Ending]:
        written.append(len(endings))
        return await finish(conn, endings)

    monkeypatch.setattr("mainspring.server.agents.report_filter.checked", lambda report: report)
    secret = await token(conn)
    async with rogue(url, secret, labels=FITS, slots=64) as liar:
        made = await shop.hold.enqueue_many([()] * 64)

        async def all_armed() -> list[Armed]:
            found = [task for message in liar.heard if isinstance(message, Dispatch) for task in message.tasks]
            return found if len(found) == 64 else []

        held: list[Armed] = await eventually(all_armed)
        monkeypatch.setattr(transitions, "finish_many", counted)
        endings = [Ending(a.task, a.token, a.job, 1, TaskState.SUCCEEDED, 1.0, 2.0) for a in held]
        endings[40].result = "{no JSON"
        await liar.says(Finished(endings))
    states = [(await tasks.get(conn, task.id)).state for task in made]
    assert (states.count("succeeded"), states.count("failed")) == (63, 1)
    assert sum(count == 1 for count in written) <= 3, "in halves, not one by one"


# ── what one frame may hold ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "report",
    [
        Refused(foreign(ITEMS + 1), "x"),
        Started([Start(1, 1, 1.0)] * (ITEMS + 1)),
        Progress([Note(1, 1, None, None)] * (ITEMS + 1)),
        Output([Chunk(1, 1, 1, 1, 1.0, b"")] * (ITEMS + 1)),
        Finished([Ending(1, 1, 1, 1, TaskState.SUCCEEDED, 1.0, 2.0)] * (ITEMS + 1)),
    ],
    ids=lambda report: type(report).__name__,
)
async def test_a_message_with_too_many_items_is_left_out(
    url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, report: AgentMessage
) -> None:
    async def never(*_: object) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr("mainspring.server.agents.report_filter.ReportFilter.admit", never)
    async with rogue(url, await token(conn)) as liar:
        await liar.says(report)


async def test_a_frame_with_too_many_items_or_messages_ends_the_connection(url: str, conn: Connection) -> None:
    secret = await token(conn)
    for messages in ([Refused(foreign(ITEMS), "x")] * 9, [Refused([], "x")] * 101):
        async with rogue(url, secret) as liar:
            with pytest.raises(ChannelClosed):
                await liar.says(*messages)


async def test_text_that_is_no_utf8_is_left_out(url: str, conn: Connection) -> None:
    async with rogue(url, await token(conn)) as liar:
        socket = liar.link._channel._socket  # type: ignore[attr-defined]
        message = msgspec.msgpack.encode(Refused([], "????")).replace(b"????", b"\xed\xa0\x80\xff")
        await socket.send(b"\x94\x02\x00\x91" + message + b"\x00")
        liar.link.sent = 2
        await liar.says(Refused([], "still there"))


# ── memory ──────────────────────────────────────────────────────────────────────────────────────


async def test_frames_ahead_of_their_turn_take_a_bounded_number_of_bytes(
    url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    keep = Link._keep_early

    def measured(link: Link[Any, Any], frame: Any) -> bool:
        nonlocal most
        kept = keep(link, frame)
        most = max(most, link._early_bytes)
        return kept

    monkeypatch.setattr(Link, "_keep_early", measured)
    async with rogue(url, await token(conn)) as liar:
        first = liar.link.sent + 1
        liar.link.sent += 1
        data = b"x" * (1 << 20)
        for _ in range(30):
            await liar.link.send([Output([Chunk(1, 1, 1, 1, 1.0, data)])])
        liar.link.sent, last = first - 1, liar.link.sent
        await liar.link.send([Refused([], "the missing one")])
        liar.link.sent = last
        async with asyncio.timeout(30):  # what was dropped is sent again
            while liar.link.unacknowledged:
                await liar.link.resend()
                await asyncio.sleep(0.05)
    assert AHEAD_BYTES / 2 < most <= AHEAD_BYTES


async def test_output_that_comes_faster_than_it_is_written_waits_at_its_agent(
    shop: Shop, url: str, conn: Connection, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 MB of it, while PostgreSQL does not answer."""
    most, gate = 0, asyncio.Event()
    add, write = flush.Reports.add, session_tasks.output

    def measured(reports: flush.Reports, link: Any, sequence: int, found: Any) -> None:
        nonlocal most
        add(reports, link, sequence, found)
        most = max(most, reports._queues[link].size)

    async def slow(conn: Connection, chunks: Sequence[Chunk]) -> int:
        await gate.wait()
        return await write(conn, chunks)

    monkeypatch.setattr(flush.Reports, "add", measured)
    monkeypatch.setattr("mainspring.server.agents.report_filter.OUTPUT_LIMIT", 1 << 40)
    monkeypatch.setattr(session_tasks, "output", slow)
    async with rogue(url, await token(conn), labels=FITS, slots=1) as liar:
        task = await armed(liar, shop, eventually)

        async def flood() -> None:
            for number in range(1, 61):
                await liar.link.send([Output([Chunk(task.task, task.token, number, 1, 1.0, b"x" * 1_000_000)])])

        flooding = asyncio.ensure_future(flood())

        async def is_full() -> bool:
            return most > flush.STOP_READING_FROM

        await eventually(is_full)
        await asyncio.wait([flooding], timeout=0.5)
        assert most <= flush.STOP_READING_FROM + 2 * (1 << 20), "one frame more at most"
        assert not flooding.done()
        gate.set()
        monkeypatch.setattr(session_tasks, "output", _nothing)
        await asyncio.wait_for(flooding, 60)
        await asyncio.wait_for(liar.link.acknowledged(liar.link.sent), 60)
    assert most <= flush.STOP_READING_FROM + 2 * (1 << 20)


async def _nothing(_conn: Connection, chunks: Sequence[Chunk]) -> int:
    return len(chunks)


async def test_the_server_keeps_a_bounded_output_of_an_attempt_whatever_its_agent_sends(
    shop: Shop, url: str, conn: Connection, eventually: Eventually
) -> None:
    secret = await token(conn)
    stored = "select sum(octet_length(data)) from mainspring.output where task_id = $1"
    async with rogue(url, secret, labels=FITS, slots=1) as liar:
        task = await armed(liar, shop, eventually)
        for number in range(1, 11):
            await liar.says(Output([Chunk(task.task, task.token, number, 1, 1.0, b"x" * (1 << 20))]))
        assert OUTPUT_LIMIT - (1 << 20) <= await conn.fetchval(stored, task.task) <= OUTPUT_LIMIT
        last = (await tasks.output(conn, task.task))[-1]
        assert (last.stream, b"left out" in last.data) == (0, True)
        await liar.says(Finished([Ending(task.task, task.token, task.job, 1, TaskState.SUCCEEDED, 1.0, 2.0)]))
        for number in range(11, 21):  # on an attempt that it held
            await liar.says(Output([Chunk(task.task, task.token, number, 1, 1.0, b"x" * (1 << 20))]))
        assert await conn.fetchval(stored, task.task) <= OUTPUT_LIMIT + 1000


async def test_an_agent_that_reconnects_does_not_get_more_room_for_its_output(
    shop: Shop, url: str, conn: Connection, eventually: Eventually
) -> None:
    secret = await token(conn)
    async with rogue(url, secret, labels=FITS, slots=1) as liar:
        task = await armed(liar, shop, eventually)
        for number in range(1, 6):
            await liar.says(Output([Chunk(task.task, task.token, number, 1, 1.0, b"x" * (1 << 20))]))
        session = liar.session
    held = [Holding(task.task, task.token, TaskState.RUNNING)]
    async with rogue(url, secret, labels=FITS, slots=1, session=session, held=held) as liar:
        for number in range(6, 12):
            await liar.says(Output([Chunk(task.task, task.token, number, 1, 1.0, b"x" * (1 << 20))]))
    stored = await conn.fetchval("select sum(octet_length(data)) from mainspring.output")
    assert OUTPUT_LIMIT - (1 << 20) <= stored <= OUTPUT_LIMIT


# ── what Python cannot read ─────────────────────────────────────────────────────────────────────


UNREADABLE = {
    "400 digits": "1" * 400 + ".5",
    "3000 levels": "[" * 3000 + "]" * 3000,
    "100 levels": "[" * 100 + "]" * 100,
    "beyond 2^53": str(2**60),
    "NUL": '"\\u0000"',
    "surrogate": '"\\ud800"',
    "2 MB": '"' + "x" * (2 << 20) + '"',
    "no JSON": "{",
}


async def test_json_that_cannot_be_read_is_not_stored(
    shop: Shop, url: str, conn: Connection, eventually: Eventually
) -> None:
    async with rogue(url, await token(conn), labels=FITS, slots=len(UNREADABLE)) as liar:
        for name, text in UNREADABLE.items():
            liar.heard.clear()
            task = await armed(liar, shop, eventually)
            notes = [Note(task.task, task.token, text, None), Note(task.task, task.token, None, text)]
            await liar.says(Progress(notes))
            view = await tasks.get(conn, task.task)
            assert (view.progress, view.checkpoint) == (None, None), name
            ending = Ending(task.task, task.token, task.job, 1, TaskState.SUCCEEDED, 1.0, 2.0, result=text)
            await liar.says(Finished([ending]))
            view = await tasks.get(conn, task.task)
            assert (view.state, view.error_code, view.result) == ("failed", "bad_report", None), name
            assert view.unreadable == [], name


@pytest.mark.parametrize("field", ["retry_after", "snooze"])
@pytest.mark.parametrize("delay", [2.6e11, float("nan")])
async def test_a_delay_that_no_calendar_has_fails_the_task(
    shop: Shop, url: str, conn: Connection, eventually: Eventually, field: str, delay: float
) -> None:
    async with rogue(url, await token(conn), labels=FITS, slots=1) as liar:
        task = await armed(liar, shop, eventually)
        ending = Ending(task.task, task.token, task.job, 1, TaskState.FAILED, 1.0, 2.0, error="x")
        setattr(ending, field, delay)
        await liar.says(Finished([ending]))
    view = await tasks.get(conn, task.task)
    assert (view.state, view.error_code) == ("failed", "bad_report")


async def test_an_error_of_a_megabyte_is_cut(shop: Shop, url: str, conn: Connection, eventually: Eventually) -> None:
    async with rogue(url, await token(conn), labels=FITS, slots=1) as liar:
        task = await armed(liar, shop, eventually)
        ending = Ending(
            task.task, task.token, task.job, 1, TaskState.FAILED, 1.0, 2.0, error="x" * (1 << 20), final=True
        )
        await liar.says(Finished([ending]))
    view = await tasks.get(conn, task.task)
    assert view.state == "failed"
    assert len(view.error or "") < 10_000


async def test_arguments_that_cannot_be_read_fail_their_task_and_no_other(
    shop: Shop, url: str, dsn: str, conn: Connection, eventually: Eventually
) -> None:
    """Nobody can submit such arguments; somebody may write them with SQL."""
    bad = [await shop.double.using(delay="1h").enqueue(number) for number in range(3)]
    for task, args in zip(bad, ("1" * 400 + ".5", "[" * 3000 + "]" * 3000, "1e5000"), strict=True):
        await conn.execute(
            "update mainspring.task set args = $2::text::jsonb, run_at = mainspring.now() where id = $1",
            task.id,
            f'{{"number": {args}}}',
        )
    async with agent(shop, dsn, url, await token(conn)):
        assert await (await shop.double.enqueue(4)).result(timeout=20) == 8

        async def all_over() -> bool:
            return {(await tasks.get(conn, task.id)).state for task in bad} == {"failed"}

        await eventually(all_over)
        assert await (await shop.double.enqueue(5)).result(timeout=20) == 10


async def test_a_report_on_a_foreign_task_outlives_a_lost_connection_to_postgresql(
    url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    own = session_tasks.own

    async def broken_once(*given: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise StoreUnavailable("gone for a moment")
        return await own(*given)

    monkeypatch.setattr(session_tasks, "own", broken_once)
    async with rogue(url, await token(conn)) as liar:
        await liar.says(Refused(foreign(1), "a lie"))
    assert asked == 2
