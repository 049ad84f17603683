"""Python handlers: on the loop and in threads, what they may say and how they are stopped."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from mainspring.agent.attempt import Attempt, AttemptFailed
from mainspring.agent.context import CancelTask, Control, Fail, RetryAfter, Snooze, TaskCancelled, current_task
from mainspring.agent.executors.python import Handler, PythonExecutor
from mainspring.errors import ValidationError
from mainspring.model.messages import Armed
from mainspring.model.tasks.jobs import Definition, Job, Python
from mainspring.sdk.signature import Signature, encode_result

colour: ContextVar[str] = ContextVar("colour", default="none")


class Notes:
    """Records reports."""

    def __init__(self) -> None:
        self.notes: list[tuple[str | None, str | None]] = []

    def output(self, attempt: Attempt, stream: int, data: bytes) -> None:
        raise AssertionError("a handler has no output")

    def note(self, attempt: Attempt, progress: str | None, checkpoint: str | None, healthy: bool | None = None) -> None:
        self.notes.append((progress, checkpoint))


class Bench:
    def __init__(self, threads: int) -> None:
        self.handlers: dict[str, Handler] = {}
        self.executor = PythonExecutor(self.handlers, None, threads)
        self.reports = Notes()

    def attempt(
        self, function: Callable[..., Any], args: str = "{}", *, checkpoint: str | None = None, grace: float = 5.0
    ) -> Attempt:
        name = f"handler{len(self.handlers)}"
        self.handlers[name] = Handler(
            name,
            function,
            inspect.iscoroutinefunction(function),
            Signature(name, function).decode,
            encode_result,
        )
        job = Job(1, name, 1, 1, Definition(Python(name), grace=grace))
        attempt = Attempt(Armed(42, 7, 1, 2, 100.0, args, checkpoint), job, self.reports, "d1")
        attempt.started_at = 100.25
        return attempt

    async def run(self, function: Callable[..., Any], args: str = "{}", **options: Any) -> str | None:
        return await asyncio.wait_for(self.start(self.attempt(function, args, **options)), 10)

    def start(self, attempt: Attempt) -> asyncio.Task[str | None]:
        self.executor.prepare(attempt)
        task = asyncio.ensure_future(self.executor.run(attempt))
        attempt.handle = task  # type: ignore[assignment]
        return task

    async def failure(self, function: Callable[..., Any], args: str = "{}") -> AttemptFailed:
        with pytest.raises(AttemptFailed) as failed:
            await self.run(function, args)
        return failed.value


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(threads=4)
    yield bench
    bench.executor.close()


async def a_double(number: int, *, times: int = 2) -> int:
    await asyncio.sleep(0)
    return number * times


def s_double(number: int, *, times: int = 2) -> int:
    return number * times


both = pytest.mark.parametrize("double", [a_double, s_double], ids=["async", "sync"])


@both
async def test_a_handler_gets_its_arguments_and_gives_its_result(bench: Bench, double: Callable[..., Any]) -> None:
    assert await bench.run(double, '{"number": 21}') == "42"
    assert await bench.run(double, '{"number": 21, "times": 3}') == "63"


async def test_nothing_returned_is_no_result(bench: Bench) -> None:
    async def quiet() -> None: ...

    assert await bench.run(quiet) is None


@both
@pytest.mark.parametrize("args", ["{}", '{"number": "x"}', '{"number": 1, "colour": 2}', '{"number": null}'])
async def test_arguments_that_do_not_fit_fail_for_good(bench: Bench, double: Callable[..., Any], args: str) -> None:
    failed = await bench.failure(double, args)
    assert (failed.code, failed.final) == ("bad_arguments", True)
    assert failed.message.startswith("handler0: ")


async def test_a_handler_that_this_agent_does_not_have_is_named(bench: Bench) -> None:
    attempt = bench.attempt(a_double)
    bench.handlers.clear()
    with pytest.raises(AttemptFailed, match="no handler 'handler0'") as failed:
        await bench.start(attempt)
    assert (failed.value.code, failed.value.final) == ("unknown_handler", False), "another agent may have it"


@pytest.mark.parametrize(
    "value", [float("nan"), object(), 2**60, "a\x00b", "\ud800", {"a": {1, object()}}], ids=range(6)
)
async def test_a_result_that_is_not_json_fails_for_good(bench: Bench, value: object) -> None:
    async def a() -> object:
        return value

    def s() -> object:
        return value

    for function in (a, s):
        failed = await bench.failure(function)
        assert (failed.code, failed.final) == ("bad_result", True)


# ── failures ────────────────────────────────────────────────────────────────────────────────────


class Outer:
    class TooBusy(ConnectionError): ...


async def test_a_failure_carries_the_names_of_its_classes(bench: Bench) -> None:
    async def fails() -> None:
        raise Outer.TooBusy("try later")

    failed = await bench.failure(fails)
    assert failed.code == "handler_error"
    assert failed.labels[0] == "handler_error"
    for label in (
        "TooBusy",
        f"{__name__}.Outer.TooBusy",
        "ConnectionError",
        "OSError",
        "builtins.OSError",
        "Exception",
    ):
        assert label in failed.labels
    assert "object" not in failed.labels
    assert not failed.final


async def test_a_failure_is_told_last_line_first_and_where(bench: Bench) -> None:
    def fails() -> None:
        raise KeyError("day")

    message = (await bench.failure(fails)).message
    headline, _, story = message.partition("\n")
    assert headline == "KeyError: 'day'"
    assert 'raise KeyError("day")' in story


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), StopIteration(1)], ids=repr)
async def test_no_exception_of_a_handler_reaches_the_agent(bench: Bench, error: BaseException) -> None:
    async def a() -> None:
        raise error

    failed = await bench.failure(a)
    assert failed.code == "handler_error"


async def test_a_handler_that_awaits_something_cancelled_has_failed(bench: Bench) -> None:
    async def awaits() -> None:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    assert "CancelledError" in (await bench.failure(awaits)).labels


@pytest.mark.parametrize("control", [RetryAfter(1), Snooze(1), CancelTask(), Fail("x")], ids=lambda c: type(c).__name__)
async def test_a_control_is_raised_or_returned(bench: Bench, control: Control) -> None:
    async def raises() -> None:
        raise control

    async def returns() -> Control:
        return control

    def raises_in_a_thread() -> None:
        raise control

    def returns_from_a_thread() -> Control:
        return control

    for function in (raises, returns, raises_in_a_thread, returns_from_a_thread):
        with pytest.raises(type(control)) as raised:
            await bench.run(function)
        assert raised.value is control


# ── where they run ──────────────────────────────────────────────────────────────────────────────


async def test_an_async_handler_runs_on_the_loop_and_a_sync_one_in_a_thread(bench: Bench) -> None:
    async def a() -> str:
        return threading.current_thread().name

    def s() -> str:
        return threading.current_thread().name

    assert threading.current_thread().name in (await bench.run(a) or "")
    assert "mainspring-handler" in (await bench.run(s) or "")


async def test_the_loop_goes_on_while_a_sync_handler_blocks(bench: Bench) -> None:
    release = threading.Event()

    def blocks() -> bool:
        return release.wait(10)

    running = bench.start(bench.attempt(blocks))
    assert await bench.run(a_double, '{"number": 1}') == "2"
    assert not running.done()
    release.set()
    assert await running == "true"


async def test_each_attempt_has_context_of_its_own(bench: Bench) -> None:
    colour.set("caller's")

    async def a(name: str) -> str:
        before = colour.get()
        colour.set(name)
        await asyncio.sleep(0)
        return f"{before} {colour.get()} {current_task().id}"

    def s(name: str) -> str:
        before = colour.get()
        colour.set(name)
        return f"{before} {colour.get()} {current_task().id}"

    results = await asyncio.gather(
        *(bench.run(function, f'{{"name": "{name}"}}') for function in (a, s) for name in ("red", "blue"))
    )
    assert results == [f'"caller\'s {name} 42"' for name in ("red", "blue")] * 2
    assert colour.get() == "caller's"
    with pytest.raises(RuntimeError, match="no task is running"):
        current_task()


# ── stopping ────────────────────────────────────────────────────────────────────────────────────


async def test_an_async_handler_that_is_stopped_can_clean_up(bench: Bench) -> None:
    cleaned = asyncio.Event()
    began = asyncio.Event()

    async def waits() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    attempt = bench.attempt(waits)
    running = bench.start(attempt)
    await began.wait()
    attempt.stop("cancelled")
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned.is_set()


async def test_a_sync_handler_is_interrupted_between_two_steps(bench: Bench) -> None:
    began, ended = threading.Event(), threading.Event()

    def spins() -> None:
        began.set()
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    attempt = bench.attempt(spins)
    running = bench.start(attempt)
    await asyncio.to_thread(began.wait, 5)
    attempt.stop("timeout")
    with pytest.raises((asyncio.CancelledError, TaskCancelled)):
        await asyncio.wait_for(running, 20)
    assert ended.is_set()


async def test_a_sync_handler_that_does_not_let_go_is_left_after_its_grace(bench: Bench) -> None:
    began, release = threading.Event(), threading.Event()

    def blocks() -> None:
        began.set()
        release.wait(10)

    attempt = bench.attempt(blocks, grace=0.01)
    running = bench.start(attempt)
    await asyncio.to_thread(began.wait, 5)
    attempt.stop("cancelled")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 20)
    release.set()


async def test_a_sync_handler_that_waits_for_a_thread_never_begins_once_it_is_stopped() -> None:
    bench = Bench(threads=1)
    release, begun = threading.Event(), []

    def blocks() -> None:
        release.wait(10)

    def begins() -> None:
        begun.append(1)

    first = bench.start(bench.attempt(blocks))
    attempt = bench.attempt(begins, grace=0.01)
    second = bench.start(attempt)
    await asyncio.sleep(0)
    attempt.stop("cancelled")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(second, 20)
    release.set()
    await first
    assert await bench.run(s_double, '{"number": 1}') == "2", "the thread is free again"
    assert begun == []
    bench.executor.close()


async def test_the_interruption_of_one_handler_does_not_hit_the_next_in_its_thread() -> None:
    bench = Bench(threads=1)
    for _ in range(20):
        began = threading.Event()

        def ends(began: threading.Event = began) -> None:
            began.set()

        attempt = bench.attempt(lambda: ends(), grace=1.0)
        running = bench.start(attempt)
        await asyncio.to_thread(began.wait, 5)
        attempt.stop("cancelled")
        await asyncio.wait([running], timeout=5)
        if not running.cancelled():
            running.exception()
        assert await bench.run(s_double, '{"number": 4}') == "8"
    bench.executor.close()


async def test_a_handler_can_ask_whether_it_is_to_stop(bench: Bench) -> None:
    began, asked = threading.Event(), threading.Event()

    def asks() -> None:
        began.set()
        asked.wait(20)
        task = current_task()
        assert task.cancelled
        task.raise_if_cancelled()

    attempt = bench.attempt(asks)
    running = bench.start(attempt)
    await asyncio.to_thread(began.wait, 5)
    attempt.stopping = "shutdown"  # stopped, and not interrupted
    asked.set()
    with pytest.raises(TaskCancelled):
        await running


# ── current_task() ──────────────────────────────────────────────────────────────────────────────


async def test_a_handler_knows_who_it_is(bench: Bench) -> None:
    async def tells(day: str) -> list[object]:
        task = current_task()
        task.raise_if_cancelled()
        return [task.id, task.token, task.job, task.attempt, task.args, task.idempotency_key, task.lateness]

    expected = '[42,7,"handler0",2,{"day":"x"},"mainspring-d1-42",0.25]'
    assert await bench.run(tells, '{"day": "x"}') == expected


async def test_progress_and_checkpoint_are_told_and_a_checkpoint_comes_back(bench: Bench) -> None:
    async def goes_on() -> object:
        task = current_task()
        before = task.checkpoint
        task.progress({"done": 1})
        task.checkpoint = {"at": 2}
        return [before, task.checkpoint]

    assert await bench.run(goes_on, checkpoint='{"at":1}') == '[{"at":1},{"at":2}]'
    assert bench.reports.notes == [('{"done":1}', None), (None, '{"at":2}')]


async def test_a_checkpoint_can_be_taken_back(bench: Bench) -> None:
    async def starts_over() -> object:
        current_task().checkpoint = None
        return [current_task().checkpoint]

    assert await bench.run(starts_over, checkpoint='{"at":1}') == "[null]"
    assert bench.reports.notes == [(None, "null")]


@pytest.mark.parametrize(
    "value", ["a\x00b", float("nan"), object(), 2**60, "\ud800", "x" * 2**20], ids=lambda v: ascii(v)[:9]
)
async def test_what_the_database_cannot_hold_is_refused_where_it_is_said(bench: Bench, value: object) -> None:
    """In the handler, with its own traceback; in the recorder it would stop the server."""

    async def progresses() -> None:
        with pytest.raises(ValidationError, match=r"^progress: "):
            current_task().progress(value)
        with pytest.raises(ValidationError, match=r"^checkpoint: "):
            current_task().checkpoint = value

    await bench.run(progresses)
    assert bench.reports.notes == []


async def test_without_a_database_there_is_no_transaction(bench: Bench) -> None:
    async def commits() -> None:
        current_task().transaction()

    assert "transaction() needs a database: start the agent with --dsn" in (await bench.failure(commits)).message
