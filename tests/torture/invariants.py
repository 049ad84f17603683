"""L1 to L16: what must hold whatever happened. Each is a function of the evidence that tells what it found broken.

    L1  every accepted task ends, with an effect            L6  no write with a stale token
    L2  effectively_once: one effect                        L7  nothing of a task after its end
    L3  no overlap of what is exclusive                     L8  database and ledger agree
    L4  at_most_once: one run                               L9  all recovers by itself, within a bound
    L5  the fires are those of the oracle                   L10 nothing begins before its plan time
                                                            L11 no task waits while less important ones start
                                                            L12 a batch ends with its last task, and calls back once
                                                            L13 nothing of a held job starts
                                                            L14 nothing starts after its deadline
                                                            L15 failures are noted once, and told in few messages
                                                            L16 no more tasks wait than the bound of a queue allows
Next: tests/torture/spans.py for L3, L6 and L7; batch_invariants.py beside it for L12, alert_invariants.py for L15;
      tests/torture/report.py
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from mainspring.model.tasks.states import TaskState
from tests.ledger import Line
from tests.torture.alert_invariants import alerts
from tests.torture.app import DEADLINE
from tests.torture.batch_invariants import batches
from tests.torture.crowd import ALLOWED
from tests.torture.evidence import Ended, Evidence, Happened
from tests.torture.plan import Fault
from tests.torture.spans import SECOND, Violation, exclusive_runs, stale_writes, works_after_the_end
from tests.torture.timetable import TIMETABLE

AT_MOST_ONCE = {"launch", "volley", *(tick.name for tick in TIMETABLE if tick.delivery == "at_most_once")}
EFFECTIVELY_ONCE = {"pay", "pour", *(tick.name for tick in TIMETABLE if tick.delivery == "effectively_once")}
MAY_SKIP = {tick.name for tick in TIMETABLE if tick.overlap in ("skip", "queue")}
HASTY = "hasty"
CROWDED = "crowded"
NO_STALL = {"kill", "guardian", "partition", "slow", "cut", "late"}  # faults that freeze no process
MOMENT = 1.0  # seconds between the start of an attempt and the first line that it writes, on a busy machine
CRASHES = 3  # of its agent, after which a task is quarantined
NEVER_EARLY = 0.002  # seconds: what an agent's clock may be ahead, and the accuracy of the comparison
PATIENCE = 5 * SECOND  # that a task may wait while less important ones start, from its submission on
RECALL = 2 * SECOND  # after a hold, in which what an agent has is recalled; one that waits for a slot may still begin
CLOCK_NEWS = 10 * SECOND  # in which an agent that is cut off may not know that the database's clock was set

Check = Callable[[Evidence], Iterator[Violation]]


def check_all(evidence: Evidence) -> list[Violation]:
    return [violation for check in CHECKS for violation in check(evidence)]


def ends(evidence: Evidence) -> Iterator[Violation]:
    """L1: what was accepted or planned has ended once, well or with a reason; and nothing else has run."""
    for task in evidence.live:
        yield Violation("L1", f"task {task} has not ended", task)
    by_id: dict[int, list[Ended]] = defaultdict(list)
    for row in evidence.ended:
        by_id[row.id].append(row)
    wanted = {task: f"submitted as {key}" for key, task in evidence.accepted.items()}
    wanted |= {fire.task: f"planned by {fire.schedule}" for fire in evidence.fired if fire.task is not None}
    skipped = {(fire.schedule, fire.scope, fire.plan_time) for fire in evidence.fired if fire.reason == "overlap"}
    for task, why in wanted.items():
        if task not in by_id and task not in evidence.live:
            yield Violation("L1", f"task {task}, {why}, is nowhere", task)
    lost = Counter(row.task for row in evidence.tried if row.code == "lost")
    for task, rows in by_id.items():
        if len(rows) > 1:
            yield Violation("L1", f"task {task} has ended {len(rows)} times", task)
        if rows[0].batch is not None or rows[0].callback is not None:
            wanted[task] = "of a batch"
        if rows[0].job == CROWDED:  # whose last answers may be lost
            wanted[task] = "of the crowd"
        if task not in wanted and (rows[0].schedule, rows[0].scope, rows[0].plan_time) not in skipped:
            yield Violation("L1", f"task {task} of {rows[0].job} was neither accepted nor planned", task)
        elif not _ended_well(rows[0], lost[task]):
            label = TaskState(rows[0].state).label
            yield Violation("L1", f"task {task} of {rows[0].job} ended as {label} ({rows[0].code})", task)


def _ended_well(row: Ended, lost: int) -> bool:
    if row.state == TaskState.SUCCEEDED:
        return True
    if row.job in AT_MOST_ONCE:
        return row.state == TaskState.LOST
    if row.job == HASTY and row.code == "expired":
        return row.state == TaskState.SKIPPED
    if row.job == "doomed":
        return row.state == TaskState.FAILED
    if row.code == "quarantined":  # its end is the last of them
        return lost + 1 >= CRASHES
    return row.state == TaskState.SKIPPED and row.job in MAY_SKIP


def one_effect(evidence: Evidence) -> Iterator[Violation]:
    """L2: an effectively_once task has one committed effect if it succeeded, else none."""
    effects = Counter(task for task, _ in evidence.effects)
    for row in evidence.ended:
        if row.job in EFFECTIVELY_ONCE and effects[row.id] != (row.state == TaskState.SUCCEEDED):
            label = TaskState(row.state).label
            yield Violation("L2", f"task {row.id} of {row.job} {label} with {effects[row.id]} effects", row.id)


def one_run(evidence: Evidence) -> Iterator[Violation]:
    """L4: an at_most_once task began once at the most."""
    jobs = {row.id: row.job for row in evidence.ended}
    begun = Counter(line.task for line in evidence.lines if line.event == "start")
    for task, count in begun.items():
        if count > 1 and jobs.get(task) in AT_MOST_ONCE:
            yield Violation("L4", f"task {task} of {jobs[task]} began {count} times", task)


def fires(evidence: Evidence) -> Iterator[Violation]:
    """L5: none missing, none extra, none twice, none without a task unless its overlap says so."""
    counted = Counter((fire.schedule, fire.scope, fire.plan_time) for fire in evidence.fired)
    expected = set(evidence.expected)
    tasks = {(fire.schedule, fire.scope, fire.plan_time): fire.task for fire in evidence.fired}
    for plan in sorted(expected - counted.keys()):
        yield Violation("L5", f"{plan} was not decided")
    for plan, count in counted.items():
        if plan not in expected:
            yield Violation("L5", f"{plan} is no plan time by the oracle", tasks[plan])
        if count > 1:
            yield Violation("L5", f"{plan} was decided {count} times", tasks[plan])
    for fire in evidence.fired:
        if fire.reason is not None and not (fire.reason == "overlap" and fire.schedule in MAY_SKIP):
            yield Violation("L5", f"{(fire.schedule, fire.scope, fire.plan_time)} got no task: {fire.reason}")
    runs = Counter((row.schedule, row.scope, row.plan_time) for row in evidence.ended if row.schedule is not None)
    for plan_of_task, count in runs.items():
        if count > 1:
            yield Violation("L5", f"{plan_of_task} had {count} tasks")


def early(evidence: Evidence) -> Iterator[Violation]:
    """L10: nothing begins before its plan time, on the database's clock, unless that was set a moment ago."""
    plan_times = {fire.task: fire.plan_time for fire in evidence.fired if fire.task is not None}
    for line in evidence.lines:
        if line.event != "start" or line.task not in plan_times:
            continue
        if any(abs(line.at - at) < CLOCK_NEWS for at, _ in evidence.clock_steps):
            continue
        began = _database_time(evidence, line.at)
        if began < plan_times[line.task] - NEVER_EARLY:
            by = plan_times[line.task] - began
            yield Violation("L10", f"task {line.task} began {by:.3f} s before its plan time", line.task, line.at)


