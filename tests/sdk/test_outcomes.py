"""What becomes of tasks: results, failures and their codes, retries, what handlers say of themselves, deadlines."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mainspring import (
    App,
    CancelTask,
    Fail,
    InvalidTransition,
    RetryAfter,
    Snooze,
    StoreUnavailable,
    Task,
    TaskFailed,
    TaskNotFound,
    ValidationError,
    WaitTimeout,
    current_task,
)
from mainspring.model.tasks.payload import MAX_ERROR
from mainspring.store.cluster.settings import database_id
from mainspring.store.postgres.database import Connection
from mainspring.store.tasks import tasks
from mainspring.store.views.task_views import AttemptView
from tests.conftest import eventually


async def failure(task: Task[Any]) -> TaskFailed:
    with pytest.raises(TaskFailed) as failed:
        await task.result(timeout=15)
    assert failed.value.task_id == task.id
    return failed.value


async def attempts(app: App, task: Task[Any]) -> list[AttemptView]:
    async with app.database.acquire() as conn:
        return await tasks.attempts(conn, task.id)


async def in_state(task: Task[Any], state: str) -> None:
    async def there() -> bool:
        return (await task.status()).state == state

    await eventually(there)


# ── results ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_result_is_what_the_handler_returned(app: App) -> None:
    @app.job
    async def of_async(value: Any) -> Any:
        return value

    @app.job
    def of_sync(value: Any) -> Any:
        return value

    async with app.running():
        values: list[Any] = [None, 0, "", [], {"a": [1, 2.5, "ü", None, True]}]
        for value in values:
            assert await (await of_async.enqueue(value)).result(timeout=10) == value
            assert await (await of_sync.enqueue(value)).result(timeout=10) == value


async def test_many_may_wait_for_one_result_and_later_ones_get_it_at_once(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def answer() -> int:
        await gate.wait()
        return 42

    async with app.running():
        task = await answer.enqueue()
        waiting = [asyncio.create_task(task.result()) for _ in range(5)]
        with pytest.raises(WaitTimeout, match=r"has not ended within 0\.05 s; it goes on") as late:
            await task.result(timeout=0.05)
        assert isinstance(late.value, TimeoutError)
        gate.set()
        assert await asyncio.gather(*waiting) == [42] * 5
        assert await task.result(timeout=20) == 42


async def test_a_result_is_seen_by_another_process(app: App, dsn: str) -> None:
    @app.job
    async def answer() -> int:
        return 42

    async with app.running(), App("elsewhere", dsn=dsn) as other:
        task = await answer.enqueue()
        assert await Task[int](other, task.id, "answer").result(timeout=10) == 42


async def test_a_task_that_never_was_is_not_found(app: App) -> None:
    async with app:
        nothing = Task[None](app, 999_999, "nothing")
        with pytest.raises(TaskNotFound, match="no task 999999"):
            await nothing.result(timeout=20)
        for ask in (nothing.status, nothing.cancel, nothing.retry):
            with pytest.raises(TaskNotFound, match="no task 999999"):
                await ask()


async def test_who_waits_is_told_when_the_application_closes(app: App) -> None:
    @app.job
    async def later() -> None: ...

    async with app:
        waiting = asyncio.create_task((await later.enqueue()).result())
        await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="the application closed"):
        async with asyncio.timeout(20):
            await waiting


async def test_what_is_not_json_is_no_result_and_not_tried_again(app: App) -> None:
    @app.job(retries=3, retry_delay=0)
    async def wrong() -> object:
        return object()

    async with app.running():
        task = await wrong.enqueue()
        failed = await failure(task)
        assert (failed.state, failed.error_code) == ("failed", "bad_result")
        assert "returned object, which cannot be stored: cannot be written as JSON (object is not" in failed.message
        assert (await task.status()).attempt == 1


async def test_a_result_that_is_too_large_is_refused_as_that(app: App) -> None:
    @app.job(retries=3, retry_delay=0)
    async def large() -> str:
        return "x" * 2_000_000

    @app.job(retries=0)
    async def large_progress() -> None:
        current_task().progress("x" * 2_000_000)

    @app.job(retries=0)
    async def large_checkpoint() -> None:
        current_task().checkpoint = "x" * 2_000_000

    said = "2,000,002 bytes of JSON; at most 1 MB. Store the data elsewhere and pass a reference"
    async with app.running():
        failed = await failure(await large.enqueue())
        assert failed.error_code == "bad_result"
        assert failed.message.endswith(f": large returned str, which cannot be stored: {said}")
        for job, what in ((large_progress, "progress"), (large_checkpoint, "checkpoint")):
            assert f"ValidationError: {what}: {said}" in (await failure(await job.enqueue())).message


async def test_a_status_tells_the_life_of_a_task(app: App) -> None:
    gate = asyncio.Event()

    @app.job(priority="low")
    async def slow(n: int) -> int:
        await gate.wait()
        return n

    async with app.running():
        task = await slow.enqueue(3)
        await in_state(task, "running")
        running = await task.status()
        assert (running.job, running.args, running.attempt, running.priority) == ("slow", {"n": 3}, 1, 2)
        assert running.started_at is not None
        assert running.finished_at is None
        gate.set()
        await task.result(timeout=10)
        ended = await task.status()
    assert (ended.state, ended.result, ended.error) == ("succeeded", 3, None)
    assert ended.finished_at is not None
    assert running.started_at == ended.started_at
    assert ended.created_at <= running.started_at <= ended.finished_at
    assert repr(task) == f"<Task {task.id} of slow>"


# ── failures and retries ────────────────────────────────────────────────────────────────────────────


async def test_a_failing_handler_is_tried_again_until_its_retries_are_used_up(app: App) -> None:
    ran: list[int] = []

    @app.job(retries=2, backoff="fixed", retry_delay="1ms")
    async def fails(word: str) -> None:
        ran.append(current_task().attempt)
        raise RuntimeError(f"no {word}")

    async with app.running():
        task = await fails.enqueue("luck")
        failed = await failure(task)
        assert (failed.state, failed.error_code) == ("failed", "handler_error")
        assert failed.message == f"task {task.id} failed: RuntimeError: no luck"
        assert [(a.number, a.state, a.error_code) for a in await attempts(app, task)] == [
            (number, "failed", "handler_error") for number in (1, 2, 3)
        ]
        error = (await task.status()).error
    assert ran == [1, 2, 3]
    assert error is not None
    assert 'raise RuntimeError(f"no {word}")' in error, "the trace tells where"
    assert "executors/python.py" not in error, "and begins in the handler"


async def test_each_attempt_waits_for_its_delay(app: App) -> None:
    @app.job(backoff=["100ms", "200ms"])
    async def fails() -> None:
        raise RuntimeError

    async with app.running():
        task = await fails.enqueue()
        await failure(task)
        rows = await attempts(app, task)
    assert len(rows) == 3
    for before, after, delay in zip(rows, rows[1:], (0.1, 0.2), strict=False):
        assert before.finished_at is not None
        assert after.started_at is not None
        assert delay - 0.01 <= (after.started_at - before.finished_at).total_seconds() < delay + 3


class Temporary(Exception): ...


class VeryTemporary(Temporary): ...


@pytest.mark.parametrize(
    ("options", "error", "runs"),
    [
        ({"retry_on": [Temporary]}, VeryTemporary, 2),
        ({"retry_on": ["Temporary"]}, Temporary, 2),
        ({"retry_on": [Temporary]}, ValueError, 1),
        ({"abort_on": [ValueError]}, UnicodeError, 1),
        ({"abort_on": [ValueError]}, Temporary, 2),
        ({"retry_on": [Temporary], "abort_on": [VeryTemporary]}, VeryTemporary, 1),
        ({"retry_on": ["timeout"]}, Temporary, 1),
        ({"abort_on": ["handler_error"]}, Temporary, 1),
    ],
)
async def test_retry_on_and_abort_on_choose_by_the_failure(
    app: App, options: dict[str, Any], error: type[Exception], runs: int
) -> None:
    @app.job(retries=1, retry_delay=0, **options)
    async def fails() -> None:
        raise error

    async with app.running():
        task = await fails.enqueue()
        assert (await failure(task)).error_code == "handler_error"
        assert (await task.status()).attempt == runs


async def test_a_failing_command_is_told_by_its_exit_code(app: App) -> None:
    shaky = app.command("shaky", "echo out; echo why >&2; exit 3", shell=True, retries=1, retry_delay=0, retry_on=[3])
    final = app.command("final", ["sh", "-c", "exit 4"], retries=3, abort_on=[4])
    absent = app.command("absent", ["/no/such/program"], retries=3)
    killed = app.command("killed", "kill -KILL $$", shell=True, retries=0)
    async with app.running():
        codes = {}
        for job in (shaky, final, absent, killed):
            task = await job.enqueue()
            failed = await failure(task)
            codes[job.name] = (failed.state, failed.error_code, (await task.status()).attempt)
    assert codes == {
        "shaky": ("failed", "exit_code", 2),
        "final": ("failed", "exit_code", 1),
        "absent": ("failed", "not_startable", 1),
        "killed": ("failed", "signal", 1),
    }


async def test_a_command_gets_its_arguments_as_json(app: App) -> None:
    command = app.command("echo", 'printf %s "$MAINSPRING_ARGS"', shell=True)
    async with app.running():
        task = await command.enqueue(day="2026-11-15", n=3)
        assert await task.result(timeout=10) == {"exit_code": 0}
        async with app.database.acquire() as conn:
            said = b"".join(piece.data for piece in await tasks.output(conn, task.id))
        assert json.loads(said) == {"n": 3, "day": "2026-11-15"}
        with pytest.raises(ValidationError, match="named arguments only"):
            await command.enqueue("2026-11-15")


@pytest.mark.parametrize("length", [MAX_ERROR, 5_000_000])
async def test_a_long_error_is_cut_and_says_so(app: App, length: int) -> None:
    @app.job(retries=0)
    async def fails() -> None:
        raise RuntimeError("begin" + "x" * length + "end\x00")

    async with app.running():
        task = await fails.enqueue()
        await failure(task)
        error = (await task.status()).error
    assert error is not None
    assert len(error) < MAX_ERROR + 100
    assert error.startswith("RuntimeError: beginxxx")
    assert "characters left out …" in error
    assert error.rstrip().endswith("end\ufffd")


def exits() -> None:
    sys.exit(3)


async def exits_async() -> None:
    sys.exit(3)


async def cancels_itself() -> None:
    raise asyncio.CancelledError


async def awaits_a_cancelled_task() -> None:
    other = asyncio.create_task(asyncio.sleep(60))
    other.cancel()
    await other


@pytest.mark.parametrize("function", [exits, exits_async, cancels_itself, awaits_a_cancelled_task])
async def test_whatever_a_handler_raises_ends_its_attempt_and_nothing_else(
    app: App, function: Callable[[], Any]
) -> None:
    odd = app.job(retries=0)(function)

    @app.job
    async def sound() -> int:
        return 1

    async with app.running():
        assert (await failure(await odd.enqueue())).error_code == "handler_error"
        assert await (await sound.enqueue()).result(timeout=10) == 1


async def test_a_job_without_a_handler_here_fails_by_name(app: App, dsn: str) -> None:
    class Twin(App):
        """The same application, an older release of it."""

    @app.job(retries=0)
    async def newer() -> None: ...

    async with app:
        task = await newer.enqueue()
        async with Twin("test", dsn=dsn, poll=0.1).running():
            assert (await failure(task)).error_code == "unknown_handler"


# ── what handlers say of themselves ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("raised", [True, False], ids=["raised", "returned"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_handler_says_what_becomes_of_its_task(app: App, raised: bool, is_async: bool) -> None:
    def say(what: Exception) -> Any:
        if raised:
            raise what
        return what

    def act(what: str) -> Any:
        attempt = current_task().attempt
        match what:
            case "retry" if attempt == 1:
                return say(RetryAfter("50ms", "not yet"))
            case "cancel":
                return say(CancelTask("gone"))
            case "fail":
                return say(Fail("bad input"))
        return attempt

    async def act_async(what: str) -> Any:
        return act(what)

    job = app.job(retries=1, retry_delay="1h")(act_async if is_async else act)
    async with app.running():
        retried, cancelled, failed = await job.enqueue_many(["retry", "cancel", "fail"])
        assert await retried.result(timeout=10) == 2
        first, second = await attempts(app, retried)
        assert (first.error_code, first.error) == ("retry_after", "not yet")
        assert first.finished_at is not None
        assert second.started_at is not None
        assert (second.started_at - first.finished_at).total_seconds() >= 0.04
        ended = await failure(cancelled)
        assert (ended.state, ended.error_code) == ("cancelled", "cancelled")
        assert ended.message.endswith(": gone")
        ended = await failure(failed)
        assert (ended.state, ended.error_code) == ("failed", "failed_for_good")
        assert ended.message.endswith(": bad input")
        assert (await failed.status()).attempt == 1


async def test_retry_after_uses_up_the_retries(app: App) -> None:
    @app.job(retries=1)
    async def never() -> None:
        raise RetryAfter(0)

    async with app.running():
        task = await never.enqueue()
        assert (await failure(task)).error_code == "retry_after"
        assert (await task.status()).attempt == 2


@pytest.mark.parametrize("raised", [True, False], ids=["raised", "returned"])
async def test_a_snooze_costs_no_attempt(app: App, raised: bool) -> None:
    ran: list[tuple[int, int]] = []

    @app.job(retries=0)
    async def waits() -> Any:
        ran.append((current_task().attempt, current_task().token))
        if len(ran) <= 3:
            if raised:
                raise Snooze("10ms")
            return Snooze("10ms")
        return "done"

    async with app.running():
        task = await waits.enqueue()
        assert await task.result(timeout=10) == "done"
        assert (await task.status()).attempt == 1
        assert [a.error_code for a in await attempts(app, task)] == ["snoozed"] * 3 + [None]
    assert [attempt for attempt, _ in ran] == [1, 1, 1, 1]
    tokens = [token for _, token in ran]
    assert tokens == sorted(set(tokens)), "each run has a token of its own, larger than the one before"


def test_a_bad_delay_is_refused_where_it_is_written() -> None:
    for control in (RetryAfter, Snooze):
        with pytest.raises(ValidationError) as refused:
            control("soon")
        assert refused.value.field == "delay"


# ── current_task ────────────────────────────────────────────────────────────────────────────────────


def test_current_task_is_for_handlers() -> None:
    with pytest.raises(RuntimeError, match="no task is running here"):
        current_task()


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
async def test_a_handler_knows_its_task(app: App, is_async: bool, conn: Connection) -> None:
    def know(n: int) -> dict[str, Any]:
        task = current_task()
        return {
            "id": task.id,
            "job": task.job,
            "attempt": task.attempt,
            "args": task.args,
            "key": task.idempotency_key,
            "late": task.lateness >= 0,
            "cancelled": task.cancelled,
            "checkpoint": task.checkpoint,
        }

    async def know_async(n: int) -> dict[str, Any]:
        return know(n)

    job = app.job(name="know")(know_async if is_async else know)
    async with app.running():
        task = await job.enqueue(7)
        assert await task.result(timeout=10) == {
            "id": task.id,
            "job": "know",
            "attempt": 1,
            "args": {"n": 7},
            "key": f"mainspring-{(await database_id(conn)).hex}-{task.id}",
            "late": True,
            "cancelled": False,
            "checkpoint": None,
        }


async def test_progress_is_seen_while_the_task_runs(app: App) -> None:
    gate = asyncio.Event()

    @app.job
    async def slow() -> None:
        current_task().progress(0.1)
        current_task().progress({"done": 3, "of": 10})
        await gate.wait()

    async with app.running():
        task = await slow.enqueue()

        async def told() -> bool:
            return bool((await task.status()).progress == {"done": 3, "of": 10})

        await eventually(told)
        gate.set()
        await task.result(timeout=10)
        assert (await task.status()).progress == {"done": 3, "of": 10}


async def test_a_checkpoint_is_there_in_the_next_attempt(app: App) -> None:
    @app.job(retries=3, retry_delay=0)
    def copies() -> list[Any]:
        task = current_task()
        seen = task.checkpoint or []
        if task.attempt <= 2:
            task.checkpoint = [*seen, task.attempt]
            raise RuntimeError("again")
        return list(seen)

    async with app.running():
        task = await copies.enqueue()
        assert await task.result(timeout=10) == [1, 2]


@pytest.mark.parametrize("value", ["a\x00b", float("nan"), 2**60, object(), "\ud800", "x" * 2_000_000])
async def test_what_json_cannot_hold_is_no_progress_and_harms_nobody(app: App, value: Any) -> None:
    @app.job(retries=0)
    async def wrong(what: str) -> None:
        if what == "progress":
            current_task().progress(value)
        else:
            current_task().checkpoint = value

    @app.job
    async def sound() -> int:
        return 1

    async with app.running():
        for what in ("progress", "checkpoint"):
            failed = await failure(await wrong.enqueue(what))
            assert failed.error_code == "handler_error"
            assert f"ValidationError: {what}: " in failed.message
        assert await (await sound.enqueue()).result(timeout=10) == 1


# ── deadlines ───────────────────────────────────────────────────────────────────────────────────────


async def on_the_loop() -> None:
    await asyncio.sleep(60)


def in_a_thread() -> None:
    while True:
        time.sleep(0.01)


async def cleaning_up_badly() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        raise RuntimeError("while it was stopped")


@pytest.mark.parametrize("function", [on_the_loop, in_a_thread, cleaning_up_badly])
async def test_a_timeout_below_a_second_ends_the_attempt_in_time(app: App, function: Callable[[], Any]) -> None:
    job = app.job(retries=1, retry_delay=0, timeout="200ms")(function)
    async with app.running():
        task = await job.enqueue()
        failed = await failure(task)
        assert (failed.state, failed.error_code) == ("timed_out", "timeout")
        assert failed.message.endswith("did not end within its timeout of 0.2 s")
        rows = await attempts(app, task)
    assert [row.state for row in rows] == ["timed_out", "timed_out"]
    for row in rows:
        assert row.started_at is not None
        assert row.finished_at is not None
        # The clock of the agent follows the database's, by a few milliseconds during an attempt.
        assert 0.15 <= (row.finished_at - row.started_at).total_seconds() < 30


async def test_a_command_that_outlives_its_timeout_is_ended(app: App) -> None:
    sleeper = app.command("sleeper", ["sleep", "60"], retries=0, timeout=0.2)
    async with app.running():
        task = await sleeper.enqueue()
        assert (await failure(task)).state == "timed_out"
        status = await task.status()
    assert status.started_at is not None
    assert status.finished_at is not None
    assert 0.15 <= (status.finished_at - status.started_at).total_seconds() < 30


async def test_the_event_loop_goes_on_while_sync_handlers_block(app: App) -> None:
    gate = threading.Event()

    @app.job
    def blocks() -> str:
        assert gate.wait(timeout=60)
        return threading.current_thread().name

    @app.job
    async def quick() -> int:
        return 1

    async with app.running(threads=4):
        blocked = [await blocks.enqueue() for _ in range(4)]
        for task in blocked:
            await in_state(task, "running")
        for _ in range(20):
            assert await (await quick.enqueue()).result(timeout=20) == 1
        assert [(await task.status()).state for task in blocked] == ["running"] * 4
        gate.set()
        names = {await task.result(timeout=10) for task in blocked}
    assert len(names) == 4


# ── again ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_person_may_run_a_failed_task_again(app: App) -> None:
    works = False

    @app.job(retries=1, retry_delay=0)
    async def shaky() -> int:
        if not works:
            raise RuntimeError("not yet")
        return current_task().attempt

    async with app.running():
        task = await shaky.enqueue()
        await failure(task)
        with pytest.raises(InvalidTransition, match="nothing to cancel"):
            await task.cancel()
        works = True
        await task.retry()
        assert await task.result(timeout=10) == 1, "attempts are counted anew"
        assert [a.state for a in await attempts(app, task)] == ["failed", "failed", "succeeded"]
        with pytest.raises(InvalidTransition, match="only one that ended without success"):
            await task.retry()


async def test_a_task_that_is_under_way_cannot_be_run_again(app: App, conn: Connection) -> None:
    @app.job
    async def later() -> None: ...

    async with app:
        task = await later.using(delay="1h").enqueue()
        with pytest.raises(InvalidTransition, match="is pending"):
            await task.retry()
    assert await conn.fetchval("select count(*) from mainspring.task") == 1
