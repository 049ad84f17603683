"""Chunks: attempts that one call of a handler runs; each has its own outcome and its own end."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from mainspring import (
    CancelTask,
    CurrentTasks,
    Fail,
    LogContext,
    RetryAfter,
    Snooze,
    TaskCancelled,
    current_task,
    current_tasks,
)
from mainspring.agent import attempt as attempt_module
from mainspring.agent.connection.outbox import Outbox
from mainspring.agent.executors.python import Handler, PythonExecutor
from mainspring.agent.run import durations as durations_module
from mainspring.agent.run.failures import Failures
from mainspring.agent.run.hooks import Failure
from mainspring.agent.run.runner import REFUSE_AFTER, Runner
from mainspring.agent.timing.timers import Timers
from mainspring.model.messages import Armed, AttemptId, Ending, Finished, Progress, Refused, Started
from mainspring.model.tasks.jobs import Definition, Job, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState
from mainspring.sdk.chunk_signature import ChunkSignature
from mainspring.sdk.signature import Signature, encode_result
from mainspring.wire.clock import Clock, boottime

ONCE = Retry(retries=0)
CANCELLED = ("cancelled", "cancelled")
DONE = ("succeeded", None)


class Bench:
    """A runner with the executor of handlers, and all its parts but the channel."""

    def __init__(self, slots: int = 3) -> None:
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.outbox = Outbox(self.clock)
        self.handlers: dict[str, Handler] = {}
        self.executor = PythonExecutor(self.handlers, None, 4)
        self.confirmed = asyncio.Event()
        self.failures = Failures()
        self.lapsed = False
        self.runner = Runner(
            slots,
            self.clock,
            self.timers,
            self.timers,
            self.outbox,
            {Python: self.executor},
            self._confirm,
            lambda now: self.lapsed,
            self.failures,
        )
        self.reports: list[Any] = []

    async def _confirm(self) -> None:
        self.told()
        await self.confirmed.wait()

    def handle(self, function: Callable[..., Any], *, chunks: bool = True) -> None:
        signature = ChunkSignature("load", function) if chunks else Signature("load", function)
        is_async = inspect.iscoroutinefunction(function)
        self.handlers["load"] = Handler("load", function, is_async, signature.decode, encode_result, chunks)

    def arm(self, *tasks: int, chunk: int | None = 3, wait: float = 60.0, version: int = 1, **more: Any) -> None:
        """Tasks whose one argument is their number."""
        of_armed = ("attempt", "careful", "priority", "args", "due", "token", "expires", "options")
        given = {name: more.pop(name) for name in of_armed if name in more}
        job = Job(1, "load", version, 1, Definition(Python("load", (), chunk, wait), **{"retry": ONCE, **more}))
        armed = [
            Armed(
                *(task, given.get("token", task * 10), 1, given.get("attempt", 1)),
                fire_at=self.clock.now() + given.get("due", 0.0),
                args=given.get("args", f'{{"numbers": {task}}}'),
                careful=given.get("careful", False),
                priority=given.get("priority", 5),
                options=given.get("options"),
                expires_at=self.clock.now() + given["expires"] if "expires" in given else None,
            )
            for task in tasks
        ]
        self.runner.arm(armed, {1: job})

    def cancel(self, *tasks: int, **how: bool) -> None:
        self.runner.cancel([AttemptId(task, task * 10) for task in tasks], **how)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0.001)

    async def pass_time(self, seconds: float) -> None:
        self.clock.offset += seconds
        self.timers.clock_changed()
        await asyncio.sleep(0.01)  # the wake timer is a descriptor that the loop must poll
        await self.settle()

    def told(self) -> list[Any]:
        self.reports += self.outbox.take()
        return self.reports

    def endings(self) -> list[Ending]:
        return [ending for report in self.told() if isinstance(report, Finished) for ending in report.endings]

    def ended(self) -> dict[int, tuple[str, str | None]]:
        return {ending.task: (ending.state.label, ending.code) for ending in self.endings()}

    def results(self) -> dict[int, str | None]:
        return {ending.task: ending.result for ending in self.endings()}

    def refused(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for report in self.told():
            if isinstance(report, Refused):
                found.setdefault(report.reason, []).extend(attempt.task for attempt in report.attempts)
        return found

    def started(self) -> list[int]:
        return [start.task for report in self.told() if isinstance(report, Started) for start in report.starts]


class Loader:
    """A handler that notes its calls and waits until it is let go."""

    def __init__(self, outcome: Callable[[int], Any] = lambda number: number * 2) -> None:
        self.calls: list[list[int]] = []
        self.cancelled: list[int] = []
        self.gate = asyncio.Event()
        self.outcome = outcome

    async def __call__(self, numbers: list[int]) -> list[Any]:
        self.calls.append(list(numbers))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(len(numbers))
            raise
        return [self.outcome(number) for number in numbers]

    def function(self) -> Callable[..., Any]:
        async def load(numbers: list[int]) -> list[Any]:
            return await self(numbers)

        return load


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.runner.lose_all(0.0)
    bench.runner.close()
    bench.executor.close()
    bench.timers.close()


@pytest.fixture
def loader(bench: Bench) -> Loader:
    loader = Loader()
    bench.handle(loader.function())
    return loader


@pytest.fixture
def open_loader(loader: Loader) -> Loader:
    loader.gate.set()
    return loader


# ── when a chunk begins ─────────────────────────────────────────────────────────────────────────


async def test_a_full_chunk_begins_at_once_and_gives_each_its_own_result(bench: Bench, open_loader: Loader) -> None:
    bench.arm(1, 2, 3)
    await bench.settle()
    assert open_loader.calls == [[1, 2, 3]]
    assert bench.results() == {1: "2", 2: "4", 3: "6"}
    assert {(ending.token, ending.attempt) for ending in bench.endings()} == {(10, 1), (20, 1), (30, 1)}
    assert bench.runner.empty.is_set()


async def test_a_chunk_that_is_not_full_begins_when_its_first_task_has_waited(
    bench: Bench, open_loader: Loader
) -> None:
    bench.arm(1, wait=0.2)
    await bench.pass_time(0.15)
    bench.arm(2, wait=0.2)
    await bench.settle()
    assert open_loader.calls == []
    await bench.pass_time(0.06)
    assert open_loader.calls == [[1, 2]], "the second one does not start the wait anew"
    bench.arm(3, wait=0.2)
    await bench.pass_time(0.15)
    assert open_loader.calls == [[1, 2]]
    await bench.pass_time(0.06)
    assert open_loader.calls == [[1, 2], [3]]


async def test_without_a_wait_those_that_come_together_are_one_chunk(bench: Bench, open_loader: Loader) -> None:
    bench.arm(1, 2, wait=0.0)
    await bench.until(lambda: open_loader.calls)
    assert open_loader.calls == [[1, 2]]


async def test_a_task_that_is_not_due_waits_for_its_time_and_then_for_its_chunk(
    bench: Bench, open_loader: Loader
) -> None:
    bench.arm(1, due=10.0, wait=0.2)
    await bench.pass_time(9.9)
    assert open_loader.calls == []
    await bench.pass_time(0.2)
    assert open_loader.calls == []
    await bench.pass_time(0.2)
    assert open_loader.calls == [[1]]
    [ending] = bench.endings()
    assert ending.armed_ahead is not None
    assert ending.armed_ahead > 9.0


async def test_more_tasks_than_fit_make_several_chunks_each_in_one_slot(bench: Bench, loader: Loader) -> None:
    bench.arm(*range(1, 9), wait=0.0)
    await bench.until(lambda: len(loader.calls) == 3)
    assert loader.calls == [[1, 2, 3], [4, 5, 6], [7, 8]]
    assert bench.runner.running == 3


async def test_while_it_waits_for_a_slot_more_tasks_join(bench: Bench, loader: Loader) -> None:
    bench.arm(*range(1, 10))
    bench.arm(10, wait=0.0)
    await bench.pass_time(0.01)
    assert len(loader.calls) == 3, "all slots are taken"
    bench.arm(11, wait=0.0)
    loader.gate.set()
    await bench.until(lambda: len(loader.calls) == 4)
    assert loader.calls[3] == [10, 11]


async def test_a_more_important_task_does_not_wait_behind_a_chunk_that_waits(bench: Bench, loader: Loader) -> None:
    bench.arm(*range(1, 10))
    bench.arm(10, wait=0.0)
    await bench.pass_time(0.01)
    bench.arm(11, wait=0.0, priority=9)
    await bench.pass_time(0.01)
    loader.gate.set()
    await bench.until(lambda: len(loader.calls) == 5)
    assert loader.calls[3:] == [[11], [10]]


async def test_a_new_version_of_the_job_begins_a_chunk_of_its_own(bench: Bench, open_loader: Loader) -> None:
    bench.arm(1, wait=0.2)
    bench.arm(2, wait=0.2, version=2)
    await bench.pass_time(0.25)
    assert open_loader.calls == [[1], [2]]


async def test_a_chunk_that_waited_too_long_for_a_slot_is_given_back(bench: Bench, loader: Loader) -> None:
    bench.arm(*range(1, 10))
    bench.arm(10, 11, wait=0.0)
    await bench.pass_time(0.01)
    bench.runner.refuse_overdue(boottime() + REFUSE_AFTER + 1)
    assert bench.refused() == {"full": [10, 11]}
    loader.gate.set()
    await bench.until(lambda: len(bench.ended()) == 9)
    assert len(loader.calls) == 3
    bench.arm(12, wait=0.0, token=120)
    await bench.until(lambda: len(loader.calls) == 4)
    assert loader.calls[3] == [12], "none of those that were given back is there"


# ── outcomes ────────────────────────────────────────────────────────────────────────────────────


async def test_an_exception_in_the_list_fails_its_own_task_alone(bench: Bench) -> None:
    loader = Loader(lambda number: ValueError("bad row") if number == 2 else number)
    loader.gate.set()
    bench.handle(loader.function())
    bench.arm(1, 2, 3)
    await bench.settle()
    assert bench.ended() == {1: DONE, 2: ("failed", "handler_error"), 3: DONE}
    failed = next(ending for ending in bench.endings() if ending.task == 2)
    assert failed.error is not None
    assert failed.error.startswith("ValueError: bad row")
    assert "builtins.ValueError" in failed.labels
    assert not failed.final


async def test_an_exception_that_was_caught_is_stored_with_its_traceback(bench: Bench) -> None:
    def bad_row() -> None:
        raise KeyError("name")

    async def load(numbers: list[int]) -> list[Any]:
        try:
            bad_row()
        except KeyError as error:
            return [error]
        return []

    bench.handle(load)
    bench.arm(1, chunk=1)
    await bench.settle()
    [ending] = bench.endings()
    assert ending.error is not None
    assert "in bad_row" in ending.error
    assert "in load" in ending.error


async def test_a_control_in_the_list_is_for_its_own_task(bench: Bench) -> None:
    controls = {1: Snooze(5), 2: RetryAfter(7), 3: CancelTask("gone"), 4: Fail("for good"), 5: 50}
    loader = Loader(lambda number: controls[number])
    loader.gate.set()
    bench.handle(loader.function())
    bench.arm(1, 2, 3, 4, 5, chunk=5)
    await bench.settle()
    assert {ending.task: (ending.state.label, ending.snooze, ending.retry_after) for ending in bench.endings()} == {
        1: ("skipped", 5.0, None),
        2: ("failed", None, 7.0),
        3: ("cancelled", None, None),
        4: ("failed", None, None),
        5: ("succeeded", None, None),
    }


@pytest.mark.parametrize(
    ("raised", "code", "snooze"), [(ValueError("no"), "handler_error", None), (Snooze(3), "snoozed", 3.0)]
)
async def test_what_the_call_raises_is_for_all(
    bench: Bench, raised: Exception, code: str, snooze: float | None
) -> None:
    async def load(numbers: list[int]) -> None:
        raise raised

    bench.handle(load)
    bench.arm(1, 2, 3)
    await bench.settle()
    assert [(ending.task, ending.code, ending.snooze) for ending in bench.endings()] == [
        (task, code, snooze) for task in (1, 2, 3)
    ]


async def test_a_handler_that_returns_nothing_has_succeeded_for_all(bench: Bench) -> None:
    async def load(numbers: list[int]) -> None:
        numbers.clear()  # the list is its own

    bench.handle(load)
    bench.arm(1, 2, 3)
    await bench.settle()
    assert bench.results() == {1: None, 2: None, 3: None}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([1, 2], "load returned 2 results for 3 tasks; which is whose cannot be known"),
        ([1] * 4, "load returned 4 results for 3 tasks; which is whose cannot be known"),
        ("abc", "load returned str for a chunk; it must return a list of 3 results, one for each task, or None"),
        ({1: 2}, "load returned dict for a chunk; it must return a list of 3 results, one for each task, or None"),
    ],
)
async def test_a_return_value_that_cannot_be_shared_out_fails_all(bench: Bench, value: Any, error: str) -> None:
    async def load(numbers: list[int]) -> Any:
        return value

    bench.handle(load)
    bench.arm(1, 2, 3)
    await bench.settle()
    assert [(ending.code, ending.error, ending.final) for ending in bench.endings()] == [
        ("bad_result", error, True)
    ] * 3


async def test_a_result_that_cannot_be_stored_fails_its_own_task_alone(bench: Bench) -> None:
    loader = Loader(lambda number: object() if number == 2 else number)
    loader.gate.set()
    bench.handle(loader.function())
    bench.arm(1, 2, 3)
    await bench.settle()
    assert bench.ended() == {1: DONE, 2: ("failed", "bad_result"), 3: DONE}


async def test_arguments_that_do_not_fit_fail_their_own_task_and_the_others_are_called(
    bench: Bench, open_loader: Loader
) -> None:
    bench.arm(1, 2)
    bench.arm(3, args='{"numbers": "three"}')
    bench.arm(4)
    await bench.settle()
    assert bench.ended() == {1: DONE, 2: DONE, 3: ("failed", "bad_arguments"), 4: DONE}
    assert open_loader.calls == [[1, 2, 4]]


async def test_the_last_attempt_of_a_task_goes_alone_so_that_no_bad_one_fails_it_for_good(
    bench: Bench, open_loader: Loader
) -> None:
    retry = Retry(retries=2)
    bench.arm(1, 2, 3, attempt=2, retry=retry)
    bench.arm(4, 5, 6, attempt=3, retry=retry)
    bench.arm(7, attempt=2, retry=retry, options='{"retries": 1}')
    await bench.settle()
    assert sorted(open_loader.calls) == [[1, 2, 3], [4], [5], [6], [7]]


async def test_a_task_that_crashed_its_agent_goes_alone_once_its_start_is_durable(
    bench: Bench, open_loader: Loader
) -> None:
    bench.arm(1, 2, 3, careful=True)
    await bench.settle()
    assert open_loader.calls == []
    assert sorted(bench.started()) == [1, 2, 3]
    bench.confirmed.set()
    await bench.settle()
    assert sorted(open_loader.calls) == [[1], [2], [3]]


async def test_starts_are_durable_for_all_where_they_must_be(bench: Bench, open_loader: Loader) -> None:
    bench.arm(1, 2, 3, retry=Retry(retries=0, abort_on=("lost",)))
    await bench.settle()
    assert open_loader.calls == []
    assert sorted(bench.started()) == [1, 2, 3]
    bench.cancel(2)
    bench.confirmed.set()
    await bench.settle()
    assert open_loader.calls == [[1, 3]], "one that is cancelled before the call begins is left out"
    assert bench.ended() == {1: DONE, 2: CANCELLED, 3: DONE}


# ── definitions and handlers of different versions ──────────────────────────────────────────────


async def test_a_handler_of_a_list_whose_job_has_no_chunk_yet_gets_lists_of_one(
    bench: Bench, open_loader: Loader
) -> None:
    bench.arm(1, 2, chunk=None)
    await bench.settle()
    assert open_loader.calls == [[1], [2]]
    assert bench.results() == {1: "2", 2: "4"}


async def test_a_handler_of_one_task_whose_job_has_a_chunk_by_now_is_called_for_each(bench: Bench) -> None:
    calls: list[int] = []

    async def load(numbers: int) -> int:
        calls.append(numbers)
        return numbers

    bench.handle(load, chunks=False)
    bench.arm(1, 2)
    await bench.settle()
    assert calls == [1, 2]
    assert bench.results() == {1: "1", 2: "2"}


# ── stopping ────────────────────────────────────────────────────────────────────────────────────


async def test_a_task_that_is_cancelled_while_its_chunk_gathers_is_left_out(bench: Bench, open_loader: Loader) -> None:
    bench.arm(1, 2, wait=0.2)
    bench.cancel(1)
    await bench.pass_time(0.25)
    assert open_loader.calls == [[2]]
    assert bench.ended() == {1: CANCELLED, 2: DONE}


async def test_a_chunk_that_all_have_left_never_begins(bench: Bench, open_loader: Loader) -> None:
    bench.arm(1, 2, wait=0.2)
    bench.runner.recall([AttemptId(1, 10), AttemptId(2, 20)])
    assert bench.refused() == {"recalled": [1, 2]}
    await bench.pass_time(0.15)
    bench.arm(3, wait=0.2)
    await bench.pass_time(0.15)
    assert open_loader.calls == [], "the wait of the next one begins with itself"
    await bench.pass_time(0.1)
    assert open_loader.calls == [[3]]


async def test_a_task_that_is_cancelled_between_its_slot_and_its_call_is_left_out(
    bench: Bench, open_loader: Loader
) -> None:
    bench.arm(1, 2, 3)  # it has a worker, which begins at the next step of the loop
    bench.cancel(1, 2, 3)
    bench.arm(4, 5, 6)
    bench.cancel(5)
    await bench.settle()
    assert open_loader.calls == [[4, 6]]
    assert bench.ended() == {1: CANCELLED, 2: CANCELLED, 3: CANCELLED, 4: DONE, 5: CANCELLED, 6: DONE}


@pytest.mark.parametrize("kill", [False, True])
async def test_one_that_is_cancelled_during_the_call_ends_as_cancelled_and_the_call_goes_on(
    bench: Bench, loader: Loader, kill: bool
) -> None:
    bench.arm(1, 2, 3)
    await bench.settle()
    bench.cancel(2, kill=kill)
    bench.cancel(2, kill=kill)
    await bench.settle()
    assert not loader.cancelled
    assert bench.ended() == {}, "it ends with the call, which may still be at work on it"
    loader.gate.set()
    await bench.settle()
    assert bench.ended() == {1: DONE, 2: CANCELLED, 3: DONE}


async def test_the_handler_sees_which_of_its_tasks_are_cancelled(bench: Bench) -> None:
    seen: list[list[bool]] = []
    go = asyncio.Event()

    async def load(numbers: list[int]) -> None:
        tasks = current_tasks()
        seen.append([task.cancelled for task in tasks])
        await go.wait()
        seen.append([task.cancelled for task in tasks])

    bench.handle(load)
    bench.arm(1, 2, 3)
    await bench.settle()
    bench.cancel(2)
    go.set()
    await bench.settle()
    assert seen == [[False] * 3, [False, True, False]]


async def test_a_call_is_cancelled_once_all_of_its_tasks_are(bench: Bench, loader: Loader) -> None:
    bench.arm(1, 2, 3)
    await bench.settle()
    bench.cancel(1, 2)
    await bench.settle()
    assert not loader.cancelled
    bench.cancel(3)
    await bench.settle()
    assert loader.cancelled == [3]
    assert bench.ended() == {1: CANCELLED, 2: CANCELLED, 3: CANCELLED}
    bench.arm(4, 5, 6)
    loader.gate.set()
    await bench.settle()
    assert bench.ended()[4] == DONE, "the cancellation does not reach the next call of the slot"


async def test_one_that_is_to_run_again_does_so_when_the_call_is_over(bench: Bench, loader: Loader) -> None:
    bench.arm(1, 2, 3)
    await bench.settle()
    bench.cancel(1, restart=True)
    loader.gate.set()
    await bench.settle()
    assert bench.ended() == {1: ("failed", "restarted"), 2: DONE, 3: DONE}


async def test_the_timeout_of_the_job_is_that_of_the_call_and_ends_all(bench: Bench, loader: Loader) -> None:
    bench.arm(1, 2, 3, timeout=2.0)
    await bench.settle()
    bench.cancel(1)
    await bench.pass_time(1.9)
    assert bench.ended() == {}
    await bench.pass_time(0.2)
    assert bench.ended() == {1: CANCELLED, 2: ("timed_out", "timeout"), 3: ("timed_out", "timeout")}
    assert loader.cancelled == [3]


async def test_tasks_with_another_timeout_have_a_call_of_their_own(bench: Bench, loader: Loader) -> None:
    bench.arm(1, 2, wait=0.0, timeout=9.0)
    bench.arm(3, wait=0.0, timeout=9.0, options='{"timeout": 2.0}')
    await bench.until(lambda: len(loader.calls) == 2)
    await bench.pass_time(2.1)
    assert bench.ended() == {3: ("timed_out", "timeout")}
    loader.gate.set()
    await bench.settle()
    assert bench.ended() == {1: DONE, 2: DONE, 3: ("timed_out", "timeout")}


@pytest.mark.parametrize("sign", ["heartbeat", "progress"])
async def test_a_call_stalls_when_none_of_its_tasks_says_that_it_lives(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    now = boottime()
    for module in (attempt_module, durations_module):
        monkeypatch.setattr(module, "boottime", lambda: now)
    seen: list[CurrentTasks] = []

    async def load(numbers: list[int]) -> None:
        seen.append(current_tasks())
        await asyncio.sleep(3600)

    bench.handle(load)
    bench.arm(1, 2, 3, stalls_after=2.0)
    await bench.until(lambda: seen)
    now += 1.9
    seen[0][2].heartbeat() if sign == "heartbeat" else seen[0][2].progress(0.5)
    now += 1.0
    await bench.pass_time(2.1)
    assert bench.ended() == {}, "one of them did, a second ago"
    now += 1.1
    await bench.pass_time(1.1)
    assert bench.ended() == dict.fromkeys((1, 2, 3), ("timed_out", "stalled"))


async def test_the_wait_for_a_chunk_is_not_part_of_the_timeout(bench: Bench, loader: Loader) -> None:
    bench.arm(1, wait=5.0, timeout=2.0)
    await bench.pass_time(5.1)
    await bench.pass_time(1.5)
    loader.gate.set()
    await bench.settle()
    assert bench.ended() == {1: DONE}


async def test_a_handler_that_ignores_its_cancellation_is_cancelled_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    cancels: list[int] = []

    async def load(numbers: list[int]) -> None:
        while len(cancels) < 2:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancels.append(1)

    bench.handle(load)
    bench.arm(1, 2, 3, grace=2.0)
    await bench.settle()
    bench.cancel(1, 2, 3)
    await bench.settle()
    assert len(cancels) == 1
    await bench.pass_time(3.1)
    assert len(cancels) == 2
    assert "does not stop" in caplog.text
    assert set(bench.ended().values()) == {CANCELLED}


async def test_one_that_belongs_to_another_attempt_stops_the_call_and_the_others_run_again_at_no_cost(
    bench: Bench, loader: Loader
) -> None:
    bench.arm(1, 2, 3)
    await bench.settle()
    bench.runner.keep_only([AttemptId(1, 10), AttemptId(3, 30)])
    await bench.settle()
    assert loader.cancelled == [3]
    assert bench.ended() == {1: ("failed", "restarted"), 2: ("lost", "lost"), 3: ("failed", "restarted")}


async def test_the_call_of_an_at_most_once_job_goes_on_because_none_of_it_may_run_again(
    bench: Bench, loader: Loader
) -> None:
    bench.arm(1, 2, 3, delivery="at_most_once")
    await bench.settle()
    bench.runner.keep_only([AttemptId(1, 10), AttemptId(3, 30)])
    await bench.settle()
    assert not loader.cancelled
    loader.gate.set()
    await bench.settle()
    assert bench.ended() == {1: DONE, 2: ("lost", "lost"), 3: DONE}


async def test_all_are_lost_with_the_lease(bench: Bench, loader: Loader) -> None:
    bench.arm(1, 2, 3)
    bench.arm(4)
    await bench.settle()
    bench.runner.lose_all(1.0)
    await bench.settle()
    assert bench.ended() == {1: ("lost", "lost"), 2: ("lost", "lost"), 3: ("lost", "lost")}
    assert bench.runner.empty.is_set(), "the one that was gathered is dropped: another agent gets it"


async def test_one_whose_start_deadline_passes_while_its_chunk_gathers_is_left_out(
    bench: Bench, open_loader: Loader
) -> None:
    bench.arm(1, wait=0.5, expires=0.3)
    bench.arm(2, wait=0.5)
    await bench.pass_time(0.6)
    assert open_loader.calls == [[2]]
    assert bench.ended() == {1: ("skipped", "expired"), 2: DONE}


async def test_a_call_does_not_begin_when_the_lease_is_over(bench: Bench, open_loader: Loader) -> None:
    bench.lapsed = True
    bench.arm(1, 2, 3)
    await bench.settle()
    assert open_loader.calls == []
    assert [(ending.code, ending.snooze) for ending in bench.endings()] == [("lost", 0.0)] * 3


async def test_an_agent_that_drains_gives_back_what_it_gathers_and_ends_the_call(bench: Bench, loader: Loader) -> None:
    bench.arm(1, 2, 3)
    bench.arm(4)
    await bench.settle()
    bench.runner.drain()
    assert bench.refused() == {"draining": [4]}
    loader.gate.set()
    await bench.settle()
    assert set(bench.ended()) == {1, 2, 3}
    assert bench.runner.empty.is_set()


async def test_a_newer_attempt_of_a_gathered_task_takes_its_place(bench: Bench, open_loader: Loader) -> None:
    bench.arm(1, wait=0.2)
    bench.arm(1, wait=0.2, token=11)
    await bench.pass_time(0.25)
    assert open_loader.calls == [[1]]
    assert [ending.token for ending in bench.endings()] == [11]


async def test_holdings_tell_which_have_begun(bench: Bench, loader: Loader) -> None:
    bench.arm(1, 2, 3)
    bench.arm(4)
    await bench.settle()
    states = {holding.task: holding.state for holding in bench.runner.holdings()}
    assert states == dict.fromkeys((1, 2, 3), TaskState.RUNNING) | {4: TaskState.ASSIGNED}


# ── sync handlers ───────────────────────────────────────────────────────────────────────────────


async def test_a_sync_handler_takes_chunks_too_and_is_interrupted_once_all_are_stopped(bench: Bench) -> None:
    began, let_go, interrupted = threading.Event(), threading.Event(), threading.Event()

    def load(numbers: list[int]) -> list[int]:
        began.set()
        try:
            while not let_go.wait(0.005):
                pass
        except TaskCancelled:
            interrupted.set()
            raise
        return numbers

    bench.handle(load)
    bench.arm(1, 2, 3)
    await bench.until(began.is_set)
    bench.cancel(2)
    let_go.set()
    await bench.until(lambda: bench.ended())
    assert bench.ended() == {1: DONE, 2: CANCELLED, 3: DONE}
    assert not interrupted.is_set()

    began.clear()
    let_go.clear()
    bench.arm(4, 5, 6)
    await bench.until(began.is_set)
    bench.cancel(4, 5, 6)
    await bench.until(lambda: 4 in bench.ended())
    assert interrupted.is_set()
    assert {bench.ended()[task] for task in (4, 5, 6)} == {CANCELLED}


# ── what the handler sees ───────────────────────────────────────────────────────────────────────


async def test_current_tasks_gives_each_task_in_the_order_of_the_list(bench: Bench) -> None:
    seen: list[Any] = []

    async def load(numbers: list[int]) -> None:
        for task, number in zip(current_tasks(), numbers, strict=True):
            seen.append((task.id, task.token, task.args, number))
            task.progress(number / 10)
            task.checkpoint = {"at": number}

    bench.handle(load)
    bench.arm(1, 2, 3)
    await bench.settle()
    assert seen == [(task, task * 10, {"numbers": task}, task) for task in (1, 2, 3)]
    notes = [note for report in bench.told() if isinstance(report, Progress) for note in report.notes]
    assert [(note.token, note.progress, note.checkpoint) for note in notes] == [
        (10, "0.1", '{"at":1}'),
        (20, "0.2", '{"at":2}'),
        (30, "0.3", '{"at":3}'),
    ]


async def test_current_task_names_the_other_function(bench: Bench) -> None:
    async def load(numbers: list[int]) -> None:
        current_task()

    bench.handle(load)
    bench.arm(1, chunk=1)
    await bench.settle()
    [ending] = bench.endings()
    assert ending.error is not None
    assert "current_tasks() gives them in the order of its list" in ending.error


async def test_a_handler_of_one_task_has_a_list_of_one(bench: Bench) -> None:
    async def load(numbers: int) -> list[int]:
        return [task.id for task in current_tasks()]

    bench.handle(load, chunks=False)
    bench.arm(7, chunk=None)
    await bench.settle()
    assert bench.results() == {7: "[7]"}


async def test_each_failure_is_logged_and_told_to_hooks_with_its_own_task(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Failure] = []
    numbers: list[tuple[Any, Any]] = []

    async def hook(failure: Failure) -> None:
        record = logging.LogRecord("x", 20, "", 1, "", (), None)
        LogContext().filter(record)
        numbers.append((record.__dict__["job"], record.__dict__["task"]))
        told.append(failure)

    async def load(numbers: list[int]) -> list[Any]:
        logging.getLogger("shop").warning("inside")
        return [ValueError(f"row {number}") if number != 2 else None for number in numbers]

    caplog.handler.addFilter(LogContext())
    bench.failures.hooks = [hook]
    bench.handle(load)
    bench.arm(1, 2, 3)
    await bench.until(lambda: len(told) == 2)
    assert [(failure.task_id, failure.args, str(failure.exception), failure.final) for failure in told] == [
        (1, {"numbers": 1}, "row 1", True),
        (3, {"numbers": 3}, "row 3", True),
    ]
    assert numbers == [("load", 1), ("load", 3)]
    inside = next(record for record in caplog.records if record.name == "shop")
    assert (inside.__dict__["job"], inside.__dict__["task"]) == ("load", None)
    assert [record.__dict__["task"] for record in caplog.records if record.name == "mainspring.job"] == [1, 3]


async def test_a_call_that_the_executor_could_not_make_still_ends_its_tasks(
    bench: Bench, open_loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(call: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr(bench.executor, "run_chunk", broken)
    bench.arm(1, 2, 3)
    await bench.settle()
    assert bench.ended() == dict.fromkeys((1, 2, 3), ("failed", "executor_error"))
