"""Table: the results of a part in Markdown, for the terminal and for docs/explanation/peers.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.peers.rounds import Results, medians, ratio

TITLES = {
    "one_process_per_s": "one process, tasks/s",
    "two_processes_per_s": "two processes, tasks/s",
    "bulk_per_s": "bulk, tasks/s",
    "single_per_s": "single, tasks/s",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "max_ms": "max, ms",
}
_PROBED = ("timer", "fdatasync")


def part_table(part: str, results: Results, titles: Mapping[str, str], ours: str) -> str:
    """A row for each peer, with how many times better ours is in parentheses, then what the machine did meanwhile."""
    found = results.medians()
    columns = [key for key in TITLES if any(key in figures for figures in found.values())]
    rows = [[part, *(TITLES[key] for key in columns)]]
    for name, title in titles.items():
        if name in found:
            rows.append([title, *(_cell(key, found[name], found.get(ours), name == ours) for key in columns)])
        if name in results.failures:
            rows.append([title, f"failed: {results.failures[name]}", *[""] * (len(columns) - 1)])
    return "\n".join([*markdown(rows), "", probe_line(results.probes)])


def _cell(key: str, theirs: Mapping[str, float], ours: Mapping[str, float] | None, is_ours: bool) -> str:
    if key not in theirs:
        return "–"
    text = number(key, theirs[key])
    times = None if is_ours or ours is None or key not in ours else ratio(key, ours[key], theirs[key])
    return text if times is None else f"{text} ({times:.2f})" if times < 10 else f"{text} ({times:,.0f})"


def number(key: str, value: float) -> str:
    """Rates with three digits, times with two behind the point while they are small."""
    if key.endswith("_per_s"):
        digits = max(len(str(int(value))) - 3, 0)
        return f"{round(value, -digits):,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned, so that it can be read as it is."""
    columns = max(len(row) for row in rows)
    filled = [[*row, *[""] * (columns - len(row))] for row in rows]
    # A failure is a long text in the first cell: it does not widen its column.
    widths = [
        max(len(row[place]) for row in filled if not row[place].startswith("failed: ")) for place in range(columns)
    ]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in filled
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def probe_line(probes: Sequence[Mapping[str, float]]) -> str:
    if not probes:
        return "bare probe: none"
    found = medians(probes)
    timer, write = (f"p50 {found[f'{name}_p50_ms']:.2f} and p99 {found[f'{name}_p99_ms']:.2f} ms" for name in _PROBED)
    stolen = f"{found['steal_percent']:.1f} %"
    return f"bare probe, median of {len(probes)} turns: timer {timer}; 8 kB with fdatasync {write}; stolen {stolen}"
