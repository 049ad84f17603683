"""Tallies: each attempt in the buckets of its duration and lateness."""

from __future__ import annotations

from msgspec.structs import replace

from mainspring.model.figures.buckets import DURATION, LATENESS
from mainspring.model.messages import Ending
from mainspring.model.tasks.states import TaskState
from mainspring.server.recording.tallies import UNKNOWN_JOB, Tallies

OK, FAILED = TaskState.SUCCEEDED, TaskState.FAILED


def ending(started: float = 100.0, seconds: float = 0.002, **fields: object) -> Ending:
    given = Ending(1, 1, 7, 1, OK, started, started + seconds, armed_ahead=1.0, fire_at=99.999)
    return replace(given, **fields)


def filled(bounds: tuple[float, ...], counts: list[int] | None) -> dict[float, int]:
    """The counts that are not 0, by bound."""
    assert counts is not None
    return {bound: count for bound, count in zip((*bounds, float("inf")), counts, strict=True) if count}


def test_an_attempt_is_counted_by_job_and_outcome_with_duration_and_lateness() -> None:
    tallies = Tallies()
    tallies.count([ending(), ending(seconds=7.0), ending(started=103.0, planned=True)])
    tallies.count([ending(state=FAILED)], runs_again=True)
    cell = tallies.ended[7, OK]
    assert (list(tallies.ended), list(tallies.again), cell.count) == ([(7, OK)], [(7, FAILED)], 3)
    assert filled(DURATION, cell.durations) == {0.005: 2, 10.0: 1}
    assert filled(LATENESS, cell.due) == {0.0025: 2}
    assert filled(LATENESS, cell.planned) == {5.0: 1}
    assert (round(cell.duration_sum, 3), round(cell.duration_max, 3)) == (7.004, 7.0)
    assert (round(cell.due_sum, 3), round(cell.planned_sum, 3), round(cell.planned_max, 3)) == (0.002, 3.001, 3.001)


def test_only_first_attempts_with_a_known_instant_have_a_lateness() -> None:
    tallies = Tallies()
    tallies.count([ending(attempt=2), ending(fire_at=0.0), ending(started=0.0)])
    cell = tallies.ended[7, OK]
    assert (cell.count, cell.due, cell.planned) == (3, None, None)
    assert filled(DURATION, cell.durations) == {0.005: 2}, "one of them never started"


def test_clocks_that_were_corrected_count_as_zero() -> None:
    tallies = Tallies()
    tallies.count([ending(seconds=-5.0, fire_at=200.0)])
    cell = tallies.ended[7, OK]
    assert (filled(DURATION, cell.durations), filled(LATENESS, cell.due)) == ({0.001: 1}, {0.0001: 1})
    assert (cell.duration_sum, cell.due_sum) == (0.0, 0.0)


def test_jobs_that_an_agent_made_up_share_a_cell() -> None:
    tallies = Tallies(lambda job: job == 7)
    tallies.count([ending(), ending(job=10**12), ending(job=-3)])
    assert {key: cell.count for key, cell in tallies.ended.items()} == {(7, OK): 1, (UNKNOWN_JOB, OK): 2}
