"""Histograms, the busiest jobs and tallies: what is counted is told once, and never less than before."""

from __future__ import annotations

import random

import pytest

from mainspring.model.messages import Armed
from mainspring.model.metrics.busiest import Busiest
from mainspring.model.metrics.histogram import Histogram
from mainspring.model.metrics.metrics import JOBS, OTHER
from mainspring.model.metrics.tallies import (
    CODES,
    MINUTE,
    STATEMENTS,
    GatewayTally,
    RecentMaximum,
    SegmentLoad,
    StoreTally,
)

BOUNDS = (0.1, 1.0, 10.0)


@pytest.mark.parametrize(
    ("value", "place"), [(0.0, 0), (0.1, 0), (0.11, 1), (1.0, 1), (10.0, 2), (10.1, 3), (1e9, 3), (-1.0, 0)]
)
def test_a_bucket_includes_its_upper_end(value: float, place: int) -> None:
    histogram = Histogram(BOUNDS)
    histogram.add(value)
    assert histogram.counts == [int(number == place) for number in range(4)]
    assert (histogram.count, histogram.sum) == (1, value)


@pytest.mark.parametrize("seed", range(50))
def test_a_batch_of_instants_counts_like_each_of_them(seed: int) -> None:
    chance = random.Random(seed)
    now = 1_000_000.0
    instants = sorted(now - chance.choice([0.1, 1.0, 10.0, -3.0, chance.uniform(-1, 20)]) for _ in range(seed))
    together, one_by_one = Histogram(BOUNDS), Histogram(BOUNDS)
    together.add_since(instants, now)
    for instant in instants:
        one_by_one.add(max(0.0, now - instant))
    assert together.count == len(instants)
    assert together.sum == pytest.approx(one_by_one.sum, abs=1e-6)
    near = sum(abs(one - other) for one, other in zip(together.counts, one_by_one.counts, strict=True))
    assert near <= 2 * sum(any(abs(now - at - bound) < 1e-9 for bound in BOUNDS) for at in instants)  # rounding


@pytest.mark.parametrize("count", [1, 9, 10, 100])
def test_waits_are_counted_by_priority_however_many_are_sent_at_once(count: int) -> None:
    tally = GatewayTally()
    tasks = [Armed(n, n, 1, 1, 99.0 - n % 2 * 90, "{}", priority=5 + n % 2) for n in range(count)]
    tally.queued(tasks, 100.0)
    waits = [histogram.count for histogram in tally.queue_waits]
    assert waits == [0] * 5 + [(count + 1) // 2, count // 2, 0, 0, 0]
    assert tally.sent == count
    assert tally.queue_waits[5].sum == pytest.approx((count + 1) // 2)
    assert tally.queue_waits[6].sum == pytest.approx(91 * (count // 2))


def told(busiest: Busiest, counts: dict[str, int]) -> dict[str, float]:
    found = busiest.tell({(job, "succeeded"): [count, 2.0 * count] for job, count in counts.items()})
    assert all(numbers[1] == 2 * numbers[0] for numbers in found.values())
    return {job: numbers[0] for (job, _), numbers in found.items()}


def test_the_busiest_jobs_have_labels_and_the_rest_share_one() -> None:
    counts = {f"job {number}": number for number in range(1, JOBS + 11)}
    found = told(Busiest(), counts)
    assert len(found) == JOBS + 1
    assert found[OTHER] == sum(range(1, 11))
    assert found[f"job {JOBS + 10}"] == JOBS + 10


def test_no_counter_decreases_when_a_job_becomes_one_of_the_busiest_or_leaves_them() -> None:
    busiest = Busiest(most=2)
    chance = random.Random(1)
    counts = dict.fromkeys("abcdef", 0)
    before: dict[str, float] = {}
    last: dict[str, float] = {}
    for _ in range(200):
        for job in counts:
            counts[job] += chance.choice([0, 0, 1, 50])
        found = told(busiest, counts)
        assert len(found) <= 3
        assert all(found[job] >= before.get(job, 0) for job in found)
        before |= found
        last = found
    everything = {job: numbers[0] for (job, _), numbers in busiest._told.items()}
    assert sum(everything.values()) == sum(counts.values())
    assert OTHER in last


def test_a_job_named_like_the_rest_is_part_of_it() -> None:
    assert told(Busiest(most=1), {OTHER: 5, "busy": 7}) == {OTHER: 5, "busy": 7}


def test_how_many_jobs_have_a_label_of_their_own_may_change() -> None:
    busiest = Busiest(most=2)
    assert told(busiest, {"busy": 7, "idle": 1}) == {"busy": 7, "idle": 1}
    busiest.most = 1
    assert told(busiest, {"busy": 8, "idle": 3}) == {"busy": 8, OTHER: 2}


def test_labels_of_statements_and_errors_are_bounded() -> None:
    tally = StoreTally()
    for number in range(2 * STATEMENTS):
        tally.ran(f"select table_{number}", 0.1)
        tally.failed(f"{number:05}")
    assert len(tally.statements) == STATEMENTS + 1
    assert tally.statements[OTHER].count == STATEMENTS
    assert len(tally.errors) == CODES + 1
    assert tally.errors.total() == 2 * STATEMENTS


def test_the_load_of_segments_is_that_of_the_last_whole_minute() -> None:
    load = SegmentLoad()
    now = 1000.0
    load.add({1: 10, 2: 20, 3: 60}, now)
    assert load.quantiles(now) == {"0.5": 20.0, "1": 60.0}
    load.add({1: 1}, now + MINUTE)
    assert load.quantiles(now + MINUTE) == {"0.5": 20.0, "1": 60.0}
    assert load.quantiles(now + 2 * MINUTE) == {"0.5": 1.0, "1": 1.0}
    assert load.quantiles(now + 5 * MINUTE) == {"0.5": 0.0, "1": 0.0}


def test_a_recent_maximum_is_forgotten_after_two_minutes() -> None:
    recent = RecentMaximum()
    recent.add(7.0, 1000.0)
    recent.add(0.0, 1001.0)
    assert recent.value(1059.0) == 7.0
    assert recent.value(1061.0) == 7.0
    assert recent.value(1122.0) == 0.0
