"""Daemons: when a replica whose attempt has ended runs again, and on which agent.

A replica never ends by itself: another attempt follows each one, after a backoff that grows while attempts are short.
An attempt that was stopped through no fault of the replica does not count.
Next: store/daemons/daemons.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mainspring.errors import ValidationError
from mainspring.model.messages import Ending
from mainspring.model.placement.placement import Requirements, fits
from mainspring.model.schedules.schedules import Policies
from mainspring.model.tasks.waits import Known

MOST = 30_000  # of a count: a smallint holds it
PATIENCE = 2.0  # seconds that a replica waits for an agent of another server with fewer replicas: two of its rounds

_FREE = ("shutdown", "restarted", "lease_over")  # stopped from outside
_GONE = ("lost", "quarantined")  # its agent died or could not renew its lease


def limits_of_a_daemon(job: str) -> ValidationError:
    return ValidationError(
        f"daemon: job {job!r} has limits (max_running, concurrency_key or rate), which a daemon cannot have; "
        "`replicas` says how many of it run",
        field="daemon",
    )


def chunks_of_a_daemon(job: str) -> ValidationError:
    return ValidationError(
        f"daemon: job {job!r} takes chunks of tasks, and a replica is one task that never ends; use a job without it",
        field="daemon",
    )


def check_can_stay_up(job: str, kind: str, *, broadcast: bool, limited: bool = False, chunked: bool = False) -> None:
    """Refuse a job that ends by itself, or whose agents cannot be chosen one by one."""
    if limited:
        raise limits_of_a_daemon(job)
    if chunked:
        raise chunks_of_a_daemon(job)
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
    """The next attempt of a replica starts after `delay` seconds; the counts are of attempts in a row."""

    delay: float
    failures: int  # short attempts
    crashes: int  # attempts whose agent was lost


def next_life(ending: Ending, failures: int, crashes: int, policies: Policies, random: float) -> Next:
    """What follows an attempt of a replica, after so many short attempts and lost agents in a row."""
    if ending.started_at and ending.finished_at - ending.started_at >= policies.stable:
        failures = crashes = 0
    if ending.code in _FREE:
        return Next(0.0, failures, crashes)
    if ending.code in _GONE:
        # Starts are recorded with a small delay, so the first loss counts in any case: see `verdict.after_crash`.
        if ending.started_at or not crashes:
            crashes = min(crashes + 1, MOST)
        return Next(_backoff(crashes - 1, policies, random), failures, crashes)
    if ending.snooze is not None:
        return Next(ending.snooze, failures, crashes)
    failures = min(failures + 1, MOST)
    delay = _backoff(failures, policies, random) if ending.retry_after is None else ending.retry_after
    return Next(delay, failures, crashes)


def _backoff(count: int, policies: Policies, random: float) -> float:
    """Seconds to wait, half of them fixed and half random; 0 for a count of 0."""
    if count <= 0:
        return 0.0
    wait = min(policies.restart_delay * 2.0 ** min(count - 1, 60), policies.max_restart_delay)
    return wait * (0.5 + random / 2)


class Unplaced(NamedTuple):
    """A replica that has been due for `overdue` seconds."""

    task: int
    schedule: int
    requirements: Requirements
    overdue: float
    full: frozenset[int] = frozenset()  # sessions with free slots, but without the amounts that it needs


def place(
    waiting: Sequence[Unplaced],
    room: Mapping[int, int],
    agents: Sequence[Known],
    replicas: Mapping[tuple[int, int], int],
) -> dict[int, int]:
    """The session for each replica, by task: of those with room, the one with the fewest replicas of its schedule.

    `room` has the free slots of this server's sessions, `agents` are all live ones of all servers, `replicas` is
    how many replicas of a schedule a session holds. A session of another server with fewer gets a moment to claim it.
    """
    free = dict(room)
    has = Counter(replicas)
    placed: dict[int, int] = {}
    for replica in waiting:
        fitting = [a.session for a in agents if not a.draining and fits(replica.requirements, a.labels, a.offers)]
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
