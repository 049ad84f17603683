"""Autoscale: how many slots and agents the work asks for, now and within a horizon, and why.

What is read is kept for a few seconds, so that several autoscalers and scrapes cost one reading.
Reads   store.figures.scaling, store.figures.stats (the queues)
Next:   model/scaling/wanted.py
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime, timedelta
from time import monotonic

import msgspec

from mainspring.errors import ValidationError, shown
from mainspring.model.access.actors import Actor
from mainspring.model.scaling.selection import Selection, select
from mainspring.model.scaling.wanted import UNKNOWN, Load, Runs, wanted
from mainspring.model.scaling.words import reason
from mainspring.operations.parts import workload
from mainspring.operations.parts.workload import JobWork, Workload
from mainspring.store.cluster import registry
from mainspring.store.figures import scaling
from mainspring.store.postgres.connection import Connection

SLOTS_PER_AGENT = 20
TARGET_WAIT = timedelta(seconds=30)
HORIZON = timedelta(minutes=5)
LONGEST = timedelta(hours=1)  # of both
FRESH = 5.0  # seconds
MOST_KEPT = 4

_kept: OrderedDict[tuple[int, int], tuple[float, Workload]] = OrderedDict()  # by database and horizon


class Autoscale(msgspec.Struct, frozen=True):
    """Rates are tasks a second over the last minute or so; durations are seconds."""

    wanted_agents: int
    wanted_slots: int
    why: str
    due: int  # tasks that wait for an agent, not for a limit of their job, nor for the end of a hold
    oldest_age: float | None  # how long the first of them has been due
    arrival_rate: float  # tasks that became due and could run
    finish_rate: float  # attempts that ended
    mean_duration: float | None  # of the attempts of the last ten minutes, or of earlier ones; None: none has ended
    agents: int  # connected, and not draining
    slots_busy: int
    slots_free: int
    planned_starts: int  # within the horizon: by schedules, and of tasks that exist and are not due yet
    planned_peak: float  # slots that they need at once
    planned_peak_at: datetime | None
    counted_at: datetime
    is_estimated: bool  # tasks were sampled, or not all plan times could be computed in time


async def autoscale(
    conn: Connection,
    actor: Actor,
    *,
    labels: Sequence[str] = (),
    app: str | None = None,
    slots_per_agent: int = SLOTS_PER_AGENT,
    target_wait: timedelta = TARGET_WAIT,
    horizon: timedelta = HORIZON,
) -> Autoscale:
    """How many slots and agents are wanted, with the figures behind it.

    `labels` and `app` select the work that requires them, and the agents that have them: `gpu=a100`, or `!gpu` for
    those without. `target_wait` is how long a due task may wait, `horizon` how far ahead planned starts count.
    """
    selection = select([labels] if isinstance(labels, str) else labels, app)
    if not isinstance(slots_per_agent, int) or not 1 <= slots_per_agent <= 100_000:
        raise ValidationError(f"slots_per_agent: {shown(slots_per_agent)}; give 1 to 100,000", field="slots_per_agent")
    wait = _within(target_wait, timedelta(seconds=1), LONGEST, field="target_wait")
    ahead = math.ceil(_within(horizon, timedelta(0), LONGEST, field="horizon"))
    work = await _workload(conn, ahead)
    return _computed(work, actor, selection, slots_per_agent, wait, ahead)


def _within(given: timedelta, least: timedelta, most: timedelta, *, field: str) -> float:
    if not least <= given <= most:
        raise ValidationError(f"{field}: {given.total_seconds():g} s; give {least} to {most}", field=field)
    return given.total_seconds()


async def _workload(conn: Connection, horizon: int) -> Workload:
    now = await scaling.now(conn)
    key = now.database, horizon
    if (kept := _kept.get(key)) is not None and monotonic() - kept[0] < FRESH:
        return kept[1]
    agents = [agent for agent in await registry.heard(conn) if not agent.draining]
    found = await workload.read(conn, now.at, horizon, agents)
    _kept[key] = monotonic(), found
    _kept.move_to_end(key)
    if len(_kept) > MOST_KEPT:
        _kept.popitem(last=False)
    return found


def _computed(
    work: Workload, actor: Actor, selection: Selection, slots_per_agent: int, target_wait: float, horizon: int
) -> Autoscale:
    reached = [job for job in work.jobs if actor.reaches(job.name)]
    jobs = [job for job in reached if selection.includes(job.labels)]
    agents = [agent for agent in work.agents if selection.includes(agent.labels)]
    busy = sum(min(agent.due, agent.slots) for agent in agents)
    mean = _mean(jobs)
    loads = [_load(job, mean or UNKNOWN) for job in jobs]
    daemons = sum(job.replicas for job in jobs)
    found = wanted(loads, target_wait=target_wait, horizon=horizon, daemons=daemons, busy=busy)
    peak_at = None if found.planned_in is None else work.start + timedelta(seconds=found.planned_in)
    due, starts = sum(job.due for job in jobs), sum(job.starts for job in jobs)
    oldest = min((job.oldest for job in jobs if job.oldest is not None), default=None)
    left_out = sum(job.due for job in reached if not selection.includes(job.labels) and selection.could_run(job.labels))
    rate = math.fsum(job.rate for job in jobs)
    return Autoscale(
        wanted_agents=-(-found.slots // slots_per_agent),
        wanted_slots=found.slots,
        why=reason(
            found,
            due=due,
            rate=math.fsum(load.unplanned for load in loads),
            planned=starts,
            peak_at=peak_at,
            target_wait=target_wait,
            horizon=horizon,
            daemons=daemons,
            busy=busy,
            left_out=left_out,
            held=sum(job.held for job in jobs),
        ),
        due=due,
        oldest_age=None if oldest is None else max(0.0, (work.at - oldest).total_seconds()),
        arrival_rate=rate,
        finish_rate=math.fsum(job.finish_rate for job in jobs),
        mean_duration=mean,
        agents=len(agents),
        slots_busy=busy,
        slots_free=sum(agent.slots for agent in agents) - busy,
        planned_starts=starts,
        planned_peak=round(found.planned, 3),
        planned_peak_at=peak_at,
        counted_at=work.counted_at,
        is_estimated=work.is_estimated,
    )


def _mean(jobs: Sequence[JobWork]) -> float | None:
    """Of all attempts of these jobs; each counts as often as it ran of late, and once if it has not."""
    known = [(job.duration, max(1, job.attempts)) for job in jobs if job.duration is not None]
    total = sum(attempts for _, attempts in known)
    return math.fsum(duration * attempts for duration, attempts in known) / total if total else None


def _load(job: JobWork, otherwise: float) -> Load:
    duration = job.known_duration(otherwise)
    return Load(
        rate=job.rate,
        unplanned=job.unplanned,
        due=job.due,
        running=job.running,
        duration=duration,
        most=job.most,
        planned=[Runs(starts, min(duration, longest)) for longest, starts in job.planned.items()],
        delayed=job.delayed,
    )
