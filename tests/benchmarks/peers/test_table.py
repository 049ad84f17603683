"""The tables of `benchmarks.peers`."""

from __future__ import annotations

import pytest
from benchmarks.peers.rounds import Results
from benchmarks.peers.table import markdown, number, part_table, probe_line

PROBE = {
    "timer_p50_ms": 0.1,
    "timer_p99_ms": 1.5,
    "fdatasync_p50_ms": 0.4,
    "fdatasync_p99_ms": 4.0,
    "steal_percent": 0.2,
}
TITLES = {"ours": "Ours", "a": "A", "b": "B", "c": "C"}


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_a_row_shows_the_medians_and_how_many_times_better_ours_is() -> None:
    figures = {"ours": [{"bulk_per_s": 90_000.0, "single_per_s": 2_000.0}], "a": [{"single_per_s": 1_000.0}]}
    found = rows(part_table("submission", Results(figures=figures, probes=[PROBE]), TITLES, "ours"))
    assert found[0] == ["submission", "bulk, tasks/s", "single, tasks/s"]
    assert found[2:] == [["Ours", "90,000", "2,000"], ["A", "–", "1,000 (2.00)"]]


def test_a_large_ratio_is_a_whole_number() -> None:
    figures = {"ours": [{"p50_ms": 0.25}], "a": [{"p50_ms": 255.0}]}
    assert rows(part_table("lateness", Results(figures=figures), TITLES, "ours"))[3] == ["A", "255 (1,020)"]


def test_a_failure_has_a_row_and_a_peer_that_took_no_part_has_none() -> None:
    results = Results(figures={"ours": [{"p50_ms": 1.0}]}, failures={"b": "it ended with 1"}, probes=[PROBE])
    found = rows(part_table("pickup", results, TITLES, "ours"))
    assert found[2:] == [["Ours", "1.00"], ["B", "failed: it ended with 1"]]


def test_a_part_in_which_everyone_failed_is_still_a_table() -> None:
    results = Results(failures={"ours": "no", "a": "neither"})
    found = rows(part_table("herd", results, TITLES, "ours"))
    assert found[2:] == [["Ours", "failed: no"], ["A", "failed: neither"]]


def test_without_a_figure_of_ours_there_are_no_ratios() -> None:
    results = Results(figures={"a": [{"p50_ms": 3.0}]}, failures={"ours": "no"})
    assert rows(part_table("herd", results, TITLES, "ours"))[3] == ["A", "3.00"]


def test_the_lines_of_a_table_are_aligned() -> None:
    lines = markdown([["part", "p50"], ["a longer name", "1"]])
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("bulk_per_s", 100_449.0, "100,000"),
        ("single_per_s", 1_884.0, "1,880"),
        ("single_per_s", 96.0, "96"),
        ("p50_ms", 0.194, "0.19"),
        ("p99_ms", 53.4, "53"),
        ("max_ms", 15_536.2, "15,536"),
    ],
)
def test_figures_are_rounded_to_what_they_are_worth(key: str, value: float, text: str) -> None:
    assert number(key, value) == text


def test_the_probe_is_the_median_of_all_turns() -> None:
    line = probe_line([PROBE, {**PROBE, "timer_p99_ms": 30.0}, {**PROBE, "timer_p99_ms": 2.5}])
    assert "median of 3 turns" in line
    assert "timer p50 0.10 and p99 2.50 ms" in line
