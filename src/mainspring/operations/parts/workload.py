"""Workload: what waits, arrives, ends and comes, by job: the figures behind the signal for autoscalers.

Next: store/figures/scaling.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec import Struct

from mainspring.errors import ValidationError
from mainspring.model.scaling.coming import longest, starts
from mainspring.model.schedules.schedules import Policies, Schedule
from mainspring.model.schedules.timing import Timing, timing
from mainspring.model.tasks.payload import UNREADABLE
from mainspring.model.tasks.states import ACTIVE, PENDING, RUNNING
from mainspring.model.tasks.waits import Known
from mainspring.operations.parts.slices import Slices
from mainspring.store.figures import scaling
from mainspring.store.figures.queues import Queue
from mainspring.store.figures.scaling import Before, Cursor, JobFacts, Recent
from mainspring.store.figures.stats import live_queues
from mainspring.store.postgres.connection import Connection

BUDGET = 1.0  # seconds of computing plan times
LEAST_WINDOW = timedelta(minutes=1)  # of finished attempts, where the queues were not counted before


class JobWork(Struct):
    """One job. Rates are a second, durations seconds; see model/scaling/wanted.py."""

    name: str
    labels: dict[str, str]
    most: int | None = None
    replicas: int = 0
    due: int = 0
    oldest: datetime | None = None
    running: int = 0  # or about to: they are due, and an agent has them
    active: int = 0  # an agent has them
    age: float = 0.0  # of its attempts under way, on average
    rate: float = 0.0
    unplanned: float = 0.0
    finish_rate: float = 0.0
    attempts: int = 0  # within ten minutes
    duration: float | None = None  # None: none has ended
    delayed: dict[int, int] = {}
    planned: dict[float, dict[int, int]] = {}  # by how long a run counts at most
    starts: int = 0
    held: int = 0  # due tasks that a hold keeps from starting
    limited: int = 0  # due tasks that wait at a gate

    def known_duration(self, otherwise: float) -> float:
        """Where none has ended, those under way are halfway on average."""
        return self.duration if self.duration is not None else max(otherwise, 2 * self.age)

    def plan(self, longest: float, second: int, count: int) -> None:
        seconds = self.planned.setdefault(longest, {})
        seconds[second] = seconds.get(second, 0) + count
        self.starts += count

    def hold(self) -> None:
        """Nothing of it starts, whatever waits, arrives or comes. What runs counts while it does, also of a daemon."""
        self.held, self.due, self.oldest, self.limited = self.due + self.limited, 0, None, 0
        self.rate = self.unplanned = 0.0
        self.delayed, self.planned, self.starts = {}, {}, 0
        self.replicas = min(self.replicas, self.active)

    def spread(self, seconds: int) -> None:
        """What waits at its gate starts evenly within so many seconds."""
        for second in range(seconds):
            if count := self.limited * (second + 1) // seconds - self.limited * second // seconds:
                self.delayed[second] = self.delayed.get(second, 0) + count
        self.starts += self.limited


class Workload(NamedTuple):
    at: datetime
    start: datetime  # of the seconds by which starts are counted
    counted_at: datetime
    jobs: list[JobWork]
    agents: list[Known]  # that take tasks
    is_estimated: bool


async def read(conn: Connection, at: datetime, horizon: int, agents: list[Known]) -> Workload:
    """The work of all jobs that have any, now or within so many seconds."""
    start = at.replace(microsecond=0)  # of the first second of the horizon
    until = start + timedelta(seconds=horizon)
    queues, is_estimated, counted_at = await live_queues(conn)
    before = await scaling.before(conn, at)
    since = _minute(at - LEAST_WINDOW) if before is None else before.minute
    recent = {one.job: one for one in await scaling.recent(conn, at, since)}
    coming = await scaling.coming(conn, at, until) if horizon else []
    slices, cursors = Slices(), list[Cursor]()
    for text in await scaling.cursors(conn, until) if horizon else []:
        cursors += scaling.decode(text)
        await slices.rest()
    ids = {*recent, *(queue.job for queue in queues), *(one.job for one in coming), *(one.job for one in cursors)}
    facts = {job.id: job for job in await scaling.jobs(conn, sorted(ids))}
    made = {id: _job(job) for id, job in facts.items() if not job.is_broadcast}  # those run on the agents there are
    for queue in queues:
        if (job := made.get(queue.job)) is not None:
            _add_queue(job, queue, is_daemon=facts[queue.job].replicas > 0)
    for id, job in made.items():
        if not facts[id].replicas:
            _add_rates(job, recent.get(id), None if before is None else _growth(id, job, before, counted_at), at, since)
        await slices.rest()
    unknown = [id for id, job in made.items() if job.duration is None and not job.replicas]
    for id, mean in (await scaling.earlier(conn, at, unknown) if unknown else {}).items():
        made[id].duration = mean
    if new := [id for id in unknown if made[id].duration is None and made[id].running]:
        for id, age in (await scaling.ages(conn, at, new)).items():
            made[id].age = age
    for one in coming:
        if (job := made.get(one.job)) is None or one.second >= horizon:
            continue
        if one.is_planned:
            job.plan(math.inf, max(0, one.second), one.tasks)
        else:
            job.delayed[one.second] = job.delayed.get(one.second, 0) + one.tasks
            job.starts += one.tasks
    is_whole = sum(one.tasks for one in coming) < scaling.MOST_DELAYED
    is_whole &= await _add_planned(made, cursors, start, horizon, slices)
    for id, job in made.items():
        if facts[id].is_held:
            job.hold()
        elif (spread := facts[id].spread_until) is not None and (
            seconds := math.ceil((spread - at).total_seconds())
        ) > 0:
            job.spread(min(seconds, horizon))
    return Workload(at, start, counted_at, list(made.values()), agents, is_estimated or not is_whole)


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _job(facts: JobFacts) -> JobWork:
    return JobWork(facts.name, facts.labels, facts.most, facts.replicas, delayed={}, planned={})


def _add_queue(job: JobWork, queue: Queue, *, is_daemon: bool) -> None:
    if is_daemon:  # its replicas count, not their tasks
        job.active += queue.tasks if queue.state in ACTIVE else 0
    elif queue.state is PENDING:
        job.due, job.limited = max(0, queue.due - queue.limited), queue.limited
        job.oldest = queue.oldest if job.due else None
    elif queue.state in ACTIVE:
        job.running += queue.tasks if queue.state is RUNNING else queue.due
        job.active += queue.tasks


def _growth(id: int, job: JobWork, before: Before, counted_at: datetime) -> float:
    """How much faster tasks became due than they ended, a second; 0 where it is not known."""
    length = (counted_at - before.counted_at).total_seconds()
    depth = before.depths.get(id, 0 if before.is_whole else None)
    if depth is None or length <= 0:
        return 0.0
    return (job.due + job.active - depth) / length


def _add_rates(job: JobWork, recent: Recent | None, growth: float | None, at: datetime, since: datetime) -> None:
    if recent is not None:
        job.finish_rate = recent.finished / max(1.0, (at - since).total_seconds())
        job.attempts = recent.attempts
        job.duration = recent.duration_sum / recent.attempts if recent.attempts else None
    job.rate = max(0.0, job.finish_rate + (growth or 0.0))
    first = 0 if recent is None else recent.planned + recent.unplanned
    job.unplanned = job.rate * (recent.unplanned / first if recent is not None and first else 1.0)


async def _add_planned(
    made: dict[int, JobWork], cursors: Sequence[Cursor], start: datetime, horizon: int, slices: Slices
) -> bool:
    """Count what schedules will plan; returns whether all of them were counted."""
    rules = _Rules()
    for cursor in cursors[: scaling.MOST_SCHEDULES]:
        await slices.rest()
        if slices.used > BUDGET:
            return False
        job, rule = made.get(cursor.job), rules.of(cursor)
        if job is None or rule is None:
            continue
        policies, times = rule
        kind, left = cursor.kind, policies.max_runs
        schedule = Schedule(cursor.name, job.name, kind, cursor.expression, cursor.timezone, policies)  # type: ignore[arg-type]
        most = longest(schedule, times, cursor.next_plan_at)
        left = None if left is None else max(0, left - cursor.runs)
        for second, count in starts(schedule, times, cursor.next_plan_at, start, horizon, left, cursor.skips or ()):
            job.plan(most, second, count * cursor.schedules)
            await slices.rest()
    return len(cursors) <= scaling.MOST_SCHEDULES


class _Rules:
    """The policies and plan times of schedules, made once for all that are alike."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, ...], tuple[Policies, Timing] | None] = {}

    def of(self, cursor: Cursor) -> tuple[Policies, Timing] | None:
        """None: they cannot be read, or this host does not know the timezone."""
        seed = cursor.name if cursor.kind == "cron" and "h" in cursor.expression.lower() else ""
        key = cursor.kind, cursor.expression, cursor.timezone, cursor.policies, seed
        if key not in self._made:
            self._made[key] = self._make(cursor)
        return self._made[key]

    def _make(self, cursor: Cursor) -> tuple[Policies, Timing] | None:
        try:
            policies = msgspec.json.decode(cursor.policies, type=Policies)
            kind, expression = cursor.kind, cursor.expression
            schedule = Schedule(cursor.name, "", kind, expression, cursor.timezone, policies)  # type: ignore[arg-type]
            return policies, timing(schedule, keep=False)
        except (*UNREADABLE, ValidationError):
            return None
