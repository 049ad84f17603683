"""When who was at work, by the ledger: L3, L6 and L7 of tests/torture/invariants.py.

A run is seen from its first line to its last. While its process is frozen it does nothing, so what it does after a
thaw is a run of its own.
Next: tests/torture/report.py
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from tests.journey.invariants import Run, runs
from tests.torture.evidence import Evidence
from tests.torture.timetable import TIMETABLE

SECOND = 1_000_000_000  # in nanoseconds
GRACE = 1 * SECOND  # after its end, for what a task still does
IN_TURN = {tick.name for tick in TIMETABLE if tick.overlap != "allow"}


class Violation(NamedTuple):
    invariant: str
    what: str
    task: int | None = None
    at: int | None = None  # in nanoseconds of boot time


class Span(NamedTuple):
    first: int
    last: int
    run: Run


def spans(evidence: Evidence) -> list[Span]:
    thaws = [(life.pid, at) for life in evidence.lives for at in life.thaws]
    return sorted(Span(first, last, run) for run, (first, last) in runs(evidence.lines, thaws).items())


def exclusive_runs(evidence: Evidence) -> Iterator[Violation]:
    """L3: attempts of one task, tasks of a schedule that takes turns, tasks of one key: one at a time."""
    lanes = _lanes(evidence)
    seen: dict[str, list[Span]] = defaultdict(list)
    for span in spans(evidence):
        task = span.run[0]
        for lane in (f"task {task}", *lanes.get(task, ())):
            seen[lane].append(span)
    for lane, in_lane in seen.items():
        latest = in_lane[0]
        for span in in_lane[1:]:
            if span.first < latest.last:
                told = f"{lane}: {_name(span.run)} began while {_name(latest.run)} was at work"
                yield Violation("L3", told, span.run[0], span.first)
            latest = max(latest, span, key=lambda each: each.last)


def _lanes(evidence: Evidence) -> dict[int, list[str]]:
    """What each task shares with others, of which one may run."""
    lanes: dict[int, list[str]] = defaultdict(list)
    for row in evidence.ended:
        if row.schedule in IN_TURN:
            lanes[row.id].append(f"schedule {row.schedule} {row.scope}".strip())
        if "key" in row.args:
            lanes[row.id].append(f"key {row.args['key']}")
    return lanes


def _name(run: Run) -> str:
    task, token, pid, _ = run
    return f"task {task} (token {token or 'unknown'}, process {pid})"


def stale_writes(evidence: Evidence) -> Iterator[Violation]:
    """L6: a token is one attempt's; tokens of a task rise; the end and the effect of a task are its last attempt's.

    A hello that is carried out late is a stale write too: it must not end a newer session.
    """
    for session in evidence.taken_back:
        yield Violation("L6", f"session {session} was ended by an older hello of its agent")
    starts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in evidence.lines:
        if line.event == "start" and line.token:
            starts[line.task].append((line.at, line.token))
    newest: dict[int, int] = {}
    for task, begun in starts.items():
        tokens = [token for _, token in sorted(begun)]
        if tokens != sorted(set(tokens)):
            yield Violation("L6", f"task {task} began under the tokens {tokens}: they must rise", task)
        newest[task] = max(tokens)
    for row in evidence.ended:
        if row.token is not None and row.token < newest.get(row.id, 0):
            told = f"task {row.id} was ended under token {row.token}, after one had begun under {newest[row.id]}"
            yield Violation("L6", told, row.id, row.at)
    tokens_of_end = {row.id: row.token for row in evidence.ended}
    for task, token in evidence.effects:
        if tokens_of_end.get(task) != token:
            yield Violation("L6", f"task {task} has an effect of token {token}, which did not end it", task)


def works_after_the_end(evidence: Evidence) -> Iterator[Violation]:
    """L7: nothing is done for a task that has ended, and no process of one is left when all is over."""
    ended = {row.id: row.at for row in evidence.ended}
    latest: dict[int, int] = {}
    for line in evidence.lines:
        latest[line.task] = max(latest.get(line.task, 0), line.at)
    for task, at in latest.items():
        if task in ended and at > ended[task] + GRACE:
            late = (at - ended[task]) / SECOND
            yield Violation("L7", f"task {task} was at work {late:.2f} s after its end", task, at)
    for process in evidence.processes_left:
        yield Violation("L7", f"a process of a command is left: {process}")
