"""An autoscaler that follows the signal comes within 20 % of the slots that it would take knowing everything.

The optimum is the work itself, at 80 % use: rate × duration / 0.8 for a load, runs at once / 0.8 for a herd.
"""

from __future__ import annotations

import random

import pytest
from tests.model.scaling.simulation import Autoscaler, Run, Work

from mainspring.model.scaling.wanted import USE

STEP = 60  # when the load begins
SETTLED = 360
LENGTH = 1860


def arrivals(rate: float, seconds: float, begin: int, end: int, *, spread: bool, seed: int) -> list[Work]:
    """At random, so many a second; their durations too, if they are spread."""
    chance, at, found = random.Random(seed), float(begin), list[Work]()
    while (at := at + chance.expovariate(rate)) < end:
        found.append(Work(int(at), chance.expovariate(1 / seconds) if spread else seconds))
    return found


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize(
    ("rate", "seconds", "spread"),
    [
        (50.0, 0.2, False),
        (10.0, 2.0, False),
        (20.0, 5.0, True),
        (2.0, 10.0, False),
        (1.0, 60.0, True),
        (0.5, 200.0, False),
    ],
)
def test_a_load_that_begins_at_once(rate: float, seconds: float, spread: bool, seed: int) -> None:
    run = Run(arrivals(rate, seconds, STEP, LENGTH, spread=spread, seed=seed), LENGTH)
    optimum = rate * seconds / USE
    assert run.share(optimum, SETTLED, LENGTH) == pytest.approx(1.0, abs=0.2)
    assert run.share(optimum, STEP, LENGTH) == pytest.approx(1.0, abs=0.2), "with the backlog of the first minute"
    assert run.waited(SETTLED) <= run.scaler.target_wait
    assert run.waited(share=1.0) <= 2 * run.scaler.poll + run.scaler.boot + 2 * run.scaler.target_wait
    assert run.slots[STEP - 1] == 0


def test_the_load_ends_and_so_do_the_slots() -> None:
    work = arrivals(5.0, 10.0, STEP, 900, spread=True, seed=3)
    run = Run(work, 1500)
    assert run.slots[890] > 0
    assert run.slots[-1] == 0
    assert len(run.waits) == len(work), "all of them ran"
    cooling = next(second for second in range(900, 1500) if not run.slots[second])
    assert cooling < 900 + 240, "within two minutes of rates, one to be sure, and the last runs"


def test_a_herd_in_four_minutes_finds_its_slots() -> None:
    run = Run([Work(240, 20.0, is_planned=True)] * 200, 900)
    assert run.slots[240] == pytest.approx(200 / USE, rel=0.2)
    assert max(run.slots) <= 1.2 * 200 / USE
    assert run.waited(share=1.0) == 0, "each of them starts on time"
    assert run.slots[-1] == 0


def test_a_herd_beside_a_load_finds_slots_of_its_own() -> None:
    herd = [Work(1240, 10.0, is_planned=True)] * 200
    run = Run(herd + arrivals(5.0, 10.0, 0, 1800, spread=False, seed=4), 1800)
    assert run.slots[1240] == pytest.approx(250 / USE, rel=0.2)
    assert max(run.slots[900:]) <= 1.2 * 250 / USE
    assert run.waited(900) == 0


def test_a_herd_of_long_runs_is_not_taken_for_a_load() -> None:
    """Five hundred tasks in a second are a high rate of the last minute, and no reason for more slots."""
    run = Run([Work(300, 400.0, is_planned=True)] * 500, 1200)
    assert max(run.slots) <= 1.2 * 500 / USE
    assert run.waited(share=1.0) == 0


def test_one_task_wakes_one_agent_which_goes_again() -> None:
    run = Run([Work(100, 5.0)], 600, Autoscaler(slots_per_agent=20))
    assert set(run.slots) == {0, 20}
    [(_, wait)] = run.waits
    assert wait <= run.scaler.poll + run.scaler.boot
    assert run.slots[-1] == 0


def test_a_schedule_of_every_night_wakes_an_agent_before_it_is_due() -> None:
    run = Run([Work(1000, 5.0, is_planned=True)], 1500, Autoscaler(slots_per_agent=20))
    assert run.waits[0][1] == 0
    assert (run.slots[690], run.slots[-1]) == (0, 0)


def test_steady_plan_times_are_no_more_than_they_are() -> None:
    """The rate that was measured and the plan times ahead are the same work."""
    run = Run([Work(second, 10.0, is_planned=True) for second in range(60, LENGTH) for _ in range(3)], LENGTH)
    assert run.share(30 / USE, SETTLED, LENGTH - 300) == pytest.approx(1.0, abs=0.2)
    assert run.waited(SETTLED) == 0, "the first had to tell how long they take"
