"""Verdict: every branch of what follows an attempt, or the death of its agent."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mainspring.model.messages import Ending
from mainspring.model.tasks.jobs import Definition, Delivery, Python
from mainspring.model.tasks.retry import Retry
from mainspring.model.tasks.states import TERMINAL, TaskState
from mainspring.model.tasks.verdict import Again, after_attempt, after_crash, at_least_after, starts_durably

JOB = Definition(Python("job"), retry=Retry(retries=2, backoff="fixed", delay=7.0))
AT_MOST_ONCE = replace(JOB, delivery="at_most_once")
NO_RETRIES = replace(JOB, retry=Retry(retries=0))
NOT_AFTER_A_CRASH = replace(JOB, retry=Retry(retries=2, backoff="fixed", delay=7.0, abort_on=("lost",)))


def ending(state: TaskState = TaskState.FAILED, *, attempt: int = 1, **fields: Any) -> Ending:
    return Ending(1, 2, 3, attempt, state, 10.0, 11.0, **fields)


# ── an attempt that was reported ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", sorted(TERMINAL - {TaskState.FAILED, TaskState.TIMED_OUT}))
@pytest.mark.parametrize("definition", [JOB, AT_MOST_ONCE, None])
def test_what_did_not_fail_stands(definition: Definition | None, state: TaskState) -> None:
    given = ending(state)
    assert after_attempt(definition, given, 0.5) is given


@pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.TIMED_OUT])
def test_a_failure_is_followed_by_another_attempt_after_the_wait(state: TaskState) -> None:
    given = ending(state)
    assert after_attempt(JOB, given, 0.5) == Again(given, 7.0, costs=True, crash=False)


def test_a_failure_of_the_last_attempt_stands() -> None:
    given = ending(attempt=3)
    assert after_attempt(JOB, given, 0.5) is given


@pytest.mark.parametrize(
    ("definition", "given"),
    [
        (JOB, ending(final=True)),
        (JOB, ending(final=True, retry_after=1.0)),
        (None, ending()),
        (AT_MOST_ONCE, ending()),
        (AT_MOST_ONCE, ending(TaskState.TIMED_OUT)),
        (replace(JOB, retry=Retry(abort_on=("KeyError",))), ending(labels=("KeyError",))),
        (replace(JOB, retry=Retry(retry_on=("KeyError",))), ending(labels=("ValueError",))),
    ],
    ids=["final", "final wins over a wish", "no definition", "at most once", "timed out once", "abort_on", "retry_on"],
)
def test_a_failure_that_must_not_be_repeated_stands(definition: Definition | None, given: Ending) -> None:
    assert after_attempt(definition, given, 0.5) is given


def test_the_handlers_own_wait_wins_over_the_policy_and_still_costs() -> None:
    given = ending(retry_after=0.0)
    assert after_attempt(JOB, given, 0.5) == Again(given, 0.0, costs=True)
    last = ending(retry_after=0.0, attempt=3)
    assert after_attempt(JOB, last, 0.5) is last


@pytest.mark.parametrize("definition", [JOB, AT_MOST_ONCE, None])
def test_a_snooze_costs_no_attempt_however_many_there_were(definition: Definition | None) -> None:
    given = ending(TaskState.SKIPPED, attempt=3, snooze=60.0)
    assert after_attempt(definition, given, 0.5) == Again(given, 60.0, costs=False)


@pytest.mark.parametrize("definition", [JOB, NOT_AFTER_A_CRASH, None])
def test_an_attempt_that_its_agent_stopped_for_a_shutdown_costs_nothing(definition: Definition | None) -> None:
    given = ending(TaskState.FAILED, code="shutdown", attempt=3)
    assert after_attempt(definition, given, 0.5) == Again(given, 0.0, costs=False)


LEASE_LOST = [(TaskState.LOST, "lost"), (TaskState.FAILED, "lease_over")]


@pytest.mark.parametrize(("state", "code"), LEASE_LOST)
def test_an_attempt_that_was_lost_with_its_lease_counts_like_one_that_the_rescuer_finds(
    state: TaskState, code: str
) -> None:
    given = ending(state, code=code)
    assert after_attempt(JOB, given, 0.5) == Again(given, 7.0, costs=True)
    for definition, attempt in ((JOB, 3), (NO_RETRIES, 1), (NOT_AFTER_A_CRASH, 1)):
        last = after_attempt(definition, ending(state, code=code, attempt=attempt), 0.5)
        assert isinstance(last, Ending)
        assert (last.state, last.code) == (TaskState.FAILED, code)


@pytest.mark.parametrize("definition", [JOB, AT_MOST_ONCE, NOT_AFTER_A_CRASH])
@pytest.mark.parametrize("code", ["lost", "shutdown"])
def test_an_attempt_that_its_agent_stopped_before_it_began_runs_again_at_no_cost(
    definition: Definition, code: str
) -> None:
    given = ending(TaskState.LOST, code=code, attempt=3, snooze=0.0)
    assert after_attempt(definition, given, 0.5) == Again(given, 0.0, costs=False)


@pytest.mark.parametrize(("state", "code"), [(TaskState.FAILED, "shutdown"), (TaskState.LOST, "lost")])
def test_an_at_most_once_attempt_that_its_agent_had_to_stop_is_lost(state: TaskState, code: str) -> None:
    verdict = after_attempt(AT_MOST_ONCE, ending(state, code=code), 0.5)
    assert isinstance(verdict, Ending)
    assert verdict.state is TaskState.LOST


# ── an attempt whose agent is gone ──────────────────────────────────────────────────────────────


def crashed(
    definition: Definition | None = JOB,
    *,
    started: bool = True,
    crashes: int = 0,
    cancelled: bool = False,
    attempt: int = 1,
    given_back: bool = False,
) -> Ending | Again:
    return after_crash(
        definition,
        ending(TaskState.LOST, attempt=attempt, code="lost"),
        started=started,
        crashes=crashes,
        cancelled=cancelled,
        random=0.5,
        given_back=given_back,
    )


def test_a_crash_costs_an_attempt_and_is_counted() -> None:
    verdict = crashed()
    assert isinstance(verdict, Again)
    assert (verdict.delay, verdict.costs, verdict.crash) == (7.0, True, True)


def test_an_attempt_not_known_to_have_started_costs_nothing_but_its_first_crash_counts() -> None:
    verdict = crashed(started=False)
    assert isinstance(verdict, Again)
    assert (verdict.delay, verdict.costs, verdict.crash) == (0.0, False, True)


@pytest.mark.parametrize("crashes", [1, 2, 50])
def test_once_it_runs_carefully_an_attempt_that_did_not_start_is_no_crash(crashes: int) -> None:
    verdict = crashed(started=False, crashes=min(crashes, 2), attempt=crashes)
    assert isinstance(verdict, Again)
    assert (verdict.delay, verdict.costs, verdict.crash) == (0.0, False, False)


def test_the_third_crash_is_quarantine() -> None:
    assert isinstance(crashed(crashes=1), Again)
    verdict = crashed(crashes=2)
    assert isinstance(verdict, Ending)
    assert (verdict.state, verdict.code) == (TaskState.FAILED, "quarantined")
    assert "retry it by hand" in (verdict.error or "")


@pytest.mark.parametrize(
    ("definition", "attempt"),
    [(JOB, 3), (NO_RETRIES, 1), (NOT_AFTER_A_CRASH, 1), (replace(JOB, retry=Retry(retry_on=("KeyError",))), 1)],
    ids=["the last", "the only one", "abort_on", "retry_on"],
)
def test_a_crash_that_must_not_be_followed_by_another_attempt_fails_the_task(
    definition: Definition, attempt: int
) -> None:
    verdict = crashed(definition, attempt=attempt)
    assert isinstance(verdict, Ending)
    assert (verdict.state, verdict.code) == (TaskState.FAILED, "lost")


def test_a_job_that_is_not_retried_after_a_crash_is_known_to_have_started_or_not() -> None:
    """Its starts are durable before they begin, from the first one on: what has not started is no crash."""
    assert starts_durably(NOT_AFTER_A_CRASH)
    assert not any(map(starts_durably, (JOB, NO_RETRIES, AT_MOST_ONCE)))
    verdict = crashed(NOT_AFTER_A_CRASH, started=False)
    assert isinstance(verdict, Again)
    assert (verdict.costs, verdict.crash) == (False, False)
    failed = ending(labels=("KeyError",))
    assert after_attempt(NOT_AFTER_A_CRASH, failed, 0.5) == Again(failed, 7.0, costs=True)


@pytest.mark.parametrize("definition", [JOB, AT_MOST_ONCE, NO_RETRIES, NOT_AFTER_A_CRASH])
def test_only_what_an_agent_says_it_does_not_hold_and_never_started_runs_again_for_sure(
    definition: Definition,
) -> None:
    verdict = crashed(definition, started=False, given_back=True, crashes=2)
    assert isinstance(verdict, Again)
    assert (verdict.delay, verdict.costs, verdict.crash) == (0.0, False, False)
    assert crashed(definition, started=True, given_back=True) == crashed(definition, started=True)
    assert isinstance(crashed(None, started=False, given_back=True), Ending), "it may be one that runs once at most"


@pytest.mark.parametrize("started", [True, False])
def test_a_task_without_a_definition_fails_because_it_may_not_be_safe_to_repeat(started: bool) -> None:
    verdict = crashed(None, started=started)
    assert isinstance(verdict, Ending)
    assert verdict.state is TaskState.FAILED
    assert "cannot be read" in (verdict.error or "")


def test_what_follows_can_be_put_off_and_an_end_cannot() -> None:
    again = crashed()
    assert isinstance(again, Again)
    assert at_least_after(5.0, again) == again._replace(delay=max(again.delay, 5.0))
    assert at_least_after(0.0, again) == again
    assert at_least_after(5.0, ending()) == ending()


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("crashes", [0, 2])
def test_doubt_about_an_at_most_once_task_ends_it_as_lost(started: bool, crashes: int) -> None:
    verdict = crashed(AT_MOST_ONCE, started=started, crashes=crashes)
    assert isinstance(verdict, Ending)
    assert verdict.state is TaskState.LOST


@pytest.mark.parametrize("definition", [JOB, AT_MOST_ONCE, None])
@pytest.mark.parametrize("crashes", [0, 2])
def test_a_cancelled_task_whose_agent_is_gone_is_cancelled(definition: Definition | None, crashes: int) -> None:
    verdict = crashed(definition, cancelled=True, crashes=crashes)
    assert isinstance(verdict, Ending)
    assert (verdict.state, verdict.code) == (TaskState.CANCELLED, "cancelled")


@pytest.mark.parametrize("delivery", ["at_least_once", "effectively_once"])
def test_no_sequence_of_crashes_runs_a_task_more_than_three_times(delivery: Delivery) -> None:
    definition = replace(JOB, delivery=delivery, retry=Retry(retries=1000))
    crashes = starts = 0
    while isinstance(verdict := crashed(definition, crashes=crashes, attempt=starts + 1), Again):
        starts += 1
        crashes += verdict.crash
        assert starts < 10
    assert starts + 1 == 3
