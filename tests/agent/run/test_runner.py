"""Runner: attempts at their instant, as many as there are slots, each reported once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from tests.conftest import eventually

from mainspring.agent import attempt as base
from mainspring.agent.attempt import AHEAD, Attempt, AttemptFailed, Exhausted
from mainspring.agent.connection.outbox import Outbox
from mainspring.agent.context import CancelTask, Control, Fail, RetryAfter, Snooze
from mainspring.agent.run import durations
from mainspring.agent.run.runner import REFUSE_AFTER, Runner
from mainspring.agent.timing.timers import Timers
from mainspring.model.messages import Armed, AttemptId, Ending, Finished, Refused, Started
from mainspring.model.tasks.jobs import Definition, Health, Job, Python
from mainspring.model.tasks.payload import MAX_ERROR
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TaskState
from mainspring.model.tasks.verdict import Again, after_attempt
from mainspring.wire.clock import Clock, boottime

Act = Callable[[Attempt], Awaitable[str | None]]


class Executor(base.Executor):
    """Runs what the test says for a task; by default it waits until the test lets it go."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.now = 0
        self.most = 0
        self.unprepared: dict[int, Exception] = {}
        self.leads: dict[int, float] = {}
        self.forgotten: list[int] = []
        self.pauses: list[tuple[int, str]] = []
        self.can_pause = True
        self._acts: dict[int, Act] = {}
        self._gates: dict[int, asyncio.Event] = {}

    def will(self, task: int, act: Act) -> None:
        self._acts[task] = act

    def let_go(self, *tasks: int) -> None:
        for task in tasks:
            self._gates.setdefault(task, asyncio.Event()).set()

    def prepare(self, attempt: Attempt) -> None:
        if (error := self.unprepared.get(attempt.armed.task)) is not None:
            raise error
        self.leads[attempt.armed.task] = attempt.lead

    def forget(self, attempt: Attempt) -> None:
        self.forgotten.append(attempt.armed.task)

    def pause(self, attempt: Attempt, *, resume: bool) -> bool:
        self.pauses.append((attempt.armed.task, "resume" if resume else "pause"))
        return self.can_pause

    async def run(self, attempt: Attempt) -> str | None:
        task = attempt.armed.task
        self.began.append(task)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if task in self._acts:
                return await self._acts[task](attempt)
            await self._gates.setdefault(task, asyncio.Event()).wait()
            return f'"{task}"'
        finally:
            self.now -= 1


