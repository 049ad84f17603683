"""Tell what was found: for each violation the ledger, the rows and the faults around it, and how to replay it.

Next: tests/torture/__main__.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from mainspring.model.tasks.states import TaskState
from tests.torture.evidence import Evidence
from tests.torture.spans import SECOND, Violation

AROUND = 10 * SECOND
SHOWN = 3  # violations of one invariant that are told in full
LINES = 12  # of the ledger, of each task


def begin_of(evidence: Evidence) -> int:
    """The instant that all others are told from: of the first fault or line."""
    return min([each.since for each in evidence.faults] + [line.at for line in evidence.lines], default=0)


def tell(evidence: Evidence, violations: Sequence[Violation]) -> Iterator[str]:
    """Lines for people."""
    counts = Counter(violation.invariant for violation in violations)
    told: Counter[str] = Counter()
    for violation in violations:
        told[violation.invariant] += 1
        if told[violation.invariant] <= SHOWN:
            yield f"{violation.invariant} broken: {violation.what}"
            yield from _evidence(evidence, violation)
    for invariant, count in sorted(counts.items()):
        if count > SHOWN:
            yield f"{invariant}: {count} violations in all, {SHOWN} shown"


def _evidence(evidence: Evidence, violation: Violation) -> Iterator[str]:
    begin = begin_of(evidence)
    names = {life.pid: life.name for life in evidence.lives}
    lines = sorted((line for line in evidence.lines if line.task == violation.task), key=lambda line: line.at)
    rows = [row for row in evidence.ended if row.id == violation.task]
    told = [line for line in lines if line.event != "beat"] if len(lines) > LINES else lines
    for line in told[-LINES:]:
        who = f"{names.get(line.pid, 'command')} pid {line.pid}"
        yield f"    ledger    {_since(begin, line.at)}  {line.event:6} attempt {line.attempt} token {line.token} {who}"
    for tried in evidence.tried:
        if tried.task == violation.task:
            state = TaskState(tried.state).label
            yield f"    attempt   number {tried.number} token {tried.token} {state} {tried.code or ''}"
    for row in rows:
        yield (
            f"    ended     {_since(begin, row.at)}  {row.job} {TaskState(row.state).label} {row.code or ''} "
            f"attempt {row.attempt} token {row.token} args {row.args} key {row.key} plan time {row.plan_time}"
        )
    when = violation.at or next(iter([row.at for row in rows] + [line.at for line in lines]), None)
    for happened in evidence.faults:
        if when is not None and happened.since - AROUND <= when <= happened.until + AROUND:
            fault, span = happened.fault, f"{_since(begin, happened.since)} to {_since(begin, happened.until)}"
            more = " ".join(filter(None, (fault.how, f"{fault.amount:g}" if fault.amount else "", happened.note)))
            yield f"    fault     {span}  {fault.kind} {fault.target} {more}".rstrip()


def _since(begin: int, at: int) -> str:
    return f"{(at - begin) / SECOND:8.3f} s"


def summary(evidence: Evidence, violations: Sequence[Violation]) -> dict[str, object]:
    """For programs."""
    return {
        "seed": evidence.seed,
        "tasks": len(evidence.ended),
        "submitted": len(evidence.accepted),
        "fires": len(evidence.fired),
        "ledger_lines": len(evidence.lines),
        "faults": len([each for each in evidence.faults if each.until > each.since]),
        "settled_seconds": evidence.settled,
        "states": dict(Counter(TaskState(row.state).label for row in evidence.ended)),
        "attempts_lost": Counter(row.code for row in evidence.tried),
        "violations": [violation._asdict() for violation in violations],
    }
