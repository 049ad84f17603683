"""Evidence: all that a run leaves behind, in one file, so that it can be checked again without running again.

The ledger and the faults are on the boot-time clock. The run gives mainspring.task_history a column that says when each
row was written on the machine's own clock, whatever was done to the database's; it is brought to boot time here.
Next: tests/torture/invariants.py
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mainspring.store.postgres.database import Connection
from tests.ledger import Line
from tests.torture.plan import Fault

# Beside the schema of the product: effects that are committed with their task, and the machine's own time.
PREPARE = """
    create schema torture;
    create table torture.effect (task bigint not null, token bigint not null);
    alter table mainspring.task_history add column written_at timestamptz not null default clock_timestamp();
"""


class Ended(Struct):
    """A row of task_history."""

    id: int
    job: str
    state: int
    attempt: int
    token: int | None
    code: str | None
    args: dict[str, Any]
    key: str | None
    schedule: str | None
    scope: str | None
    plan_time: float | None
    at: int  # when it was written, in nanoseconds of boot time
    priority: int = 5
    batch: int | None = None
    callback: tuple[int, str] | None = None  # it was called by this batch at this event
    created: float = 0.0  # on the database's clock


class Batched(Struct):
    """A batch, and what it has counted."""

    id: int
    state: int
    outcome: int | None
    counts: dict[str, int]  # total, and by the label of the state


class Tried(Struct):
    """A row of mainspring.attempt: an attempt that did not end its task, or evidence of a stale report."""

    task: int
    token: int
    number: int
    state: int
    code: str | None
    started: bool = False  # by what the database knew


class Fired(Struct):
    """A row of the ledger of plan times."""

    schedule: str
    scope: str
    plan_time: float
    task: int | None
    reason: str | None


class Happened(Struct):
    """A fault as it came: `since` and `until` in nanoseconds of boot time."""

    fault: Fault
    since: int
    until: int
    note: str = ""  # who it was, or why it did not happen


class Life(Struct):
    """One process of the run, from its start to its end."""

    name: str  # server-1
    pid: int
    thaws: list[int] = []
    ended_by_itself: str = ""  # what it said, if nobody asked it to end


class HeldSpan(Struct):
    """From the acknowledgement of a hold until its release was asked for, in nanoseconds of boot time."""

    job: str | None  # None: everything
    since: int
    until: int


class Receipt(Struct):
    """A message that the receiver of alerts got."""

    id: str
    attempt: int
    body: str  # a hash


class Delivery(Struct):
    """A message, as the database has it."""

    id: str
    rule: str | None
    state: str
    attempts: int


class Evidence(Struct):
    seed: int
    lease: float
    lines: list[Line] = []
    ended: list[Ended] = []
    live: list[int] = []  # tasks that have not ended
    tried: list[Tried] = []
    fired: list[Fired] = []
    effects: list[tuple[int, int]] = []  # task and token, as committed
    taken_back: list[int] = []  # sessions that an older hello of their agent has ended
    batches: list[Batched] = []
    opened: dict[int, int] = {}  # by batch: how many tasks it had when it was accepted
    accepted: dict[str, int] = {}  # by key: the task
    accepted_at: dict[int, int] = {}  # by task, in nanoseconds of boot time
    expected: list[tuple[str, str, float]] = []  # by the oracle
    faults: list[Happened] = []
    lives: list[Life] = []
    clock_steps: list[tuple[int, float]] = []  # boot time, and by how much the database's clock is ahead since then
    wall_to_boot: int = 0  # nanoseconds: boot time is the machine's wall clock plus this
    processes_left: list[str] = []
    settled: float | None = None  # seconds from the heal until all had ended; None: they had not within the bound
    bound: float = 0.0
    did_not_stop: list[str] = []
    held: list[HeldSpan] = []
    most_waiting: int = 0  # tasks of the crowd that no agent had had, at any look
    alerted: dict[str, int] | None = None  # failures that were noted, by job; None: nobody was told
    deliveries: list[Delivery] = []
    receipts: list[Receipt] = []


def save(evidence: Evidence, path: Path) -> None:
    path.write_bytes(msgspec.json.encode(evidence))


def load(path: Path) -> Evidence:
    return msgspec.json.decode(path.read_bytes(), type=Evidence)


def wall_to_boot() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.time_ns()


_ENDED = """
    select h.id, j.name as job, h.state, h.attempt, h.token, h.error_code as code, h.args, h.key,
           s.name as schedule, h.scope, date_part('epoch', h.plan_time) as plan_time,
           (date_part('epoch', h.written_at) * 1000000)::bigint as at, h.priority, h.batch_id as batch,
           h.options->'callback' as callback, date_part('epoch', h.created_at) as created
      from mainspring.task_history h join mainspring.job j on j.id = h.job_id
      left join mainspring.schedule s on s.id = h.schedule_id
     order by h.id, h.written_at
"""
_TRIED = """
    select task_id as task, token, number, state, error_code as code, started_at is not null as started
      from mainspring.attempt order by task_id, token
"""
_FIRED = """
    select s.name as schedule, f.scope, date_part('epoch', f.plan_time) as plan_time, f.task_id as task, f.reason
      from mainspring.fire f join mainspring.schedule s on s.id = f.schedule_id
     order by 1, 3, 2
"""
_BATCHES = """
    select b.id, b.state, b.outcome, c.total, c.succeeded, c.failed, c.timed_out, c.cancelled, c.skipped, c.lost
      from mainspring.batch b join mainspring.batch_count c on c.batch_id = b.id
     order by b.id
"""
_ALERTED = "select job, sum(count)::bigint as count from mainspring.alert where rule = 'failed' group by job"
_DELIVERIES = "select id::text, rule, state, attempts from mainspring.alert_delivery order by created_at"
_TAKEN_BACK = """
    select a.session from mainspring.agent a join mainspring.agent s on s.session = a.successor
     where s.connection <= a.connection
     order by a.session
"""


_COUNTED = ("total", "succeeded", "failed", "timed_out", "cancelled", "skipped", "lost")


async def dump(conn: Connection, evidence: Evidence) -> None:
    """Read what the database has to say."""
    shift = evidence.wall_to_boot = wall_to_boot()
    for row in await conn.fetch(_ENDED):
        called = None if row["callback"] is None else json.loads(row["callback"])
        callback = None if called is None else (called["batch"], called["event"])
        told = {**row, "args": json.loads(row["args"]), "at": row["at"] * 1000 + shift, "callback": callback}
        evidence.ended.append(Ended(**told))
    evidence.tried = [Tried(**row) for row in await _rows(conn, _TRIED)]
    evidence.fired = [Fired(**row) for row in await _rows(conn, _FIRED)]
    for id, state, outcome, *counts in [row.values() for row in await _rows(conn, _BATCHES)]:
        evidence.batches.append(Batched(id, state, outcome, dict(zip(_COUNTED, counts, strict=True))))
    evidence.live = [row["id"] for row in await _rows(conn, "select id from mainspring.task order by id")]
    evidence.taken_back = [row["session"] for row in await _rows(conn, _TAKEN_BACK)]
    if await conn.fetchval("select exists (select from mainspring.channel)"):
        evidence.alerted = {row["job"]: row["count"] for row in await _rows(conn, _ALERTED)}
        evidence.deliveries = [Delivery(**row) for row in await _rows(conn, _DELIVERIES)]
    evidence.effects = [(row["task"], row["token"]) for row in await _rows(conn, "select * from torture.effect")]


async def _rows(conn: Connection, query: str) -> Sequence[dict[str, Any]]:
    return [dict(row) for row in await conn.fetch(query)]
