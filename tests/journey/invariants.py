"""What must hold whatever happened, checked against the ledger that the jobs wrote and against the database.

The numbers are those of the list of invariants: L1 ends, L3 no overlap, L4 at most once, L6 no stale write, L7 no
process left, L8 database and ledger agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from mainspring.model.tasks.states import TaskState
from mainspring.store.postgres.database import Connection
from tests.conftest import eventually
from tests.ledger import Line

# One attempt at work: task, token, process, and how often the process had been thawed, as it does nothing while it
# is frozen. A command knows no token; what was rescued before its start was known keeps the attempt's number.
Run = tuple[int, int, int, int]
Thaw = tuple[int, int]  # a process, and when it went on, in nanoseconds of boot time


class Ended(NamedTuple):
    id: int
    state: TaskState
    attempt: int
    token: int | None


async def ended(conn: Connection) -> list[Ended]:
    rows = await conn.fetch("select id, state, attempt, token from mainspring.task_history order by id, recorded_at")
    return [Ended(row["id"], TaskState(row["state"]), row["attempt"], row["token"]) for row in rows]


async def snapshot(conn: Connection) -> list[tuple[object, ...]]:
    """All that a report could change about tasks that have ended."""
    query = """
        select id, token, state, attempt, started_at, finished_at, recorded_at, result::text, error_code
          from mainspring.task_history order by id
    """
    return [tuple(row) for row in await conn.fetch(query)]


async def check_ends(conn: Connection, lines: Sequence[Line], accepted: Iterable[int]) -> None:
    """L1: each accepted task has ended, once, and has had an effect if it succeeded."""
    assert await conn.fetchval("select count(*) from mainspring.task") == 0
    found = await ended(conn)
    assert Counter(task.id for task in found) == Counter(accepted)
    effects = {line.task for line in lines if line.event == "effect"}
    without = [task.id for task in found if task.state is TaskState.SUCCEEDED and task.id not in effects]
    assert without == [], "succeeded, and did nothing"


def runs(lines: Iterable[Line], thaws: Sequence[Thaw]) -> dict[Run, tuple[int, int]]:
    """From when to when each attempt was seen at work, in nanoseconds of boot time."""
    seen: dict[Run, tuple[int, int]] = {}
    for line in lines:
        thawed = sum(pid == line.pid and at <= line.at for pid, at in thaws)
        run = line.task, line.token, line.pid, thawed
        first, last = seen.get(run, (line.at, line.at))
        seen[run] = min(first, line.at), max(last, line.at)
    return seen


def check_no_overlap(lines: Sequence[Line], thaws: Sequence[Thaw] = ()) -> None:
    """L3: of one task, no attempt is at work while another one is; and no token is used by two processes."""
    by_task: dict[int, list[tuple[int, int, Run]]] = defaultdict(list)
    seen = runs(lines, thaws)
    for run, (first, last) in seen.items():
        by_task[run[0]].append((first, last, run))
    for spans in by_task.values():
        for (_, last, one), (first, _, other) in pairwise(sorted(spans)):
            assert last <= first, f"(task, token, process, thaws) {other} began while {one} was at work"
    tokens = Counter(token for token, _ in {(token, pid) for _, token, pid, _ in seen if token})
    assert {token: count for token, count in tokens.items() if count > 1} == {}


def check_at_most_once(lines: Iterable[Line], tasks: Iterable[int]) -> None:
    """L4: none of these tasks has begun twice."""
    wanted = set(tasks)
    begun = Counter(line.task for line in lines if line.event == "start" and line.task in wanted)
    assert {task: count for task, count in begun.items() if count > 1} == {}


async def check_tokens(conn: Connection, lines: Sequence[Line]) -> None:
    """L6: what ended a task is its last attempt: tokens rise, and no report with an older one was accepted."""
    newest: dict[int, int] = defaultdict(int)
    for line in lines:
        newest[line.task] = max(newest[line.task], line.token)
    for task in await ended(conn):
        if task.token is not None:
            assert task.token >= newest[task.id], (
                f"task {task.id} was ended by an attempt that another one had replaced"
            )


async def check_agreement(conn: Connection, lines: Sequence[Line]) -> None:
    """L8: what the database calls a success has its effect, by that very attempt; and each effect has its task."""
    effects = {(line.task, line.attempt) for line in lines if line.event == "effect"}
    found = await ended(conn)
    succeeded = {(task.id, task.attempt) for task in found if task.state is TaskState.SUCCEEDED}
    assert succeeded <= effects
    known = {task.id for task in found}
    assert {task for task, _ in effects} <= known


async def check_no_process_left(lines: Sequence[Line], agents: Iterable[int]) -> None:
    """L7: soon after all has ended, no process of a command is alive. `agents` run handlers in their own process."""
    pids = {line.pid for line in lines} - set(agents)

    async def all_gone() -> bool:
        return not any(_is_command(pid) for pid in pids)

    await eventually(all_gone, timeout=15)


def _is_command(pid: int) -> bool:
    """Whether it lives and is one of ours: the number may be another one's by now."""
    try:
        return b"tests.journey.network_command" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