class Bench:
    """A runner of three slots with all its parts but the channel."""

    def __init__(self, slots: int = 3) -> None:
        self.clock = Clock()
        self.timers = Timers(self.clock)
        self.outbox = Outbox(self.clock)
        self.executor = Executor()
        self.confirmed = asyncio.Event()
        self.confirms = 0
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
        )
        self.reports: list[Any] = []

    async def _confirm(self) -> None:
        self.confirms += 1
        self.reports += self.outbox.take()
        await self.confirmed.wait()

    def arm(
        self,
        task: int,
        *,
        token: int | None = None,
        due: float = 0.0,
        careful: bool = False,
        daemon: bool = False,
        priority: int = 5,
        **job: Any,
    ) -> AttemptId:
        definition = Definition(Python("job"), **job)
        at = self.clock.now() + due
        armed = Armed(task, token or task * 10, 1, 1, at, "{}", None, careful, daemon=daemon, priority=priority)
        self.runner.arm([armed], {1: Job(1, "job", 1, 1, definition)})
        return AttemptId(task, armed.token)

    async def settle(self) -> None:
        """Let everything run that can."""
        for _ in range(20):
            await asyncio.sleep(0)

    async def until(self, what: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not what():
                await asyncio.sleep(0)

    def pass_time(self, seconds: float) -> None:
        self.clock.offset += seconds
        self.timers.clock_changed()

    def told(self) -> list[Any]:
        self.reports += self.outbox.take()
        return self.reports

    def endings(self) -> list[Ending]:
        return [ending for report in self.told() if isinstance(report, Finished) for ending in report.endings]

    def refused(self) -> dict[str, list[AttemptId]]:
        return {report.reason: report.attempts for report in self.told() if isinstance(report, Refused)}

    def ended(self) -> list[tuple[int, str, str | None]]:
        return [(ending.task, ending.state.label, ending.code) for ending in self.endings()]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.runner.stop_all("shutdown")
    await bench.settle()
    bench.runner.close()
    await bench.settle()
    bench.timers.close()


# ── slots and instants ──────────────────────────────────────────────────────────────────────────


async def test_no_more_run_than_there_are_slots_and_the_next_follows_at_once(bench: Bench) -> None:
    for task in range(1, 9):
        bench.arm(task)
    await bench.settle()
    assert bench.executor.began == [1, 2, 3]
    assert bench.runner.running == 3
    bench.executor.let_go(2)
    await bench.settle()
    assert bench.executor.began == [1, 2, 3, 4]
    bench.executor.let_go(*range(1, 9))
    await bench.until(bench.runner.empty.is_set)
    assert bench.executor.most == 3
    assert sorted(bench.executor.began) == list(range(1, 9))  # a worker that yields may be overtaken
    assert sorted(bench.ended()) == [(task, "succeeded", None) for task in range(1, 9)]
    assert bench.runner.running == 0


async def test_an_attempt_ahead_of_its_time_starts_at_it(bench: Bench) -> None:
    bench.arm(1, due=3600)
    bench.arm(2, due=7200)
    await bench.settle()
    assert bench.executor.began == []
    bench.pass_time(3600.5)
    await bench.until(lambda: bench.executor.began)
    assert bench.executor.began == [1]


async def test_what_comes_due_past_the_lease_takes_no_step(bench: Bench) -> None:
    """A process that was stopped finds the instants of its attempts gone by, and its lease too."""
    bench.arm(1, due=3600)
    bench.lapsed = True
    bench.pass_time(3600.5)
    bench.arm(2)
    await bench.until(bench.runner.empty.is_set)
    assert bench.executor.began == []
    assert sorted(bench.ended()) == [(1, "lost", "lost"), (2, "lost", "lost")]


async def test_a_success_is_told_with_its_times_and_its_result(bench: Bench) -> None:
    before = bench.clock.now()
    bench.arm(1)
    bench.executor.let_go(1)
    await bench.until(bench.runner.empty.is_set)
    [ending] = bench.endings()
    assert (ending.task, ending.token, ending.job, ending.attempt, ending.result) == (1, 10, 1, 1, '"1"')
    assert before <= ending.started_at <= ending.finished_at <= bench.clock.now()


async def test_the_outbox_hears_when_no_attempt_waits_for_its_turn(bench: Bench) -> None:
    bench.arm(1)
    assert bench.runner.crowded
    assert not bench.outbox.uncrowded.is_set()
    bench.executor.let_go(1)
    await bench.until(bench.outbox.uncrowded.is_set)
    assert not bench.runner.crowded


async def test_an_attempt_that_comes_twice_runs_once(bench: Bench) -> None:
    for _ in range(3):
        bench.arm(1)
        await bench.settle()
    bench.arm(1, token=9)  # an older one
    bench.executor.let_go(1)
    await bench.until(bench.runner.empty.is_set)
    assert bench.executor.began == [1]
    assert bench.ended() == [(1, "succeeded", None)]


async def test_an_attempt_too_old_to_know_is_given_back_unless_it_is_here(bench: Bench) -> None:
    here = bench.arm(1)
    bench.runner._tokens._floor = bench.runner._tokens._newest = 1000
    bench.arm(1)
    unknown = bench.arm(2)
    await bench.settle()
    assert bench.executor.began == [here.task]
    assert bench.refused() == {"too old to know": [unknown]}


async def test_a_newer_attempt_takes_the_place_of_an_older_one_that_waits_for_its_time(bench: Bench) -> None:
    bench.arm(1, token=10, due=3600.0)
    bench.arm(1, token=11)
    await bench.settle()
    bench.executor.let_go(1)
    await bench.until(bench.runner.empty.is_set)
    assert {ending.token: ending.state for ending in bench.endings()} == {11: TaskState.SUCCEEDED}
    assert bench.executor.began == [1]


async def test_a_newer_attempt_never_runs_beside_an_older_one(bench: Bench) -> None:
    bench.arm(1, token=10)
    await bench.settle()
    newer = bench.arm(1, token=11)
    await bench.settle()
    bench.pass_time(REFUSE_AFTER + 0.1)
    await bench.until(bench.refused)
    assert bench.refused() == {"its last attempt is not over": [newer]}
    assert [(ending.token, ending.state) for ending in bench.endings()] == [(10, TaskState.LOST)]
    assert bench.executor.began == [1]


async def test_a_newer_attempt_takes_the_place_of_one_that_waits_for_a_slot(bench: Bench) -> None:
    for task in (1, 2, 3):
        bench.arm(task)
    bench.arm(4, token=40)
    bench.arm(4, token=41)
    bench.executor.let_go(1, 2, 3, 4)
    await bench.until(bench.runner.empty.is_set)
    assert bench.executor.began.count(4) == 1
    assert {e.token for e in bench.endings() if e.state is TaskState.SUCCEEDED} == {10, 20, 30, 41}


# ── what becomes of it ──────────────────────────────────────────────────────────────────────────


def raising(error: BaseException) -> Act:
    async def act(_: Attempt) -> str | None:
        raise error

    return act


@pytest.mark.parametrize(
    ("control", "expected"),
    [
        (RetryAfter("30s"), {"state": TaskState.FAILED, "code": "retry_after", "retry_after": 30.0, "final": False}),
        (Snooze("5m"), {"snooze": 300.0, "code": "snoozed"}),
        (CancelTask("gone"), {"state": TaskState.CANCELLED, "code": "cancelled", "error": "gone"}),
        (Fail("bad"), {"state": TaskState.FAILED, "code": "failed_for_good", "error": "bad", "final": True}),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_handler_says_itself_what_is_to_become_of_its_task(
    bench: Bench, control: Control, expected: dict[str, object]
) -> None:
    bench.executor.will(1, raising(control))
    bench.arm(1)
    await bench.until(bench.runner.empty.is_set)
    [ending] = bench.endings()
    assert {name: getattr(ending, name) for name in expected} == expected


async def test_a_failure_is_told_with_its_labels_and_a_message_that_fits(bench: Bench) -> None:
    bench.executor.will(1, raising(AttemptFailed("exit_code", "x\x00" * MAX_ERROR, labels=("75",), final=True)))
    bench.arm(1)
    await bench.until(bench.runner.empty.is_set)
    [ending] = bench.endings()
    assert (ending.state, ending.code, ending.labels) == (TaskState.FAILED, "exit_code", ("exit_code", "75"))
    assert ending.final
    assert ending.error is not None
    assert "\x00" not in ending.error
    assert len(ending.error) < MAX_ERROR + 100


async def test_a_fault_of_the_executor_ends_the_attempt_too(bench: Bench) -> None:
    """Else the task would run forever, and its slot with it."""
    bench.executor.will(1, raising(OSError("no more processes")))
    bench.arm(1)
    await bench.until(bench.runner.empty.is_set)
    [ending] = bench.endings()
    assert ending.state is TaskState.FAILED
    assert "no more processes" in (ending.error or "")
    assert bench.runner.running == 0


async def test_an_attempt_that_the_agent_cannot_start_is_given_back_at_no_cost(bench: Bench) -> None:
    bench.executor.will(1, raising(Exhausted("no descriptors")))
    bench.arm(1, delivery="at_most_once")
    await bench.until(bench.runner.empty.is_set)
    [ending] = bench.endings()
    assert (ending.state, ending.code, ending.error) == (TaskState.SKIPPED, "exhausted", "no descriptors")
    assert not ending.started_at, "its start deadline must hold"
    verdict = after_attempt(Definition(Python("job"), delivery="at_most_once"), ending, 0.5)
    assert isinstance(verdict, Again)
    assert (verdict.costs, verdict.delay > 0.0) == (False, True)


async def test_an_attempt_that_cannot_be_prepared_ends_and_harms_no_other(bench: Bench) -> None:
    bench.executor.unprepared[1] = TypeError("a decoder of the application's")
    bench.arm(1)
    bench.arm(2)
    bench.executor.let_go(2)
    await bench.until(bench.runner.empty.is_set)
    assert sorted(bench.ended()) == [(1, "failed", "executor_error"), (2, "succeeded", None)]


async def test_an_attempt_of_a_job_that_is_gone_fails(bench: Bench) -> None:
    bench.runner.arm([Armed(1, 10, 1, 1, 0.0, "{}")], {})
    assert bench.ended() == [(1, "failed", "unknown_job")]
    assert bench.runner.empty.is_set()


colour: ContextVar[str] = ContextVar("colour", default="none")


async def test_attempts_that_share_a_slot_share_nothing_else(bench: Bench) -> None:
    seen = []

    async def act(attempt: Attempt) -> str | None:
        seen.append(colour.get())
        colour.set(str(attempt.armed.task))
        if attempt.armed.task % 2:
            await asyncio.Event().wait()
        async with asyncio.timeout(60):  # would not bear a cancellation left over from the last one
            await asyncio.sleep(0)
        return None

    for task in range(1, 13):
        bench.executor.will(task, act)
        held = bench.arm(task)
        await bench.settle()
        bench.runner.cancel([held])
        await bench.settle()
    assert seen == ["none"] * 12
    assert bench.ended() == [(t, *(("cancelled", "cancelled") if t % 2 else ("succeeded", None))) for t in range(1, 13)]
    assert bench.runner.running == 0


async def test_a_timeout_stops_the_attempt(bench: Bench) -> None:
    bench.arm(1, timeout=60.0)
    await bench.settle()
    bench.pass_time(59)
    await bench.settle()
    assert bench.runner.running == 1
    bench.pass_time(1.5)
    await bench.until(bench.runner.empty.is_set)
    [ending] = bench.endings()
    assert (ending.state, ending.code, ending.labels) == (TaskState.TIMED_OUT, "timeout", ("timeout",))
    assert "60 s" in (ending.error or "")
    assert len(bench.timers) == 0


async def test_an_attempt_that_never_waits_needs_no_timers(bench: Bench) -> None:
    """Nothing could stop it: the event loop is its own until it ends."""
    armed = []

    async def at_once(_: Attempt) -> None:
        armed.append(len(bench.timers))

    bench.executor.will(1, at_once)
    bench.arm(1, timeout=60.0, stalls_after=10.0)
    await bench.until(bench.runner.empty.is_set)
    assert armed == [0]
    bench.arm(2, timeout=60.0, stalls_after=10.0)
    await bench.settle()
    assert len(bench.timers) == 2


async def test_the_time_before_an_attempt_first_waits_counts_for_its_timeout(bench: Bench) -> None:
    async def computes(_: Attempt) -> None:
        bench.pass_time(59)
        await asyncio.Event().wait()

    bench.executor.will(1, computes)
    bench.arm(1, timeout=60.0)
    await bench.settle()
    assert bench.runner.running == 1
    bench.pass_time(1.5)
    await bench.until(bench.runner.empty.is_set)
    assert bench.ended() == [(1, "timed_out", "timeout")]


async def test_the_wait_for_a_durable_start_does_not_count_for_the_timeout(bench: Bench) -> None:
    bench.arm(1, careful=True, timeout=60.0, stalls_after=60.0)
    await bench.until(lambda: bench.confirms)
    bench.pass_time(100)
    await bench.settle()
    bench.confirmed.set()
    await bench.settle()
    assert len(bench.timers) == 2
    bench.pass_time(59)
    await bench.settle()
    assert bench.runner.running == 1
    bench.pass_time(1.5)
    await bench.until(bench.runner.empty.is_set)
    assert bench.ended() == [(1, "timed_out", "timeout")]


async def test_an_attempt_that_ends_in_time_leaves_no_timer(bench: Bench) -> None:
    bench.arm(1, timeout=60.0)
    bench.executor.let_go(1)
    await bench.until(bench.runner.empty.is_set)
    assert len(bench.timers) == 0


async def test_attempts_that_wait_for_nothing_are_run_by_one_worker(bench: Bench) -> None:
    workers = set[object]()

    async def act(attempt: Attempt) -> None:
        workers.add(asyncio.current_task())

    for task in range(1, 51):
        bench.executor.will(task, act)
        bench.arm(task)
    await bench.until(bench.runner.empty.is_set)
    assert len(workers) == 1
    assert bench.executor.began == list(range(1, 51))


async def test_attempts_that_suspend_take_all_slots_whatever_others_do() -> None:
    bench = Bench(slots=40)
    for task in range(1, 101):
        bench.arm(task)
    await bench.settle()
    assert bench.executor.now == bench.runner.running == 40
    bench.executor.let_go(*range(1, 101))
    await bench.until(bench.runner.empty.is_set)
    assert bench.executor.most == 40
    assert bench.runner.running == 0
    bench.runner.close()
    bench.timers.close()


# ── cancel ──────────────────────────────────────────────────────────────────────────────────────


async def test_cancelling_one_that_runs_stops_it(bench: Bench) -> None:
    held = bench.arm(1)
    await bench.settle()
    bench.runner.cancel([held])
    await bench.until(bench.runner.empty.is_set)
    assert bench.ended() == [(1, "cancelled", "cancelled")]
    assert len(bench.timers) == 0


async def test_cancelling_one_in_the_moment_of_its_start_ends_it_and_frees_its_slot(bench: Bench) -> None:
    """A dispatch and its cancellation can come in one breath."""
    bench.runner.cancel([bench.arm(1)])
    await bench.settle()
    assert bench.ended() == [(1, "cancelled", "cancelled")]
    assert bench.runner.running == 0
    assert bench.runner.empty.is_set()
    assert bench.executor.began == []


async def test_stopping_all_in_the_moment_of_a_start_leaves_nothing_behind(bench: Bench) -> None:
    held = bench.arm(1)
    bench.runner.stop_all("shutdown")
    await bench.settle()
    assert bench.refused() == {"stopping": [held]}
    assert bench.executor.began == []
    assert bench.runner.empty.is_set()


@pytest.mark.parametrize("where", ["ahead of its time", "waiting for a slot"])
async def test_cancelling_one_that_has_not_started_ends_it_without_a_start(bench: Bench, where: str) -> None:
    if where == "waiting for a slot":
        for task in (1, 2, 3):
            bench.arm(task)
        held = bench.arm(4)
    else:
        held = bench.arm(4, due=3600)
    await bench.settle()
    bench.runner.cancel([held])
    [ending] = bench.endings()
    assert (ending.task, ending.state, ending.started_at) == (4, TaskState.CANCELLED, 0.0)
    bench.executor.let_go(1, 2, 3)
    bench.pass_time(3601)
    await bench.until(bench.runner.empty.is_set)
    assert 4 not in bench.executor.began


async def test_cancelling_what_is_not_here_changes_nothing(bench: Bench) -> None:
    bench.arm(1)
    await bench.settle()
    bench.runner.cancel([AttemptId(1, 9), AttemptId(1, 11), AttemptId(2, 20)])
    await bench.settle()
    assert bench.runner.running == 1


async def test_one_that_swallows_its_cancellation_is_told_again_until_it_lets_go(bench: Bench) -> None:
    told = 0

    async def stubborn(_: Attempt) -> str | None:
        nonlocal told
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                told += 1
                if told == 3:
                    raise

    bench.executor.will(1, stubborn)
    held = bench.arm(1, grace=5.0)
    await bench.settle()
    bench.runner.cancel([held])
    for expected in (1, 2, 3):
        await bench.until(partial(lambda times: told == times, expected))
        assert bench.runner.running == 1 or expected == 3
        bench.pass_time(6.5)
    await bench.until(bench.runner.empty.is_set)
    assert bench.ended() == [(1, "cancelled", "cancelled")]


async def test_the_first_reason_to_stop_stands(bench: Bench) -> None:
    held = bench.arm(1, timeout=60.0)
    await bench.settle()
    bench.runner.stop_all("shutdown")
    bench.runner.cancel([held])
    await bench.until(bench.runner.empty.is_set)
    assert bench.ended() == [(1, "failed", "shutdown")]


async def test_one_that_ends_well_although_it_was_told_to_stop_has_succeeded(bench: Bench) -> None:
    async def finishes(_: Attempt) -> str | None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return '"done"'
        return None

    bench.executor.will(1, finishes)
    held = bench.arm(1)
    await bench.settle()
    bench.runner.cancel([held])
    await bench.until(bench.runner.empty.is_set)
    assert bench.ended() == [(1, "succeeded", None)]


# ── giving back ─────────────────────────────────────────────────────────────────────────────────


async def test_draining_gives_back_what_has_not_started_and_takes_nothing_new(bench: Bench) -> None:
    for task in (1, 2, 3, 4):
        bench.arm(task)
    bench.arm(5, due=3600)
    await bench.settle()
    bench.runner.drain()
    bench.arm(6)
    assert bench.refused() == {"draining": [AttemptId(4, 40), AttemptId(5, 50), AttemptId(6, 60)]}
    bench.executor.let_go(1, 2, 3)
    bench.pass_time(3601)
    await bench.until(bench.runner.empty.is_set)
    assert sorted(bench.executor.began) == [1, 2, 3]
    assert len(bench.timers) == 0


async def test_draining_without_anything_running_is_empty_at_once(bench: Bench) -> None:
    bench.arm(1, due=3600)
    assert not bench.runner.empty.is_set()
    bench.runner.drain()
    assert bench.runner.empty.is_set()


async def test_a_recall_gives_back_only_what_has_not_started(bench: Bench) -> None:
    running, waiting = bench.arm(1), bench.arm(2, due=3600)
    await bench.settle()
    bench.runner.recall([running, waiting, AttemptId(2, 999), AttemptId(3, 30)])
    assert bench.refused() == {"recalled": [waiting]}
    assert bench.runner.running == 1


async def test_of_those_that_wait_for_a_slot_the_most_important_starts_first(bench: Bench) -> None:
    for task in (1, 2, 3):
        bench.arm(task)
    await bench.settle()
    for task, priority in ((4, 2), (5, 5), (6, 9), (7, 5), (8, 9)):
        bench.arm(task, priority=priority)
    await bench.settle()
    for over in (1, 2, 3, 6, 8):
        bench.executor.let_go(over)
        await bench.settle()
    assert bench.executor.began == [1, 2, 3, 6, 8, 5, 7, 4]
    bench.executor.let_go(4, 5, 7)
    await bench.until(bench.runner.empty.is_set)


async def test_what_fires_at_an_instant_goes_before_a_queue_of_the_same_priority(bench: Bench) -> None:
    for task in (1, 2, 3, 4, 5):
        bench.arm(task)
    bench.arm(6, due=3600)
    bench.arm(7, due=3600)
    bench.arm(8, due=3600, priority=2)
    await bench.settle()
    bench.arm(9, priority=9)
    bench.pass_time(3601)
    await bench.until(lambda: len(bench.runner._workers.waiting) == 6)
    for task in (1, 2, 3, 4, 5, 6, 7, 9):
        bench.executor.let_go(task)
        await bench.settle()
    assert bench.executor.began == [1, 2, 3, 9, 6, 7, 4, 5, 8]
    bench.executor.let_go(8)
    await bench.until(bench.runner.empty.is_set)


async def test_what_waits_too_long_for_a_slot_may_find_one_elsewhere(bench: Bench) -> None:
    for task in (1, 2, 3, 4):
        bench.arm(task)
    await bench.settle()
    bench.runner.refuse_overdue(boottime())
    assert bench.refused() == {}
    bench.runner.refuse_overdue(boottime() + REFUSE_AFTER + 0.5)
    assert bench.refused() == {"full": [AttemptId(4, 40)]}
    bench.executor.let_go(1, 2, 3)
    await bench.until(bench.runner.empty.is_set)
    assert sorted(bench.executor.began) == [1, 2, 3]


# ── careful ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_careful_attempt_begins_only_when_its_start_is_durable(bench: Bench) -> None:
    bench.arm(1, careful=True, timeout=60.0)
    await bench.until(lambda: bench.confirms)
    assert [type(report) for report in bench.reports] == [Started], "its start was sent"
    await bench.settle()
    assert bench.executor.began == []
    bench.runner._outbox.hurry()
    assert bench.runner._outbox.take() == [], "once"
    bench.confirmed.set()
    bench.executor.let_go(1)
    await bench.until(bench.runner.empty.is_set)
    assert bench.executor.began == [1]
    assert bench.ended() == [(1, "succeeded", None)]


async def test_a_job_that_is_not_retried_after_a_crash_begins_only_when_its_start_is_durable(bench: Bench) -> None:
    bench.arm(1, retry=Retry(abort_on=("lost",)))
    await bench.until(lambda: bench.confirms)
    assert [type(report) for report in bench.reports] == [Started]
    await bench.settle()
    assert bench.executor.began == []


@pytest.mark.parametrize("reason", ["lost", "shutdown", "restart"])
async def test_an_attempt_that_is_stopped_before_it_began_runs_again_at_no_cost(bench: Bench, reason: Any) -> None:
    bench.arm(1, careful=True, delivery="at_most_once")
    bench.arm(2, delivery="at_most_once")
    await bench.until(lambda: bench.executor.began)
    bench.runner.stop_all(reason)
    await bench.until(bench.runner.empty.is_set)
    assert bench.executor.began == [2]
    if reason != "restart":  # which costs nothing, begun or not
        assert {ending.task: ending.snooze for ending in bench.endings()} == {1: 0.0, 2: None}
    assert {ending.task for ending in bench.endings() if ending.started_at} == {2}, "the deadline of 1 must hold"


async def test_a_careful_attempt_can_be_cancelled_while_it_waits(bench: Bench) -> None:
    held = bench.arm(1, careful=True)
    await bench.until(lambda: bench.confirms)
    bench.runner.cancel([held])
    await bench.until(bench.runner.empty.is_set)
    assert bench.executor.began == []
    assert bench.ended() == [(1, "cancelled", "cancelled")]


async def test_an_attempt_that_is_not_careful_waits_for_nobody(bench: Bench) -> None:
    bench.arm(1)
    await bench.settle()
    assert (bench.executor.began, bench.confirms) == ([1], 0)


@pytest.mark.parametrize(
    ("reason", "state"), [("shutdown", TaskState.FAILED), ("lost", TaskState.LOST), ("cancelled", TaskState.CANCELLED)]
)
async def test_stopping_all_tells_why(bench: Bench, reason: Any, state: TaskState) -> None:
    bench.arm(1)
    bench.arm(2, due=3600)
    await bench.settle()
    bench.runner.stop_all(reason)
    await bench.settle()
    assert bench.ended() == [(1, state.label, reason)]
    assert not bench.runner.empty.is_set(), "what has not started is still held"


async def test_only_the_success_of_an_attempt_that_was_armed_ahead_can_wait(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: dict[int, bool] = {}
    monkeypatch.setattr(bench.outbox, "ended", lambda ending, *, can_wait=False: waits.update({ending.task: can_wait}))

    async def fail(attempt: Attempt) -> str | None:
        raise AttemptFailed("bad", "failed")

    bench.executor.will(2, fail)
    bench.executor.let_go(1, 3)
    bench.arm(1, due=2 * AHEAD)
    bench.arm(2, due=2 * AHEAD)
    bench.arm(3)
    await bench.until(lambda: len(waits) == 3)
    assert waits == {1: True, 2: False, 3: False}


# ── preparing and forgetting ────────────────────────────────────────────────────────────────────


async def test_an_executor_is_told_how_far_away_the_instant_is(bench: Bench) -> None:
    bench.arm(1, due=40.0)
    assert 39.0 < bench.executor.leads[1] <= 40.0


async def test_what_was_prepared_is_forgotten_however_an_attempt_is_withdrawn(bench: Bench) -> None:
    cancelled, recalled, drained = (bench.arm(task, due=60.0) for task in (1, 2, 3))
    bench.runner.cancel([cancelled])
    bench.runner.recall([recalled])
    bench.arm(4, token=1, due=60.0)
    bench.arm(4, token=2, due=60.0)  # replaces the one before
    assert bench.executor.forgotten == [1, 2, 4]
    bench.runner.drain()
    assert sorted(bench.executor.forgotten) == [1, 2, drained.task, 4, 4]


async def test_an_attempt_that_is_stopped_before_it_begins_is_forgotten_too(bench: Bench) -> None:
    held = bench.arm(1)
    bench.runner.cancel([held])  # it has a worker, which has not run yet
    await bench.settle()
    assert bench.executor.began == []
    assert bench.executor.forgotten == [1]


# ── pausing ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_time_of_a_pause_does_not_count_for_the_timeout(bench: Bench) -> None:
    held = bench.arm(1, timeout=10.0)
    await bench.settle()
    bench.pass_time(6.0)
    bench.runner.pause([held], resume=False)
    bench.runner.pause([held], resume=False)
    bench.pass_time(3600.0)
    await asyncio.sleep(0.01)
    assert bench.ended() == []
    bench.runner.pause([held], resume=True)
    bench.runner.pause([held], resume=True)
    bench.pass_time(3.0)
    await asyncio.sleep(0.01)
    assert bench.ended() == []
    bench.pass_time(1.5)
    await bench.until(bench.ended)
    assert bench.ended() == [(1, "timed_out", "timeout")]
    assert bench.executor.pauses == [(1, "pause"), (1, "pause"), (1, "resume"), (1, "resume")]


async def test_the_time_of_a_pause_is_no_silence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = boottime()
    monkeypatch.setattr(durations, "boottime", lambda: boot)
    held = bench.arm(1, stalls_after=60.0)
    await bench.settle()
    bench.runner.pause([held], resume=False)
    boot += 105.0
    bench.pass_time(105.0)
    await asyncio.sleep(0.01)
    bench.runner.pause([held], resume=True)
    boot += 59.0
    bench.pass_time(60.5)  # from when it was looked at
    await asyncio.sleep(0.01)
    assert bench.ended() == []
    boot += 1.5
    bench.pass_time(1.5)
    await bench.until(bench.ended)
    assert bench.ended() == [(1, "timed_out", "stalled")]


async def test_a_paused_attempt_can_be_cancelled_and_is_not_paused_again(bench: Bench) -> None:
    held = bench.arm(1, timeout=10.0)
    await bench.settle()
    bench.runner.pause([held], resume=False)
    bench.runner.cancel([held])
    bench.runner.pause([held], resume=True)
    await bench.settle()
    assert bench.ended() == [(1, "cancelled", "cancelled")]
    assert bench.executor.pauses == [(1, "pause")]


async def test_what_cannot_be_paused_keeps_its_timeout(bench: Bench) -> None:
    bench.executor.can_pause = False
    held = bench.arm(1, timeout=10.0)
    await bench.settle()
    bench.runner.pause([held], resume=False)
    bench.pass_time(11.0)
    await bench.until(bench.ended)
    assert bench.ended() == [(1, "timed_out", "timeout")]


async def test_only_what_runs_here_is_paused(bench: Bench) -> None:
    waiting = bench.arm(1, due=60.0)
    running = bench.arm(2)
    await bench.settle()
    bench.runner.pause([waiting, AttemptId(2, running.token + 1), AttemptId(9, 1)], resume=False)
    assert bench.executor.pauses == []


# ── daemons and restarts ────────────────────────────────────────────────────────────────────────


async def test_a_restart_stops_what_runs_and_gives_back_what_waits(bench: Bench) -> None:
    running, waiting = bench.arm(1), bench.arm(2, due=60.0)
    await bench.settle()
    bench.runner.cancel([running, waiting], restart=True)
    await bench.settle()
    assert bench.ended() == [(1, "failed", "restarted")]
    assert bench.refused() == {"restarted": [waiting]}


async def test_a_drain_stops_daemons_at_once_and_lets_the_others_go_on(bench: Bench) -> None:
    bench.arm(1)
    bench.arm(2, daemon=True)
    await bench.settle()
    bench.runner.drain()
    await bench.settle()
    assert bench.ended() == [(2, "failed", "shutdown")]
    bench.executor.let_go(1)
    await bench.settle()
    assert bench.ended()[1:] == [(1, "succeeded", None)]


async def test_only_a_daemon_is_asked_whether_it_is_well_and_stopped_if_not(bench: Bench) -> None:
    nobody = Health(url="http://127.0.0.1:1/", every=0.01, failures=2)
    bench.arm(1, daemon=True, health=nobody)
    bench.arm(2, health=nobody)

    async def over() -> bool:
        return bool(bench.ended())

    await eventually(over)
    assert bench.ended() == [(1, "failed", "unhealthy")]
    assert bench.endings()[0].error == "its health check failed 2 times in a row"
    assert bench.runner.running == 1
