"""Failures are seen: in the log, by the application's hooks, and with job and task on whatever a handler logs."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from mainspring import (
    App,
    CancelTask,
    Fail,
    Failure,
    LogContext,
    ResultLost,
    RetryAfter,
    Snooze,
    TaskFailed,
    ValidationError,
    current_task,
)
from mainspring.agent.run import failures, hooks
from mainspring.operations import settings
from mainspring.operations.actors import this_user
from mainspring.store.postgres.database import Connection
from tests.conftest import Eventually


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[Any] = []  # records, with what LogContext puts on them
        self.addFilter(LogContext())

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record)

    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.all]


@pytest.fixture
def records() -> Iterator[Records]:
    """Of the logger that failures go to."""
    handler = Records()
    logger = logging.getLogger("mainspring.job")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def ended(task: Any) -> str:
    with pytest.raises(TaskFailed) as failed:
        await task.result(timeout=20)
    return str(failed.value.error_code)


async def test_a_failure_counts_the_retries_of_its_task_and_of_the_cluster(
    app: App, conn: Connection, records: Records
) -> None:
    told: list[tuple[int, int, bool]] = []

    @app.job(backoff="fixed", retry_delay="10ms")
    async def fails() -> None:
        raise Fail("no") if current_task().attempt == 3 else ValueError

    @app.on_failure
    def note(failure: Failure) -> None:
        told.append((failure.attempt, failure.attempts, failure.final))

    async with app.running():
        await ended(await fails.using(retries=1).enqueue())
        await ended(await fails.using(retries=0).enqueue())
        await settings.edit(conn, this_user(), {"default_retries": 5})
        try:
            assert app.engine is not None
            await app.engine.server.catalogue.refresh()
            await ended(await fails.enqueue())
        finally:
            await settings.edit(conn, this_user(), {"default_retries": None})
    assert told == [(1, 2, False), (2, 2, True), (1, 1, True), (1, 6, False), (2, 6, False), (3, 6, True)]
    assert "attempt 1 of 2 failed, another one follows" in records.texts()[0]


@pytest.mark.parametrize("sync", [False, True])
async def test_each_failed_attempt_of_a_handler_leaves_a_record_with_its_traceback(
    app: App, records: Records, sync: bool
) -> None:
    def fails(day: str) -> None:
        raise ValueError(f"no {day}")

    async def fails_too(day: str) -> None:
        fails(day)

    job = app.job(name="report", retries=1, backoff=["10ms"])(fails if sync else fails_too)
    async with app.running():
        task = await job.enqueue("monday")
        assert await ended(task) == "handler_error"
    first, second = records.all
    assert first.getMessage() == (
        f"report: task {task.id}, attempt 1 of 2 failed, another one follows (handler_error: ValueError: no monday)"
    )
    assert second.getMessage().startswith(f"report: task {task.id}, attempt 2 of 2 failed, that was the last (")
    assert (first.levelno, second.levelno) == (logging.WARNING, logging.ERROR)
    assert (first.job, first.task, first.attempt, first.error_code) == ("report", task.id, 1, "handler_error")
    story = logging.Formatter().formatException(first.exc_info)
    assert story.splitlines()[1].endswith(f"in {'fails' if sync else 'fails_too'}"), "it begins with their own frame"
    assert story.endswith("ValueError: no monday")


async def test_commands_calls_and_timeouts_fail_visibly_too(app: App, records: Records) -> None:
    @app.job(retries=0, timeout="50ms")
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.job(retries=0)
    async def hopeless() -> None:
        raise Fail("bad input")

    @app.job(retries=3, backoff=["10ms"])
    async def later() -> None:
        raise RetryAfter("1h", "busy")

    command = app.command("backup", ["sh", "-c", "echo no room >&2; exit 3"], retries=0)
    call = app.http("ping", "GET", "http://127.0.0.1:1/", retries=0)
    async with app.running(http_allow="127.0.0.0/8"):
        tasks = [await job.enqueue() for job in (slow, hopeless, command, call)]
        codes = [await ended(task) for task in tasks]
        await later.enqueue()
        while len(records.all) < 5:
            await asyncio.sleep(0.01)
    assert codes == ["timeout", "failed_for_good", "exit_code", "http_unreachable"]
    told = {record.job: record for record in records.all}
    assert "did not end within its timeout of 0.05 s" in told["slow"].getMessage()
    assert "(failed_for_good: bad input)" in told["hopeless"].getMessage()
    assert "(exit_code: exit code 3: no room)" in told["backup"].getMessage()
    assert "(http_unreachable: " in told["ping"].getMessage()
    assert "attempt 1 of 4 failed, another one follows (retry_after: busy)" in told["later"].getMessage()
    assert not any(record.exc_info for record in records.all), "a traceback is for what was not expected"


async def test_what_was_stopped_or_put_off_is_no_failure(app: App, records: Records) -> None:
    started = asyncio.Event()
    told: list[Failure] = []
    app.on_failure(told.append)

    @app.job
    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    @app.job
    async def cancels() -> None:
        raise CancelTask("gone")

    @app.job
    async def snoozes() -> None:
        raise Snooze("1h")

    async with app.running():
        task = await endless.enqueue()
        await started.wait()
        await task.cancel()
        assert await ended(task) == "cancelled"
        assert await ended(await cancels.enqueue()) == "cancelled"
        snoozed = await snoozes.enqueue()
        while (await snoozed.status()).error_code != "snoozed" and (await snoozed.status()).state != "pending":
            await asyncio.sleep(0.01)
        started.clear()
        await endless.enqueue()
        await started.wait()  # and the shutdown stops it
    assert records.texts() == []
    assert told == []


async def test_many_failures_of_one_job_are_counted_and_do_not_drown_another(app: App, records: Records) -> None:
    @app.job(retries=0)
    async def noisy() -> None:
        raise ValueError

    @app.job(retries=0)
    async def other() -> None:
        raise ValueError

    async with app.running():
        tasks = await noisy.enqueue_many([()] * 200)
        for task in tasks:
            await ended(task)
        await ended(await other.enqueue())
    of_noisy = [record for record in records.all if record.job == "noisy"]
    assert len(of_noisy) == failures.BURST + 1
    assert of_noisy[-1].getMessage() == f"noisy: {200 - failures.BURST} more failures in the last 60 s were not logged"
    assert [record.job for record in records.all].count("other") == 1


async def test_what_was_left_out_is_told_when_the_window_ends(records: Records, eventually: Eventually) -> None:
    told = failures.Failures(window=0.05)
    allowed = [told._may_log("noisy") for _ in range(failures.BURST + 3)]
    assert allowed.count(True) == failures.BURST

    async def summary() -> list[str]:
        return records.texts()

    assert await eventually(summary) == ["noisy: 3 more failures in the last 0.05 s were not logged"]
    assert told._counts == {}, "a job that fails no more costs nothing"
    assert told._may_log("noisy")
    await told.close()


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────────


async def test_hooks_are_told_what_failed_and_how(app: App) -> None:
    told: list[Failure] = []
    threads: list[str] = []

    @app.on_failure
    def sync_hook(failure: Failure) -> None:
        threads.append(threading.current_thread().name)
        told.append(failure)

    @app.on_failure
    async def async_hook(failure: Failure) -> None:
        told.append(failure)

    @app.job(retries=1, backoff=["10ms"])
    async def fails(day: str, *, force: bool = False) -> None:
        raise ValueError(f"no {day}")

    command = app.command("backup", ["false"], retries=0)
    async with app.running():
        task = await fails.enqueue("monday", force=True)
        await ended(task)
        await ended(await command.enqueue(shop=3))
    assert len(told) == 6, "the end of the run waits for them"
    first, same, second, _, of_command, _ = told
    assert first == same
    assert (first.job, first.task_id, first.attempt, first.attempts) == ("fails", task.id, 1, 2)
    assert (first.error_code, first.final, second.final) == ("handler_error", False, True)
    assert first.args == {"day": "monday", "force": True}
    assert isinstance(first.exception, ValueError)
    assert first.exception.__traceback__ is not None
    assert first.message.startswith("ValueError: no monday\n")
    assert (of_command.error_code, of_command.args, of_command.exception) == ("exit_code", {"shop": 3}, None)
    assert set(threads) == {"mainspring-on-failure"}, "a sync hook that blocks holds up no event loop"


async def test_a_hook_that_raises_harms_nobody(app: App, records: Records) -> None:
    told: list[int] = []

    @app.on_failure
    def wrong(failure: Failure) -> None:
        raise StopIteration

    @app.on_failure
    async def cancels(failure: Failure) -> None:
        raise asyncio.CancelledError

    @app.on_failure
    async def right(failure: Failure) -> None:
        told.append(failure.task_id)

    @app.job(retries=0)
    async def fails() -> None:
        raise ValueError

    async with app.running():
        tasks = [await fails.enqueue() for _ in range(2)]
        for task in tasks:
            assert await ended(task) == "handler_error"
    assert sorted(told) == [task.id for task in tasks]
    complaints = [text for text in records.texts() if text.startswith("on_failure")]
    assert [text.rpartition(".")[2] for text in complaints] == ["wrong raised", "cancels cancelled itself"] * 2


@pytest.mark.parametrize("sync", [False, True])
async def test_a_hook_that_hangs_is_given_up_and_left_alone(
    app: App, records: Records, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    monkeypatch.setattr(hooks, "HOOK_TIMEOUT", 0.05)
    calls: list[int] = []
    told: list[int] = []
    release = threading.Event()

    def hangs(failure: Failure) -> None:
        calls.append(failure.task_id)
        release.wait()

    async def hangs_too(failure: Failure) -> None:
        calls.append(failure.task_id)
        while not release.is_set():  # whatever is raised at it
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    app.on_failure(hangs if sync else hangs_too)
    app.on_failure(lambda failure: told.append(failure.task_id))

    @app.job(retries=0)
    async def fails() -> None:
        raise ValueError

    try:
        async with app.running():
            tasks = [await fails.enqueue() for _ in range(3)]
            for task in tasks:
                assert await ended(task) == "handler_error"
    finally:
        release.set()
    assert len(calls) == 1, "it is told nothing more until it returns"
    assert sorted(told) == [task.id for task in tasks]
    texts = [text for text in records.texts() if "on_failure" in text]
    assert "did not end within 0.05 s" in texts[0]
    count = re.compile(r"not told of (?:the last )?(\d+) failures")
    missed = [int(found[1]) for text in texts[1:] for found in count.finditer(text)]
    assert sum(missed) == 2, "counted in one line or in two, by when they came"


async def test_more_failures_than_hooks_can_take_are_dropped_and_counted(
    app: App, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "QUEUE", 5)
    told: list[Failure] = []
    go_on = asyncio.Event()

    @app.on_failure
    async def slow(failure: Failure) -> None:
        await go_on.wait()
        told.append(failure)

    @app.job(retries=0)
    async def fails() -> None:
        raise ValueError

    async with app.running():
        for task in await fails.enqueue_many([()] * 20):
            await ended(task)
        go_on.set()
    assert len(told) in (5, 6), "one may have been under way"
    assert any(f"was not told of {20 - len(told)} failures" in text for text in records.texts())


async def test_a_hook_that_takes_its_time_holds_up_no_other_and_is_waited_for_at_the_end(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_told: list[int] = []
    quick_told = asyncio.Queue[int]()
    go_on = asyncio.Event()

    @app.on_failure
    async def slow(failure: Failure) -> None:
        await go_on.wait()
        await asyncio.sleep(0.05)
        slow_told.append(failure.task_id)

    loop = asyncio.get_running_loop()
    app.on_failure(lambda failure: loop.call_soon_threadsafe(quick_told.put_nowait, failure.task_id))

    @app.job(retries=0)
    async def fails() -> None:
        raise ValueError

    async with app.running():
        tasks = await fails.enqueue_many([()] * 3)
        async with asyncio.timeout(20):
            assert {await quick_told.get() for _ in tasks} == {task.id for task in tasks}
        assert slow_told == []
        go_on.set()
    assert sorted(slow_told) == [task.id for task in tasks], "they were told though the process stops"


async def test_hooks_that_cannot_be_told_any_more_are_counted(
    app: App, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "CLOSE_TIMEOUT", 0.05)

    @app.on_failure
    async def hangs(failure: Failure) -> None:
        await asyncio.Event().wait()

    @app.job(retries=0)
    async def fails() -> None:
        raise ValueError

    async with app.running():
        for task in await fails.enqueue_many([()] * 3):
            await ended(task)
    assert any(text.endswith("hangs was not told of the last 3 failures") for text in records.texts())


async def test_what_fails_after_its_commit_is_no_failure_of_the_task(app: App, records: Records) -> None:
    told: list[Failure] = []
    app.on_failure(told.append)

    @app.job(retries=3)
    async def pay(big: bool) -> str:
        async with current_task().transaction():
            pass
        if not big:
            raise ValueError("after the commit")
        return "x" * 2_000_000

    async with app.running():
        for big in (False, True):
            task = await pay.enqueue(big)
            with pytest.raises(ResultLost):
                await task.result(timeout=20)
            assert (await task.status()).state == "succeeded"
    assert told == []
    assert ["succeeded by transaction() and failed after it" in text for text in records.texts()] == [True, True]
    assert {record.levelname for record in records.all} == {"WARNING"}


def test_a_hook_is_a_function(app: App) -> None:
    with pytest.raises(ValidationError, match="on_failure goes above a def"):
        app.on_failure("print")  # type: ignore[type-var]


# ── what handlers log ───────────────────────────────────────────────────────────────────────────────


async def test_what_a_handler_logs_says_for_which_task(app: App) -> None:
    records = Records()
    logger = logging.getLogger("tests.shop")
    logger.addHandler(records)
    logger.setLevel(logging.INFO)

    @app.job
    async def asynchronous() -> None:
        logger.info("async")
        await asyncio.gather(asyncio.create_task(aside()))

    async def aside() -> None:
        logger.info("aside")

    @app.job
    def synchronous() -> None:
        logger.info("sync", extra={"job": "their own"})

    @app.job(retries=0)
    async def fails() -> None:
        raise ValueError

    @app.on_failure
    def hook(failure: Failure) -> None:
        logger.info("hook")

    try:
        async with app.running():
            ids = {}
            for job in (asynchronous, synchronous):
                task = await job.enqueue()
                await task.result(timeout=10)
                ids[job.name] = task.id
            failed = await fails.enqueue()
            await ended(failed)
        logger.info("outside")
    finally:
        logger.removeHandler(records)
    assert [(r.getMessage(), r.job, r.task, r.attempt) for r in records.all] == [
        ("async", "asynchronous", ids["asynchronous"], 1),
        ("aside", "asynchronous", ids["asynchronous"], 1),
        ("sync", "their own", ids["synchronous"], 1),
        ("hook", "fails", failed.id, 1),
        ("outside", None, None, None),
    ]


async def test_arguments_that_cannot_be_read_are_left_out_of_the_failure(app: App, dsn: str) -> None:
    """Somebody wrote them with SQL."""
    told: list[Failure] = []
    app.on_failure(told.append)

    @app.job(retries=0)
    async def double(number: int) -> int:
        return 2 * number

    async with app.running():
        task = await double.using(delay="1h").enqueue(1)
        async with app.database.acquire() as conn:
            await conn.execute(
                "update mainspring.task set args = $2::text::jsonb, run_at = mainspring.now() where id = $1",
                task.id,
                '{"number": ' + "[" * 3000 + "]" * 3000 + "}",
            )
        await ended(task)
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0.01)
    assert (told[0].task_id, told[0].args) == (task.id, {})
