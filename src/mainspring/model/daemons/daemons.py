"""Daemons: when a replica that has ended runs again, and on which agent it goes.

Pure. A replica never ends by itself: whatever its attempt came to, another follows, after a wait that grows while its
lives are short. What is no fault of its own costs nothing.
Next: store/daemons/replicas.py, server/dispatch/daemons.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mainspring.errors import ValidationError
from mainspring.model.messages import Ending
from mainspring.model.placement.placement import Requirements, fits
from mainspring.model.schedules.schedules import Policies

MOST = 30_000  # that is counted: a smallint holds it
PATIENCE = 2.0  # seconds that a replica waits for an agent that has fewer of its kind: each keeper looks twice by then

_FREE = ("shutdown", "restarted", "lease_over")  # somebody else's wish
_GONE = ("lost", "quarantined")  # its agent went, or could not renew its lease


def limits_of_a_daemon(job: str) -> ValidationError:
    return ValidationError(
        f"daemon: job {job!r} has limits (max_running, concurrency_key or rate), which a daemon cannot have; "
        "`replicas` says how many of it run",
        field="daemon",
    )


def check_can_stay_up(job: str, kind: str, *, broadcast: bool, limited: bool = False) -> None:
    """A daemon is a process or a handler that goes on, on an agent that is chosen for it."""
    if limited:
        raise limits_of_a_daemon(job)
    if broadcast:
        raise ValidationError(
            f"daemon: job {job!r} is a broadcast, which runs on every agent once; use a job without it", field="daemon"
        )
    if kind == "http":
        raise ValidationError(
            f"daemon: job {job!r} is an HTTP call, which ends; commands and handlers can be kept running, "
            "and `every` repeats a call",
            field="daemon",
        )


class Next(NamedTuple):
    """The next life of a replica begins after `delay` seconds; the rest is what is remembered of those before."""

    delay: float
    failures: int
    crashes: int


def next_life(ending: Ending, failures: int, crashes: int, policies: Policies, random: float) -> Next:
    """What follows an attempt of a daemon, with so many short lives and lost agents in a row before it."""
    if ending.started_at and ending.finished_at - ending.started_at >= policies.stable:
        failures = crashes = 0
    if ending.code in _FREE:
        return Next(0.0, failures, crashes)
    if ending.code in _GONE:
        # Starts are recorded with a small delay, so the first loss counts in any case: see verdict.after_crash.
        if ending.started_at or not crashes:
            crashes = min(crashes + 1, MOST)
        return Next(_backoff(crashes - 1, policies, random), failures, crashes)
    if ending.snooze is not None:
        return Next(ending.snooze, failures, crashes)
    failures = min(failures + 1, MOST)
    delay = _backoff(failures, policies, random) if ending.retry_after is None else ending.retry_after
    return Next(delay, failures, crashes)


def _backoff(count: int, policies: Policies, random: float) -> float:
    """Seconds; none for the zeroth. Half of the wait is certain, half is spread."""
    if count <= 0:
        return 0.0
    wait = min(policies.restart_delay * 2.0 ** min(count - 1, 60), policies.max_restart_delay)
    return wait * (0.5 + random / 2)


class Waiting(NamedTuple):
    """A replica that is due, and for how many seconds it has been."""

    task: int
    schedule: int
    requirements: Requirements
    overdue: float
    full: frozenset[int] = frozenset()  # sessions that have not what it needs left, though room for others


class Able(NamedTuple):
    """What an agent has and offers."""

    labels: Mapping[str, str]
    offers: Mapping[str, float]


def place(
    waiting: Sequence[Waiting],
    room: Mapping[int, int],
    sessions: Mapping[int, Able],
    replicas: Mapping[tuple[int, int], int],
) -> dict[int, int]:
    """The sessions that replicas go to, by task: of those with room, the one with the fewest of its kind.

    `room` has the free places of the sessions here, `sessions` are all that live anywhere, `replicas` tells how
    many of a schedule a session has. A session elsewhere that has fewer is given a moment to take the replica.
    """
    free = dict(room)
    has = Counter(replicas)
    placed: dict[int, int] = {}
    for replica in waiting:
        fitting = [session for session, its in sessions.items() if fits(replica.requirements, its.labels, its.offers)]
        here = [session for session in fitting if free.get(session, 0) > 0 and session not in replica.full]
        if not here:
            continue
        best = min(here, key=lambda session: (has[replica.schedule, session], -free[session], session))
        fewest = min(has[replica.schedule, session] for session in fitting)
        if has[replica.schedule, best] > fewest and replica.overdue < PATIENCE:
            continue
        placed[replica.task] = best
        has[replica.schedule, best] += 1
        free[best] -= 1
    return placed