def _database_time(evidence: Evidence, at: int) -> float:
    """What the database's clock said at this boot time, in seconds."""
    ahead = next((ahead for since, ahead in reversed(evidence.clock_steps) if since <= at), 0.0)
    return (at - evidence.wall_to_boot) / SECOND + ahead


def agreement(evidence: Evidence) -> Iterator[Violation]:
    """L8: a success has the effect of that very attempt; what began is known; a stop by us costs no attempt."""
    effects = {(line.task, line.attempt) for line in evidence.lines if line.event == "effect"}
    effects_by_token = {(line.task, line.token) for line in evidence.lines if line.event == "effect" and line.token}
    by_command = {line.task for line in evidence.lines if not line.token}
    known = {(row.id, row.token) for row in evidence.ended} | {(row.task, row.token) for row in evidence.tried}
    tasks = {row.id for row in evidence.ended} | set(evidence.live)
    for row in evidence.ended:
        succeeded = row.state == TaskState.SUCCEEDED
        if succeeded and (row.id, row.attempt) not in effects:
            yield Violation("L8", f"task {row.id} succeeded by attempt {row.attempt}, which had no effect", row.id)
        elif succeeded and row.id not in by_command and (row.id, row.token) not in effects_by_token:
            yield Violation("L8", f"task {row.id} succeeded by token {row.token}, which had no effect", row.id)
    for line in evidence.lines:
        if line.event != "start":
            continue
        if line.task not in tasks:
            yield Violation("L8", f"task {line.task} ran, and the database does not know it", line.task, line.at)
        elif line.token and line.task not in evidence.live and (line.task, line.token) not in known:
            told = f"task {line.task} ran under token {line.token}, which the database does not know"
            yield Violation("L8", told, line.task, line.at)
    yield from _costs(evidence)
    yield from _needless(evidence)


