"""Failing: the jobs whose last task failed, since when, with what, and what their last tasks came to.

Next: store/figures/streaks.py
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from mainspring.errors import JobNotFound
from mainspring.model.access.actors import Actor
from mainspring.model.words.globs import covering
from mainspring.model.words.headlines import headline
from mainspring.operations import pages
from mainspring.operations.work import tasks
from mainspring.store.figures import streaks
from mainspring.store.postgres.connection import Connection
from mainspring.store.views.task_views import TaskSummary

MOST = 50  # jobs
WITHIN = timedelta(days=1)
RUNS = 12  # of one job that are shown
SEARCHED = 200  # tasks of all of them
WHOLE = 20  # of those with their errors
LINE = 300  # characters of an error


class LastRun(msgspec.Struct, frozen=True):
    id: int
    state: str
    finished_at: datetime | None


class FailingJob(msgspec.Struct, frozen=True):
    """No task of it has succeeded since `since`."""

    job: str
    since: datetime | None  # the first failure, by the minute or the hour in which it was recorded
    failures: int
    task_id: int | None  # the last that failed, if a short search found it
    error_code: str | None
    error: str | None  # in one line
    last: list[LastRun]  # the latest tasks, in order; as far as a short search got


async def failing(conn: Connection, actor: Actor, *, limit: int = 20) -> list[FailingJob]:
    """Jobs that failed within a day and have not succeeded since, the newest failures first.

    In the same time whatever is stored: the counts are figures, and the search for their last tasks is a short one.
    """
    pages.check_limit(limit, most=MOST)
    found = [one for one in await streaks.of_late(conn, covering(actor.jobs), WITHIN) if actor.reaches(one.job)]
    found.sort(key=lambda one: (-(one.since.timestamp() if one.since else 0.0), one.job))
    found = found[:limit]
    if not found:
        return []
    names = [one.job for one in found]
    try:
        recent = (await tasks.listing(conn, actor, job=names, limit=SEARCHED)).items
        failed = (await tasks.listing(conn, actor, job=names, state=_FAILED, fields="all", limit=WHOLE)).items
    except JobNotFound:  # deleted since
        recent, failed = [], []
    return [_view(one, recent, failed) for one in found]


_FAILED = ("failed", "timed_out", "lost")


def _view(one: streaks.Streak, recent: list[TaskSummary], failed: list[TaskSummary]) -> FailingJob:
    last = [LastRun(task.id, task.state, task.finished_at) for task in recent if task.job == one.job][:RUNS]
    of_it = next((task for task in failed if task.job == one.job), None)
    if of_it is None:
        of_it = next((task for task in recent if task.job == one.job and task.state in _FAILED), None)
    return FailingJob(
        one.job,
        one.since,
        one.failures,
        None if of_it is None else of_it.id,
        None if of_it is None else of_it.error_code,
        None if of_it is None else _line(of_it.error),
        last[::-1],
    )


def _line(error: object) -> str | None:
    return (headline(error)[:LINE] or None) if isinstance(error, str) else None
