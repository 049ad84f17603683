"""Each check finds the one thing that is wrong with made-up evidence, and nothing in evidence that is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring.model.tasks.states import TaskState
from tests.ledger import Line
from tests.torture.crowd import ALLOWED
from tests.torture.evidence import (
    Batched,
    Delivery,
    Ended,
    Evidence,
    Fired,
    Happened,
    HeldSpan,
    Life,
    Receipt,
    Tried,
    load,
    save,
)
from tests.torture.invariants import check_all
from tests.torture.plan import Fault
from tests.torture.report import summary, tell
from tests.torture.spans import SECOND

AGENT, OTHER, COMMAND = 100, 101, 200  # processes
SUCCEEDED, FAILED, LOST, SKIPPED = (int(TaskState[name]) for name in ("SUCCEEDED", "FAILED", "LOST", "SKIPPED"))


def run(task: int, token: int, since: float, until: float, pid: int = AGENT, attempt: int = 1) -> list[Line]:
    return [
        Line(task, attempt, token, pid, "start", int(since * SECOND)),
        Line(task, attempt, token, pid, "effect", int(until * SECOND)),
    ]


def ended(task: int, job: str, token: int, at: float, **other: Any) -> Ended:
    given: dict[str, Any] = {
        "state": SUCCEEDED,
        "attempt": 1,
        "code": None,
        "args": {},
        "key": f"key-{task}",
        "at": int(at * SECOND),
    }
    scheduled = {"schedule": None, "scope": None, "plan_time": None}
    return Ended(task, job, token=token, **{**given, **scheduled, **other})


def good() -> Evidence:
    """Four tasks that ran as they should: of each delivery class, and one of a schedule."""
    scheduled = {"key": None, "schedule": "at-most", "scope": "", "plan_time": 20.0}
    return Evidence(
        seed=1,
        lease=3.0,
        lines=[*run(1, 11, 1, 2), *run(2, 12, 1, 2), *run(3, 13, 3, 4), *run(4, 14, 20, 21)],
        ended=[
            ended(1, "work", 11, 2.1),
            ended(2, "launch", 12, 2.1),
            ended(3, "pay", 13, 4.1),
            ended(4, "at-most", 14, 21.1, **scheduled),
        ],
        fired=[Fired("at-most", "", 20.0, 4, None)],
        expected=[("at-most", "", 20.0)],
        effects=[(3, 13)],
        accepted={"key-1": 1, "key-2": 2, "key-3": 3},
        lives=[Life("agent-1", AGENT), Life("agent-2", OTHER)],
        settled=1.0,
    )


def broken(evidence: Evidence) -> set[str]:
    return {violation.invariant for violation in check_all(evidence)}


def happened(kind: str, target: str, since: float, until: float) -> Happened:
    return Happened(Fault(since, until - since, kind, target), int(since * SECOND), int(until * SECOND))


def test_what_is_right_is_passed() -> None:
    assert check_all(good()) == []


def test_what_an_agent_that_died_had_runs_again_and_that_is_right() -> None:
    evidence = good()
    evidence.lines = [Line(1, 1, 10, OTHER, "start", SECOND // 2), *evidence.lines]
    evidence.tried = [Tried(1, 10, 1, LOST, "lost")]
    assert check_all(evidence) == []


# ── L1 ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_task_that_has_not_ended_is_found() -> None:
    evidence = good()
    evidence.ended, evidence.live = evidence.ended[1:], [1]
    assert broken(evidence) == {"L1"}


def test_an_accepted_task_that_is_nowhere_is_found() -> None:
    evidence = good()
    evidence.accepted["key-9"] = 9
    assert broken(evidence) == {"L1"}


def test_a_task_that_ended_twice_is_found() -> None:
    evidence = good()
    evidence.ended.append(evidence.ended[0])
    assert broken(evidence) == {"L1"}


def test_a_second_task_for_one_key_is_found() -> None:
    evidence = good()
    evidence.ended.append(ended(9, "work", 19, 6.1, key="key-1"))
    evidence.lines += run(9, 19, 5, 6)
    assert broken(evidence) == {"L1"}


@pytest.mark.parametrize(
    ("job", "state", "code", "lost", "wanted"),
    [
        ("work", FAILED, "handler_error", 0, {"L1"}),
        ("work", LOST, "lost", 0, {"L1"}),
        ("work", FAILED, "quarantined", 1, {"L1"}),
        ("work", FAILED, "quarantined", 2, set()),
        ("launch", LOST, "lost", 0, set()),
        ("launch", FAILED, "handler_error", 0, {"L1"}),
    ],
)
def test_an_end_without_success_needs_a_reason(job: str, state: int, code: str, lost: int, wanted: set[str]) -> None:
    evidence = good()
    evidence.ended[0] = ended(1, job, 11, 2.1, state=state, code=code)
    evidence.lines = [line for line in evidence.lines if line.task != 1]
    evidence.tried = [Tried(1, token, 1, LOST, "lost") for token in range(lost)]
    assert broken(evidence) == wanted


def test_a_skipped_task_is_right_only_where_its_schedule_skips() -> None:
    evidence = good()
    skipped = {"state": SKIPPED, "code": "overlap", "attempt": 0, "scope": "", "plan_time": 9.0, "key": None}
    evidence.ended.append(ended(9, "one-waits", 0, 9.1, schedule="one-waits", **skipped))
    evidence.fired.append(Fired("one-waits", "", 9.0, None, "overlap"))
    evidence.expected.append(("one-waits", "", 9.0))
    assert check_all(evidence) == []
    evidence.fired[-1].reason = "misfire"
    assert broken(evidence) == {"L1", "L5"}


# ── L2, L4 ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("effects", [[], [(3, 13), (3, 13)]])
def test_an_effectively_once_task_without_its_one_effect_is_found(effects: list[tuple[int, int]]) -> None:
    evidence = good()
    evidence.effects = effects
    assert broken(evidence) == {"L2"}


def test_an_effect_of_a_payment_that_did_not_succeed_is_found() -> None:
    evidence = good()
    evidence.ended[2] = ended(3, "pay", 13, 4.1, state=FAILED, code="quarantined")
    evidence.tried = [Tried(3, token, 1, LOST, "lost") for token in (1, 2)]
    assert "L2" in broken(evidence)


def test_an_at_most_once_task_that_began_twice_is_found() -> None:
    evidence = good()
    evidence.lines.insert(0, Line(2, 1, 9, OTHER, "start", SECOND // 2))
    evidence.tried = [Tried(2, 9, 1, LOST, "lost")]
    assert broken(evidence) == {"L4"}


# ── L3 ──────────────────────────────────────────────────────────────────────────────────────────────


def with_two(since: float, **other: Any) -> Evidence:
    """Tasks 8, from 5 s to 6 s, and 9, from `since` on, which share what `other` says."""
    evidence = good()
    evidence.lines += [*run(8, 18, 5, 6, pid=OTHER), *run(9, 19, since, since + 1)]
    evidence.ended += [ended(8, "work", 18, 6.1, **other), ended(9, "work", 19, since + 1.1, **other)]
    evidence.accepted |= {"key-8": 8, "key-9": 9}
    return evidence


def test_tasks_of_one_key_that_overlap_are_found() -> None:
    assert broken(with_two(5.5, args={"key": "k1"})) == {"L3"}
    assert broken(with_two(6.0, args={"key": "k1"})) == set()
    assert broken(with_two(5.5)) == set()


def test_tasks_of_a_schedule_that_takes_turns_and_overlap_are_found() -> None:
    evidence = with_two(5.5, schedule="long-in-turn", scope="")
    evidence.ended[-1].plan_time = 1.0
    assert broken(evidence) == {"L3"}


def test_a_short_run_within_a_long_one_does_not_hide_a_third() -> None:
    evidence = with_two(5.1, args={"key": "k1"})
    evidence.lines[-1] = Line(9, 1, 19, AGENT, "effect", 52 * SECOND // 10)
    evidence.lines += run(7, 17, 5.5, 5.8)
    evidence.ended.append(ended(7, "work", 17, 6.1, args={"key": "k1"}))
    evidence.accepted["key-7"] = 7
    assert len([each for each in check_all(evidence) if each.invariant == "L3"]) == 2


def test_attempts_of_one_task_that_overlap_are_found() -> None:
    evidence = good()
    evidence.lines.insert(0, Line(1, 1, 10, OTHER, "start", SECOND // 2))
    evidence.lines.insert(3, Line(1, 1, 10, OTHER, "beat", 3 * SECOND // 2))
    evidence.tried = [Tried(1, 10, 1, LOST, "lost")]
    assert broken(evidence) == {"L3"}


def test_what_a_frozen_process_does_after_its_thaw_is_a_run_of_its_own() -> None:
    evidence = good()
    evidence.lines.insert(0, Line(1, 1, 10, OTHER, "start", SECOND // 2))
    evidence.lines.append(Line(1, 1, 10, OTHER, "beat", 5 * SECOND // 2))
    evidence.tried = [Tried(1, 10, 1, LOST, "lost")]
    evidence.lives[1].thaws = [9 * SECOND // 4]
    assert check_all(evidence) == [], "frozen while the other ran, and within the grace of its end"


# ── L5 ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_time_that_was_not_decided_is_found() -> None:
    evidence = good()
    evidence.expected.append(("at-most", "", 25.0))
    assert broken(evidence) == {"L5"}


def test_a_plan_time_that_is_none_is_found() -> None:
    evidence = good()
    evidence.expected = []
    assert broken(evidence) == {"L5"}


def test_a_plan_time_that_was_decided_twice_is_found() -> None:
    evidence = good()
    evidence.fired.append(Fired("at-most", "", 20.0, 5, None))
    evidence.lines += run(5, 15, 20, 21)
    evidence.ended.append(ended(5, "at-most", 15, 21.1, key=None, schedule="at-most", scope="", plan_time=20.0))
    assert broken(evidence) == {"L5"}


@pytest.mark.parametrize(
    ("since", "ahead", "wanted"),
    [(19.99, 0.0, {"L10"}), (19.999, 0.0, set()), (19.0, 1.0, set()), (20.5, -1.0, {"L10"})],
)
def test_a_run_before_its_plan_time_is_found_on_the_databases_clock(
    since: float, ahead: float, wanted: set[str]
) -> None:
    evidence = good()
    evidence.lines[-2] = Line(4, 1, 14, AGENT, "start", int(since * SECOND))
    evidence.clock_steps = [(0, ahead)]
    assert broken(evidence) == wanted


# ── L6, L7 ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_session_that_an_older_hello_has_ended_breaks_l6() -> None:
    assert broken(Evidence(seed=1, lease=3.0, settled=1.0, taken_back=[7])) == {"L6"}


@pytest.mark.parametrize("tried", [[], [Tried(1, 11, 1, LOST, "lost")]])
def test_a_token_of_two_attempts_is_found(tried: list[Tried]) -> None:
    evidence = good()
    evidence.lines.insert(0, Line(1, 1, 11, OTHER, "start", SECOND // 2))
    evidence.tried = tried
    assert broken(evidence) == {"L6"}


def test_an_end_under_an_older_token_is_found() -> None:
    evidence = good()
    evidence.lines.append(Line(1, 2, 99, OTHER, "start", 21 * SECOND // 10))
    evidence.tried = [Tried(1, 99, 2, LOST, "lost")]
    assert broken(evidence) == {"L6"}


def test_an_effect_of_another_token_is_found() -> None:
    evidence = good()
    evidence.effects = [(3, 12)]
    assert broken(evidence) == {"L6"}


def test_work_after_the_end_is_found() -> None:
    evidence = good()
    evidence.lines.append(Line(1, 1, 11, AGENT, "beat", 4 * SECOND))
    assert broken(evidence) == {"L7"}


def test_a_process_that_is_left_is_found() -> None:
    evidence = good()
    evidence.processes_left = ["123 command"]
    assert broken(evidence) == {"L7"}


# ── L8 ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_success_without_an_effect_of_its_attempt_is_found() -> None:
    evidence = good()
    evidence.lines = [line for line in evidence.lines if line.task != 1]
    assert broken(evidence) == {"L8"}


def test_a_run_under_a_token_that_the_database_does_not_know_is_found() -> None:
    evidence = good()
    evidence.lines.insert(0, Line(1, 1, 10, OTHER, "start", SECOND // 2))
    assert broken(evidence) == {"L8"}


def test_a_run_of_no_task_is_found() -> None:
    evidence = good()
    evidence.lines.append(Line(77, 1, 0, COMMAND, "start", SECOND))
    assert broken(evidence) == {"L8"}


def test_a_shutdown_that_counts_as_an_attempt_is_found() -> None:
    evidence = good()
    evidence.lines = [Line(1, 1, 10, OTHER, "start", SECOND // 2), *run(1, 11, 1, 2, attempt=2), *evidence.lines[2:]]
    evidence.tried = [Tried(1, 10, 1, FAILED, "shutdown")]
    evidence.ended[0].attempt = 2
    assert broken(evidence) == {"L8"}


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        (None, {"L8"}),
        (happened("kill", "server-1", 2, 3), {"L8"}),
        (happened("kill", "agent-2", 2, 3), {"L8"}),
        (happened("kill", "agent-1", 2, 3), set()),
        (happened("partition", "agent-1/servers", 2, 3), set()),
        (happened("postgres", "postgres", 2, 3), set()),
        (happened("stop", "server-1", 2, 3), set()),
        (happened("partition", "server-1/postgres", 2, 2.5), {"L8"}),
        (happened("partition", "server-1/postgres", 2, 5), set()),
        (happened("kill", "agent-1", 90, 91), {"L8"}),
    ],
)
def test_what_was_done_and_lost_needs_a_fault_of_its_agent(fault: Happened | None, wanted: set[str]) -> None:
    """Task 1 had its effect, and ran again all the same."""
    evidence = good()
    evidence.lines += run(1, 21, 8, 9, pid=OTHER)
    evidence.tried = [Tried(1, 11, 1, LOST, "lost")]
    evidence.ended[0] = ended(1, "work", 21, 9.1)
    evidence.faults = [fault] if fault is not None else []
    assert broken(evidence) == wanted


# ── L9, and what is told ────────────────────────────────────────────────────────────────────────────


def test_what_does_not_recover_is_found() -> None:
    evidence = good()
    evidence.settled = None
    assert broken(evidence) == {"L9"}


def test_a_process_that_ended_by_itself_is_found() -> None:
    evidence = good()
    evidence.lives[0].ended_by_itself = "a bug"
    assert broken(evidence) == {"L9"}


def test_a_process_that_did_not_stop_is_found() -> None:
    evidence = good()
    evidence.did_not_stop = ["server-1"]
    assert broken(evidence) == {"L9"}


def test_a_violation_is_told_with_ledger_rows_and_faults() -> None:
    evidence = good()
    evidence.lines.append(Line(1, 1, 11, AGENT, "beat", 4 * SECOND))
    evidence.faults = [happened("kill", "agent-2", 1, 2), happened("kill", "agent-2", 60, 61)]
    told = "\n".join(tell(evidence, check_all(evidence)))
    assert "L7 broken: task 1 was at work" in told
    assert "start  attempt 1 token 11 agent-1" in told
    assert "work succeeded" in told
    assert told.count("kill agent-2") == 1
    assert summary(evidence, check_all(evidence))["tasks"] == 4


def test_evidence_can_be_kept_and_checked_again(tmp_path: Path) -> None:
    evidence = good()
    evidence.faults = [happened("kill", "agent-2", 1, 2)]
    save(evidence, tmp_path / "evidence.json")
    assert load(tmp_path / "evidence.json") == evidence


# ── L11 ─────────────────────────────────────────────────────────────────────────────────────────────


def overtaken(by: float, priority: int = 9) -> Evidence:
    """Task 1 was accepted in second 1 and began in second 20; task 2, a low one, came in second 2 and began `by`."""
    evidence = good()
    evidence.lines = [*run(1, 11, 20, 21), *run(2, 12, by, by + 1), *run(3, 13, 3, 4), *run(4, 14, 20, 21)]
    evidence.ended[0] = ended(1, "work", 11, 21.1, priority=priority)
    evidence.ended[1] = ended(2, "launch", 12, by + 1.1, priority=2)
    evidence.accepted_at = {1: 1 * SECOND, 2: 2 * SECOND}
    return evidence


def test_a_task_that_waits_while_a_less_important_one_begins_breaks_l11() -> None:
    assert broken(overtaken(by=15)) == {"L11"}


def test_one_as_important_or_one_that_began_soon_or_amid_faults_does_not() -> None:
    assert broken(overtaken(by=15, priority=2)) == set()
    assert broken(overtaken(by=4)) == set()
    evidence = overtaken(by=15)
    evidence.faults = [happened("kill", "server-1", 6, 7)]
    assert "L11" not in broken(evidence)


# ── L12 ─────────────────────────────────────────────────────────────────────────────────────────

COUNTED = ("total", "succeeded", "failed", "timed_out", "cancelled", "skipped", "lost")


def with_batch() -> Evidence:
    """A batch of two tasks, one of which failed, and the callbacks that this calls for."""
    evidence = good()
    evidence.lines += [*run(5, 15, 1, 2), *run(7, 17, 3, 3.5), *run(8, 18, 5, 6)]
    evidence.ended += [
        ended(5, "work", 15, 2.1, batch=9),
        ended(6, "doomed", 16, 2.2, batch=9, state=FAILED),
        ended(7, "told", 17, 3.6, key=None, callback=(9, "failure")),
        ended(8, "told", 18, 6.1, key=None, callback=(9, "complete")),
    ]
    evidence.batches = [Batched(9, 2, FAILED, dict(zip(COUNTED, (2, 1, 1, 0, 0, 0, 0), strict=True)))]
    evidence.opened = {9: 2}
    return evidence


def test_a_batch_that_has_counted_and_called_back_is_right() -> None:
    assert check_all(with_batch()) == []


def _callback_twice(evidence: Evidence) -> None:
    evidence.lines += run(10, 20, 7, 8)
    evidence.ended.append(ended(10, "told", 20, 8.1, key=None, callback=(9, "failure")))


def _callback_missing(evidence: Evidence) -> None:
    evidence.ended = [row for row in evidence.ended if row.id != 8]
    evidence.lines = [line for line in evidence.lines if line.task != 8]


def _callback_early(evidence: Evidence) -> None:
    evidence.ended[-4].at = 9 * SECOND
    evidence.lines += [Line(5, 1, 15, AGENT, "effect", 9 * SECOND)]


def _success_told(evidence: Evidence) -> None:
    evidence.ended[-1].callback = (9, "success")


def _wrong_count(evidence: Evidence) -> None:
    evidence.batches[0].counts["succeeded"] = 2


def _not_ended(evidence: Evidence) -> None:
    evidence.batches[0].state = 1


def _lost(evidence: Evidence) -> None:
    evidence.batches = []


def _member_lost(evidence: Evidence) -> None:
    evidence.opened = {9: 3}


@pytest.mark.parametrize(
    "breaks",
    [
        _callback_twice,
        _callback_missing,
        _callback_early,
        _success_told,
        _wrong_count,
        _not_ended,
        _lost,
        _member_lost,
    ],
)
def test_what_is_wrong_with_a_batch_is_found(breaks: Callable[[Evidence], None]) -> None:
    evidence = with_batch()
    breaks(evidence)
    assert broken(evidence) == {"L12"}


# ── L14 ─────────────────────────────────────────────────────────────────────────────────────────


def hasty(began: float, code: str | None = None) -> Evidence:
    """A task that was made at 1 s, with a deadline at 2.5 s."""
    evidence = good()
    evidence.lines += run(5, 15, began, began + 0.1)
    evidence.ended.append(
        ended(5, "hasty", 15, began + 0.2, code=code, created=1.0, **({"state": 14} if code else {"key": "5"}))
    )
    evidence.accepted["5"] = 5
    return evidence


def test_what_begins_before_its_deadline_is_right() -> None:
    assert broken(hasty(2.0)) == set()


def test_what_begins_after_its_deadline_is_found() -> None:
    assert broken(hasty(4.0)) == {"L14"}


def test_what_was_skipped_for_its_deadline_never_begins() -> None:
    assert "L14" in broken(hasty(2.0, code="expired"))


def test_a_start_that_nobody_could_be_told_of_may_be_skipped_for_its_deadline() -> None:
    evidence = hasty(2.0, code="expired")
    evidence.faults = [happened("partition", "agent-1/servers", 1, 6)]
    assert "L14" not in broken(evidence)
    evidence.tried = [Tried(5, 15, 1, LOST, "lost", started=True)]
    assert "L14" in broken(evidence), "the database knew"


def test_a_start_that_nobody_could_be_told_of_is_before_the_deadline_too() -> None:
    evidence = hasty(4.0, code="expired")
    evidence.faults = [happened("partition", "agent-1/servers", 1, 6)]
    assert "L14" in broken(evidence)


def test_a_retry_has_no_deadline_if_the_start_before_it_was_known() -> None:
    evidence = hasty(4.0)
    evidence.lines += run(5, 14, 1.5, 1.6)
    evidence.tried = [Tried(5, 14, 1, FAILED, "handler_error", started=True)]
    assert "L14" not in broken(evidence)
    evidence.tried = [Tried(5, 14, 1, LOST, "lost")]
    assert "L14" in broken(evidence), "of that start no server knew"


def test_an_attempt_that_was_given_back_before_it_began_is_no_start() -> None:
    evidence = hasty(4.0)
    evidence.tried = [Tried(5, 14, 1, FAILED, "shutdown", started=True)]
    assert "L14" in broken(evidence)


@pytest.mark.parametrize(("ahead", "is_late"), [(0.0, False), (5.0, True), (-5.0, False)])
def test_a_deadline_is_on_the_clock_of_the_database(ahead: float, is_late: bool) -> None:
    evidence = hasty(2.0)
    evidence.clock_steps = [(-20 * SECOND, ahead)]
    assert ("L14" in broken(evidence)) is is_late


# ── L16 ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_bound_that_is_passed_by_more_than_submissions_under_way_is_found() -> None:
    evidence = good()
    evidence.most_waiting = ALLOWED
    assert broken(evidence) == set()
    evidence.most_waiting += 1
    assert broken(evidence) == {"L16"}


# ── L15 ─────────────────────────────────────────────────────────────────────────────────────────


def alerted() -> Evidence:
    """A task that failed for good, was noted, and was told in a message that was sent twice."""
    evidence = good()
    evidence.lines.append(Line(5, 1, 15, AGENT, "start", 5 * SECOND))
    evidence.ended.append(ended(5, "doomed", 15, 5.2, state=FAILED))
    evidence.accepted["key-5"] = 5
    evidence.alerted = {"doomed": 1}
    evidence.deliveries = [Delivery("m1", "failed", "delivered", 2)]
    evidence.receipts = [Receipt("m1", 1, "a"), Receipt("m1", 2, "a")]
    return evidence


def test_a_failure_that_is_noted_once_is_right() -> None:
    assert broken(alerted()) == set()
    assert broken(hasty(2.0)) == set(), "without a channel nothing is looked at"


@pytest.mark.parametrize(
    "change",
    [
        {"alerted": {}},
        {"alerted": {"doomed": 2}},
        {"alerted": {"doomed": 1, "work": 1}},
        {"receipts": []},
        {"receipts": [Receipt("m1", 1, "a"), Receipt("m1", 2, "b")]},
        {"receipts": [Receipt("m1", 1, "a")] * 3},
        {"receipts": [Receipt("m1", 1, "a"), Receipt("m2", 1, "a")]},
        {"deliveries": [Delivery(f"m{number}", "failed", "pending", 2) for number in range(1, 9)]},
    ],
)
def test_what_is_wrong_with_alerts_is_found(change: dict[str, Any]) -> None:
    evidence = alerted()
    for name, value in change.items():
        setattr(evidence, name, value)
    assert broken(evidence) == {"L15"}


def test_what_happened_just_before_the_clock_was_set_back_may_be_noted_twice() -> None:
    evidence = alerted()
    evidence.alerted, evidence.clock_steps = {"doomed": 2}, [(30 * SECOND, 4.0)]
    assert broken(evidence) == {"L15"}
    evidence.clock_steps.append((40 * SECOND, 0.0))
    assert broken(evidence) == set()


# ── L13 ─────────────────────────────────────────────────────────────────────────────────────────────


def held(job: str | None, since: float, until: float) -> Evidence:
    """The first task, of the job `work`, begins at 1 s."""
    evidence = good()
    evidence.held = [HeldSpan(job, int(since * SECOND), int(until * SECOND))]
    return evidence


@pytest.mark.parametrize("job", ["work", None])
def test_nothing_of_a_held_job_begins(job: str | None) -> None:
    assert broken(held(job, -1.5, 5)) == {"L13"}


def test_what_was_on_its_way_when_the_hold_was_made_may_begin() -> None:
    assert broken(held("work", 0.5, 5)) == set()


def test_other_jobs_begin_and_so_does_what_was_released() -> None:
    assert broken(held("exclusive", -2, 5)) == set()
    assert broken(held("work", -5, 0.9)) == set()


def test_while_a_fault_is_near_a_recall_may_take_as_long_as_a_lease() -> None:
    evidence = held("work", -4, 5)
    evidence.faults = [happened("partition", "agent-1/servers", -3, 0)]
    assert broken(evidence) == set()
    evidence.held[0].since = -20 * SECOND
    assert broken(evidence) == {"L13"}