def _costs(evidence: Evidence) -> Iterator[Violation]:
    """L8: an attempt that its agent had to stop, for a shutdown or a lease, keeps its number for the next one."""
    chains: dict[int, list[tuple[int, int, str | None]]] = defaultdict(list)
    for tried in evidence.tried:
        if tried.number:  # 0: evidence of a stale report
            chains[tried.task].append((tried.token, tried.number, tried.code))
    for row in evidence.ended:
        if row.token is not None:
            chains[row.id].append((row.token, row.attempt, row.code))
    for task, chain in chains.items():
        chain.sort(key=lambda attempt: attempt[0])
        for (_, number, code), (_, after, _) in pairwise(chain):
            if code == "shutdown" and after != number:
                yield Violation("L8", f"task {task}: attempt {number} was stopped by a shutdown, and counted", task)


def _needless(evidence: Evidence) -> Iterator[Violation]:
    """L8: what was done on an agent that lived on undisturbed is the end of its task: its report cannot get lost."""
    ended = {row.id: row for row in evidence.ended}
    for line in evidence.lines:
        row = ended.get(line.task)
        if line.event != "effect" or not line.token or row is None or _disturbed(evidence, line.pid, line.at):
            continue
        if row.state != TaskState.SUCCEEDED or row.token != line.token:
            told = f"task {line.task} was done under token {line.token} by an agent that lived on, and ended otherwise"
            yield Violation("L8", told, line.task, line.at)


def _disturbed(evidence: Evidence, pid: int, at: int) -> bool:
    """Whether anything but the end of a single server could have cost this process its lease around that instant."""
    name = next((life.name for life in evidence.lives if life.pid == pid), "")
    window = at - int(2 * evidence.lease * SECOND), at + int(3 * evidence.lease * SECOND)
    around = [each for each in evidence.faults if each.since <= window[1] and each.until >= window[0]]
    if any(_is_of(each, name) for each in around):
        return True
    faults = [each.fault for each in around if each.fault.target.startswith(("server", "leader"))]
    touched = {fault.target.partition("/")[0] for fault in faults}
    return len(touched) > 1 or not all(_is_harmless(fault, evidence.lease) for fault in faults)


def _is_harmless(fault: Fault, lease: float) -> bool:
    """Where there is another server: this one ends, or is away from PostgreSQL for less than a third of the lease."""
    return fault.kind in ("kill", "restart") or ("/" in fault.target and fault.lasts < lease / 3)


def _is_of(happened: Happened, name: str) -> bool:
    """Whether this fault is one of the process, of its lines, or of what all share."""
    target = happened.fault.target
    return target in ("postgres", "database") or name in target.split("/")


def recovery(evidence: Evidence) -> Iterator[Violation]:
    """L9: once all is healed, all ends within the bound, by itself; and every process stops when asked."""
    if evidence.settled is None:
        what = "tasks, plan times or segments without an owner"
        yield Violation("L9", f"{evidence.bound:g} s after the heal there are {what} left")
    for life in evidence.lives:
        if life.ended_by_itself:
            yield Violation("L9", f"{life.name} (process {life.pid}) ended by itself: {life.ended_by_itself}")
    for name in evidence.did_not_stop:
        yield Violation("L9", f"{name} did not stop when asked")


def importance(evidence: Evidence) -> Iterator[Violation]:
    """L11: while no fault is near, no task waits for long while one starts that came later and is less important.

    All agents can run all jobs of the run. A task with a key may have to wait for the key, and is left out.
    """
    began: dict[int, int] = {}
    for line in evidence.lines:
        if line.event == "start":
            began[line.task] = min(line.at, began.get(line.task, line.at))
    at = evidence.accepted_at
    tasks = [row for row in evidence.ended if row.id in at and row.id in began]
    late = [row for row in tasks if row.job != "exclusive" and began[row.id] > at[row.id] + PATIENCE]
    late = [row for row in late if not _is_held(evidence, row.job, at[row.id], began[row.id])]
    for row in late:
        for other in tasks:
            is_between = at[row.id] + PATIENCE < began[other.id] < began[row.id]
            if other.priority >= row.priority or at[other.id] <= at[row.id] or not is_between:
                continue
            if _is_quiet(evidence, at[row.id], began[other.id]):
                told = (
                    f"task {row.id} of priority {row.priority} waited while task {other.id} of {other.priority} began"
                )
                yield Violation("L11", told, row.id, began[other.id])
                break


def _is_quiet(evidence: Evidence, since: int, until: int) -> bool:
    """Whether no fault and no step of the clock is in this time, or so little before it that it may still tell."""
    early = since - int(3 * evidence.lease * SECOND)
    has_fault = any(each.since <= until and each.until >= early for each in evidence.faults)
    return not has_fault and not any(early - CLOCK_NEWS <= step <= until for step, _ in evidence.clock_steps)


def _is_held(evidence: Evidence, job: str, since: int, until: int) -> bool:
    """Whether it was held at any moment of this time, or a moment before, so that it had to catch up."""
    early = since - PATIENCE
    return any(span.job in (job, None) and span.since <= until and span.until >= early for span in evidence.held)


def holds(evidence: Evidence) -> Iterator[Violation]:
    """L13: from the acknowledgement of a hold on nothing of the job begins, but for what was with an agent already.

    That is recalled at once; while a fault is near, an agent may hear of it late, within its lease.
    """
    jobs = {row.id: row.job for row in evidence.ended}
    for line in evidence.lines:
        for span in evidence.held if line.event == "start" else ():
            if span.job not in (None, jobs.get(line.task)) or not span.since < line.at < span.until:
                continue
            recall = RECALL if _is_quiet(evidence, span.since, line.at) else int(3 * evidence.lease * SECOND)
            if line.at > span.since + recall:
                after = (line.at - span.since) / SECOND
                what = "everything" if span.job is None else span.job
                yield Violation(
                    "L13", f"task {line.task} began {after:.1f} s after {what} was held", line.task, line.at
                )


def deadlines(evidence: Evidence) -> Iterator[Violation]:
    """L14: a task with a deadline begins before it, and what was skipped for it has never begun.

    By the ledger, which has every start. Of a start that no server was told of, because its agent lost its session, the
    database may say that there was none: the task may be skipped then, and is still not begun after its deadline.
    """
    rows = {row.id: row for row in evidence.ended if row.job == HASTY}
    starts: dict[int, list[Line]] = defaultdict(list)
    for line in evidence.lines:
        if line.event == "start" and line.task in rows:
            starts[line.task].append(line)
    known = _known_starts(evidence)
    for task, lines in starts.items():
        for line in lines:
            is_lost = task not in known and _disturbed(evidence, line.pid, line.at)
            if rows[task].code == "expired" and not is_lost:
                yield Violation("L14", f"task {task} began, and was skipped for its deadline", task, line.at)
            late = _database_time(evidence, line.at) - rows[task].created - DEADLINE
            is_retry = line.token > known.get(task, line.token)
            if late > MOMENT and not is_retry and not _may_stall(evidence, line.at):
                yield Violation("L14", f"task {task} began {late:.1f} s after its deadline", task, line.at)


def _known_starts(evidence: Evidence) -> dict[int, int]:
    """By task: the token of the first attempt that the database knew to have started, and that did not end the task.

    An attempt that was given back must not count as started. One whose agent died may have left no line.
    """
    begun = {(line.task, line.token) for line in evidence.lines if line.event == "start"}
    found: dict[int, int] = {}
    for tried in evidence.tried:
        is_start = tried.started and (tried.code == "lost" or (tried.task, tried.token) in begun)
        if is_start and tried.number:  # 0: evidence of a stale report
            found[tried.task] = min(tried.token, found.get(tried.task, tried.token))
    return found


def bounds(evidence: Evidence) -> Iterator[Violation]:
    """L16: of a bounded job no more tasks wait than may, but for submissions that were under way at the same moment."""
    if evidence.most_waiting > ALLOWED:
        yield Violation("L16", f"{evidence.most_waiting} tasks of a bounded job waited; {ALLOWED} may at the most")


def _may_stall(evidence: Evidence, at: int) -> bool:
    """Whether a process may have been frozen a moment ago, between two of its steps, or the clock was set."""
    frozen = any(
        each.fault.kind not in NO_STALL and each.since - SECOND <= at <= each.until + 2 * SECOND
        for each in evidence.faults
    )
    return frozen or any(abs(at - step) < CLOCK_NEWS for step, _ in evidence.clock_steps)


CHECKS: tuple[Check, ...] = (
    ends,
    one_effect,
    exclusive_runs,
    one_run,
    fires,
    early,
    stale_writes,
    works_after_the_end,
    agreement,
    recovery,
    importance,
    batches,
    holds,
    deadlines,
    alerts,
    bounds,
)
